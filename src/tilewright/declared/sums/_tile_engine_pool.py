"""Sweeps of CK Tile Engine's pooling, read as they are published (tile_engine/ops/pooling in
ROCm/composable_kernel, in both of its forms: ``block_config`` and ``tile_config``).

    CK Tile Engine               here
    ---------------------------  ----------------------------------------------------------------
    block_m                      ROWS × FAST of so many elements of the result, channels last, each
                                 for channels in eights and for any number of them (VECTOR)
    warp_m × warp_n              num_warps: the product
    reduce_op max, min, avg      mode max, min, average
    output_index                 index, which an average does not have
    block_n, warp_tile_m/n, …    nothing: see `_NOTHING`

A document leaves out the element type and, in its older form, the operation, which the signature
may say. Kernels here are compiled for a window, which CK's problems say: its words (``kernel_h``,
``stride_h`` …) may stand beside CK's fields, as this library's other axes may.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from tilewright.arch.model import Arch
from tilewright.declared.sums import _windows
from tilewright.declared.sums._tile_engine import whole
from tilewright.errors import BadFile, nearest, shown
from tilewright.space import KernelSpace
from tilewright.space_file import axis_values, read_axes

FOLDERS = ("pooling",)
"""The folder of such documents."""

_BLOCKS = ("block_config", "tile_config")
_TRAITS = "trait_config"
_MODES = {"max": "max", "min": "min", "avg": "average"}
_COMPILER = "the compiler lays tiles out"
_NOTHING = {
    **dict.fromkeys(("warp_tile_m", "warp_tile_n", "thread_tile_m", "thread_tile_n"), _COMPILER),
    "block_n": "a window's elements are read one after another",
    "propagate_nan": "NaN in a window is always its result",
    "pool_dim": "images of two dimensions have a depth of 1",
    "pooling_dim": "images of two dimensions have a depth of 1",
    "k_block_per_cu": "the compiler decides how many workgroups a CU has",
}
"""Fields without a counterpart, and why."""
_READ = ("block_m", "warp_m", "warp_n", "reduce_op", "output_index")


def read_pool(
    document: Mapping[str, Any], arch: Arch, signature: Mapping[str, str] | None = None
) -> tuple[KernelSpace, list[str]]:
    """The space of pooling that a document declares, and a note for each part of it that has no
    counterpart here. A document without CK's blocks has this library's own axes. Raises `BadFile`,
    naming the place, and `BadArgument` for the signature."""
    own = {name: value for name, value in document.items() if name not in ("problem", "variant")}
    blocks = {name: own.pop(name) for name in (*_BLOCKS, _TRAITS) if name in own}
    if not blocks.keys() & {*_BLOCKS}:
        if blocks:
            raise BadFile(f"$: {_TRAITS} belongs beside block_config or tile_config")
        return read_axes("pool", own, signature), []
    said, notes = _said(blocks), []
    if "k_block_per_cu" in own:
        said["k_block_per_cu"] = "$.k_block_per_cu", [own.pop("k_block_per_cu")]
    for name, why in _NOTHING.items():
        if name in said:
            notes.append(f"{said[name][0]}: ignored: {why}")
    axes: dict[str, Any] = {"FIRST": [False], "VECTOR": [8, 1], **own}
    _tiles(said, axes)
    modes = _modes(said, axes, signature or {})
    if "output_index" in said:
        place, values = said["output_index"]
        if any(type(value) is not bool for value in values):
            raise BadFile(f"{place}: is true or false")
        pairs = itertools.product(modes, dict.fromkeys(values))
        axes["mode,index"] = [[m, index] for m, index in pairs if not (index and m == "average")]
        if not axes["mode,index"]:
            raise BadFile(f"{place}: an average has no index")
    else:
        axes["mode"] = modes
    if not any(name.startswith("kernel_") for name in axes):
        notes.append(
            "$: no window: kernels are compiled for one, here of 1 element; say kernel_h, kernel_w "
            "and so on beside CK's fields"
        )
    return read_axes("pool", axes, signature), notes


def _said(blocks: Mapping[str, Any]) -> dict[str, tuple[str, list[Any]]]:
    """Place and values of every field of the blocks. Raises `BadFile`."""
    found: dict[str, tuple[str, list[Any]]] = {}
    for block, fields in blocks.items():
        if not isinstance(fields, dict):
            raise BadFile(f"$.{block}: must be an object of axes")
        for name, axis in fields.items():
            place = f"$.{block}.{name}"
            if name not in (*_READ, *_NOTHING):
                hint = nearest(name, (*_READ, *_NOTHING))
                raise BadFile(f"{place}: unknown field {shown(name)}{hint}")
            found[name] = place, axis_values(axis, place)
    if "block_m" not in found:
        raise BadFile("$: no block_m")
    return found


def _tiles(said: Mapping[str, tuple[str, list[Any]]], axes: dict[str, Any]) -> None:
    place, sizes = said["block_m"]
    rows, fast = _windows.AXES["ROWS"], _windows.AXES["FAST"]
    pairs = [[r, f] for size in sizes for r in rows for f in fast if r * f == whole(size, place)]
    if not pairs:
        raise BadFile(
            f"{place}: no tile of ROWS × FAST has {' or '.join(map(str, sizes))} elements"
        )
    axes["ROWS,FAST"] = pairs
    warps = [[whole(n, said[name][0]) for n in said[name][1]] if name in said else [1]
             for name in ("warp_m", "warp_n")]  # fmt: skip
    axes["num_warps"] = list(dict.fromkeys(m * n for m, n in itertools.product(*warps)))


def _modes(
    said: Mapping[str, tuple[str, list[Any]]], axes: dict[str, Any], signature: Mapping[str, str]
) -> list[str]:
    """The values of `mode`."""
    if "reduce_op" not in said:
        return axis_values(axes.pop("mode", signature.get("mode", "max")), "$.mode")
    place, values = said["reduce_op"]
    if unknown := [value for value in values if value not in _MODES]:
        raise BadFile(f"{place}: {shown(unknown[0])} is none of {', '.join(_MODES)}")
    return [_MODES[value] for value in dict.fromkeys(values)]
