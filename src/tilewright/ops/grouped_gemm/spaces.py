"""The axes of a grouped GEMM space, the values of ``"*"`` on each, sweeps, and the default
space."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import BadFile, nearest
from tilewright.ops import epilogues
from tilewright.ops.gemm import lowbit
from tilewright.ops.gemm import spaces as gemm
from tilewright.ops.gemm.config import INDEX_BITS, STORES
from tilewright.ops.gemm.formats import tile_engine
from tilewright.ops.gemm.pipelines.common import depth
from tilewright.ops.gemm.sizes import vector_dot
from tilewright.ops.grouped_gemm import low_tiles
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.pipelines import PIPELINES, on
from tilewright.ops.grouped_gemm.problem import BLOCK, QUANTS, STACKED, WALKED, GroupedGemmProblem
from tilewright.ops.grouped_gemm.rules import one
from tilewright.space import WILDCARDS, KernelSpace
from tilewright.space_file import axis_values

_OWN = {f.name for f in fields(GroupedGemmConfig)}

AXES: dict[str, Any] = {
    "form": "contiguous",
    **{axis: usual for axis, usual in gemm.AXES.items() if axis in _OWN},
    "zero_b": False,
    "quant": "",
}
"""Every axis, in the order of expansion, with its default; those that are not named here are
GEMM's."""


VARIANTS = {
    "grouped_gemm": ("list", "gemm_universal"),
    "grouped_gemm_rowcolquant": ("contiguous", "gemm_rowcolquant"),
    "grouped_gemm_aquant": ("contiguous", "gemm_aquant"),
    "grouped_gemm_bquant": ("contiguous", "gemm_bquant"),
    "grouped_gemm_abquant": ("contiguous", "gemm_abquant"),
    "grouped_gemm_tensorquant": ("list", "gemm_tensor_quant"),
}
"""CK Tile Engine's folders of grouped kernels: the nearest form, and the kernel for one group. CK's
matrices may be anywhere, as in a list; but a list's groups have no scales of their own."""


def wildcard(axis: str, arch: Arch) -> Sequence[Any]:
    """The values of ``"*"`` on `axis`. Raises `BadArgument` if it has no meaning there."""
    if axis == "form":
        return WALKED
    if axis == "zero_b":
        return (False, True)
    if axis == "quant":
        return QUANTS
    return list(on(arch)) if axis == "pipeline" else gemm.wildcard(axis, arch)


def read_sweep(
    document: Mapping[str, Any], arch: Arch, signature: Mapping[str, str] | None = None
) -> tuple[KernelSpace, list[str]]:
    """The space that a sweep document declares: a GEMM's sweep with an axis `form` at its top. Axes
    that a grouped kernel does not have (schedulers, padding of M) are left out with a note."""
    rest = dict(document)
    usual = AXES["form"]
    called = rest.get(tile_engine.VARIANT)
    if isinstance(called, str) and called in VARIANTS:
        usual, rest[tile_engine.VARIANT] = VARIANTS[called]
    forms = axis_values(rest.pop("form"), "$.form") if "form" in rest else [usual]
    for form in forms:
        if form not in (*WALKED, *WILDCARDS):
            hint = nearest(str(form), WALKED)
            raise BadFile(f"$.form: unknown form {form!r}{hint}; known: {', '.join(WALKED)}")
    space, notes = tile_engine.read_sweep(rest, arch, signature)
    if usual != AXES["form"] and forms == [usual]:
        notes.append(f"$: groups are a {usual}, matrices anywhere; form says another")
    axes = {axis: values for axis, values in space.axes.items() if axis in _OWN}
    notes += [
        f"{axis} ignored: every grouped kernel is persistent and pads rows"
        for axis in space.axes
        if axis not in _OWN
    ]
    return KernelSpace("grouped_gemm", {"form": forms, **axes}, linked=space.linked), notes


LARGE, MOST_STAGES = 128 * 256, 4
"""Elements of the largest tiles, and stages of the deepest ring."""

