"""Kernels of CK's dispatcher, one by one: the ``instances`` of its profiler's and tests' documents
(dispatcher/codegen/configs/grouped_conv in ROCm/composable_kernel).

    CK's dispatcher                    here
    ---------------------------------  ----------------------------------------------------------
    tile_m/n/k                         the same
    warp_m × warp_n × warp_k           num_warps: the product
    vector_size_a, _b, _c              alignment of what is read (the narrower of A and B) and of
                                       what is made, in bytes
    pipeline compv1, basic_v1, …       num_stages, as in `tile_engine`
    num_groups_to_merge                merged_groups
    two_stage                          scheduler split, reduction two_stage
    streamk_enabled,                   scheduler stream_k, and its reduction: linear where none is
      streamk_reduction_strategy         named
    split_image                        index_bits 64: an array beyond 2 GiB is read whole
    explicit_gemm                      pipeline gemm: GEMM's kernel of this tile, in pipeline basic
    specialization, scheduler, …       nothing: see `_NOTHING`

An instance becomes one row of axes; two that differ in what has no counterpart become the same
kernel. Whether it may be built for an architecture, and whether it computes a problem, the rules
say of the kernel, as of any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.errors import BadFile, nearest, shown
from tilewright.ops.conv import spaces
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.formats.words import CK_REDUCTIONS, CK_SCHEDULERS, COMPILER
from tilewright.ops.products import accumulator

FIELD = "instances"

_TILES = ("tile_m", "tile_n", "tile_k")
_WARPS = ("warp_m", "warp_n", "warp_k")
_VECTORS = ("vector_size_a", "vector_size_b", "vector_size_c")
_COUNTS = (
    *_TILES, *_WARPS, *_VECTORS, "warp_tile_m", "warp_tile_n", "warp_tile_k",
    "num_groups_to_merge", "num_wave_groups",
)  # fmt: skip
_FLAGS = (
    "double_smem_buffer", "two_stage", "explicit_gemm", "split_image", "streamk_enabled",
    "streamk_persistent",
)  # fmt: skip
_WORDS = ("pipeline", "scheduler", "epilogue", "specialization")
_REDUCTION = "streamk_reduction_strategy"
_KNOWN = ("id", *_COUNTS, *_FLAGS, *_WORDS, _REDUCTION)
_NEEDED = (*_TILES, *_WARPS, "pipeline")

_NOTHING = {
    "scheduler": "the compiler orders instructions",
    "specialization": "a kernel takes all filters, and so those that a specialisation is for",
    "warp_tile_m": COMPILER,
    "double_smem_buffer": COMPILER,
    "num_wave_groups": COMPILER,
    "streamk_persistent": "workgroups of stream_k persist in any case",
}
"""Fields without a counterpart, and why."""

_PLAIN = {"specialization": "default", "num_wave_groups": 1, "warp_tile_m": 0}
"""Values of such fields that ask for nothing, where it is not false."""

_LAYOUTS = {"forward": "rcr", "data": "rrr", "weights": "crr"}
"""GEMM's layout of a direction whose arrays are channels-last."""

_MOST_BYTES = 16
_MOST = 2**16


def rows(
    said: Any, directions: list[str], dtype: str, stages: Mapping[str, tuple[int, ...]]
) -> tuple[dict[tuple[str, ...], list[tuple[Any, ...]]], list[str]]:
    """The instances as rows of axes that go together, and a note for each field without a
    counterpart. Raises `BadFile`, naming the instance.

    directions: those of the document. dtype: the exact type of its operands.
    stages: depths of CK's pipelines, by name without underscores.
    """
    if not isinstance(said, list) or not said:
        raise BadFile(f"$.{FIELD}: a list of kernels, of at least one")
    if len(directions) != 1:
        raise BadFile(f"$.{FIELD}: the document's variant says one direction for all instances")
    found: list[dict[str, Any]] = []
    nothing: dict[str, set[str]] = {}
    for number, one in enumerate(said):
        place = f"$.{FIELD}[{number}]"
        _check(one, place)
        found += _expanded(one, place, directions[0], dtype, stages)
        for name in _NOTHING:
            value = one.get(name, False)
            if value not in (False, _PLAIN.get(name, False)):
                nothing.setdefault(name, set()).add(str(value))
    axes = tuple(axis for axis in spaces.AXES if any(axis in row for row in found))
    filled = [tuple(row.get(axis, spaces.AXES[axis]) for axis in axes) for row in found]
    notes = [
        f"$.{FIELD}: {name} {', '.join(sorted(values))} ignored: {_NOTHING[name]}"
        for name, values in nothing.items()
    ]
    both = [at for at, one in enumerate(said) if one.get("explicit_gemm") and one.get("two_stage")]
    if both:
        notes.append(
            f"$.{FIELD}[{both[0]}]: two_stage ignored beside explicit_gemm: how a sum is shared is "
            "an axis of GEMM's kernel"
        )
    return {axes: filled}, notes


