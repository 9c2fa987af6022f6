"""Batches: many GEMMs of the same size, layout and dtypes in one launch.

strided   the matrices of an operand lie one stride apart: 3-D arrays [batch, rows, columns]. A
          stride of 0 means one matrix for all (broadcast).
nested    a batch of strided batches, with two strides: 4-D arrays in a contraction whose two batch
          dimensions cannot be walked as one.
pointers  each operand is an array of addresses on the device (see `tilewright.pointers`).
summed    A and B are strided batches, and C is one matrix: the sum of all products, as in
          ``bmk,bkn->mn``. A sum over two dimensions that cannot be walked as one.

If the matrices of A and C each lie in memory as one matrix, and all share B, the batch is one GEMM
with more rows (see `fold`). It reads B once for many rows. A shared A gives more columns in the
same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tilewright.errors import BadArgument, nearest
from tilewright.ops.nouns import View

BATCHINGS = ("none", "strided", "pointers", "nested", "summed")
STRIDED = ("strided", "nested", "summed")
"""Batchings whose matrices are found by strides."""

PACKED = -1
"""The batch stride for matrices directly behind each other."""

MAX_STRIDE = 2**37
"""Largest batch stride in elements: a tensor map's strides are under 2^40 bytes."""


# --- the batch of a problem ---------------------------------------------------------------------


