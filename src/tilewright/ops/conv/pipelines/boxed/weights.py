"""What pipeline ``gluon_ws`` compiles and launches for the gradient of the weights
(kernels/gluon_weights.py), and how many parts its pixels are in."""

from __future__ import annotations

import math

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import boxes, maps
from tilewright.ops.conv.arguments import ARGUMENTS, PARTIALS, Context, Value
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.maps import view
from tilewright.ops.conv.pipelines.boxed.shape import groups, piece, rows, stored
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.device import widths
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.nouns import MAIN, Argument, Descriptor, KernelSource, Scalar, Step

MOST_SPLITS = 64

MEMORY_OVER_L2 = 3.0
"""How much longer a byte of parts takes than one that a step reads from L2: a guess."""


def tiles(c: ConvConfig, p: ConvProblem) -> int:
    """Tiles of the gradient."""
    return _tiles_m(c, p) * _tiles_n(c, p)


def _tiles_m(c: ConvConfig, p: ConvProblem) -> int:
    return -(-p.k // c.tile_m)


def _tiles_n(c: ConvConfig, p: ConvProblem) -> int:
    if c.spread:
        return -(-p.taps * tap_boxes(c, p) // (c.tile_n // c.spread))
    return -(-p.c // c.tile_n) * p.taps


def tap_boxes(c: ConvConfig, p: ConvProblem) -> int:
    """Boxes of a tap's channels, where a tile's are of several taps; else 1."""
    return -(-p.c // c.spread) if c.spread else 1


def steps_of(c: ConvConfig, p: ConvProblem) -> int:
    """Boxes of y."""
    return math.prod(boxes.counts(c.box, p, boxes.walks(p, (0, 0, 0))))


def splits(c: ConvConfig, p: ConvProblem, units: int) -> int:
    """Parts of the pixels: those with which the busiest of `units` compute units has the fewest
    steps, the sum of parts counted as steps too."""
    count, every = tiles(c, p), steps_of(c, p)
    step_bytes = (c.tile_m + c.tile_n) * c.tile_k * DTYPES[c.dtype].bytes
    part = MEMORY_OVER_L2 * 8 * math.prod(p.shape_of("w")) / units / step_bytes

    def cost(number: int) -> float:
        return -(-count * number // units) * -(-every // number) + part * number

    most = min(MOST_SPLITS, every, 2**31 // max(1, every))  # parts times boxes count in 32 bits
    return min(range(1, max(1, most) + 1), key=cost)


def source(c: ConvConfig, arch: Arch) -> KernelSource:
    """What to compile for `c` on `arch`."""
    box = boxes.sizes(c.box)
    types = ARGUMENTS["meeting"].types(c)
    meeting = [(f"meeting.{i}", kind) for i, kind in enumerate(types)] or [("meeting", "()")]
    rest = [
        (f"x_rest.{i}", view(c.dtype, (*box, columns)))
        for i, columns in enumerate(x_columns(c)[1:])
    ]
    signature = [
        ("x", view(c.dtype, (*box, x_columns(c)[0]))),
        ("y", view(c.dtype, (*box, rows(c)))),
        ("made", view(stored(c), _made_block(c))),
        *(rest or [("x_rest", "()")]),
        *meeting,
        *((name, "i32") for name in ("tiles_m", "tiles_n", "all_boxes")),
    ]
    for name in ("boxes", "taps", "origin", "by_tap", "by_pixel"):
        signature += [(f"{name}.{i}", "i32") for i in range(3)]
    signature += [(name, "i32") for name in ("splits", "filters", "tap_boxes")]
    n, d, h, w = boxes.in_three(c.box)
    constants: dict[str, Value] = {
        "TILE_M": c.tile_m, "TILE_N": c.tile_n, "TILE_K": c.tile_k, "GROUP_M": c.group_m,
        "BOX_N": n, "BOX_D": d, "BOX_H": h, "BOX_W": w, "NDIM": c.spatial_dims,
        "STAGES": c.num_stages, "GROUPS": groups(c), "SPREAD": c.spread, "TWO_STAGE": c.two_stage,
        "SCHEDULER": c.scheduler, "REDUCTION": c.reduction,
    }  # fmt: skip
    return KernelSource(
        module="tilewright.ops.conv.kernels.gluon_weights",
        function="conv_gluon_weights",
        signature=(*signature, *((name, "constexpr") for name in constants)),
        constants=tuple(constants.items()),
        divisibility=(("meeting.0", 16), ("meeting.1", 16)) if c.parts_meet else (),
        options=warpgroups.options_of(c.num_warps),
        language="gluon",
    )


def x_columns(c: ConvConfig) -> list[int]:
    """Channels that one copy brings of x, for each accumulator of a tile."""
    return [min(part, c.spread or part) for part in widths.parts(c.tile_n)]


def _made_block(c: ConvConfig) -> tuple[int, ...]:
    """What one copy moves of a result of [parts, filters, taps, channels]."""
    return (1, rows(c), 1, piece(c))


def step(c: ConvConfig, p: ConvProblem, device: Device, parts: int, streams: int) -> Step:
    """The launch of `c` for `p` on `device`, but for the second kernel.

    parts: `sharing.splits`. streams: workgroups under stream-K.
    """
    of = boxes.walks(p, (0, 0, 0))
    box = boxes.sizes(c.box)
    one_of_x = [
        maps.of_images(p, "x", (*box, columns), steps=tuple(w.by_pixel for w in of))
        for columns in x_columns(c)
    ]
    arguments: list[Argument] = [
        one_of_x[0],
        maps.of_images(p, "y", (*box, rows(c))),
        _made(c, p, parts if c.two_stage else 1),
        *one_of_x[1:],
        *ARGUMENTS["meeting"].values(Context(c, p)),
    ]
    numbers = [_tiles_m(c, p), _tiles_n(c, p), steps_of(c, p), *boxes.counts(c.box, p, of)[1:]]
    numbers += [w.count for w in of] + [w.origin for w in of]
    numbers += [w.by_tap for w in of] + [w.by_pixel for w in of]
    arguments += [Scalar("i32", number) for number in (*numbers, parts, p.k, tap_boxes(c, p))]
    programs = min(tiles(c, p) * parts, device.compute_units)
    if c.scheduler == "stream_k":
        programs = streams
    return Step((programs, 1, 1), tuple(arguments), MAIN)


def _made(c: ConvConfig, p: ConvProblem, parts: int) -> Descriptor:
    shape = (parts, p.k, p.taps, p.c)
    if c.two_stage:
        strides = (p.k * p.taps * p.c, p.taps * p.c, p.c, 1)
        return Descriptor(PARTIALS, "fp32", shape, strides, _made_block(c))
    outer, _, *taps = maps.dense(p, "w")
    return Descriptor("w", c.dtype_out, shape, (outer * p.k, outer, taps[-1], 1), _made_block(c))