def _check(one: Any, place: str) -> None:
    if not isinstance(one, dict):
        raise BadFile(f"{place}: a kernel is an object, not {shown(one)}")
    for name, value in one.items():
        where = f"{place}.{name}"
        if name not in _KNOWN:
            raise BadFile(f"{where}: unknown field '{name}'{nearest(name, _KNOWN)}")
        if name in _COUNTS and (type(value) is not int or not 0 < value <= _MOST):
            raise BadFile(f"{where}: {shown(value)} is not a whole number from 1 to {_MOST}")
        if name in _FLAGS and type(value) is not bool:
            raise BadFile(f"{where}: {shown(value)} is not true or false")
        if name in _WORDS and not isinstance(value, str):
            raise BadFile(f"{where}: {shown(value)} is not a string")
        if name == _REDUCTION and not (value is None or isinstance(value, str)):
            raise BadFile(f"{where}: {shown(value)} is not a word or null")
    for name in _NEEDED:
        if name not in one:
            raise BadFile(f"{place}: no {name}")
    if one.get("scheduler", CK_SCHEDULERS[0]) not in CK_SCHEDULERS:
        raise BadFile(f"{place}.scheduler: {shown(one['scheduler'])} is not one of CK's")
    if one.get("epilogue", "cshuffle") not in ("cshuffle", "default"):
        raise BadFile(f"{place}.epilogue: {shown(one['epilogue'])} is not cshuffle or default")
    if one.get("two_stage") and one.get("streamk_enabled"):
        raise BadFile(f"{place}: two_stage and streamk_enabled both share the sum")


def _expanded(
    one: Mapping[str, Any],
    place: str,
    direction: str,
    dtype: str,
    stages: Mapping[str, tuple[int, ...]],
) -> list[dict[str, Any]]:
    """The rows of an instance: one for each depth that its pipeline stands for."""
    depths = stages.get(one["pipeline"].replace("_", ""))
    if depths is None:
        known = nearest(one["pipeline"], stages)
        raise BadFile(f"{place}.pipeline: unknown pipeline {shown(one['pipeline'])}{known}")
    row: dict[str, Any] = {name: one[name] for name in _TILES}
    row["num_warps"] = one["warp_m"] * one["warp_n"] * one["warp_k"]
    size = DTYPES[dtype].bytes
    read, made = (_bytes(one, names, size, place) for names in (_VECTORS[:2], _VECTORS[2:]))
    row |= {"alignment": read, "alignment_out": made}
    if one.get("explicit_gemm"):
        return [_gemm(row, depth, direction, dtype, one) for depth in depths]
    row["merged_groups"] = one.get("num_groups_to_merge", 1)
    row["index_bits"] = 64 if one.get("split_image") else 32
    if one.get("two_stage"):
        row |= {"scheduler": "split", "reduction": "two_stage"}
    if one.get("streamk_enabled"):
        word = one.get(_REDUCTION) or "linear"
        row |= {"scheduler": "stream_k", "reduction": CK_REDUCTIONS.get(word, word)}
    return [row | {"num_stages": depth} for depth in depths]


def _bytes(one: Mapping[str, Any], names: tuple[str, ...], size: int, place: str) -> int:
    """Bytes of the narrowest of these vectors, at most those that an alignment has."""
    wide = [one[name] * size for name in names if name in one]
    found: int = min([_MOST_BYTES, *wide])
    if found & (found - 1):
        raise BadFile(f"{place}.{names[0]}: vectors of {found} bytes are no power of two")
    return found


def _gemm(
    row: Mapping[str, Any], depth: int, direction: str, dtype: str, one: Mapping[str, Any]
) -> dict[str, Any]:
    """The row of GEMM's kernel of this tile."""
    aligned = min(row["alignment"], row["alignment_out"])
    kernel = GemmConfig(
        _LAYOUTS[direction], dtype, dtype, dtype, accumulator(dtype), "ieee",
        row["tile_m"], row["tile_n"], row["tile_k"], row["num_warps"], depth,
        "basic", "tile", 1, "none", spaces.AXES["group_m"], "direct", True, True, True,
        aligned if aligned > DTYPES[dtype].bytes else 1, (0, 0, 0),
        64 if one.get("split_image") else 32,
    )  # fmt: skip
    return {"gemm": kernel.name.removeprefix("gemm_")}
