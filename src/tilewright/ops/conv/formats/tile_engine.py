"""Sweeps of CK Tile Engine's grouped convolution, read as they are published.

A document has a ``variant``, the block ``trait_config`` and, at times, ``tile_config``. This
library's own axes (`spaces.AXES`) are read under their own names, too. What CK's become:

    CK Tile Engine                     here
    ---------------------------------  ----------------------------------------------------------
    variant forward, bwd_data, …       direction
    data_type                          dtype; fp8 and bf8 as the architecture means them
    ndim_spatial                       spatial_dims
    tile_m/n/k                         the same: rows are pixels (filters, of gradients of weights)
    wave_m × wave_n × wave_k           num_warps: the product
    pipeline basic_v1                  implicit, num_stages 1; the others as GEMM's
                                       (`ops.gemm.formats`): mem 2 and 4, compv3 2, compv4 3 …
    split_image                        index_bits 64: an array beyond 2 GiB is read whole
    two_stage                          scheduler split: parts of the sum are added by a second
                                       kernel, in a fixed order
    layout nhwgc                       nothing: problems say how arrays lie
    scheduler, warp_tile_m/n/k, …      nothing: see `_NO_COUNTERPART`

``instances`` are kernels one by one (`instances`). A document without tiles is for those that CK's
code generator has (dispatcher/codegen/grouped_config_rules.py in ROCm/composable_kernel), which are
`TILES`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument, BadFile, nearest
from tilewright.ops.conv import spaces
from tilewright.ops.conv.config import SCHEDULERS
from tilewright.ops.conv.formats import instances
from tilewright.ops.conv.formats.ck import DIRECTIONS
from tilewright.ops.conv.pipelines import PIPELINES
from tilewright.ops.gemm.formats.words import CK_PIPELINES, CK_SCHEDULERS, COMPILER
from tilewright.space import KernelSpace
from tilewright.space_file import axis_values, read_axes

FOLDER = "grouped_conv"
DEPTHWISE = "forward_depthwise"
WORDS = (
    FOLDER, "forward", "bwd_data", "bwd_weight", "2d_fwd", "2d_bwdd", "2d_bwdw", DEPTHWISE,
)  # fmt: skip
"""The folder of such documents, and their variants."""

TILES = (
    (16, 64, 64, 4), (32, 64, 64, 4), (64, 64, 64, 4), (32, 128, 64, 4), (64, 128, 64, 4),
    (128, 128, 64, 16), (16, 64, 128, 4), (32, 64, 128, 4), (64, 64, 128, 4), (128, 64, 128, 16),
)  # fmt: skip
"""tile_m, tile_n, tile_k and waves of CK's kernels."""

_ALIASES = {"data_type": "dtype", "datatype": "dtype", "ndim_spatial": "spatial_dims"}
_STAGES: dict[str, tuple[int, ...]] = {
    **{name.replace("_", ""): tuple(depth for _, depth in pairs)
       for name, pairs in CK_PIPELINES.items() if {ours for ours, _ in pairs} == {"basic"}},
}  # fmt: skip
"""Stages of CK's pipelines, by their names without underscores."""

_WAVES = ("wave_m", "wave_n", "wave_k")
_TILE = ("tile_m", "tile_n", "tile_k")
_SIZES = "kernels take all sizes"
_ALIGNED = "alignment and alignment_out are the axes here"
_NO_COUNTERPART = {
    **dict.fromkeys(
        ("double_smem_buffer", "num_wave_groups", "block_per_cu", "warp_tile_m", "warp_tile_n",
         "warp_tile_k"), COMPILER,
    ),
    **dict.fromkeys(("pad_m", "pad_n", "pad_k"), _SIZES),
    **dict.fromkeys(("vector_size_a", "vector_size_b", "vector_size_c"), _ALIGNED),
    "explicit_gemm": "pipeline gemm computes filters of one tap",
    "layout": "problems say how arrays lie",
    "arch": "what a space is for is said where it is read",
}  # fmt: skip
"""Fields of published files without a counterpart here, and why."""

_WHOLE = ("direction", "spatial_dims", "dtype")
"""Axes that a document says for all its instances."""

_PLAIN = ({False}, {1}, {"nhwgc"})
"""Values of such fields that ask for nothing."""


