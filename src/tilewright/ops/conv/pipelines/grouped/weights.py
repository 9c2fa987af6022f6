"""What pipeline ``gluon_grouped`` compiles and launches for the gradient of the weights
(kernels/gluon_grouped_weights.py). Its parts are added up by `weights.conv_few_totals`."""

from __future__ import annotations

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Device
from tilewright.ops.conv import boxes, maps
from tilewright.ops.conv.arguments import PARTIALS, Value
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.maps import view
from tilewright.ops.conv.pipelines.cuts import Cut
from tilewright.ops.conv.pipelines.grouped import launch
from tilewright.ops.conv.pipelines.grouped.launch import blocks, resident
from tilewright.ops.conv.pipelines.grouped.shape import columns, forward_stride, halo, taps
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import MAIN, Argument, KernelSource, Pointer, Scalar, Step

_NUMBERS = (
    "channels", "height", "width", "slabs", "tiles_w", "octets", "strips", "rows", "origin_h",
    "origin_w",
)  # fmt: skip


def source(c: ConvConfig) -> KernelSource:
    """What to compile for `c`."""
    row, edge = blocks(c, taps(c))
    signature = [
        ("x", view(c.dtype, row)),
        ("edge", view(c.dtype, edge)),
        ("y", view(c.dtype, row)),
    ]
    signature += [("made", "*fp32"), *((name, "i32") for name in _NUMBERS)]
    height, width = taps(c)
    constants: dict[str, Value] = {
        "COLS": columns(c), "HALO": halo(c, width), "STRIDE": forward_stride(c), "TAPS_H": height,
        "TAPS_W": width, "SLICE": c.tile_k, "MERGED": c.merged_groups, "STAGES": c.num_stages,
    }  # fmt: skip
    return KernelSource(
        module="tilewright.ops.conv.kernels.gluon_grouped_weights",
        function="conv_gluon_grouped_weights",
        signature=(*signature, *((name, "constexpr") for name in constants)),
        constants=tuple(constants.items()),
        divisibility=(("made", 16),),  # from an allocator
        options=(("num_warps", c.num_warps),),
        language="gluon",
    )


def cut(c: ConvConfig, p: ConvProblem, device: Device) -> Cut:
    """How y is cut. Its programs are the parts of the gradient."""
    at_once = resident(c, arch_called(device.arch))
    return launch.cut(c, p, boxes.walks(p, (0, 0, 0)), device.compute_units, at_once)


def step(c: ConvConfig, p: ConvProblem, device: Device) -> Step:
    """The launch of `c` for `p` on `device`, but for the second kernel."""
    into = cut(c, p, device)
    _, height, width = boxes.walks(p, (0, 0, 0))
    row, edge = blocks(c, taps(c))
    apart = forward_stride(c)
    numbers = (
        p.k, height.size, width.size, into.slabs, into.tiles_w, into.sets, into.each, into.rows,
        height.origin, width.origin,
    )  # fmt: skip
    arguments: list[Argument] = [
        maps.of_rows(p, "x", row, apart), maps.of_rows(p, "x", edge, apart),
        maps.of_rows(p, "y", row),
        Pointer(PARTIALS),
    ]  # fmt: skip
    arguments += [Scalar("i32", number) for number in numbers]
    return Step((into.slabs * into.programs, 1, 1), tuple(arguments), MAIN)
