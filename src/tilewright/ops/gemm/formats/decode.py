"""CK Tile Engine's documents of kernels for a few rows, ``gemm_decode``, as spaces of pipeline
``small_m``.

    CK Tile Engine                      here
    ----------------------------------  -----------------------------------------------------
    tile_m/n/k                          the same
    warps_per_block                     num_warps
    split_k                             scheduler split_k, of that many parts; 1 is scheduler tile
    epilogue atomic_add, default        reduction atomic, linear, of a sum that is split
    has_bias                            epilogue bias
    x_scale_layout, w_scale_layout:     epilogue scale, which is the product of both; blocks are
      PerTensor, Block2D<r, c>            scale_a, and scale_b turned: CK's weights are [n, k]
    pad_k                               the same
    datatypes                           dtype_a, dtype_b, dtype_c of each
    vector_size, lanes_per_output, …    nothing: see `_NOTHING`

Its weights are column-major (layout rcr). Combinations that no kernel there has, of scales of one
operand with none of the other or of scales on operands of 16 bits, are left out with a note.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from tilewright.dtypes import DTYPES, FP8_ALIASES
from tilewright.errors import BadArgument, BadFile, nearest, shown
from tilewright.ops.gemm.formats.words import COMPILER, checked
from tilewright.space import WILDCARDS, KernelSpace
from tilewright.space_file import axis_values

VARIANT = "gemm_decode"

_BLOCKS = ("tile_config", "trait_config")
_DISPATCH = "which compute die takes a tile follows from the grid here"
_NOTHING = {
    "vector_size": "a thread loads 16 bytes at a time",
    "lanes_per_output": COMPILER,
    "use_dot2": COMPILER,
    "use_packed_fp32": COMPILER,
    "scheduler": "the compiler orders instructions",
    "chiplet_swizzle": _DISPATCH,
    "chiplet_num_xcds": _DISPATCH,
    "chiplet_chunk_size": _DISPATCH,
    "stage_a_in_lds": COMPILER,
    "stream_b": COMPILER,
}
"""Fields without a counterpart, and why."""

_ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "m_per_warp": ((1,), "rows of a warp are the tile's"),
    "n_per_warp": ((1,), "columns of a warp are the tile's over num_warps"),
    "output_axis": (("smallM",), "few columns are few rows of the transposed product"),
    "pipeline": (("decode",), "a document of decode kernels has no other"),
    "persistent": ((False,), "pipeline small_m has a workgroup for each tile"),
}
"""Fields of which some values have a counterpart, and why others have none."""

_COUNTS = ("tile_m", "tile_n", "tile_k", "warps_per_block", "split_k")
_USUAL: dict[str, list[Any]] = {
    "split_k": [1], "epilogue": ["default"], "has_bias": [False], "x_scale_layout": ["void"],
    "w_scale_layout": ["void"], "pad_k": [False],
}  # fmt: skip
_KNOWN = (*_COUNTS, *_USUAL, *_NOTHING, *_ONLY)
_NEEDED = ("tile_m", "tile_n", "tile_k", "warps_per_block")
_REDUCTIONS = {"default": "linear", "atomic_add": "atomic"}
_BLOCK = re.compile(r"Block2D<(\d{1,5}), ?(\d{1,5})>", re.ASCII)
_AXES = (
    "dtype_a", "dtype_b", "dtype_c", "tile_m", "tile_n", "tile_k", "num_warps", "scheduler",
    "split_k", "reduction", "epilogue", "scale_a", "scale_b", "pad_k",
)  # fmt: skip


def read(
    document: Mapping[str, Any], signature: Mapping[str, str]
) -> tuple[KernelSpace, list[str]]:
    """The space of a document, and a note for each part without a counterpart. Raises `BadFile`,
    and `BadArgument` for a signature: the document says all of its own.
    """
    if signature:
        raise BadArgument(f"a {VARIANT} document says its own {', '.join(signature)}")
    notes: list[str] = []
    found = _USUAL | _fields(document, notes)
    if missing := [name for name in _NEEDED if name not in found]:
        raise BadFile(f"$: no {', '.join(missing)}")
    rows: dict[tuple[Any, ...], None] = {}
    left_out = 0
    for types in _types(document):
        for sizes in itertools.product(*(found[name] for name in _NEEDED)):
            for how in itertools.product(*(found[name] for name in _USUAL)):
                said = _row(types, dict(zip(_USUAL, how, strict=True)))
                left_out += said is None
                if said is not None:
                    row = (*types, *sizes, *said)
                    rows[row] = None
    if not rows:
        raise BadFile("$: every combination has scales that its dtypes do not have")
    if left_out:
        notes.append(f"$: {left_out} combinations left out: scales are of both operands, in 8 bits")
    fixed: dict[str, list[Any]] = {
        "layout": ["rcr"], "pipeline": ["small_m"], "num_stages": [2], "group_m": [1],
    }  # fmt: skip
    return KernelSpace("gemm", fixed, linked={_AXES: [*rows]}), notes


def _fields(document: Mapping[str, Any], notes: list[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for key, block in document.items():
        if key.startswith("_") or key in ("variant", "family", "op", "datatypes"):
            continue
        if key not in _BLOCKS or not isinstance(block, dict):
            raise BadFile(f"$.{key}: a {VARIANT} document has {', '.join(_BLOCKS)} and datatypes")
        for name, axis in block.items():
            place = f"$.{key}.{name}"
            if name.startswith("_"):
                continue
            if name not in _KNOWN:
                raise BadFile(f"{place}: unknown field '{name}'{nearest(name, _KNOWN)}")
            if name in found:
                raise BadFile(f"{place}: {name} was given before")
            found[name] = axis_values(axis, place)
            _check(name, found[name], place, notes)
    return found


def _check(name: str, values: list[Any], place: str, notes: list[str]) -> None:
    """Raise `BadFile` for a value that is none of the field's, or has no counterpart."""
    if name in _NOTHING:
        notes.append(f"{place}: ignored: {_NOTHING[name]}")
        return
    for value in values:
        if name in _ONLY:
            only, why = _ONLY[name]
            if value not in only or type(value) is not type(only[0]):
                raise BadFile(f"{place}: {shown(value)} has no counterpart here: {why}")
        elif name in _COUNTS:
            if type(value) is not int or value < 1:
                raise BadFile(f"{place}: {shown(value)} is not a positive integer")
        elif name in ("has_bias", "pad_k"):
            if type(value) is not bool:
                raise BadFile(f"{place}: {shown(value)} is not true or false")
        elif name == "epilogue":
            if not isinstance(value, str) or value not in _REDUCTIONS:
                raise BadFile(f"{place}: {shown(value)} is not one of {', '.join(_REDUCTIONS)}")
        elif not isinstance(value, str) or not (
            value in ("void", "PerTensor") or _BLOCK.fullmatch(value)
        ):
            raise BadFile(f"{place}: {shown(value)} is not void, PerTensor or Block2D<r, c>")


