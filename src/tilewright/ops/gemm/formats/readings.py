"""Each group of axes of a sweep in CK Tile Engine's form, as axes of a space here.

Every function takes its axes out of `found`, and adds to `axes`, `linked` and `notes`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument, BadFile, nearest
from tilewright.ops.gemm import pipelines, spaces
from tilewright.ops.gemm.config import SCHEDULERS
from tilewright.ops.gemm.formats.axis import Axis
from tilewright.ops.gemm.formats.words import (
    ALIASES,
    CK_EPILOGUES,
    CK_PIPELINES,
    CK_REDUCTIONS,
    CK_SCHEDULERS,
    COMPILER,
    LETTERS,
    STREAM_K,
    WARP_TILES,
    WARPS,
    checked,
)
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.space import WILDCARDS
from tilewright.space_file import MAX_RANGE


def signature(
    found: dict[str, Axis], given: Mapping[str, str], axes: dict[str, Any], notes: list[str]
) -> None:
    words = ("dtype_a", "dtype_b", "dtype_c", "dtype_acc", "layout", "precision")
    for word, value in given.items():
        name = ALIASES.get(word, word)
        if name not in words:
            raise BadArgument(f"a signature has no '{word}'{nearest(word, (*words, 'dtype'))}")
        try:
            value = checked(name, value, f"signature {word}")
        except BadFile as error:
            raise BadArgument(str(error)) from None
        # The other dtypes follow dtype_a, so the document's take the place of all of them.
        stated = any(f in found for f in words[:4]) if name.startswith("dtype") else name in found
        if not stated and not (name == "layout" and any(part in found for part in LETTERS)):
            axes[name] = [value]
    parts = [found.pop(part, None) for part in LETTERS]
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
        if any(isinstance(v, str) and len(v) == 4 and v[3] != v[2] for v in layout.values):
            notes.append(
                f"{layout.place}: the fourth letter, D's layout, ignored: matrices of an epilogue "
                "lie as C does"
            )
        cut = (v[:3] if isinstance(v, str) else v for v in layout.values)
        axes["layout"] = list(dict.fromkeys(cut))


def warps(found: dict[str, Axis], axes: dict[str, Any], notes: list[str]) -> None:
    given = [found.pop(name) for name in WARPS if name in found]
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
            f" {counts}: {COMPILER} how warps share a tile"
        )


def _bounded(given: Sequence[Axis]) -> int:
    """How many combinations axes that become one have. Raises `BadFile`, with that number, for more
    values than an axis may have."""
    count = math.prod(len(axis.values) for axis in given)
    if count > MAX_RANGE:
        raise BadFile(
            f"{given[0].place}: {count:,} combinations with {', '.join(a.place for a in given[1:])}"
            f" are over {MAX_RANGE:,}"
        )
    return count


def mma(found: dict[str, Axis], arch: Arch, axes: dict[str, Any], notes: list[str]) -> None:
    given = {name: found.pop(name) for name in WARP_TILES if name in found}
    if not given:
        return
    place = next(iter(given.values())).place
    _bounded([*given.values()])
    if "mma" in found:
        raise BadFile(f"{found['mma'].place}: give mma, or warp_tile_m, warp_tile_n, warp_tile_k")
    if not arch.mma_selectable:
        axes["mma"] = [(0, 0, 0)]
        notes.append(f"{place}: ignored on {arch.name}: {COMPILER} on the matrix instruction")
        return
    # None stands for any size.
    sizes = [
        [None if v in WILDCARDS else v for v in given[name].values] if name in given else [None]
        for name in WARP_TILES
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
    found: dict[str, Axis], axes: dict[str, Any], arch: Arch
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


def pipeline(
    found: dict[str, Axis],
    arch: Arch,
    axes: dict[str, Any],
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]],
    notes: list[str],
) -> None:
    axis = found.get("pipeline")
    theirs = [v for v in axis.values if v in CK_PIPELINES] if axis else []
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
    pairs = list(itertools.chain.from_iterable(CK_PIPELINES[v] for v in theirs))
    depths = stages.values if stages else [spaces.AXES["num_stages"]]
    expand = ((ours, pipelines.on(arch)), (depths, arch.num_stages))
    names, counts = ([*dict.fromkeys(_wild(values, known))] for values, known in expand)
    pairs = list(dict.fromkeys([*pairs, *itertools.product(names, counts)]))
    if len({pipeline for pipeline, _ in pairs}) == 1:
        axes["pipeline"], axes["num_stages"] = [pairs[0][0]], [depth for _, depth in pairs]
    else:
        linked["pipeline", "num_stages"] = list(pairs)
    meant = ", ".join(
        f"{v} = " + " or ".join(f"{p} with {s} stages" for p, s in CK_PIPELINES[v]) for v in theirs
    )
    notes.append(f"{axis.place}: {meant}")


def _wild(values: list[Any], known: tuple[Any, ...]) -> Iterator[Any]:
    for value in values:
        yield from known if value in WILDCARDS else (value,)


def scheduler(found: dict[str, Axis], axes: dict[str, Any], notes: list[str]) -> None:
    persistent = found.pop("persistent", None)
    axis = found.pop("scheduler", None)
    if axis:
        theirs = [v for v in axis.values if v in CK_SCHEDULERS]
        ours = [v for v in axis.values if v not in CK_SCHEDULERS]
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


def stream_k(found: dict[str, Axis], axes: dict[str, Any], notes: list[str]) -> None:
    given = found.pop("reduction", Axis(f"$.{STREAM_K}", ["linear"]))
    axes["scheduler"] = ["stream_k"]
    axes["reduction"] = list(dict.fromkeys(CK_REDUCTIONS.get(v, v) for v in given.values))
    notes.append(f"{given.place}: scheduler stream_k, whatever persistent says")


def epilogue(found: dict[str, Axis], axes: dict[str, Any], notes: list[str]) -> None:
    axis = found.pop("epilogue", None)
    theirs = [v for v in axis.values if v in CK_EPILOGUES] if axis else []
    if axis is None or not theirs:
        if axis is not None:
            axes["epilogue"] = axis.values
        return
    if len(theirs) < len(axis.values):
        raise BadFile(f"{axis.place}: give CK's ways to store C, or operations on it, not both")
    axes.setdefault("store", ["direct"])
    notes.append(
        f"{axis.place}: {', '.join(theirs)} = store direct: {COMPILER} whether"
        " stores go through shared memory"
    )


def shuffle(
    axes: dict[str, Any],
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]],
    all_of_them: bool,
) -> None:
    """Kernels of pipeline preshuffle read B shuffled, and no others do: layouts follow."""
    pair = ("pipeline", "num_stages")
    kernels = linked.get(pair) or [(p, None) for p in axes.get("pipeline", ())]
    if all_of_them:  # a variant whose other pipelines read a shuffled B too
        kernels = [("preshuffle", 2)]
    if not any(pipeline == "preshuffle" for pipeline, _ in kernels):
        return
    given = axes.get("layout", [spaces.AXES["layout"]])
    plain = list(dict.fromkeys(_wild(given, LAYOUTS)))
    shuffled = list(dict.fromkeys(f"{word[0]}s{word[2]}" for word in plain))
    if all(pipeline == "preshuffle" for pipeline, _ in kernels):
        linked.pop(pair, None)
        axes["pipeline"], axes["layout"] = ["preshuffle"], shuffled
        axes.setdefault("num_stages", [2])
        return
    if pair not in linked:
        return  # the library's own words: layouts are said as they are meant
    axes.pop("layout", None)
    rows = linked.pop(pair)
    linked["layout", "pipeline", "num_stages"] = [
        (layout, *row) for row in rows for layout in (shuffled if row[0] == "preshuffle" else plain)
    ]


def shares(found: Mapping[str, Axis]) -> bool:
    """Whether a document of CK's says how the parts of a tile meet, which stream-K alone has."""
    return "reduction" in found and not {"scheduler", "split_k"} & {
        name for name, axis in found.items() if not set(axis.values) <= set(CK_SCHEDULERS)
    }
