"""Pipeline ``planes``: depthwise filters over small channels-first images, on the matrix units: a
channel's filter is a matrix of what joins some rows of the result and the window that they see
(kernels/planes.py)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Catalogue, Context, Numbers, Part
from tilewright.ops.conv import planes, sharing
from tilewright.ops.conv.catalogue import FEW_SUM, SUMS, integer
from tilewright.ops.conv.config import SHARING, ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import pointers
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.division import dividing
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Each, Objections, because, each
from tilewright.ops.powers import power_of_two

PIPELINE = "planes"
DTYPES_OF = ("bf16", "fp16")
"""In which matrix units multiply exactly what is read."""

# --- kernels ------------------------------------------------------------------------------------


def _parts(c: ConvConfig, p: ConvProblem) -> planes.Parts:
    found = planes.parts(p, c.tile_n, c.tile_k)
    assert found is not None
    return found


def _number(field: str) -> Numbers:
    return Numbers("i32", lambda x: getattr(_parts(x.config, x.problem), field))


def _three(field: str) -> Numbers:
    return Numbers(("i32",) * 3, lambda x: getattr(_parts(x.config, x.problem), field))


def _chunks(c: ConvConfig, p: ConvProblem) -> int:
    found = planes.parts(p, c.tile_n, c.tile_k)
    return found.chunks if found else 1


def _steps(c: Any, p: ConvProblem) -> Each:
    """Tiles of a channel."""
    return each(c, _chunks, p) * cdiv(p.n, c.tile_m)


def _each(c: Any, p: ConvProblem, device: Device) -> Each:
    """Tiles that a workgroup makes of a channel: as many as leave each compute unit some."""
    import numpy as np

    steps = _steps(c, p)
    return np.maximum(1, np.minimum(steps, p.c * steps // (WORKGROUPS * device.compute_units)))


WORKGROUPS = 4
"""For each compute unit."""


def _grid(x: Context) -> int:
    if x.config.direction == "weights":
        return pointers.workgroups(x)
    return int(x.problem.c * cdiv(_steps(x.config, x.problem), _one(x)))


def _one(x: Context) -> int:
    return int(_each(x.config, x.problem, x.device))


def _widths(p: ConvProblem) -> tuple[int, ...]:
    """Widths of lines of the source and of the result, and the numbers that divide by either."""
    (_, source), (_, made) = planes.sizes(p)
    return source, made, *dividing(source), *dividing(made)


_OWN: Catalogue = {
    "chunks": _number("chunks"),
    "first": _number("first"),
    "apart": _number("apart"),
    "window": _number("window"),
    "rows": _number("rows"),
    "down": _three("down"),
    "along": _three("along"),
    "each": Numbers("i32", _one),
    "pixels": integer(lambda p: planes.pixels(p)[0]),
    "full": integer(lambda p: planes.pixels(p)[1]),
    "widths": Numbers(("i32",) * 6, lambda x: _widths(x.problem)),
    "taps": Numbers(("i32",) * 2, lambda x: tuple(d.filter for d in x.problem.three[1:])),
}


def _kernel(function: str, **said: Any) -> Part:
    return replace(pointers.kernel("planes", function, own={**_OWN, **said}), grid=_grid)


_MADE = _kernel("conv_planes")
_WEIGHTS = _kernel("conv_planes_weights", **SUMS)


def _tiles(c: Any, p: ConvProblem) -> Each:
    if p.direction == "weights":
        return p.c + 0 * c.tile_m
    return p.c * _steps(c, p)


# --- rules --------------------------------------------------------------------------------------


def _objection(c: ConvConfig, arch: Arch) -> str | None:
    if c.dtype not in DTYPES_OF:
        return f"pipeline {PIPELINE} multiplies {' and '.join(DTYPES_OF)}, not {c.dtype}"
    if c.merged or c.runs or c.group_m != 1:
        return f"pipeline {PIPELINE} has steps of whole windows, and walks tiles in one order"
    if (c.alignment, c.alignment_out) != (1, 1):
        return f"pipeline {PIPELINE} reads and writes element by element: alignments are 1"
    if c.scheduler in SHARING and not c.two_stage:
        return f"parts of the weights are added up by a second kernel, not by {c.reduction}"
    return pointers.objection(c, arch)


def _refusal(c: Any, p: ConvProblem) -> Objections:
    if (reason := planes.refusal(p)) is not None:
        yield True, because(reason)
        return
    said = "a line of the result and its window are over {c.tile_n} and {c.tile_k} elements"
    yield each(c, _too_small, p), said.format


def _too_small(c: ConvConfig, p: ConvProblem) -> bool:
    return planes.parts(p, c.tile_n, c.tile_k) is None


def _sums(c: ConvConfig) -> int:
    """Sums of a tile, or of the matrix that is the weights' gradient."""
    return (c.tile_k if c.direction == "weights" else c.tile_m) * c.tile_n


