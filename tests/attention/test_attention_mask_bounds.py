"""Bounds of masks, exactly: what kernels compute of them, as plain Python, beside the definition.

Kernels find out which blocks a tile needs and which of them need no mask, in functions of integers.
These run here as functions of Python, for tiles and blocks of four or two, at every place of a
mask's edge: inside a block, at its ends, at the diagonal of as many, more and fewer queries than
keys, outside the keys, and where a window hides everything.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tilewright.ops.attention.kernels import gluon_rows, gluon_scores, gluon_tiles, scores
from tilewright.ops.attention.mask import NO_BOUND, Mask
from tilewright.ops.attention_backward.kernels import gluon_steps

SIZES = ((4, 4), (1, 9), (5, 8), (9, 5), (3, 12), (10, 2))
"""Of queries and keys."""
MASKS = (
    Mask(),
    *(Mask(None, right, 0, corner) for right in (-5, -1, 0, 1, 3, 6) for corner in (True, False)),
    *(
        Mask(left, right, first, corner)
        for left in (-4, 0, 1, 4, 7)
        for right in (-1, 0, 2, None)
        for first in (0, 1, 4, 6)
        for corner in (True, False)
    ),
)
CASES = [(mask, n_q, n_kv) for mask in MASKS for n_q, n_kv in SIZES]


class Array(np.ndarray):
    """What functions ask of a tensor."""

    type = types.SimpleNamespace(layout=types.SimpleNamespace(parent=None))

    def to(self, dtype: Any) -> Array:
        return self


def array(values: Any) -> Array:
    return np.asarray(values).view(Array)


LANGUAGE = types.SimpleNamespace(
    cdiv=lambda a, b: -(-a // b), minimum=np.minimum, maximum=np.maximum, exp2=np.exp2,
    where=lambda *asked: array(np.where(*asked)), SliceLayout=lambda *asked: None,
    arange=lambda begin, end, layout=None: array(np.arange(begin, end)),
    expand_dims=np.expand_dims, zeros_like=np.zeros_like, float32=None, constexpr=None,
)  # fmt: skip


def plain(function: Any) -> Callable[..., Any]:
    """A kernel's function, and those it calls, as functions of Python."""
    real = function.fn
    known: dict[str, Any] = {"tl": LANGUAGE, "gl": LANGUAGE, "min": min, "max": max}
    for name in real.__code__.co_names:
        if name not in known and name in real.__globals__:
            value = real.__globals__[name]
            known[name] = plain(value) if hasattr(value, "fn") else getattr(value, "value", value)
    return types.FunctionType(
        real.__code__, {"float": float, **known}, real.__name__, real.__defaults__
    )


def bounds(mask: Mask) -> tuple[int, int, int]:
    """As a launch passes them."""
    left = NO_BOUND if mask.left is None else mask.left
    return left, NO_BOUND if mask.right is None else mask.right, mask.first


def shift_of(mask: Mask, n_q: int, n_kv: int) -> int:
    return n_kv - n_q if mask.bottom_right else 0


def sees(mask: Mask, n_q: int, n_kv: int) -> np.ndarray:
    return mask.seen(np.arange(n_q), np.arange(n_kv), n_q, n_kv)


def empty(mask: Mask) -> bool:
    """Whether the window itself is."""
    left, right, _ = bounds(mask)
    return left + right < 0


def test_a_query_sees_what_the_definition_says():
    for mask, n_q, n_kv in CASES:
        left, right, first = bounds(mask)
        found = sees(mask, n_q, n_kv)
        for i, j in itertools.product(range(n_q), range(n_kv)):
            at = i + shift_of(mask, n_q, n_kv)
            near = at - left <= j <= at + right or (j < first and j <= at + right)
            assert found[i, j] == near, (mask, n_q, n_kv, i, j)
        assert mask.pairs(n_q, n_kv) == found.sum(), (mask, n_q, n_kv)


def test_keys_outside_are_never_seen():
    keys = np.arange(-2, 6)
    for mask in MASKS:
        assert not mask.seen(np.arange(5), keys, 5, 4)[:, (keys < 0) | (keys >= 4)].any()


def of_basic(mask: Mask, i: np.ndarray, j: np.ndarray, n_q: int, n_kv: int) -> np.ndarray:
    left, right, first = bounds(mask)
    shift = shift_of(mask, n_q, n_kv)
    found = plain(scores.seen)(i, j, n_kv, shift, left, right, first, mask.kind)
    return np.broadcast_to(found, (len(i), len(j)))


def of_gluon(mask: Mask, i: np.ndarray, j: np.ndarray, n_q: int, n_kv: int) -> np.ndarray:
    left, right, first = bounds(mask)
    shift = shift_of(mask, n_q, n_kv)
    s = array(np.zeros((len(i), len(j))))
    masked = plain(gluon_scores.masked)
    return masked(s, i[0], j[0], n_kv, shift, left, right, first, mask.kind, False) == 0


