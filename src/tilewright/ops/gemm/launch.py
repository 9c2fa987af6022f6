"""The launch of a GEMM kernel for a problem."""

from __future__ import annotations

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.gemm import operands, pipelines, scales, swap, two_stage
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.operands import MATRICES
from tilewright.ops.gemm.pipelines.constants import partial_dtype
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import tiles as tiles_of
from tilewright.ops.gemm.source import batch_types, blocks, in_words, rests, stride_type
from tilewright.ops.nouns import Argument, Descriptor, Launch, Pointer, Scalar, Step, Temporary
from tilewright.ops.tile_sharing import FLAGS, shared_tiles, slots


def launch(config: GemmConfig, problem: GemmProblem, device: Device) -> Launch:
    """The launch of `config` for `problem` on `device`, over the problem's operands
    (`operands.operands`)."""
    if config.swap_ab:
        return swap.launched(_launch(swap.config(config), swap.problem(problem), device))
    return _launch(config, problem, device)


def _launch(config: GemmConfig, problem: GemmProblem, device: Device) -> Launch:
    """The launch for the product that the kernel computes."""
    if config.two_stage:
        return _in_two_stages(config, problem, device)
    arguments, programs, splits = _multiplying(config, problem, device)
    tiles, grid = tiles_of(config, problem), _grid(config, problem, programs)
    if not config.parts_meet:
        return Launch((Step(grid, arguments),))
    partials = Temporary(
        "partials",
        (slots(config, tiles, programs, splits), config.tile_m, config.tile_n),
        partial_dtype(config),
        "kept_zero" if config.reduction == "atomic" else "anything",
    )
    arguments = (*arguments, Pointer(FLAGS.name), Pointer(partials.name), Scalar("i32", splits))
    return Launch((Step(grid, arguments),), (FLAGS, partials))


def _in_two_stages(config: GemmConfig, problem: GemmProblem, device: Device) -> Launch:
    """A kernel that stores parts, and one that adds them up."""
    product = two_stage.config(config), two_stage.problem(config, problem)
    partials = two_stage.partials(*product)
    multiplied, programs, splits = _multiplying(*product, device)
    parts, stride = Scalar("i32", splits), stride_type(config)
    chain, ldd = operands.names(config).chains[-1], problem.ldd
    added = (
        Pointer(partials.name),
        Pointer(MATRICES[2]),
        *(Scalar("i32", size) for size in (problem.m, problem.n)),
        *(Scalar(stride, ld) for ld in (product[1].ldc, problem.ldc)),
        parts,
        *map(Pointer, chain),
        *((Scalar(stride, ldd),) if ldd else ()),
    )
    stores = Launch((Step(_grid(config, problem, programs), (*multiplied, parts)),))
    steps = swap.renamed(stores, {MATRICES[2]: partials.name}).steps
    adds = Step((two_stage.workgroups(config, problem), 1, 1), added, two_stage.TOTALS)
    return Launch((*steps, adds), (partials,))


def _grid(config: GemmConfig, problem: GemmProblem, programs: int) -> tuple[int, int, int]:
    if pipelines.of(config).has("few_rows"):
        return tiles_of(config, problem), config.split_k, 1
    if config.clustered:
        return tiles_of(config, problem), 1, 1  # of clusters
    return programs, 1, 1