# --- the spaces ---------------------------------------------------------------------------------

MOST_MATRIX = 2**12
"""Elements of a channel's matrix in the spaces."""
_LINES = (16, 32, 64)
"""Lines of a tile, at most."""


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if planes.refusal(p) is not None or p.dtype not in DTYPES_OF:
        return
    if arch.dot == "vector" or arch.dtypes[p.dtype].via == "fma":
        return  # on vector units zeros take time
    made = power_of_two(planes.pixels(p)[1])
    found = dict[tuple[int, int], None]()
    for n in (16, 32, 64, 128):
        for k in (16, 32, 64, 128, 256):
            cut = planes.parts(p, n, k)
            if n <= max(16, made) and n * k <= MOST_MATRIX and cut is not None:
                n_, k_ = (max(16, power_of_two(size)) for size in (cut.rows, cut.window))
                found[n_, k_] = None
    for (n, k), lines, scheduler in itertools.product(
        found, _LINES, ("tile", "split") if p.direction == "weights" else ("tile",)
    ):
        yield (lines, n, k, 4, 1, PIPELINE, scheduler, 1, False, 1, 1)


# --- how long they take -------------------------------------------------------------------------

JOINED, LOADED, STORED, SUMMED = 22, 9, 10, 5
"""Instructions of a lane for each element of a matrix of taps, for each that is loaded and that is
stored, and for each element of a gradient's matrix and each tap. Counted in sm_90's code."""
TILE_INSTRUCTIONS, SUM_INSTRUCTIONS = 120, 60
"""Instructions of each thread beside them, for a tile, and for each tap of a gradient."""


def _estimates(x: Context) -> Estimates:
    import numpy as np

    c, p, device = x.config, x.problem, x.device
    this, size = arch_called(device.arch), DTYPES[p.dtype].bytes
    matrix, threads = c.tile_n * c.tile_k, c.num_warps * this.warp_size
    if p.direction == "weights":
        steps = np.maximum(1.0, x.case.steps / sharing.parts(x))
        loaded, stored = c.tile_m * (c.tile_k + c.tile_n), 0
        once = matrix * (JOINED + p.taps * SUMMED) + p.taps * threads * SUM_INSTRUCTIONS
        once = once / steps
    else:  # a workgroup writes the matrix once for its tiles
        steps, loaded, stored = 1.0, c.tile_m * c.tile_k, c.tile_m * c.tile_n
        once = matrix * JOINED / _each(c, p, device)
    instructions = once + loaded * LOADED + stored * STORED + threads * TILE_INSTRUCTIONS
    work = pointers.Work(
        steps=steps,
        read=loaded * size,
        # An element takes a lane as long as 4 bytes: loaded, and passed on; and what is multiplied.
        shared=(2 * loaded + stored) * 4 + 2 * (loaded + matrix) * size,
        products=physics.lanes_us(instructions, device) + each(c, _products, device),
        resident=each(c, _resident, this),
        neighbours=True,
        waits=DEVICE.LATENCY_US,
    )
    return pointers.estimates(x, work)


def _products(c: ConvConfig, device: Device) -> float:
    count = c.tile_m * c.tile_n * c.tile_k
    return 2 * count / (physics.matrix_rate(device, c.dtype) * DEVICE.BASIC)


def _resident(c: ConvConfig, this: Arch) -> int:
    return pointers.resident(c, this, _sums(c), _shared_memory(c, this))


def _shared_memory(c: ConvConfig, arch: Arch) -> int:
    """Both operands of a product, and sums on their way to memory."""
    elements = c.tile_m * (c.tile_k + c.tile_n) + c.tile_n * c.tile_k
    return elements * DTYPES[c.dtype].bytes


PLANES = Pipeline(
    name=PIPELINE,
    parts=pointers.either(_MADE, _WEIGHTS),
    totals=FEW_SUM,
    objection=_objection,
    refusal=_refusal,
    sums=_sums,
    shared_memory=_shared_memory,
    alignments=lambda p: (1, 1),
    tiles=_tiles,
    steps=_steps,
    splits=pointers.filling(_tiles, WORKGROUPS),
    rows=_rows,
    estimates=_estimates,
)