def of_gradients(mask: Mask, i: np.ndarray, j: np.ndarray, n_q: int, n_kv: int) -> np.ndarray:
    s = array(np.zeros((len(j), len(i))))
    p, _ = plain(gluon_steps.weights_of)(
        s, None, i[0], j[0], n_kv, shift_of(mask, n_q, n_kv), (*bounds(mask), mask.bottom_right),
        1.0, 0.0, 0.0, mask.kind, True, False, False,
    )  # fmt: skip
    return p.T == 1


@pytest.mark.parametrize("kernel", [of_basic, of_gluon, of_gradients])
def test_a_masked_block_is_the_masks(kernel):
    for mask, n_q, n_kv in CASES:
        i, j = np.arange(1, n_q), np.arange(min(2, n_kv - 1), n_kv + 3)  # beyond the keys too
        if len(i):
            found, wanted = kernel(mask, i, j, n_q, n_kv), mask.seen(i, j, n_q, n_kv)
            assert np.array_equal(found, wanted), (mask, n_q, n_kv)


def test_a_block_of_eight_bit_weights_has_its_keys_in_the_order_of_the_registers():
    s = array(np.zeros((1, 16)))
    assert [*plain(gluon_scores.keys)(s, 32, True)] == [
        32, 33, 36, 37, 40, 41, 44, 45, 34, 35, 38, 39, 42, 43, 46, 47,
    ]  # fmt: skip


def walks(
    walk: Callable[..., tuple[list[int], list[int]]], rows: int, keys: int
) -> Iterator[tuple[Any, ...]]:
    """Of every tile of every case: what identifies it, the first keys of its blocks without a mask
    and with one, and what of its rows sees what."""
    for mask, n_q, n_kv in CASES:
        for row in range(0, n_q, rows):
            whole, masked = walk(mask, n_q, n_kv, row, rows, keys)
            seen = sees(mask, n_q, n_kv)[row : row + rows]
            yield (mask, n_q, n_kv, row), whole, masked, seen


def check_walk(of: Any, whole: list[int], masked: list[int], seen: np.ndarray, keys: int) -> None:
    walked = [*whole, *masked]
    assert len({*walked}) == len(walked), of
    assert all(j % keys == 0 and j >= 0 for j in walked), of
    for j in range(seen.shape[1]):
        assert not seen[:, j].any() or j // keys * keys in walked, (*of, j)
    for j in whole:
        assert j + keys <= seen.shape[1] and seen[:, j : j + keys].all(), (*of, j)


def basic(mask, n_q, n_kv, row, rows, keys, begin=0, end=None):
    """The walk of the kernels in Triton."""
    left, right, first = bounds(mask)
    last, end = min(row + rows, n_q) - 1, n_kv if end is None else end
    lo, full_lo, full_hi, firsts, lefts, rights = plain(scores.spans)(
        row, last, shift_of(mask, n_q, n_kv), left, right, first, begin, end, keys, mask.kind
    )
    number = plain(scores.masked_tile)
    masked = [
        int(number(t, begin, lo, full_hi, firsts, lefts, keys, mask.kind))
        for t in range(firsts + lefts + rights)
    ]
    return [*range(full_lo, full_hi, keys)], masked


@pytest.mark.parametrize(("rows", "keys"), [(4, 4), (2, 2), (4, 2)])
def test_kernels_in_triton_walk_the_blocks_that_are_seen_and_mask_those_that_are_cut(rows, keys):
    for of, whole, masked, seen in walks(basic, rows, keys):
        check_walk(of, whole, masked, seen, keys)
        mask, n_q, n_kv, row = of
        begins = row + shift_of(mask, n_q, n_kv) - bounds(mask)[0]
        if not empty(mask) and begins < n_kv:  # and no others
            for j in masked:
                block = seen[:, j : j + keys]
                assert block.any(), (*of, j)
                assert mask.first or not block.all() or j + keys > n_kv, (*of, j)


def test_parts_of_the_keys_walk_the_blocks_of_their_own():
    for mask, n_q, n_kv in CASES:
        for begin in range(0, n_kv, 4):
            end = min(begin + 4, n_kv)
            whole, masked = basic(mask, n_q, n_kv, 0, 4, 2, begin, end)
            assert all(begin <= j < end for j in whole + masked), (mask, n_q, n_kv, begin)
            part = np.zeros((min(n_q, 4), n_kv), bool)
            part[:, begin:end] = sees(mask, n_q, n_kv)[:4, begin:end]
            check_walk((mask, n_q, n_kv, begin), whole, masked, part, 2)


def gluon(mask, n_q, n_kv, row, rows, keys):
    """The walk of `gluon_ws`, of one group of warps."""
    work = types.SimpleNamespace(
        bounds=(*bounds(mask), int(mask.bottom_right)), MASK=mask.kind,
        TILE_Q=rows, TILE_KV=keys, GROUPS=1,
    )  # fmt: skip
    top, window, count = plain(gluon_tiles.steps_of)(work, row, n_q, n_kv)
    begin, end = plain(gluon_tiles.masked_steps)(
        work, row, top, window, count, n_kv, shift_of(mask, n_q, n_kv)
    )
    column = plain(gluon_tiles.column_of)
    columns = [int(column(step, top, window, count, keys)) for step in range(count)]
    return columns[begin:end], columns[:begin] + columns[end:]


