"""GEMM sweeps in the form of CK Tile Engine, read as they are published.

A document has the blocks ``problem``, ``tile_config`` and ``trait_config``, whose fields are
axes (see `tilewright.space.axis_values`); an axis may also stand at the top. This library's own
axes (`spaces.AXES`) are read under their own names, so one form serves both. What each of CK
Tile Engine's axes becomes:

    CK Tile Engine                      here
    ----------------------------------  -----------------------------------------------------
    tile_m/n/k, pad_m/n/k (kPadM…)      the same
    layout_a/b/c                        layout: every combination
    datatype, datatype_a/b/c            dtype_a/b/c; fp8 and bf8 as the architecture means them
    warp_m × warp_n × warp_k            num_warps: the product; the compiler arranges the warps
    warp_tile_m/n/k                     mma; see below
    pipeline compv3, compv5, basicv2    basic, num_stages 2: one tile waits in shared memory
    pipeline compv4, compv6, comp_async basic, num_stages 3: two tiles wait
    pipeline mem                        basic, num_stages 2 and 4: CK's depth follows the tile
    pipeline basicv1                    basic, num_stages 1
    pipeline preshufflev1/v2, regv1     basic, num_stages 2, with B as it lies
    pipeline comp_tdm, comp_tdm_v2      tma, num_stages 3: AMD's copy engine
    scheduler intrawave, interwave,     nothing: the compiler orders instructions
      default
    persistent true, false              scheduler persistent, tile
    streamk_config                      scheduler stream_k; its reduction_strategy is reduction
    epilogue cshuffle, default,         store direct: the compiler goes through shared memory where
      default2d, tdm                    that makes stores wider; a chain of operations is ours

A warp tile becomes the instruction of its M and N whose K divides its own (CK issues it several
times). Where the architecture has none, it stays as written for rule ``mma`` to drop; where the
compiler chooses the instruction, it becomes (0, 0, 0).

Fields in `_NO_COUNTERPART` are reported by name; any other unknown field is an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES, FP8_ALIASES, resolve
from tilewright.errors import BadArgument, BadFile, nearest
from tilewright.ops.gemm import epilogues, spaces
from tilewright.ops.gemm.config import PIPELINES, REDUCTIONS, SCHEDULERS, STORES
from tilewright.ops.gemm.problem import LAYOUTS, PRECISIONS
from tilewright.space import MAX_RANGE, WILDCARDS, KernelSpace, axis_values

STREAM_K = "streamk_config"
_BLOCKS = ("problem", "tile_config", "trait_config", STREAM_K)

_PRESHUFFLED = ("preshufflev1", "preshufflev2", "regv1")
_CK_PIPELINES: dict[str, tuple[tuple[str, int], ...]] = {
    **dict.fromkeys(("compv3", "compv5", "basicv2", *_PRESHUFFLED), (("basic", 2),)),
    **dict.fromkeys(("compv4", "compv6", "comp_async"), (("basic", 3),)),
    "mem": (("basic", 2), ("basic", 4)),
    "basicv1": (("basic", 1),),
    **dict.fromkeys(("comp_tdm", "comp_tdm_v2"), (("tma", 3),)),
}
"""(`pipeline`, `num_stages`) of each of CK's pipelines."""

_CK_SCHEDULERS = ("intrawave", "interwave", "default")
_CK_EPILOGUES = ("cshuffle", "default", "default2d", "tdm")
_WARPS = ("warp_m", "warp_n", "warp_k")
_WARP_TILES = ("warp_tile_m", "warp_tile_n", "warp_tile_k")
_LAYOUTS = ("layout_a", "layout_b", "layout_c")

_ALIASES = {
    "datatype": "dtype_a",
    "dtype": "dtype_a",
    "reduction_strategy": "reduction",
    **{f"datatype_{x}": f"dtype_{x}" for x in ("a", "b", "c", "acc")},
    **{f"kPad{x.upper()}": f"pad_{x}" for x in "mnk"},
}

_DTYPE_WORDS = (*DTYPES, *FP8_ALIASES)
_CK_REDUCTIONS = {"reduction": "linear"}
"""CK's first word for adding partial tiles in order; `atomic`, `linear` and `tree` are the same."""

