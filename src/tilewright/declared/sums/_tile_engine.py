"""Sweeps of CK Tile Engine's reductions, read as they are published
(tile_engine/ops/reduce in ROCm/composable_kernel).

    CK Tile Engine                          here
    --------------------------------------  -----------------------------------------------------
    folder reduce                           sum and norm in one read, where the document asks for
                                            no results: CK's are the sum, and the mean of squares
    multiops_threadwise, …_multiblock       SPLIT of 1, and more than 1
    tile_m, tile_n                          KEPT results, of each BLOCK elements in a tile
    warp_per_block_m × warp_per_block_n     num_warps: the product
    fixed, combination                      tiles one by one, and all combinations of values
    warp_tile_m/n, thread_tile_m/n          nothing: the compiler lays tiles out
    problem_size                            nothing: problems say their sizes

A document leaves out the element type; results have that of elements. This library's own axes may
stand beside CK's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from tilewright.arch.model import Arch
from tilewright.declared.sums import _tiles
from tilewright.errors import BadFile, nearest, shown
from tilewright.space import KernelSpace
from tilewright.space_file import axis_values, read_axes

VARIANTS = ("reduce", "multiops_threadwise", "multiops_multiblock")
"""The folder of such documents, and the words by which CK's builder tells their kernels apart."""

_TILE = ("tile_m", "tile_n", "warp_per_block_m", "warp_per_block_n")
_LAID_OUT = ("warp_tile_m", "warp_tile_n", "thread_tile_m", "thread_tile_n")
_COMPILER = "ignored: the compiler lays tiles out"
_SIZES = "ignored: problems say their sizes"


def read_reduce(
    document: Mapping[str, Any], arch: Arch, signature: Mapping[str, str] | None = None
) -> tuple[KernelSpace, list[str]]:
    """The space of reductions that a document declares, and a note for each part of it that has no
    counterpart here. A document without ``tile_config`` has this library's own axes. Raises
    `BadFile`, naming the place, and `BadArgument` for the signature."""
    from tilewright import ops

    own = {n: value for n, value in document.items() if n not in ("problem", "problem_size")}
    variant, theirs = own.pop("variant", ""), own.pop("tile_config", None)
    if theirs is None:
        return read_axes("reduction", own, signature), []
    axes: dict[str, Any] = {"COLUMNS": [False], **own}
    notes: list[str] = []
    declared: Any = ops.family("reduction")
    parts = declared.declared.axes["SPLIT"]
    if variant != VARIANTS[0]:
        axes["SPLIT"] = [n for n in parts if (n > 1) == (variant == VARIANTS[2])]
    else:
        axes.setdefault("SPLIT", [*parts])
    if not {*declared.declared.options} & axes.keys():
        axes |= {"sum": [True], "norm": [True]}
        notes.append(
            "$: results are the sum and the L2 norm, where CK's are the sum and the mean of squares"
        )
    if "out_dtype" not in {*axes, *(signature or {})}:
        usual = axes.pop("dtype", (signature or {}).get("dtype", declared.axes()["dtype"]))
        axes["dtype,out_dtype"] = [[kind, kind] for kind in axis_values(usual, "$.dtype")]
    tiles = [*_tiles_of(theirs, notes)]
    axes["KEPT,BLOCK,num_warps"] = [list(tile) for tile in dict.fromkeys(tiles)]
    most = _tiles.LANE_ELEMENTS
    crowded = [tile for tile in dict.fromkeys(tiles) if tile[0] * tile[1] > most * 32 * tile[2]]
    for kept, block, warps in crowded:
        notes.append(
            f"$.tile_config: {kept} × {block} in {warps} warps serves no problem: a lane has more "
            f"than {most} elements"
        )
    if "problem_size" in document:
        notes.append(f"$.problem_size: {_SIZES}")
    return read_axes("reduction", axes, signature), notes


def _tiles_of(theirs: Any, notes: list[str]) -> Iterator[tuple[int, int, int]]:
    """(KEPT, BLOCK, num_warps) of each of a document's tiles. Raises `BadFile`."""
    if not isinstance(theirs, dict) or not theirs.keys() <= {"fixed", "combination"}:
        raise BadFile("$.tile_config: must have 'fixed', 'combination' or both, and nothing else")
    rows = theirs.get("fixed", [])
    if not isinstance(rows, list):
        raise BadFile("$.tile_config.fixed: must be a list of tiles")
    found: list[dict[str, int]] = []
    for place, row in ((f"$.tile_config.fixed[{i}]", row) for i, row in enumerate(rows)):
        found.append({name: whole(value, f"{place}.{name}") for name, value in _named(row, place)})
    axes = dict(_named(theirs.get("combination", {}), "$.tile_config.combination"))
    if any(axis != {"values": []} for axis in axes.values()):
        places = {name: f"$.tile_config.combination.{name}" for name in axes}
        values = {n: axis_values(axis, places[n]) for n, axis in axes.items() if n in _TILE}
        for combined in itertools.product(*values.values()):
            named = zip(values, combined, strict=True)
            found.append({name: whole(value, places[name]) for name, value in named})
    if not found:
        raise BadFile("$.tile_config: has no tile")
    if any(name in _LAID_OUT for tile in (*found, axes) for name in tile):
        notes.append(f"$.tile_config: {', '.join(_LAID_OUT)} {_COMPILER}")
    for tile in found:
        if missing := [name for name in _TILE if name not in tile]:
            raise BadFile(f"$.tile_config: a tile has no {missing[0]}")
        yield tile["tile_m"], tile["tile_n"], tile["warp_per_block_m"] * tile["warp_per_block_n"]


def _named(said: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The fields of a tile. Raises `BadFile` for unknown ones."""
    if not isinstance(said, dict):
        raise BadFile(f"{place}: must be an object of fields of a tile")
    known = (*_TILE, *_LAID_OUT)
    for name, value in said.items():
        if name not in known:
            raise BadFile(f"{place}: unknown field {shown(name)}{nearest(name, known)}")
        yield name, value


def whole(value: Any, place: str) -> int:
    """A positive whole number of a document. Raises `BadFile`."""
    if type(value) is not int or value < 1:
        raise BadFile(f"{place}: must be a positive whole number, not {shown(value)}")
    return value
