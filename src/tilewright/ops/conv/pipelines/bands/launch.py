"""What pipeline ``gluon_bands`` compiles and launches (kernels/gluon_bands.py)."""

from __future__ import annotations

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import maps
from tilewright.ops.conv.arguments import (
    ARGUMENTS,
    CONSTANTS,
    PARTIALS,
    Context,
    Value,
    index_type,
    source_of,
)
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.maps import view
from tilewright.ops.conv.pipelines import cuts
from tilewright.ops.conv.pipelines.bands.shape import (
    STRIP,
    images,
    registers,
    shared_memory,
    strips,
    taps,
)
from tilewright.ops.conv.pipelines.cuts import Cut
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import MAIN, Argument, KernelSource, Pointer, Scalar, Step

STRIP_ROWS = 2
"""What a strip costs beside its rows, in rows: a guess."""

OTHER_REGISTERS = 40
"""Registers of a thread beside those that `registers` counts: as compiled, 27 to 76."""

_CUT = ("slabs", "tiles_w", "sets", "strips", "rows", "origin_h", "origin_w")


def _blocks(c: ConvConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What one copy moves of a row of strips, and of the pixels behind it."""
    return (1, strips(c) * STRIP, images(c), c.tile_n), (1, STRIP, images(c), c.tile_n)


def source(c: ConvConfig, arch: Arch) -> KernelSource:
    """What to compile for `c` on `arch`, but for the kernel that adds parts."""
    row, edge = _blocks(c)
    height, width = taps(c)
    weights = c.direction == "weights"
    signature = [("x", view(c.dtype, row)), ("edge", view(c.dtype, edge))]
    constants: dict[str, Value] = {
        "TAPS_H": height, "TAPS_W": width, "STRIPS": strips(c), "IMAGES": images(c),
        "SLAB": c.tile_n, "WARPS": c.num_warps, "STAGES": c.num_stages,
    }  # fmt: skip
    if weights:
        signature += [("y", view(c.dtype, row)), ("partials", "*fp32")]
        signature += [("channels", "i32"), ("height", "i32")]
    else:
        pointer = f"*{DTYPES[c.dtype].triton}"
        signature.append(("made", view(c.dtype_out, row)))
        signature += [(name, pointer) for name in ("source", "weights", "result")]
        for name in ("source_strides", "weight_strides", "result_strides"):
            signature += [(f"{name}.{i}", index_type(c)) for i in range(5)]
        signature += [("images", "i32"), ("channels", "i32")]
        signature += [(f"{name}.{i}", "i32") for name in ("sizes", "full_sizes") for i in range(2)]
        constants |= {name: CONSTANTS[name](c) for name in ("DATA", "LARGEST")}
    signature += [(name, "i32") for name in _CUT]
    return KernelSource(
        module="tilewright.ops.conv.kernels.gluon_bands",
        function="conv_gluon_bands_weights" if weights else "conv_gluon_bands",
        signature=(*signature, *((name, "constexpr") for name in constants)),
        constants=tuple(constants.items()),
        divisibility=(),
        options=(("num_warps", c.num_warps),),
        language="gluon",
    )


# --- what to launch ----------------------------------------------------------------------------


def _walked(p: ConvProblem) -> tuple[int, int]:
    """Height and width that are cut: of the result, or of dY."""
    _, height, width = p.three
    return (height.size, width.size) if p.direction == "data" else (height.out, width.out)


def resident(c: ConvConfig, arch: Arch) -> int:
    """Workgroups of a compute unit at once."""
    each = shared_memory(c) + arch.shared_memory_reserved
    file = arch.registers_per_lane * arch.simds_per_cu * arch.warp_size
    held = min(arch.max_registers, registers(c) + OTHER_REGISTERS) * c.num_warps * arch.warp_size
    return max(1, min(arch.shared_memory_per_cu // each, file // held))


def cut(c: ConvConfig, p: ConvProblem, device: Device) -> Cut:
    """How the pixels are cut."""
    height, width = _walked(p)
    slabs, tiles_w = cdiv(p.c, c.tile_n), cdiv(width, strips(c) * STRIP)
    most = max(1, device.compute_units * resident(c, arch_called(device.arch)) // slabs)
    beside = taps(c)[0] - 1 + STRIP_ROWS
    return cuts.best(slabs, tiles_w, cdiv(p.n, images(c)), height, most, lambda n: n + beside)


def all_tiles(c: ConvConfig, p: ConvProblem) -> int:
    """Rows of strips of all slabs, without those that segments share."""
    return cdiv(p.c, c.tile_n) * rows_of_slab(c, p)


def rows_of_slab(c: ConvConfig, p: ConvProblem) -> int:
    """Rows of strips of one slab, without those that segments share."""
    height, width = _walked(p)
    return cdiv(width, strips(c) * STRIP) * cdiv(p.n, images(c)) * height


def step(c: ConvConfig, p: ConvProblem, device: Device) -> Step:
    """The launch of `c` for `p` on `device`, but for the kernel that adds parts."""
    here = cut(c, p, device)
    row, edge = _blocks(c)
    context, (height, width) = Context(c, p), taps(c)
    _, dim_h, dim_w = p.three
    read = source_of(p.direction)
    origins = (-dim_h.pad, -dim_w.pad)
    if p.direction == "data":  # taps are walked in the reverse order
        origins = (dim_h.pad - (height - 1), dim_w.pad - (width - 1))
    arguments: list[Argument] = [maps.of_rows(p, read, row), maps.of_rows(p, read, edge)]
    if p.direction == "weights":
        arguments += [maps.of_rows(p, "y", row), Pointer(PARTIALS)]
        arguments += [Scalar("i32", p.c), Scalar("i32", dim_h.out)]
    else:
        arguments.append(maps.of_rows(p, p.output_name, row))
        arguments += [Pointer(read), Pointer("w"), Pointer(p.output_name)]
        for name in ("source_strides", "weight_strides", "made_strides"):
            arguments += ARGUMENTS[name].values(context)
        sizes = [(dim.size, dim.out) for dim in (dim_h, dim_w)]
        if p.direction == "data":
            sizes = [(made, of) for of, made in sizes]
        numbers = (p.n, p.c, *(one for one, _ in sizes), *(one for _, one in sizes))
        arguments += [Scalar("i32", number) for number in numbers]
    numbers = (here.slabs, here.tiles_w, here.sets, here.each, here.rows, *origins)
    arguments += [Scalar("i32", number) for number in numbers]
    return Step((here.slabs * here.programs, 1, 1), tuple(arguments), MAIN)
