"""GEMM sweeps in the form of CK Tile Engine, read as they are published.

A document has the blocks ``problem``, ``tile_config`` and ``trait_config``, whose fields are axes
(see `tilewright.space_file.axis_values`); an axis may also stand at the top. This library's own
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
    pipeline basicv1, compv1            basic, num_stages 1
    pipeline basic_async_v1             basic, num_stages 2: one tile is on its way
    pipeline preshufflev1/v2, regv1     preshuffle, num_stages 2; B's letter in the layout is s
    pipeline preshuffle_tdm             the same: here B goes straight to registers
    pipeline comp_tdm, …_v1, …_v2       tma, num_stages 3: AMD's copy engine
    scheduler intrawave, interwave,     nothing: the compiler orders instructions
      default
    persistent true, false              scheduler persistent, tile
    streamk_config, reduction_strategy  scheduler stream_k, and reduction
    epilogue cshuffle, default,         store direct: the compiler goes through shared memory where
      default2d, tdm                    that makes stores wider; a chain of operations is ours

Documents of kernels for a few rows, ``gemm_decode``, have axes of their own (`decode`).
Documents of variants (batched, several D, quantised…): see `variants`, whose folder, where a
document lies, says which it is. Where a document has an ``arch_tile_config`` for the architecture,
that takes the place of ``tile_config``.

A warp tile becomes the instruction of its M and N whose K divides its own (CK issues it several
times). Where the architecture has none, it stays as written for rule ``mma`` to drop; where the
compiler chooses the instruction, it becomes (0, 0, 0).

Fields in `_NO_COUNTERPART` are reported by name; any other unknown field is an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import BadFile, nearest
from tilewright.ops.gemm.formats import decode, readings, variants
from tilewright.ops.gemm.formats.axis import Axis
from tilewright.ops.gemm.formats.words import (
    ALIASES,
    COMPILER,
    FIELDS,
    STREAM_K,
    checked,
    is_int,
)
from tilewright.space import KernelSpace
from tilewright.space_file import axis_values

VARIANT = "variant"
_BLOCKS = ("problem", "tile_config", "trait_config", STREAM_K, *variants.BLOCKS)

_TARGETS = "what a space is for is said where it is read"
_NO_COUNTERPART: dict[str, str] = {
    **dict.fromkeys(
        ("k_block_per_cu", "kBlockPerCu", "tunable_params", "num_wave_groups",
         "double_smem_buffer", "transpose_c"),
        COMPILER,
    ),
    "block_size": "it follows from num_warps and the architecture",
    "partitioner": "group_m is the axis here",
    "kernel_set_name": "a space has no name",
    "gpu_target": _TARGETS,
    "gpu_targets": _TARGETS,
}  # fmt: skip
"""Fields of published files without a counterpart here, and why."""


def read_sweep(
    document: Mapping[str, Any], arch: Arch, signature: Mapping[str, str] | None = None
) -> tuple[KernelSpace, list[str]]:
    """The space a sweep document declares on `arch`, and a note for each part of it that has no
    counterpart here or collapses into another.

    `signature` has values for `dtype` (or `dtype_a`…), `layout` and `precision` that the
    document leaves out. Raises `BadFile`, naming the place, for an unknown field, a malformed
    axis or an impossible value, and `BadArgument` for a bad `signature`.
    """
    if document.get(VARIANT) == decode.VARIANT:
        return decode.read(document, signature or {})
    notes: list[str] = []
    variant = variants.called(document.get(VARIANT, "gemm_universal"), f"$.{VARIANT}")
    found, taken = _collect(_of_arch(document, arch, notes), notes)
    if not found:
        raise BadFile(f"$: no axes; a sweep has the blocks {', '.join(_BLOCKS)}")
    axes: dict[str, Any] = {}
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    more = variants.read(variant, taken, notes)
    readings.signature(found, signature or {}, axes, notes)
    if variant.pipeline and not {"dtype_a", "dtype_b"} & {*found, *axes}:
        raise BadFile(
            f"$: the document does not say the dtype of pipeline {variant.pipeline}; give it in "
            "the signature, as dtype=fp8, bf8 or fp4"
        )
    readings.warps(found, axes, notes)
    readings.mma(found, arch, axes, notes)
    readings.pipeline(found, arch, axes, linked, notes)
    readings.scheduler(found, axes, notes)
    readings.epilogue(found, axes, notes)
    if STREAM_K in document or more.shares or readings.shares(found):
        readings.stream_k(found, axes, notes)
    axes.update((name, axis.values) for name, axis in found.items())
    _add(more, axes, linked)
    readings.shuffle(axes, linked, more.shuffled)
    return KernelSpace("gemm", axes, linked=linked), notes


def _of_arch(document: Mapping[str, Any], arch: Arch, notes: list[str]) -> dict[str, Any]:
    """The document with the tiles that it has for `arch`."""
    own = dict(document)
    tiles = own.pop("arch_tile_config", {})
    if not isinstance(tiles, dict):
        raise BadFile("$.arch_tile_config: must be an object of architectures")
    if arch.name in tiles:
        own["tile_config"] = tiles[arch.name]
        notes.append(f"$.arch_tile_config.{arch.name}: in the place of tile_config")
    elif tiles:
        notes.append(f"$.arch_tile_config: ignored: it has {', '.join(tiles)}, not {arch.name}")
    return own


def _add(
    more: variants.Said,
    axes: dict[str, Any],
    linked: dict[tuple[str, ...], list[tuple[Any, ...]]],
) -> None:
    """What a variant says beside a document's axes; its pipeline is for documents without."""
    chosen = dict(more.axes)
    stated = {"pipeline", "num_stages"} & {*axes, *itertools.chain.from_iterable(linked)}
    if stated and chosen.get("pipeline") == ["basic"]:
        del chosen["pipeline"], chosen["num_stages"]
    for name in [*chosen, *itertools.chain.from_iterable(more.linked)]:
        if name in ("pipeline", "num_stages"):
            axes.pop(name, None)
            linked.pop(("pipeline", "num_stages"), None)
        elif name in axes:
            raise BadFile(f"$: {name} is said twice: as it is, and by the variant")
    axes.update(chosen)
    linked.update(more.linked)