def _types(document: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    said = document.get("datatypes")
    if not isinstance(said, list) or not said:
        raise BadFile('$.datatypes: a list of objects, as in [{"a": "bf16", "b": "bf16", "c": …}]')
    found = []
    for number, one in enumerate(said):
        place = f"$.datatypes[{number}]"
        if not isinstance(one, dict) or not {"a", "b", "c"} <= {*one} <= {"a", "b", "c", "acc"}:
            raise BadFile(f"{place}: dtypes of a, b and c, and of acc, not {shown(one)}")
        words = {
            name: checked(f"dtype_{name}", word, f"{place}.{name}") for name, word in one.items()
        }
        if any(word in WILDCARDS for word in words.values()):
            raise BadFile(f"{place}: name each dtype")
        if words.get("acc", "fp32") != "fp32":
            raise BadFile(f"{place}.acc: sums of pipeline small_m are fp32")
        found.append((words["a"], words["b"], words["c"]))
    return found


def _row(types: tuple[str, str, str], how: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Scheduler, split_k, reduction, epilogue, blocks of scales and padding; None for scales that
    the dtypes do not have."""
    x, w = how["x_scale_layout"], how["w_scale_layout"]
    scaled = (x, w) != ("void", "void")
    alike = "void" not in (x, w) and (x == "PerTensor") == (w == "PerTensor")
    if scaled and (_is_16(types[0]) or not alike):
        return None
    split = how["split_k"]
    shared = ("split_k", split, _REDUCTIONS[how["epilogue"]]) if split > 1 else ("tile", 1, "none")
    chain = ["scale"] if x == "PerTensor" else []
    chain += ["bias"] if how["has_bias"] else []
    blocks = _blocks(x, w) if scaled and x != "PerTensor" else ("", "")
    return (*shared, "+".join(chain), *blocks, how["pad_k"])


def _blocks(x: str, w: str) -> tuple[str, str]:
    a, b = _BLOCK.fullmatch(x), _BLOCK.fullmatch(w)
    assert a is not None
    assert b is not None
    return f"{a[1]}x{a[2]}", f"{b[2]}x{b[1]}"


def _is_16(word: str) -> bool:
    return word not in FP8_ALIASES and DTYPES[word].bits == 16