Fields = dict[str, tuple[str, list[Any]]]


def read_sweep(
    document: Mapping[str, Any], arch: Arch, signature: Mapping[str, str] | None = None
) -> tuple[KernelSpace, list[str]]:
    """The space that a document declares, and a note for each part of it that has no counterpart
    here. A document without ``variant`` has this library's own axes.

    signature: values of axes that the document leaves out. Raises `BadFile`, naming the place, and
    `BadArgument` for the signature.
    """
    if "variant" not in document:
        return read_axes("conv", document, signature), []
    if document["variant"] == DEPTHWISE:
        raise BadFile(
            "$.variant: forward_depthwise kernels compute boxes of pixels of channels-first images,"
            " which no kernel here does; pipelines depthwise and window have axes of their own"
        )
    notes: list[str] = []
    axes: dict[str, Any] = {}
    given: dict[str, str] = {"direction": "$.variant"}
    variant = document["variant"]
    if variant != FOLDER:
        axes["direction"] = [DIRECTIONS[variant]]
    theirs: dict[str, tuple[str, list[Any]]] = {}
    for theirs_name, place, value in _fields(document):
        if theirs_name == instances.FIELD:
            continue
        name = {"num_groups_to_merge": "merged_groups"}.get(theirs_name, theirs_name)
        if name in given and (name != "direction" or variant != FOLDER):
            raise BadFile(f"{place}: {name} was given before, as {given[name]}")
        given[name] = place
        if name in spaces.AXES and name not in ("pipeline", "scheduler", "epilogue"):
            axes[name] = value
        elif name in _NO_COUNTERPART:
            if set(_single(value, place)) not in _PLAIN:
                notes.append(f"{place}: ignored: {_NO_COUNTERPART[name]}")
        else:
            theirs[name] = place, _single(value, place)
    if instances.FIELD in document:
        _instances(document[instances.FIELD], theirs, axes, signature or {}, arch, notes)
    _tiles(theirs, axes, notes)
    _pipeline(theirs, axes, notes)
    _scheduler(theirs, axes, notes)
    _flag(theirs, "split_image", axes, "index_bits", (32, 64))
    _epilogue(theirs, axes)
    for name, (place, _) in theirs.items():
        known = (*spaces.AXES, *_ALIASES, *_WAVES, "two_stage", "split_image", *_NO_COUNTERPART)
        raise BadFile(f"{place}: unknown field '{name}'{nearest(name, known)}")
    return read_axes("conv", axes, signature), notes


def _instances(
    said: Any,
    theirs: Fields,
    axes: dict[str, Any],
    signature: Mapping[str, str],
    arch: Arch,
    notes: list[str],
) -> None:
    """The document's kernels as axes that go together. Raises `BadFile`."""
    dtypes = axis_values(axes.get("dtype", signature.get("dtype", spaces.AXES["dtype"])), "$.dtype")
    if len(dtypes) != 1 or not isinstance(dtypes[0], str):
        raise BadFile("$.datatype: instances have one dtype")
    if beside := [*theirs, *(axis for axis in axes if axis not in _WHOLE)]:
        raise BadFile(f"$.{instances.FIELD}: say {beside[0]} in each instance, not beside them")
    try:
        dtype = resolve(dtypes[0], arch.fp8)
    except BadArgument as error:
        raise BadFile(f"$.datatype: {error}") from None
    axes["dtype"] = [dtype]
    linked, more = instances.rows(said, axes.get("direction", []), dtype, _STAGES)
    for names, rows in linked.items():
        axes[",".join(names)] = [list(row) for row in dict.fromkeys(rows)]
    repeated = sum(map(len, linked.values())) - sum(len(axes[",".join(n)]) for n in linked)
    if repeated:
        more.append(f"$.{instances.FIELD}: {repeated} are the same kernel as one before")
    notes += more


def _single(axis: Any, place: str) -> list[Any]:
    """The values of an axis of theirs, none of which is a list. Raises `BadFile`."""
    values = axis_values(axis, place)
    for value in values:
        if isinstance(value, list):
            raise BadFile(f"{place}: a value is a number, text, or true or false, not {value}")
    return values


