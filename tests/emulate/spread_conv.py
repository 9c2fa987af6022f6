"""Convolution's axes of the spread, and the problems that a kernel is executed on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from spread import Axes, Values

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument
from tilewright.ops.conv import FAMILY, ConvConfig, ConvProblem, pipelines
from tilewright.ops.conv.config import ALIGNMENTS, GEMM, SCHEDULERS, SHARING, VENDOR
from tilewright.ops.conv.pipelines.askew import PIPELINE as ASKEW
from tilewright.ops.conv.pipelines.direct import PIPELINE as DIRECT
from tilewright.ops.conv.pipelines.planes import PIPELINE as PLANES
from tilewright.ops.conv.pipelines.stream import PIPELINE as STREAM
from tilewright.ops.conv.pipelines.window import PIPELINE as WINDOW
from tilewright.ops.conv.problem import DIRECTIONS, DTYPES_OF, outputs
from tilewright.ops.conv.stated import first_strides
from tilewright.ops.gemm.config import REDUCTIONS

TILES: tuple[dict[str, int], ...] = (
    {"tile_m": 32, "tile_n": 16, "tile_k": 32, "num_warps": 4, "num_stages": 1},
    {"tile_m": 16, "tile_n": 16, "tile_k": 16, "num_warps": 4, "num_stages": 1},
    {"tile_m": 8, "tile_n": 16, "tile_k": 1, "num_warps": 4, "num_stages": 1, "group_m": 1},
    {"tile_m": 16, "tile_n": 16, "tile_k": 4, "num_warps": 4, "num_stages": 1, "group_m": 1,
     "held": "3x2s1x1"},
    {"tile_m": 32, "tile_n": 16, "tile_k": 32, "num_warps": 4, "num_stages": 1,
     "direction": "data", "alignment_out": 2},
    {"tile_m": 64, "tile_n": 1, "tile_k": 1, "num_warps": 1, "num_stages": 1, "group_m": 1,
     "alignment": 1, "alignment_out": 1, "spatial_dims": 2, "box": "1x1x2"},
    {"tile_m": 32, "tile_n": 16, "tile_k": 32, "num_warps": 4, "num_stages": 1,
     "direction": "data", "spread": 2},
    {"tile_m": 32, "tile_n": 16, "tile_k": 16, "num_warps": 4, "num_stages": 1, "group_m": 1},
    {"tile_m": 16, "tile_n": 16, "tile_k": 32, "num_warps": 4, "num_stages": 1, "group_m": 1,
     "alignment": 1, "alignment_out": 1, "spatial_dims": 2},
)  # fmt: skip

HELD: dict[str, dict[str, Any]] = {
    "filter": {"held": "3x2s1x1", "spatial_dims": 2, "tile_k": 4},
    "strides": {"held": "2x3s2x2", "spatial_dims": 2, "tile_k": 4},
    "row": {"held": "3s1", "spatial_dims": 2, "tile_k": 1},
    "line": {"held": "4s1", "spatial_dims": 1, "tile_k": 4},
    "depth": {"held": "2x2x2s1x1", "spatial_dims": 3, "tile_k": 4},
}
"""What windows hold."""

EPILOGUES = ("", "bias+relu", "scale+col_scale+bias+silu", "add+clamp", "gelu")

SIZES = {1: ((13,), (3,)), 2: ((5, 6), (3, 2)), 3: ((3, 4, 3), (2, 1, 3))}
"""By the number of dimensions: pixels and taps."""
WIDE = (8, 5)
"""Pixels and taps of a line that is packed: so many taps fill a step of 32."""


def axes(arch: Arch) -> Axes:
    """Convolution's axes on an architecture."""
    each: dict[str, Values] = {
        "dtypes": {f"{d}→{o}": {"dtype": d, "dtype_out": o} for d, o in _signatures(arch)},
        "direction": {
            direction: {
                "direction": direction,
                "epilogue": "",
                "scheduler": "tile",
                "reduction": "",
            }
            for direction in DIRECTIONS
        },
        "parts": {
            f"{scheduler} {reduction}".strip(): {
                "direction": "weights",
                "epilogue": "",
                "scheduler": scheduler,
                "reduction": reduction,
            }
            for scheduler in SCHEDULERS
            for reduction in (REDUCTIONS[1:] if scheduler in SHARING else ("",))
        },
        **{
            axis: {str(value): {axis: value} for value in values}
            for axis, values in (
                ("spatial_dims", (1, 2, 3)),
                ("merged", (False, True)),
                ("epilogue", EPILOGUES),
                ("alignment", ALIGNMENTS),
                ("alignment_out", ALIGNMENTS),
                ("index_bits", (32, 64)),
                ("num_warps", (4, 8, 2, 1)),
                ("num_stages", (1, 2)),
                ("tile_m", (16, 32)),
                ("tile_n", (16, 32)),
            )
        },
    }
    each["held"] = {"": {"held": ""}, **HELD}
    each["held"] |= {f"{word} of 3": {**HELD[word], "spread": 3} for word in ("filter", "row")}
    summed = {"scheduler": "split", "reduction": "two_stage", "epilogue": ""}
    each["spread"] = {
        str(n): {"spread": n, **({"direction": "weights", **summed} if n else {})} for n in (0, 32)
    }
    each["spread"] |= {
        f"{n} {direction}": {
            "spread": n, "direction": direction, "epilogue": "", "scheduler": "tile",
            "reduction": "",
        }
        for n, direction in ((2, "data"), (4, "forward"))
    }  # fmt: skip
    problems = {
        "padded": partial(_problem, pad=1),
        "strided": partial(_problem, pad=1, stride=2, dilation=2),
        "cropped": partial(_problem, pad=-1),
        "groups": partial(_problem, pad=1, groups=2),
        "channels first": partial(_problem, pad=1, first=True),
        "no images": partial(_problem, n=0),
    }
    # GEMM has a spread of its own, and no library is emulated.
    own = [name for name in FAMILY.pipelines(arch) if name not in (GEMM, VENDOR)]
    return Axes(FAMILY, own, "dtypes", each, {}, TILES, problems, {})