def _multiplying(
    config: GemmConfig, problem: GemmProblem, device: Device
) -> tuple[tuple[Argument, ...], int, int]:
    """Arguments of the kernel that multiplies, but for those of parts of tiles; its workgroups; and
    the kernel's `splits`."""
    record = pipelines.of(config)
    tiles = tiles_of(config, problem)
    programs, splits = _share(config, problem, tiles, device.compute_units)
    sizes = tuple(Scalar("i32", size) for size in (problem.m, problem.n, problem.k))
    types = (problem.dtype_a, problem.dtype_b, problem.dtype_c)
    lds = tuple(
        ld // DTYPES[d].packed
        for ld, d in zip((problem.lda, problem.ldb, problem.ldc), types, strict=True)
    )
    pointers = record.reads == "pointers"
    stride = stride_type(config)
    names = operands.names(config)
    extra: list[Argument] = []
    for chain, ld in zip(names.chains, (problem.ldpa, problem.ldpb, problem.ldd), strict=True):
        extra += [Pointer(name) for name in chain]
        extra += [Scalar(stride, ld)] if ld else []
    for s in scales.of(problem):
        steps = (step if size > 1 else 0 for step, size in zip(s.strides, s.shape, strict=True))
        extra += [Pointer(s.name), *(Scalar("i32", step) for step in steps)]
    arguments: tuple[Argument, ...]
    if pointers:
        arguments = (
            *(Pointer(name) for name in MATRICES),
            *sizes,
            *(Scalar(stride, ld) for ld in lds),
            *extra,
            *((Scalar("i32", _dies(device)),) if "dies" in record.arguments else ()),
        )
    else:
        made = _descriptors(config, problem, blocks(config))
        # For B the descriptors of all parts, then those of C.
        others = [_descriptors(config, problem, each)[1:] for each in rests(config)]
        rest = (one for of_operand in zip(*others, strict=True) for one in of_operand)
        arguments = (*made, *sizes, *rest, *extra)
        if record.writes == "pointers":
            ldc = Scalar(stride, problem.ldc)
            arguments = (*made[:2], Pointer(MATRICES[2]), *sizes, ldc, *extra)
    return (*arguments, *_batch_arguments(config, problem)), programs, splits


def _descriptors(
    config: GemmConfig, p: GemmProblem, of: tuple[tuple[int, ...], ...]
) -> tuple[Descriptor, ...]:
    """The tensor maps of A, B and C with blocks `of`. A matrix that a whole batch shares is a batch
    of one: a tensor map has no strides of 0."""
    lds, types = (p.lda, p.ldb, p.ldc), (p.dtype_a, p.dtype_b, p.dtype_c)
    found = []
    for i, (name, block) in enumerate(zip(MATRICES, of, strict=True)):
        words = in_words(config, i)
        dtype, each = ("int32", words) if words else (types[i], 1)
        shape: tuple[int, ...] = (p.outer[i], p.inner[i] // each)
        strides: tuple[int, ...] = (lds[i] // each, 1)
        if config.batching == "strided":
            shape = (p.matrices[i], *shape)
            strides = (p.batch_strides[i] or p.outer[i] * lds[i], *strides)
        if config.two_stage and name == MATRICES[2]:
            shape = (config.split_k, *shape)
            strides = (p.outer[i] * lds[i], *strides)
        found.append(Descriptor(name, dtype, shape, strides, block))
    return tuple(found)


def _dies(device: Device) -> int:
    """Number of dies, each with its own L2, in a device or a partition of a device."""
    cdna = arch(device.arch).cdna
    per_die = cdna.compute_units_per_die if cdna else 0
    return max(1, device.compute_units // per_die) if per_die else 1


def _share(
    config: GemmConfig, problem: GemmProblem, tiles: int, compute_units: int
) -> tuple[int, int]:
    """Number of workgroups to launch, and the kernel's `splits`."""
    if config.scheduler == "split_k":
        parts = tiles * config.split_k
        walks = pipelines.of(config).has("walks_parts")
        return min(parts, compute_units) if walks else parts, config.split_k
    if config.scheduler == "stream_k":
        steps = -(-problem.k // config.tile_k)
        programs = min(compute_units, tiles * steps)
        return programs, shared_tiles(config, tiles, programs)
    return (min(tiles, compute_units) if config.scheduler == "persistent" else tiles), 0


def _batch_arguments(config: GemmConfig, p: GemmProblem) -> tuple[Argument, ...]:
    if config.batching == "none":
        return ()
    values = [p.batch]
    if config.batching in ("strided", "nested"):
        a, b, c, _ = p.batch_strides
        pointers = pipelines.of(config).reads == "pointers"
        values += [a, b, c] if pointers else [min(a, 1), min(b, 1)]
    if config.batching == "nested":
        values += [p.batch_inner, *p.outer_strides]
    if epilogues.has_matrix(config.epilogue):
        values.append(p.stride_d)
    kinds = (kind for _, kind in batch_types(config))
    return tuple(Scalar(kind, value) for kind, value in zip(kinds, values, strict=True))
