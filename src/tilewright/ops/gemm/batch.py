"""Batches: many GEMMs of one size, layout and dtype in one launch.

strided   matrix z of an operand lies z strides behind its first: 3-D arrays [batch, rows,
          columns]. A stride of 0 is one matrix for all (broadcast).
pointers  each operand is an array of addresses on the device (see `tilewright.pointers`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.errors import BadArgument, nearest
from tilewright.ops.family import View

if TYPE_CHECKING:
    from tilewright.ops.gemm.problem import GemmProblem

BATCHINGS = ("none", "strided", "pointers")
PACKED = -1
"""The batch stride that stands for matrices one directly behind the other."""

MAX_STRIDE = 2**37
"""Largest batch stride in elements: a tensor map's strides are under 2^40 bytes."""


# --- what a problem's fields mean -------------------------------------------------------------


def check_batching(batching: str) -> None:
    """Raise `BadArgument` unless it is one of `BATCHINGS`."""
    if batching not in BATCHINGS:
        hint = nearest(batching, BATCHINGS) if isinstance(batching, str) else ""
        raise BadArgument(f"batching {batching!r}{hint} is not one of {', '.join(BATCHINGS)}")


def strides(p: GemmProblem, packed: Sequence[int]) -> tuple[int, int, int, int]:
    """The batch strides of A, B, C and the epilogue's matrices, of a problem whose other fields are
    complete, `packed` being those of matrices without room between them (0: there is none).
    Raises `BadArgument` for strides that no batch can have."""
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
        if a == b == 0:
            raise BadArgument("A and B are both broadcast, so every C would be the same")
        _check_apart(p, c)
    return a, b, c, d


def _check_apart(p: GemmProblem, stride: int) -> None:
    """Raise `BadArgument` if matrices of C share elements. They may lie one behind the other, or
    side by side within each other's rows."""
    inner, outer = p.inner[2], p.outer[2]
    behind = stride >= (outer - 1) * p.ldc + inner
    beside = stride >= inner and (p.batch - 1) * stride + inner <= p.ldc
    if p.m and p.columns and not behind and not beside:
        raise BadArgument(
            f"the matrices of C overlap: stride_c = {stride} with rows of {inner}, {p.ldc} apart"
        )


# --- what a call's operands say ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matrices:
    """An operand of a call: `count` matrices (None: it is one matrix, for all), their stride in
    elements, and the first one's view."""

    count: int | None
    stride: int
    first: View


def matrices(name: str, view: View) -> Matrices:
    """An operand taken apart. Raises `BadArgument` unless it has two or three dimensions."""
    if len(view.shape) == 2 and not view.pointers:
        return Matrices(None, 0, view)
    if len(view.shape) != 3:
        raise BadArgument(
            f"{name} has shape {view.shape}; gemm takes matrices [rows, columns] and batches of "
            "them [batch, rows, columns]; for more dimensions say them in `equation`"
        )
    count, stride = view.shape[0], view.strides[0]
    first = replace(view, shape=view.shape[1:], strides=view.strides[1:])
    if view.pointers:
        return Matrices(count, 0, first)
    if 0 in view.shape:  # strides of nothing say nothing
        return Matrices(count, PACKED, replace(first, strides=(max(1, view.shape[2]), 1)))
    if stride < 0:
        raise BadArgument(f"{name} has batch stride {stride}; batches run forwards")
    return Matrices(count, 0 if count == 1 else stride, first)


def batch_of(given: Sequence[tuple[str, Matrices]]) -> tuple[str, int]:
    """How the operands of a call are batched, and the size of the batch. A and B come first, then
    the output if there is one. Raises `BadArgument` if they do not agree."""
    counts = {name: x.count for name, x in given if x.count is not None}
    if not counts:
        return "none", 1
    forms = {name: bool(x.first.pointers) for name, x in given}
    if len(set(forms.values())) > 1:
        listed = " and ".join(name for name, is_pointers in forms.items() if is_pointers)
        raise BadArgument(
            f"{listed} are pointers and the others are not; of A, B and out all are, or none"
        )
    inputs = [counts[name] for name in ("A", "B") if name in counts]
    if not inputs:
        raise BadArgument("out is a batch, but A and B are single matrices")
    batch = next((count for count in inputs if count != 1), 1)
    for name, count in counts.items():
        one_for_all = count == 1 and name in ("A", "B") and not forms[name]
        if count != batch and not one_for_all:
            listed = ", ".join(f"{n} {c}" for n, c in counts.items())
            raise BadArgument(f"the batch's sizes differ: {listed}; only A and B of 1 broadcast")
    if "out" in dict(given) and "out" not in counts:
        raise BadArgument(f"out is one matrix, but the batch has {batch}")
    return ("pointers" if forms["A"] else "strided"), batch