_WORDS: dict[str, tuple[str, ...]] = {
    "layout": LAYOUTS,
    **dict.fromkeys(_LAYOUTS, ("r", "c")),
    **dict.fromkeys(("dtype_a", "dtype_b", "dtype_c", "dtype_acc"), _DTYPE_WORDS),
    "precision": PRECISIONS,
    "pipeline": (*PIPELINES, *_CK_PIPELINES),
    "scheduler": (*SCHEDULERS, *_CK_SCHEDULERS),
    "epilogue": (*_CK_EPILOGUES, *epilogues.OPERATIONS),
    "store": STORES,
    "reduction": (*REDUCTIONS, *_CK_REDUCTIONS),
}
_FLAGS = ("pad_m", "pad_n", "pad_k", "persistent")
_FIELDS = (*spaces.AXES, *_LAYOUTS, *_WARPS, *_WARP_TILES, "persistent", "epilogue")

_NOT_YET = "not here yet; only the plain GEMM is expanded"
_COMPILER = "the compiler decides"
_NO_COUNTERPART: dict[str, str] = {
    **dict.fromkeys(
        (
            "multi_d_config", "multi_abd_config", "quant_config",
            "preshuffle_config", "batched_config", "grouped_config", "elementwise_op",
            "elementwise_ops", "num_d_tensors", "num_dim_g", "num_dim_m", "num_dim_n", "num_dim_k",
            "group_size_k", "group_size_n", "a_preshuffle_quant", "b_preshuffle_quant", "profile",
            "preshuffle", "permute_n", "structured_sparsity",
        ),
        _NOT_YET,
    ),
    **dict.fromkeys(
        ("k_block_per_cu", "kBlockPerCu", "tunable_params", "num_wave_groups",
         "double_smem_buffer", "transpose_c"),
        _COMPILER,
    ),
    "block_size": "it follows from num_warps and the architecture",
    "partitioner": "group_m is the axis here",
    "arch_tile_config": "tile_config is read for every architecture",
}  # fmt: skip
"""Fields of published files without a counterpart here, and why."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of the document: where it stands, and its values."""

    place: str
    values: list[Any]


def read_sweep(
    document: Mapping[str, Any], arch: Arch, signature: Mapping[str, str] | None = None
) -> tuple[KernelSpace, list[str]]:
    """The space a sweep document declares on `arch`, and a note for each part of it that has no
    counterpart here or collapses into another.

    `signature` has values for `dtype` (or `dtype_a`…), `layout` and `precision` that the
    document leaves out. Raises `BadFile`, naming the place, for an unknown field, a malformed
    axis or an impossible value, and `BadArgument` for a bad `signature`.
    """
    notes: list[str] = []
    found = _collect(document, notes)
    if not found:
        raise BadFile(f"$: no axes; a sweep has the blocks {', '.join(_BLOCKS)}")
    axes: dict[str, Any] = {}
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    _read_signature(found, signature or {}, axes, notes)
    _read_warps(found, axes, notes)
    _read_mma(found, arch, axes, notes)
    _read_pipeline(found, arch, axes, linked, notes)
    _read_scheduler(found, axes, notes)
    _read_epilogue(found, axes, notes)
    if STREAM_K in document:
        _read_stream_k(found, axes, notes)
    axes.update((name, axis.values) for name, axis in found.items())
    return KernelSpace("gemm", axes, linked=linked), notes


# --- the document's form ----------------------------------------------------------------------


def _collect(document: Mapping[str, Any], notes: list[str]) -> dict[str, _Axis]:
    """Every axis by its name here, checked; notes for what has no counterpart."""
    found: dict[str, _Axis] = {}
    for name, place, value in _fields(document):
        if name in _NO_COUNTERPART:
            notes.append(f"{place}: ignored: {_NO_COUNTERPART[name]}")
            continue
        known = _ALIASES.get(name, name)
        if known not in _FIELDS:
            candidates = (*_FIELDS, *_ALIASES, *_NO_COUNTERPART, *_BLOCKS)
            raise BadFile(f"{place}: unknown field '{name}'{nearest(name, candidates)}")
        if known in found:
            raise BadFile(f"{place}: {known} was given before, as {found[known].place}")
        is_list = known == "mma" and isinstance(value, list) and value[:1] and _is_int(value[0])
        values = axis_values([value] if is_list else value, place)
        found[known] = _Axis(place, [_checked(known, v, place) for v in values])
    return found