def _signatures(arch: Arch) -> list[tuple[str, str]]:
    """Dtypes of what is read and made, the usual ones first."""
    known = [d for d in DTYPES_OF if d in arch.dtypes and arch.dtypes[d].support == "native"]
    return [(d, outputs(d, "")[0]) for d in known] + [("bf16", "fp32")]


def _problem(
    config: ConvConfig,
    n: int = 2,
    pad: int = 0,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    first: bool = False,
) -> ConvProblem:
    """Few pixels, and channels of which nothing is a multiple but the alignment."""
    c = config
    unit = max(
        1, c.alignment // DTYPES[c.dtype].bytes, c.alignment_out // DTYPES[c.dtype_out].bytes
    )
    channels = 3 * unit
    filters = max(1, c.spread) if c.pipeline == WINDOW else 1
    depthwise = c.pipeline == PLANES or (c.pipeline != GEMM and pipelines.has(c, "depthwise"))
    if depthwise:
        if groups > 1:
            raise BadArgument("a depthwise problem has as many groups as channels")
        groups = 1
    spatial, taps = SIZES[c.spatial_dims]
    rank = len(spatial)
    steps, apart = (stride,) * rank, (dilation,) * rank
    read = channels
    if c.pipeline == "packed":
        if groups > 1:
            raise BadArgument("images of few channels are packed, not groups")
        spatial, taps = (*spatial[:-1], WIDE[0]), (*taps[:-1], WIDE[1])
        apart = (*apart[:-1], 1)
        read = 3 if c.alignment <= 4 * DTYPES[c.dtype].bytes else 7
    if c.pipeline == "subpixel":
        if groups > 1:
            raise BadArgument("images of few channels have blocks, not groups")
        read = 1 if c.tile_n == 16 else 3 if stride > 1 else 7  # a block has so many columns
    if c.pipeline == "in_place":
        if groups > 1:
            raise BadArgument("patches of groups are not one row")
        taps = steps = (*(2,) * (rank - 1), c.spread)
        spatial, apart, pad, first = (*(6,) * (rank - 1), 8 * c.spread), (1,) * rank, 0, True
    if c.pipeline == ASKEW:  # filters of 1, whose rows are whole
        taps, pad, steps, apart = (1,) * rank, 0, (1,) * rank, (1,) * rank
        read, channels = 8 * unit, 5
        lines = max(1, unit if c.direction != "weights" else c.alignment // DTYPES[c.dtype].bytes)
        spatial = (*spatial[:-1], spatial[-1] * lines)
    if c.pipeline == STREAM:  # a filter of 1, and whole vectors of channels
        if stride > 1 or pad or first:
            raise BadArgument("a stream's result lies as its source does")
        taps, apart = (1,) * rank, (1,) * rank
        read = channels = 3 * c.tile_n
    if c.pipeline == PLANES:
        apart = (1,) * rank
        spatial, taps = (*(1,) * (rank - 2), *spatial[-2:]), (*(1,) * (rank - 2), *taps[-2:])
    if c.held:
        held, own = (tuple(map(int, part.split("x"))) for part in c.held.split("s"))
        taps = (*(2,) * (rank - len(held)), *held)
        steps, apart = (*steps[: rank - len(own)], *own), (1,) * rank
    said: dict[str, Any] = {
        "n": n, "c": read * groups, "k": channels * groups * filters, "spatial": spatial,
        "filter": taps, "groups": channels if depthwise else groups,
        "stride": steps, "dilation": apart, "pad": tuple(pad * between for between in apart),
        "direction": c.direction, "dtype": c.dtype, "dtype_out": c.dtype_out,
        "precision": c.precision, "epilogue": c.epilogue,
    }  # fmt: skip
    found = ConvProblem(**said)
    # Which read neighbouring pixels.
    first = first or c.pipeline in (DIRECT, ASKEW, PLANES)
    return replace(found, **first_strides(found)) if first else found