class Batched(Protocol):
    """The fields of a `GemmProblem` that are read here. (Its module imports this one.)"""

    @property
    def m(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def ldc(self) -> int: ...
    @property
    def inner(self) -> tuple[int, int, int]: ...
    @property
    def outer(self) -> tuple[int, int, int]: ...
    @property
    def batch(self) -> int: ...
    @property
    def batching(self) -> str: ...
    @property
    def batch_inner(self) -> int: ...
    @property
    def batch_strides(self) -> tuple[int, int, int, int]: ...
    @property
    def outer_strides(self) -> tuple[int, ...]: ...


def check_batching(batching: str) -> None:
    """Raise `BadArgument` unless it is one of `BATCHINGS`."""
    if batching not in BATCHINGS:
        hint = nearest(batching, BATCHINGS) if isinstance(batching, str) else ""
        raise BadArgument(f"batching {batching!r}{hint} is not one of {', '.join(BATCHINGS)}")


def strides(p: Batched, packed: Sequence[int]) -> tuple[int, int, int, int]:
    """The batch strides of A, B, C and the epilogue's matrices.

    p: a problem whose other fields are complete.
    packed: the strides of matrices without gaps (0: the problem has no such matrix).

    Raises `BadArgument` for strides that no batch can have.
    """
    found = []
    for field, tight in zip(("stride_a", "stride_b", "stride_c", "stride_d"), packed, strict=True):
        stride = getattr(p, field)
        if not isinstance(stride, int) or isinstance(stride, bool):
            raise BadArgument(f"{field} must be an integer, not {stride!r}")
        one = p.batching == "none" or tight == 0
        if one or (p.batching == "pointers" and field != "stride_d"):
            if stride not in (PACKED, 0):
                raise BadArgument(f"{field} = {stride}, but there are no strided matrices there")
            stride = 0
        elif stride == PACKED:
            stride = tight
        elif not 0 <= stride <= MAX_STRIDE:
            raise BadArgument(f"{field} = {stride} is outside 0 … {MAX_STRIDE}")
        found.append(stride)
    a, b, c, d = found
    if p.batching == "strided" and p.batch > 1:
        check_walk(p, [(p.batch, (a, b, c))])
    if p.batching == "summed" and a == b == 0:
        raise BadArgument("A and B are both broadcast, so every product would be the same")
    return a, b, c, d


def outer_strides(p: Batched, packed: Sequence[int]) -> tuple[int, ...]:
    """The strides of a nested batch from one inner batch to the next; () for any other problem. The
    problem's other fields are complete. Raises `BadArgument`."""
    given, inner = p.outer_strides, p.batch_inner
    if p.batching != "nested":
        if given or inner:
            raise BadArgument(
                f"batch_inner = {inner} and outer_strides = {given} are of batching nested, not "
                f"{p.batching}"
            )
        return ()
    if not isinstance(inner, int) or isinstance(inner, bool) or inner < 1 or p.batch % inner:
        raise BadArgument(f"batch_inner = {inner!r} does not divide the batch of {p.batch}")
    if not given:
        tight = zip(p.batch_strides, packed, strict=True)
        given = tuple(inner * stride or one for stride, one in tight)
    if len(given) != len(packed) or not all(
        isinstance(s, int) and not isinstance(s, bool) and 0 <= s <= MAX_STRIDE for s in given
    ):
        raise BadArgument(
            f"outer_strides = {given} are not {len(packed)} numbers of elements, of A, B, C and D, "
            f"from 0 to {MAX_STRIDE}"
        )
    if not packed[-1] and given[-1]:
        raise BadArgument(f"outer_strides = {given}, but the epilogue has no matrix, which is last")
    if p.batch:
        levels = ((p.batch // inner, given), (inner, p.batch_strides))
        check_walk(p, [(count, steps[:3]) for count, steps in levels if count > 1])
    return given


def check_walk(p: Batched, levels: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Raise `BadArgument` unless each matrix of C is computed from other inputs and the matrices of
    C share no elements. They may lie behind each other, or side by side within each other's rows.

    levels: (count, strides of A, B and C) of each level of the batch.
    """
    if any(a == b == 0 for _, (a, b, _) in levels):
        raise BadArgument("A and B are both broadcast, so every C would be the same")
    steps = [(p.outer[2], p.ldc), *((count, c) for count, (_, _, c) in levels)]
    reach = inner = p.inner[2]
    for count, step in sorted(steps, key=lambda s: s[1]):
        if p.m and p.columns and count > 1 and step < reach:
            strides = ", ".join(str(c) for _, (_, _, c) in levels)
            raise BadArgument(
                f"the matrices of C overlap: they are {strides} apart, their rows of {inner} "
                f"{p.ldc} apart"
            )
        reach += (count - 1) * step


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major array without gaps."""
    return tuple(math.prod(max(1, n) for n in shape[i + 1 :]) for i in range(len(shape)))


# --- the batch of a call's operands -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matrices:
    """The matrices of an operand of a call.

    count: number of matrices; None for one matrix that all share.
    stride: elements from one matrix to the next.
    view: the first matrix.
    """

    count: int | None
    stride: int
    first: View


def matrices(name: str, view: View) -> Matrices:
    """An operand as its matrices. Raises `BadArgument` unless it has two or three dimensions."""
    if len(view.shape) == 2 and not view.pointers:
        return Matrices(None, 0, view)
    if len(view.shape) != 3:
        raise BadArgument(
            f"{name} has shape {view.shape}; gemm takes matrices [rows, columns] and batches of "
            "them [batch, rows, columns]; for more dimensions use `equation`"
        )
    count, stride = view.shape[0], view.strides[0]
    first = replace(view, shape=view.shape[1:], strides=view.strides[1:])
    if view.pointers:
        return Matrices(count, 0, first)
    if 0 in view.shape:  # strides of an empty array say nothing
        return Matrices(count, PACKED, replace(first, strides=packed(first.shape)))
    if stride < 0:
        raise BadArgument(f"{name} has batch stride {stride}; batches run forwards")
    return Matrices(count, 0 if count == 1 else stride, first)


def batch_of(parts: Sequence[tuple[str, Matrices]]) -> tuple[str, int]:
    """The batching and the batch size of a call's operands (A, B, out, and matrices of an
    epilogue). Raises `BadArgument` if the operands disagree."""
    three, others = parts[:3], parts[3:]
    counts = {name: x.count for name, x in three if x.count is not None}
    by_pointers = bool(three[0][1].first.pointers)
    for name, x in others:
        if x.first.pointers:
            raise BadArgument(f"{name} is pointers; the epilogue's matrices are arrays")
    for name, x in three[1:]:
        if bool(x.first.pointers) != by_pointers:
            one, other = ("A", name) if by_pointers else (name, "A")
            raise BadArgument(
                f"{one} is pointers and {other} is not; A, B and out must all be pointers, or none"
            )
    if not counts and all(x.count is None for _, x in others):
        return "none", 1
    inputs = [counts[name] for name in ("A", "B") if name in counts]
    if not inputs:
        raise BadArgument(f"A and B are single matrices, but there is a batch: {_listed(parts)}")
    if "out" not in counts:
        raise BadArgument(f"out is one matrix, but there is a batch: {_listed(parts)}")
    batch = next((count for count in inputs if count != 1), 1)
    for name, x in parts:
        may_be_one = name != "out" and not by_pointers
        if x.count not in (None, batch) and not (x.count == 1 and may_be_one):
            raise BadArgument(
                f"the batch's sizes differ: {_listed(parts)}; a batch of 1 is shared, but not out's"
            )
    return ("pointers" if by_pointers else "strided"), batch


def sum_of(parts: Sequence[tuple[str, Matrices]]) -> int:
    """The size of the batch over which C is a sum (batching ``summed``). Raises `BadArgument` if
    the operands disagree."""
    (_, a), (_, b), *others = parts
    counts = {x.count for x in (a, b) if x.count is not None}
    if len(counts) != 1 or a.first.pointers or any(x.count is not None for _, x in others):
        raise BadArgument(
            "batching summed sums the products of a batch of arrays into one matrix: "
            f"{_listed(parts)}"
        )
    (batch,) = counts
    return batch


def _listed(parts: Sequence[tuple[str, Matrices]]) -> str:
    return ", ".join(f"{name} {x.count}" for name, x in parts if x.count is not None)


def fold(
    parts: Sequence[tuple[str, Matrices]], batch: int, vectors: Sequence[str]
) -> list[tuple[str, Matrices]] | None:
    """The operands of a batch as operands of one GEMM with more rows or columns, if their layout
    allows this; else None.

    vectors: kinds of the epilogue's vectors (``m``, ``n``), which must keep their lengths.
    """
    (_, a), (_, b) = parts[:2]
    if batch < 2 or bool(a.stride) == bool(b.stride):
        return None
    axis, shared = (0, 1) if a.stride else (1, 0)
    if "mn"[axis] in vectors:
        return None
    found = []
    for place, (name, x) in enumerate(parts):
        view = x.first if place == shared else _as_one(x, axis, batch)
        if view is None:
            return None
        found.append((name, Matrices(None, 0, view)))
    return found


def _as_one(x: Matrices, axis: int, batch: int) -> View | None:
    """One matrix with all rows (`axis` 0) or all columns of these matrices; None if their layout
    does not allow it."""
    shape, strides = list(x.first.shape), list(x.first.strides)
    step = strides[axis] if shape[axis] > 1 else x.stride
    if x.stride <= 0 or 0 in shape or x.stride != shape[axis] * step:
        return None
    shape[axis], strides[axis] = batch * shape[axis], step
    apart = [strides[1 - i] == 1 and strides[i] >= shape[1 - i] for i in (0, 1)]
    return replace(x.first, shape=tuple(shape), strides=tuple(strides)) if any(apart) else None