DEEP_STAGES = 6
"""Stages of a turned low tile that a tuning tries beside three. On an H200 they took 0.86 and 0.90
of the time where tiles are fewer than two for each compute unit and K is long (Mixtral's second
product of one and two tokens), and 1.00 to 1.09 in 26 other products."""

NO_FASTER = "gluon_ws"
"""Of rows in order with an epilogue: on an H200 it took 0.97 to 1.08 of `tma`'s time, with
the estimate's tiles. So a tuning alone tries it there (docs/notes/moe-layers.md)."""


_SIGNATURE = (
    "layout", "dtype_a", "dtype_b", "dtype_c", "precision", "epilogue", "scale_a", "scale_b",
    "zero_b", "quant",
)  # fmt: skip

TILES: dict[str, Sequence[int]] = {
    "tile_m": (16, 32, 64, 128),
    "tile_n": (32, 64, 128, 256),
    "tile_k": (32, 64, 128, 256),
    "num_warps": (4, 8),
    "num_stages": (2, 3, MOST_STAGES),
}
"""The tiles and rings of the default space."""


def default_space(problem: GroupedGemmProblem, arch: Arch, tuned: bool = False) -> KernelSpace:
    """Some tens of kernels for problems with the form, dtypes, layout, precision, scales and
    epilogue of `problem`. At least one of them serves every size, alignment and stride. Problems of
    one kind get the same object."""
    in_order = problem.walked in ("contiguous", "masked")
    left_out = NO_FASTER if problem.epilogue and in_order and not tuned else ""
    signature = {field: getattr(problem, field) for field in _SIGNATURE}
    signature |= {"form": problem.walked, "layout": problem.one.layout}
    kind = (arch.name, left_out, tuned, *signature.values())
    if (found := _made.get(kind)) is None:
        if len(_made) >= MOST_KINDS:
            _made.clear()
        found = _made[kind] = _default_space(signature, left_out, arch, tuned)
    return found


MOST_KINDS = 256
_made: dict[tuple[Any, ...], KernelSpace] = {}


def _default_space(
    signature: Mapping[str, Any], left_out: str, arch: Arch, tuned: bool
) -> KernelSpace:
    names = (*TILES, "pipeline", "store", "alignment", "index_bits")
    pipelines = [
        name for name in on(arch) if signature["form"] in PIPELINES[name].forms and name != left_out
    ]
    axes = {axis: [value] for axis, value in signature.items()}
    if rows := _rows(signature, pipelines, arch, tuned):
        return KernelSpace("grouped_gemm", axes, linked={names: rows})
    whole = (*TILES.values(), pipelines, STORES, (16, 1), INDEX_BITS)  # which says why none is
    every = dict(zip(names, whole, strict=True))
    return KernelSpace("grouped_gemm", {**axes, **every}, {"worth having": partial(_kept, arch)})


def _rows(
    signature: Mapping[str, Any], pipelines: Sequence[str], arch: Arch, tuned: bool
) -> list[tuple[Any, ...]]:
    """The rows that are worth having. Most of all are not, or no kernels: to judge each would take
    most of the time of a first plan. tuned: whether a tuning asks."""
    usual = {**AXES, **signature, "dtype_acc": ""}
    kept = []
    for tile in itertools.product(*TILES.values()):
        of_tile = usual | dict(zip(TILES, tile, strict=True))
        for name, store in itertools.product(pipelines, STORES):
            record = PIPELINES[name].one
            for alignment, bits in itertools.product((16, 1), INDEX_BITS):
                if alignment not in record.alignments or bits not in record.index_bits:
                    continue
                said = {"pipeline": name, "store": store, "alignment": alignment}
                config = GroupedGemmConfig(**(of_tile | said | {"index_bits": bits}))
                if _kept(arch, config):
                    kept.append((*tile, name, store, alignment, bits))
                    if tuned and config.num_stages == 3 and low_tiles.turned(config, arch):
                        kept.append((*tile[:-1], DEEP_STAGES, name, store, alignment, bits))
    return kept