# --- the document's form ----------------------------------------------------------------------


def _collect(
    document: Mapping[str, Any], notes: list[str]
) -> tuple[dict[str, Axis], dict[str, Axis]]:
    """Every axis by its name here, checked, and the fields of variants; notes for what has no
    counterpart."""
    found: dict[str, Axis] = {}
    taken: dict[str, Axis] = {}
    for name, place, value in _fields(document):
        if name in _NO_COUNTERPART:
            notes.append(f"{place}: ignored: {_NO_COUNTERPART[name]}")
            continue
        into, known = (taken, name) if name in variants.FIELDS else (found, ALIASES.get(name, name))
        if into is found and known not in FIELDS:
            candidates = (*FIELDS, *ALIASES, *_NO_COUNTERPART, *variants.FIELDS, *_BLOCKS)
            raise BadFile(f"{place}: unknown field '{name}'{nearest(name, candidates)}")
        if known in into:
            raise BadFile(f"{place}: {known} was given before, as {into[known].place}")
        is_list = known == "mma" and isinstance(value, list) and value[:1] and is_int(value[0])
        values = axis_values([value] if is_list else value, place)
        if into is found:
            values = [checked(known, v, place) for v in values]
        into[known] = Axis(place, values)
    return found, taken


def _fields(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """(name, place, value) of every field of the blocks and of the top. Fields that begin with
    an underscore are comments; one dtype for each operand may be an object."""
    for key, value in document.items():
        if key in _BLOCKS or (key == "datatype" and isinstance(value, dict) and "a" in value):
            if not isinstance(value, dict):
                raise BadFile(f"$.{key}: must be an object of axes")
            prefix = "" if key in _BLOCKS else f"{key}_"
            for name, axis in value.items():
                if not name.startswith("_"):
                    yield f"{prefix}{name}", f"$.{key}.{name}", axis
        elif key not in ("family", "op", VARIANT) and not key.startswith("_"):
            yield key, f"$.{key}", value
