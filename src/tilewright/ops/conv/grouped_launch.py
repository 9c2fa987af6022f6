"""What pipeline ``gluon_grouped`` compiles and launches (kernels/gluon_grouped.py)."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import boxes
from tilewright.ops.conv.arguments import ARGUMENTS, CONSTANTS, Context, Value, source_of
from tilewright.ops.conv.boxed import dense
from tilewright.ops.conv.boxed_launch import view
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.grouped import IMAGES, SLAB, columns, halo, shared_memory, taps
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.gemm import epilogues
from tilewright.ops.nouns import MAIN, Argument, Descriptor, KernelSource, Scalar, Step

_NUMBERS = (
    "images", "channels", "height", "width", "slabs", "tiles_w", "octets", "strips", "rows",
    "origin_h", "origin_w",
)  # fmt: skip


def _blocks(c: ConvConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What one copy moves of a row of a tile, and of the pixels behind it."""
    return (1, columns(c), IMAGES, SLAB), (1, max(1, halo(c)), IMAGES, SLAB)


def source(c: ConvConfig, arch: Arch) -> KernelSource:
    """What to compile for `c` on `arch`."""
    row, edge = _blocks(c)
    signature = [
        ("x", view(c.dtype, row)), ("edge", view(c.dtype, edge)), ("made", view(c.dtype_out, row)),
        ("weights", ARGUMENTS["weights"].types(c)[0]),
    ]  # fmt: skip
    extra = ARGUMENTS["extra"].types(c)
    signature += [(f"extra.{i}", kind) for i, kind in enumerate(extra)] or [("extra", "()")]
    for name in ("weight_strides", "made_strides"):
        signature += [(f"{name}.{i}", kind) for i, kind in enumerate(ARGUMENTS[name].types(c))]
    signature += [(name, "i32") for name in _NUMBERS]
    height, width = taps(c)
    constants: dict[str, Value] = {
        "COLS": columns(c), "HALO": halo(c), "TAPS_H": height, "TAPS_W": width, "SLICE": c.tile_k,
        "MERGED": c.merged_groups, "NDIM": c.spatial_dims, "DATA": c.direction == "data",
        "STAGES": c.num_stages,
    }  # fmt: skip
    constants |= {name: CONSTANTS[name](c) for name in ("TAKES", "LARGEST")}
    chain = tuple(o.function for o in epilogues.parse(c.epilogue))
    return KernelSource(
        module="tilewright.ops.conv.kernels.gluon_grouped",
        function="conv_gluon_grouped",
        signature=(*signature, *((name, "constexpr") for name in (*constants, "CHAIN"))),
        constants=tuple(constants.items()),
        divisibility=_promises(c),
        options=(("num_warps", c.num_warps),),
        language="gluon",
        functions=(("CHAIN", chain),),
    )


def _promises(c: ConvConfig) -> tuple[tuple[str, int], ...]:
    """What the epilogue's arrays, which lie as the result does, let the compiler assume: of
    addresses in bytes, of strides in elements."""
    count = c.alignment_out // DTYPES[c.dtype_out].bytes
    found = {f"made_strides.{i}": count for i in (0, 2, 3, 4)}
    for i, taken in enumerate(epilogues.takes(c.epilogue)):
        if taken.kind == "d":
            found[f"extra.{i}"] = c.alignment_out
    return tuple(found.items())


MOST_SEGMENTS = 64
"""Strips that the height is cut into, at most."""

# --- what to launch ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strips:
    """How a result is cut. slabs, tiles_w, octets: that cover the channels, the width and the
    images. rows: of a strip. segments: strips that cover the height. programs: for each slab."""

    slabs: int
    tiles_w: int
    octets: int
    rows: int
    segments: int
    programs: int

    @property
    def each(self) -> int:
        """Strips of a slab."""
        return self.tiles_w * self.octets * self.segments


def all_tiles(c: ConvConfig, p: ConvProblem) -> int:
    """Rows of tiles of all strips."""
    height, width = sizes(p)
    return _up(p.channels_out, SLAB) * _up(width, columns(c)) * _up(p.n, IMAGES) * height


def sizes(p: ConvProblem) -> tuple[int, int]:
    """Height and width of the result; the height of one dimension is 1."""
    _, height, width = (w.size for w in boxes.walks(p, (0, 0, 0)))
    return height, width


def strips(c: ConvConfig, p: ConvProblem, units: int, resident: int = 1) -> Strips:
    """The strips with which the busiest workgroup walks the fewest rows of the source, for so many
    compute units with so many workgroups at once; among equals the highest strips."""
    height, width = sizes(p)
    slabs, tiles_w, octets = _up(p.channels_out, SLAB), _up(width, columns(c)), _up(p.n, IMAGES)
    most = max(1, units * resident // slabs)
    found = None
    for segments in range(1, min(height, MOST_SEGMENTS) + 1):
        rows = _up(height, segments)
        if _up(height, rows) != segments:
            continue
        each = tiles_w * octets * segments
        cost = _up(each, most) * (rows + taps(c)[0] - 1)
        if found is None or cost < found[0]:
            found = cost, Strips(slabs, tiles_w, octets, rows, segments, min(most, each))
    assert found is not None
    return found[1]


def resident(c: ConvConfig, arch: Arch) -> int:
    """Workgroups of a compute unit at once."""
    each = shared_memory(c) + arch.shared_memory_reserved
    return max(1, arch.shared_memory_per_cu // each)


def step(c: ConvConfig, p: ConvProblem, device: Device) -> Step:
    """The launch of `c` for `p` on `device`."""
    cut = strips(c, p, device.compute_units, resident(c, arch_called(device.arch)))
    row, edge = _blocks(c)
    context = Context(c, p)
    read = source_of(p.direction)
    arguments: list[Argument] = [
        _described(p, read, row), _described(p, read, edge), _described(p, p.output_name, row),
    ]  # fmt: skip
    for name in ("weights", "extra", "weight_strides", "made_strides"):
        arguments += ARGUMENTS[name].values(context)
    numbers = (
        p.n, p.channels_out, *sizes(p), cut.slabs, cut.tiles_w, cut.octets, cut.each, cut.rows,
        *_origins(p),
    )  # fmt: skip
    arguments += [Scalar("i32", number) for number in numbers]
    return Step((cut.slabs * cut.programs, 1, 1), tuple(arguments), MAIN)


def _origins(p: ConvProblem) -> tuple[int, int]:
    """The first pixel that pixel 0 of the result sees, along the height and the width."""
    _, height, width = (
        w.origin + min(0, (w.count - 1) * w.by_tap) for w in boxes.walks(p, (0, 0, 0))
    )
    return height, width


def _described(p: ConvProblem, name: str, block: tuple[int, ...]) -> Descriptor:
    """The tensor map of x or y as [height, width, image, channel]."""
    (images, channels, *spatial), (outer, _, *strides) = p.shape_of(name), dense(p, name)
    shape = (*(1,) * (2 - len(spatial)), *spatial, images, channels)
    along = (*(outer,) * (2 - len(strides)), *strides, outer, 1)
    return Descriptor(name, p.dtype_of(name), shape, along, block)


def _up(size: int, by: int) -> int:
    return -(-size // by)
