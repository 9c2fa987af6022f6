"""What pipeline ``gluon_grouped`` compiles and launches (kernels/gluon_grouped.py)."""

from __future__ import annotations

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.conv import boxes, maps
from tilewright.ops.conv.arguments import (
    ARGUMENTS,
    CONSTANTS,
    Context,
    Value,
    index_type,
    source_of,
)
from tilewright.ops.conv.boxes import Walk
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.maps import Residues, view
from tilewright.ops.conv.pipelines import cuts
from tilewright.ops.conv.pipelines.cuts import Cut
from tilewright.ops.conv.pipelines.grouped.shape import (
    IMAGES,
    KEPT_AT_ONCE,
    SLAB,
    classes,
    columns,
    forward_stride,
    halo,
    kept,
    shared_memory,
)
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import MAIN, Argument, Descriptor, KernelSource, Scalar, Step

_NUMBERS = (
    "images", "channels", "height", "width", "slabs", "tiles_w", "octets", "strips", "rows",
    "origin_h", "origin_w", "first_tap.0", "first_tap.1", "taps_apart",
)  # fmt: skip


def blocks(c: ConvConfig, taps: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What one copy moves of a row of a tile, and of the pixels behind it."""
    return (1, columns(c), IMAGES, SLAB), (1, max(1, halo(c, taps[1])), IMAGES, SLAB)


def sources(c: ConvConfig, arch: Arch) -> dict[str, KernelSource]:
    """What to compile for `c` on `arch`, by part."""
    return {part: _source(c, width_and_height) for part, width_and_height in classes(c).items()}


def _source(c: ConvConfig, taps: tuple[int, int]) -> KernelSource:
    """The kernel for so many taps along the height and the width."""
    row, edge = blocks(c, taps)
    signature = [
        ("x", view(c.dtype, row)), ("edge", view(c.dtype, edge)), ("made", view(c.dtype_out, row)),
        ("weights", ARGUMENTS["weights"].types(c)[0]),
    ]  # fmt: skip
    extra = ARGUMENTS["extra"].types(c)
    signature += [(f"extra.{i}", kind) for i, kind in enumerate(extra)] or [("extra", "()")]
    for name in ("weight_strides", "made_strides"):
        signature += [(f"{name}.{i}", index_type(c)) for i in range(5)]
    signature += [("begin", index_type(c)), *((name, "i32") for name in _NUMBERS)]
    constants: dict[str, Value] = {
        "COLS": columns(c), "HALO": halo(c, taps[1]), "STRIDE": forward_stride(c),
        "TAPS_H": taps[0], "TAPS_W": taps[1], "SLICE": c.tile_k, "MERGED": c.merged_groups,
        "NDIM": c.spatial_dims, "DATA": c.direction == "data", "STAGES": c.num_stages,
        "KEPT": kept(c, *taps),
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
    found = {f"made_strides.{i}": count for i in (0, 2, 3, 4)} | {"begin": count}
    for i, taken in enumerate(epilogues.takes(c.epilogue)):
        if taken.kind == "d":
            found[f"extra.{i}"] = c.alignment_out
    return tuple(found.items())


# --- what to launch ----------------------------------------------------------------------------


def all_tiles(c: ConvConfig, p: ConvProblem) -> int:
    """Rows of tiles of all strips."""
    return cdiv(p.channels_out, SLAB) * rows_of_slab(c, p)


def rows_of_slab(c: ConvConfig, p: ConvProblem) -> int:
    """Rows of tiles of one slab."""
    sizes = (_of_walks(boxes.walks(p, residue))[:2] for residue in boxes.residues(p))
    return cdiv(p.n, IMAGES) * sum(height * cdiv(width, columns(c)) for height, width in sizes)


def _of_walks(of: tuple[Walk, ...]) -> tuple[int, int, int, int]:
    """Height and width of a class of the result, and its taps along both."""
    _, height, width = of
    return height.size, width.size, height.count, width.count


def cut(c: ConvConfig, p: ConvProblem, of: tuple[Walk, ...], units: int, resident: int = 1) -> Cut:
    """The strips of a class, for so many compute units with so many workgroups at once."""
    height, width, taps, _ = _of_walks(of)
    slabs, tiles_w, sets = cdiv(p.channels_out, SLAB), cdiv(width, columns(c)), cdiv(p.n, IMAGES)
    most = max(1, units * resident // slabs)
    step = forward_stride(c)
    return cuts.best(slabs, tiles_w, sets, height, most, lambda rows: (rows - 1) * step + taps)


def resident(c: ConvConfig, arch: Arch) -> int:
    """Workgroups of a compute unit at once."""
    each = shared_memory(c) + arch.shared_memory_reserved
    at_once = max(1, arch.shared_memory_per_cu // each)
    return min(at_once, KEPT_AT_ONCE) if kept(c, *classes(c)[MAIN]) else at_once


def steps(c: ConvConfig, p: ConvProblem, device: Device) -> list[Step]:
    """The launch of `c` for `p` on `device`: a step for each residue class."""
    parts = {taps: part for part, taps in classes(c).items()}
    found = []
    for residue in boxes.residues(p):
        of = boxes.walks(p, residue)
        part = parts[_of_walks(of)[2:]]
        found.append(_step(c, p, device, residue, of, part))
    return found


def _step(
    c: ConvConfig, p: ConvProblem, device: Device, residue: Residues, of: tuple[Walk, ...],
    part: str,
) -> Step:  # fmt: skip
    into = cut(c, p, of, device.compute_units, resident(c, arch_called(device.arch)))
    height, width, *taps = _of_walks(of)
    row, edge = blocks(c, (taps[0], taps[1]))
    context, kind = Context(c, p), index_type(c)
    read, apart = source_of(p.direction), forward_stride(c)
    made_strides, begin = maps.class_strides(p, residue)
    arguments: list[Argument] = [
        maps.of_rows(p, read, row, apart), maps.of_rows(p, read, edge, apart),
        _of_class(p, (height, width), made_strides, begin, row),
    ]  # fmt: skip
    for name in ("weights", "extra", "weight_strides"):
        arguments += ARGUMENTS[name].values(context)
    arguments += [Scalar(kind, stride) for stride in (*made_strides, begin)]
    # Taps are walked so that the pixels they join go upwards.
    origins = [w.origin + min(0, (w.count - 1) * w.by_tap) for w in of[1:]]
    numbers = (
        p.n, p.channels_out, height, width, into.slabs, into.tiles_w, into.sets, into.each,
        into.rows, *origins, *(w.first for w in of[1:]), of[2].apart,
    )  # fmt: skip
    arguments += [Scalar("i32", number) for number in numbers]
    return Step((into.slabs * into.programs, 1, 1), tuple(arguments), part)


def _of_class(
    p: ConvProblem, sizes: tuple[int, int], strides: tuple[int, ...], begin: int,
    block: tuple[int, ...],
) -> Descriptor:  # fmt: skip
    """The tensor map of a class's pixels of the result, as [height, width, image, channel]."""
    outer, _, _, height, width = strides
    along = (height or outer, width, outer, 1)
    shape = (*sizes, p.n, p.channels_out)
    return Descriptor(p.output_name, p.dtype_out, shape, along, block, begin)
