"""What pipeline ``gluon_bands`` compiles and launches (kernels/gluon_bands.py)."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
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
from tilewright.ops.conv.pipelines.bands import (
    STRIP,
    images,
    registers,
    shared_memory,
    strips,
    taps,
)
from tilewright.ops.conv.pipelines.boxed import dense
from tilewright.ops.conv.pipelines.boxed_launch import view
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import MAIN, Argument, Descriptor, KernelSource, Pointer, Scalar, Step

MOST_SEGMENTS = 64
"""Strips that the height is cut into, at most."""

STRIP_ROWS = 2
"""What a strip costs beside its rows, in rows: a guess."""

OTHER_REGISTERS = 40
"""Of a thread, beside those that `registers` counts: as compiled, 27 to 76."""

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


@dataclass(frozen=True, slots=True)
class Cut:
    """How the pixels are cut. slabs, tiles_w, sets: that cover the channels, the width and the
    images. rows: of a strip. segments: strips that cover the height. programs: for each slab."""

    slabs: int
    tiles_w: int
    sets: int
    rows: int
    segments: int
    programs: int

    @property
    def each(self) -> int:
        """Strips of a slab."""
        return self.tiles_w * self.sets * self.segments


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
    """The cut with which the busiest workgroup walks the fewest rows; of equals the highest
    strips."""
    height, width = _walked(p)
    slabs, tiles_w = cdiv(p.c, c.tile_n), cdiv(width, strips(c) * STRIP)
    sets = cdiv(p.n, images(c))
    most = max(1, device.compute_units * resident(c, arch_called(device.arch)) // slabs)
    found = None
    for segments in range(1, min(height, MOST_SEGMENTS) + 1):
        rows = cdiv(height, segments)
        if cdiv(height, rows) != segments:
            continue
        each = tiles_w * sets * segments
        cost = cdiv(each, most) * (rows + taps(c)[0] - 1 + STRIP_ROWS)
        if found is None or cost < found[0]:
            found = cost, Cut(slabs, tiles_w, sets, rows, segments, min(most, each))
    assert found is not None
    return found[1]


def all_tiles(c: ConvConfig, p: ConvProblem) -> int:
    """Rows of strips of all slabs, without those that segments share."""
    height, width = _walked(p)
    across = cdiv(width, strips(c) * STRIP) * cdiv(p.n, images(c))
    return cdiv(p.c, c.tile_n) * across * height


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
    arguments: list[Argument] = [_described(p, read, row), _described(p, read, edge)]
    if p.direction == "weights":
        arguments += [_described(p, "y", row), Pointer(PARTIALS)]
        arguments += [Scalar("i32", p.c), Scalar("i32", dim_h.out)]
    else:
        arguments.append(_described(p, p.output_name, row))
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


def _described(p: ConvProblem, name: str, block: tuple[int, ...]) -> Descriptor:
    """The tensor map of x or y as [height, width, image, channel]."""
    (count, channels, *spatial), (outer, _, *strides) = p.shape_of(name), dense(p, name)
    shape, along = (*spatial, count, channels), (*strides, outer, 1)
    return Descriptor(name, p.dtype_of(name), shape, along, block, 0)