def _fields(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Our name or theirs, place and value of every field of the blocks and of the top."""
    for key, value in document.items():
        if key in ("trait_config", "tile_config"):
            if not isinstance(value, dict):
                raise BadFile(f"$.{key}: must be an object of axes")
            block: Mapping[str, Any] = value
            for name, axis in block.items():
                if not name.startswith("_"):
                    yield _ALIASES.get(name, name), f"$.{key}.{name}", axis
        elif key not in ("family", "op", "variant") and not key.startswith("_"):
            yield _ALIASES.get(key, key), f"$.{key}", value


def _tiles(theirs: Fields, axes: dict[str, Any], notes: list[str]) -> None:
    waves = [theirs.pop(name) for name in _WAVES if name in theirs]
    for place, values in waves:
        if any(type(value) is not int for value in values):
            raise BadFile(f"{place}: waves are whole numbers")
    if waves and "num_warps" in axes:
        raise BadFile(f"{waves[0][0]}: give wave_m, wave_n and wave_k, or num_warps")
    if waves:
        products = itertools.product(*(values for _, values in waves))
        axes["num_warps"] = list(dict.fromkeys(map(math.prod, products)))
    grouped = {axis.strip() for key in axes if "," in key for axis in key.split(",")}
    if not {*_TILE, "num_warps"} & {*axes, *grouped}:
        axes[",".join((*_TILE, "num_warps"))] = [list(tile) for tile in TILES]
        notes.append(f"$: no tiles: the {len(TILES)} that CK's code generator has")


def _pipeline(theirs: Fields, axes: dict[str, Any], notes: list[str]) -> None:
    place, values = theirs.pop("pipeline", ("", []))
    if not values:
        return
    pairs: dict[tuple[str, int], None] = {}
    own: list[Any] = []
    for value in values:
        stages = _STAGES.get(value.replace("_", "")) if isinstance(value, str) else None
        if stages is None:
            own.append(value)
        pairs.update(dict.fromkeys(("implicit", depth) for depth in stages or ()))
    unknown = [value for value in own if value not in (*PIPELINES, "*")]
    if unknown:
        raise BadFile(
            f"{place}: unknown pipeline {unknown[0]!r}"
            f"{nearest(str(unknown[0]), (*PIPELINES, *_STAGES))}"
        )
    if own and pairs:
        raise BadFile(f"{place}: name CK's pipelines or this library's, not both")
    if own:
        axes["pipeline"] = own
        return
    if "num_stages" in axes:
        raise BadFile(f"{place}: {values[0]} says its own num_stages; name the pipeline 'implicit'")
    axes["pipeline,num_stages"] = [list(pair) for pair in pairs]
    depths = ", ".join(str(depth) for _, depth in pairs)
    notes.append(f"{place}: {len(values)} pipelines become implicit with num_stages {depths}")


def _scheduler(theirs: Fields, axes: dict[str, Any], notes: list[str]) -> None:
    place, values = theirs.pop("scheduler", ("", []))
    own = [value for value in values if value not in CK_SCHEDULERS]
    if unknown := [value for value in own if value not in (*SCHEDULERS, "*")]:
        raise BadFile(f"{place}: unknown scheduler {unknown[0]!r}")
    if values and not own:
        notes.append(f"{place}: ignored: the compiler orders instructions")
    if own:
        axes["scheduler"] = own
    if "two_stage" in theirs and own:
        raise BadFile(f"{theirs['two_stage'][0]}: give two_stage, or schedulers of this library")
    _flag(theirs, "two_stage", axes, "scheduler", ("tile", "split"))


def _flag(
    theirs: Fields, name: str, axes: dict[str, Any], axis: str, words: tuple[Any, Any]
) -> None:
    """Their axis of false and true as one of ours."""
    place, values = theirs.pop(name, ("", []))
    if any(type(value) is not bool for value in values):
        raise BadFile(f"{place}: {name} is true or false")
    if values and axis in axes:
        raise BadFile(f"{place}: give {name} or {axis}")
    if values:
        axes[axis] = [words[value] for value in dict.fromkeys(values)]


def _epilogue(theirs: Fields, axes: dict[str, Any]) -> None:
    _, values = theirs.pop("epilogue", ("", []))
    chains = ["" if value in ("cshuffle", "default") else value for value in values]
    if chains:
        axes["epilogue"] = list(dict.fromkeys(chains))