def _fields(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(name, place, value) of every field of the blocks and of the top. Fields that begin with
    an underscore are comments."""
    for key, value in document.items():
        if key in _BLOCKS:
            if not isinstance(value, dict):
                raise BadFile(f"$.{key}: must be an object of axes")
            for name, axis in value.items():
                if not name.startswith("_"):
                    yield name, f"$.{key}.{name}", axis
        elif key not in ("family", "op") and not key.startswith("_"):
            yield key, f"$.{key}", value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _checked(name: str, value: Any, place: str) -> Any:
    """`value` as axis `name` has it. Raises `BadFile` for a wrong type or an unknown word."""
    if isinstance(value, str | int) and not isinstance(value, bool) and value in WILDCARDS:
        return value
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise BadFile(f"{place}: {value!r} is not true or false")
        return value
    if name == "mma":
        if not (isinstance(value, list) and len(value) == 3 and all(map(_is_int, value))):
            raise BadFile(f"{place}: {value!r} is not [m, n, k]")
        return tuple(value)
    if name not in _WORDS:
        if not _is_int(value) or value < 1:
            raise BadFile(f"{place}: {value!r} is not a positive integer")
        return value
    if not isinstance(value, str):
        raise BadFile(f"{place}: {value!r} is not a string")
    if name.startswith("layout"):
        value = value.lower()
    follows = value == "" and spaces.AXES.get(name) == ""
    if name == "epilogue" and value not in _WORDS[name]:
        try:
            epilogues.parse(value)
            return value
        except BadArgument as error:
            if "+" in value:
                raise BadFile(f"{place}: {error}") from None
    fourth = name == "layout" and len(value) == 4 and value[3] in "rc"  # D's, for multi-D
    if value[:3] in LAYOUTS if fourth else follows or value in _WORDS[name]:
        return value
    known = ", ".join(_WORDS[name])
    raise BadFile(
        f"{place}: unknown {name} '{value}'{nearest(value, _WORDS[name])}; known: {known}"
    )


# --- each group of axes; all take theirs out of `found` ----------------------------------------


def _read_signature(
    found: dict[str, _Axis], given: Mapping[str, str], axes: dict[str, Any], notes: list[str]
) -> None:
    words = ("dtype_a", "dtype_b", "dtype_c", "dtype_acc", "layout", "precision")
    for word, value in given.items():
        name = _ALIASES.get(word, word)
        if name not in words:
            raise BadArgument(f"a signature has no '{word}'{nearest(word, (*words, 'dtype'))}")
        try:
            value = _checked(name, value, f"signature {word}")
        except BadFile as error:
            raise BadArgument(str(error)) from None
        # The other dtypes follow dtype_a, so the document's take the place of all of them.
        stated = any(f in found for f in words[:4]) if name.startswith("dtype") else name in found
        if not stated and not (name == "layout" and any(part in found for part in _LAYOUTS)):
            axes[name] = [value]
    parts = [found.pop(part, None) for part in _LAYOUTS]
    if any(parts):
        if "layout" in found:
            raise BadFile(f"{found['layout'].place}: give layout, or layout_a, layout_b, layout_c")
        choices = [
            [usual]
            if part is None
            else ("r", "c")
            if set(part.values) & set(WILDCARDS)
            else tuple(dict.fromkeys(part.values))
            for part, usual in zip(parts, spaces.AXES["layout"], strict=True)
        ]
        axes["layout"] = list(dict.fromkeys("".join(c) for c in itertools.product(*choices)))
    elif "layout" in found:
        layout = found.pop("layout")
        if any(isinstance(v, str) and len(v) == 4 for v in layout.values):
            notes.append(f"{layout.place}: the fourth letter, D's layout, ignored: {_NOT_YET}")
        cut = (v[:3] if isinstance(v, str) else v for v in layout.values)
        axes["layout"] = list(dict.fromkeys(cut))


def _read_warps(found: dict[str, _Axis], axes: dict[str, Any], notes: list[str]) -> None:
    given = [found.pop(name) for name in _WARPS if name in found]
    if not given:
        return
    if "num_warps" in found:
        raise BadFile(f"{found['num_warps'].place}: give num_warps, or warp_m, warp_n and warp_k")
    if any(set(axis.values) & set(WILDCARDS) for axis in given):
        axes["num_warps"] = ["*"]
        return
    arrangements = _bounded(given)
    values = itertools.product(*(axis.values for axis in given))
    products = dict.fromkeys(map(math.prod, values))
    axes["num_warps"] = list(products)
    if len(products) < arrangements:
        counts = ", ".join(map(str, products))
        notes.append(
            f"{given[0].place}: {arrangements} arrangements of warps become num_warps"
            f" {counts}: {_COMPILER} how warps share a tile"
        )


def _bounded(given: Sequence[_Axis]) -> int:
    """How many combinations axes that become one have. Raises `BadFile`, with that number, for more
    values than an axis may have."""
    count = math.prod(len(axis.values) for axis in given)
    if count > MAX_RANGE:
        raise BadFile(
            f"{given[0].place}: {count:,} combinations with {', '.join(a.place for a in given[1:])}"
            f" are over {MAX_RANGE:,}"
        )
    return count


def _read_mma(found: dict[str, _Axis], arch: Arch, axes: dict[str, Any], notes: list[str]) -> None:
    given = {name: found.pop(name) for name in _WARP_TILES if name in found}
    if not given:
        return
    place = next(iter(given.values())).place
    _bounded([*given.values()])
    if "mma" in found:
        raise BadFile(f"{found['mma'].place}: give mma, or warp_tile_m, warp_tile_n, warp_tile_k")
    if not arch.mma_selectable:
        axes["mma"] = [(0, 0, 0)]
        notes.append(f"{place}: ignored on {arch.name}: {_COMPILER} on the matrix instruction")
        return
    # None stands for any size.
    sizes = [
        [None if v in WILDCARDS else v for v in given[name].values] if name in given else [None]
        for name in _WARP_TILES
    ]
    instructions = _instructions(found, axes, arch)
    shapes: dict[tuple[int | None, ...], None] = {}
    deeper = 0
    for tile in itertools.product(*sizes):
        matching = [shape for known in instructions for shape in _issued(tile, known)]
        deeper += tile not in matching and bool(matching)
        if matching:
            shapes.update(dict.fromkeys(matching))
        elif None not in tile:
            shapes[tile] = None
    if not shapes:
        raise BadFile(f"{place}: no matrix instruction of {arch.name} has such a warp tile")
    axes["mma"] = list(shapes)
    if deeper:
        notes.append(f"{place}: {deeper} warp tiles become the instructions they are made of")


def _instructions(
    found: dict[str, _Axis], axes: dict[str, Any], arch: Arch
) -> list[list[tuple[int, int, int]]]:
    """Shapes of the architecture's instructions for each operand dtype of the space."""
    declared = found["dtype_a"].values if "dtype_a" in found else axes.get("dtype_a")
    types: dict[str, None] = {}
    for word in declared or [spaces.AXES["dtype_a"]]:
        wild = word in WILDCARDS
        names = spaces.wildcard("dtype_a", arch) if wild else [resolve(word, arch.fp8)]
        types.update(dict.fromkeys(names))
    precision = found["precision"].values if "precision" in found else axes.get("precision", [])
    if "fp32" in types and {"tf32", *WILDCARDS} & set(precision):
        types["tf32"] = None
    return [[s for unit in arch.mma if d in unit.dtypes for s in unit.shapes] for d in types]


def _issued(
    tile: tuple[int | None, ...], known: list[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """The instructions among `known` that a warp tile is issued as: those of its M and N, with
    the largest K that divides its own."""
    m, n, k = tile
    fitting = [shape for shape in known if m in (None, shape[0]) and n in (None, shape[1])]
    if k is None:
        return fitting
    dividing = sorted((shape for shape in fitting if k % shape[2] == 0), key=lambda s: s[2])
    return list({shape[:2]: shape for shape in dividing}.values())


def _read_pipeline(
    found: dict[str, _Axis],
    arch: Arch,
    axes: dict[str, Any],
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]],
    notes: list[str],
) -> None:
    axis = found.get("pipeline")
    theirs = [v for v in axis.values if v in _CK_PIPELINES] if axis else []
    if axis is None or not theirs:
        return
    del found["pipeline"]
    ours = [v for v in axis.values if v not in theirs]
    stages = found.pop("num_stages", None)
    if stages and not ours:
        raise BadFile(
            f"{stages.place}: {theirs[0]} says its own num_stages;"
            " name the pipeline 'basic' to choose the stages"
        )
    pairs = list(itertools.chain.from_iterable(_CK_PIPELINES[v] for v in theirs))
    depths = stages.values if stages else [spaces.AXES["num_stages"]]
    expand = ((ours, arch.pipelines), (depths, arch.num_stages))
    names, counts = ([*dict.fromkeys(_wild(values, known))] for values, known in expand)
    pairs = list(dict.fromkeys([*pairs, *itertools.product(names, counts)]))
    if all(pipeline == "basic" for pipeline, _ in pairs):
        axes["pipeline"], axes["num_stages"] = ["basic"], [depth for _, depth in pairs]
    else:
        linked["pipeline", "num_stages"] = list(pairs)
    meant = ", ".join(
        f"{v} = " + " or ".join(f"{p} with {s} stages" for p, s in _CK_PIPELINES[v]) for v in theirs
    )
    notes.append(f"{axis.place}: {meant}")
    if shuffled := [name for name in theirs if name in _PRESHUFFLED]:
        notes.append(f"{axis.place}: {', '.join(shuffled)}: B in shuffled order is {_NOT_YET}")


def _wild(values: list[Any], known: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        yield from known if value in WILDCARDS else (value,)


def _read_scheduler(found: dict[str, _Axis], axes: dict[str, Any], notes: list[str]) -> None:
    persistent = found.pop("persistent", None)
    axis = found.pop("scheduler", None)
    if axis:
        theirs = [v for v in axis.values if v in _CK_SCHEDULERS]
        ours = [v for v in axis.values if v not in _CK_SCHEDULERS]
        if theirs:
            notes.append(
                f"{axis.place}: {', '.join(theirs)} ignored: the compiler orders instructions"
            )
        if ours and persistent and set(ours) & set(SCHEDULERS):
            raise BadFile(f"{axis.place}: give tile and persistent here, or {persistent.place}")
        if ours and not persistent:
            axes["scheduler"] = ours
    if persistent:
        names = {True: "persistent", False: "tile"}
        axes["scheduler"] = list(
            dict.fromkeys(_wild([names.get(v, v) for v in persistent.values], SCHEDULERS))
        )


def _read_stream_k(found: dict[str, _Axis], axes: dict[str, Any], notes: list[str]) -> None:
    given = found.pop("reduction", _Axis(f"$.{STREAM_K}", ["linear"]))
    axes["scheduler"] = ["stream_k"]
    axes["reduction"] = list(dict.fromkeys(_CK_REDUCTIONS.get(v, v) for v in given.values))
    notes.append(f"$.{STREAM_K}: scheduler stream_k, whatever persistent says")


def _read_epilogue(found: dict[str, _Axis], axes: dict[str, Any], notes: list[str]) -> None:
    axis = found.pop("epilogue", None)
    theirs = [v for v in axis.values if v in _CK_EPILOGUES] if axis else []
    if axis is None or not theirs:
        if axis is not None:
            axes["epilogue"] = axis.values
        return
    if len(theirs) < len(axis.values):
        raise BadFile(f"{axis.place}: give CK's ways to store C, or operations on it, not both")
    axes.setdefault("store", ["direct"])
    notes.append(
        f"{axis.place}: {', '.join(theirs)} = store direct: {_COMPILER} whether"
        " stores go through shared memory"
    )