def _kept(arch: Arch, config: GroupedGemmConfig) -> bool:
    if config.quant and vector_dot(config.one, arch):
        return _is_flat(config)
    of_cuda = arch.backend == "cuda"
    return _worth_having(config) and not (of_cuda and (_deep(config) or broad(config, arch)))


def _is_flat(config: GroupedGemmConfig) -> bool:
    """Keeps the one shape that has a whole block of C's columns where the compiler multiplies on
    vector units: it unrolls a thread's products, and of a wide tile of the usual depth they are too
    many."""
    tile = (config.tile_m, config.tile_n, config.tile_k, config.num_warps, config.num_stages)
    flat = (16, BLOCK * epilogues.fold(config.epilogue), 32, 8, 2)
    return tile == flat and config.store == "direct"


def _deep(config: GroupedGemmConfig) -> bool:
    """Whether a low tile has more than three stages: workgroups that share a compute unit keep its
    memory busy together, and a fourth stage takes the place of others (docs/notes/moe-layers.md).
    """
    as_it_is = not (lowbit.concerns(config) or lowbit.widens(config))
    return low_tiles.low(config) and as_it_is and config.num_stages == MOST_STAGES


def broad(config: GroupedGemmConfig, arch: Arch) -> bool:
    """Whether a low tile is turned and has 256 columns, though no block of its result asks for
    them: of 20 products on an H200 one of 128 or 64 was the best, or as fast."""
    return low_tiles.turned(config, arch) and config.tile_n > 128 and not config.quant


def _worth_having(config: GroupedGemmConfig) -> bool:
    """Keeps the default space to shapes that are the best for some problem."""
    if config.store == "split" and not _needs_small_pieces(config):
        return False
    threads_work = config.tile_m * config.tile_n // config.num_warps
    if not 64 <= threads_work <= 4096:
        return False
    record = PIPELINES[config.pipeline].one
    few_bits = record.worth_having.get("few bits")
    by_words = lowbit.widens(config) and config.pipeline == "weights"
    if lowbit.concerns(config) or by_words:
        return few_bits is not None and few_bits(one(config))
    last_resort = config.alignment == 1 or config.index_bits == 64
    size = config.tile_m * config.tile_n
    if config.tile_m < 64 and config.num_warps > 4 and size < 8192:
        return False  # each warp reads all rows of A, and fewer workgroups have room
    between = config.tile_m == 32 or config.tile_n == 64
    if between and (last_resort or not _for_few_rows(config)):
        return False
    deep = depth(config.one)
    alone = config.form == "gathered" and not last_resort  # no descriptors serve this form
    if alone or record.reads == "descriptors":
        # For a few rows, the time goes to reading weights; deep tiles keep more of them in flight.
        deeper = (deep, 2 * deep) if config.tile_m <= 64 else (deep,)
        return config.num_stages > 2 and config.tile_k in deeper
    if config.tile_k != deep:
        return False
    return not (last_resort and config.num_stages > 2)


def _needs_small_pieces(config: GroupedGemmConfig) -> bool:
    """Whether smaller pieces of C leave room for something: a matrix of the epilogue, or another
    stage of large tiles."""
    if epilogues.has_matrix(config.epilogue) or config.form == "weights":
        return True
    large = config.tile_m * config.tile_n >= LARGE and config.num_stages == MOST_STAGES
    return large and PIPELINES[config.pipeline].one.has("loads_apart")


def _for_few_rows(config: GroupedGemmConfig) -> bool:
    """Whether a tile of 32 rows or 64 columns may be the best one: for few rows of many groups,
    where the number of tiles decides how evenly compute units read the weights."""
    size = config.tile_m * config.tile_n
    few = config.form in STACKED and config.tile_m <= 64 and 1024 <= size <= 8192
    return few and config.num_warps == 4