@pytest.mark.parametrize(("rows", "keys"), [(4, 4), (2, 2), (4, 2)])
def test_kernels_in_gluon_walk_the_blocks_that_are_seen_and_mask_those_that_are_cut(rows, keys):
    for of, whole, masked, seen in walks(gluon, rows, keys):
        check_walk(of, whole, masked, seen, keys)
        assert masked, of  # there is always a step, and the first has a mask
        mask, n_q, n_kv, row = of
        begins = row + shift_of(mask, n_q, n_kv) - bounds(mask)[0]
        if empty(mask) or begins >= n_kv or not seen.any():
            continue
        last = np.arange(row, row + rows)  # also rows beyond the queries, which are computed
        for number, j in enumerate(masked):
            block = mask.seen(last, np.arange(j, j + keys), n_q, n_kv)
            assert seen[:, j : j + keys].any(), (*of, j)
            assert number == 0 or mask.first or not block.all(), (*of, j)


def test_a_tile_of_heads_that_share_keys_begins_where_its_first_row_does():
    lowest = plain(gluon_rows.lowest_key)
    ROWS = gluon_rows.ROWS.value
    for mask, n_q, n_kv in CASES:
        if mask.kind == "window" and not mask.first:
            left, *_ = bounds(mask)
            for group in (ROWS, ROWS // 2):
                work = types.SimpleNamespace(
                    group=group, left=left, bottom_right=int(mask.bottom_right), MASK=mask.kind
                )
                for tile in range(-(-n_q * group // ROWS)):
                    row = tile * ROWS // group
                    found = lowest(work, tile, n_q, n_kv)
                    at = row + shift_of(mask, n_q, n_kv)
                    assert found == min(max(at - left, 0), n_kv), (mask, n_q, n_kv, tile)


def gradients(mask, n_q, n_kv, column, columns, queries):
    """(begin, low, high, end) of the steps of a tile of keys."""
    shift = shift_of(mask, n_q, n_kv)
    found = plain(gluon_steps.steps_of)(
        column, n_q, n_kv, shift, *bounds(mask), columns, queries, mask.kind
    )
    return tuple(map(int, found))


@pytest.mark.parametrize(("columns", "queries"), [(4, 4), (2, 2), (4, 2)])
def test_gradients_walk_the_queries_that_see_a_tile_and_mask_those_that_are_cut(columns, queries):
    for mask, n_q, n_kv in CASES:
        seen = sees(mask, n_q, n_kv)
        beyond = -(-n_kv // columns) * columns
        begin, _, _, end = gradients(mask, n_q, n_kv, beyond, columns, queries)
        assert begin >= end, (mask, n_q, n_kv)
        for column in range(0, n_kv, columns):
            begin, low, high, end = gradients(mask, n_q, n_kv, column, columns, queries)
            of = (mask, n_q, n_kv, column)
            assert 0 <= begin <= low <= high <= end <= -(-n_q // queries), of
            tile = seen[:, column : column + columns]
            for i in range(n_q):
                assert not tile[i].any() or begin <= i // queries < end, (*of, i)
            cut = column + columns > n_kv or column < mask.first < column + columns
            for step in range(begin, end):
                block = tile[step * queries : (step + 1) * queries]
                assert not low <= step < high or (block.all() and not cut), (*of, step)
                alike = not mask.first or column + columns <= mask.first
                if alike and not empty(mask):  # rows beyond the queries are computed too
                    rows = np.arange(step * queries, (step + 1) * queries)
                    block = mask.seen(rows, np.arange(column, column + columns), n_q, n_kv)
                    assert block.any() and (low <= step < high) == block.all(), (*of, step)


def test_turns_count_the_tiles_that_add_to_a_block_of_queries_before():
    size = 2
    turn_of = plain(gluon_steps.turn_of)
    for mask, n_q, n_kv in CASES:
        tiles = [*range(0, n_kv, size)]
        adds = {j: gradients(mask, n_q, n_kv, j, size, size) for j in tiles}
        for t, j0, up in itertools.product(range(-(-n_q // size)), tiles, (False, True)):
            if not adds[j0][0] <= t < adds[j0][3]:
                continue
            ascending = up and mask.kind == "causal"
            before = [j for j in tiles if (j < j0 if ascending else j > j0)]
            wanted = sum(adds[j][0] <= t < adds[j][3] for j in before)
            shift = shift_of(mask, n_q, n_kv)
            found = turn_of(t, j0, up, n_kv, shift, *bounds(mask), size, size, mask.kind)
            assert found == wanted, (mask, n_q, n_kv, t, j0, up)
