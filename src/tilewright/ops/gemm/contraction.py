"""Contractions: an einsum of two operands, computed in place as a (batched) GEMM.

    "bhqd,bhkd->bhqk"                                  a letter for each dimension
    "b heads q d, b heads k d -> b heads q k"          or, with spaces inside, words

The places of its label give a dimension its role: in A, B and out it belongs to the batch, in A and
out to M, in B and out to N, in A and B to K. Dimensions of one role are merged if every operand can
walk them as one. Dimensions of M and N that do not merge join the batch; the operand without them
is then shared. A batch can have two dimensions that do not merge. Of two dimensions of K that do
not merge, one is a batch whose products are summed. Nothing is copied: if the strides allow no
GEMM, the error names the dimensions that prevent it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.errors import BadArgument
from tilewright.ops.gemm.batch import packed
from tilewright.ops.nouns import View

C = 2
NAMES = ("A", "B", "out")
NESTED = "oimk,oikn->oimn"
"""The equation of a nested batch."""
_ROLES: dict[tuple[int, ...], str] = {
    (1, 1, 1): "batch",
    (1, 0, 1): "m",
    (0, 1, 1): "n",
    (1, 1, 0): "k",
}

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Dim:
    """A dimension, or several merged ones. `strides` has its stride in each operand; 0 in an
    operand without it."""

    labels: Labels
    size: int
    strides: tuple[int, ...]

    def __str__(self) -> str:
        return "·".join(self.labels)


@lru_cache(maxsize=256)
def parse(equation: str) -> tuple[Labels, Labels, Labels]:
    """Labels of A, B and out. Raises `BadArgument` if the text is no contraction of two
    operands."""
    if not isinstance(equation, str):
        raise BadArgument(f"an equation is text like 'bmk,bkn->bmn', not {equation!r}")
    inputs, arrow, result = equation.partition("->")
    terms = [term.strip() for term in (*inputs.split(","), result)]
    if not arrow or len(terms) != 3:
        raise BadArgument(
            f"equation '{equation}' is not of the form 'A,B->out' with two operands and an output"
        )
    words = any(len(term.split()) > 1 for term in terms)
    a, b, c = (tuple(term.split() if words else term) for term in terms)
    for name, labels in zip(NAMES, (a, b, c), strict=True):
        for label in labels:
            if not label.isidentifier():
                what = "an ellipsis" if "." in label else f"'{label}'"
                raise BadArgument(f"equation '{equation}': {what} is no label; name each dimension")
            if labels.count(label) > 1:
                raise BadArgument(f"equation '{equation}': {name} has '{label}' twice")
    for label in dict.fromkeys((*a, *b, *c)):
        if _where(label, (a, b, c)) not in _ROLES:
            only = next(name for name, x in zip(NAMES, (a, b, c), strict=True) if label in x)
            what = "nothing says what goes there" if only == "out" else "sum it beforehand"
            raise BadArgument(f"equation '{equation}': '{label}' is in {only} only; {what}")
    return a, b, c


def _where(label: str, terms: Sequence[Labels]) -> tuple[int, ...]:
    return tuple(int(label in labels) for labels in terms)


def output_shape(equation: str, a: View, b: View) -> tuple[int, ...]:
    """The shape of the result. Raises `BadArgument` if the operands do not fit the equation."""
    terms = parse(equation)
    sizes = _sizes(equation, terms[:2], (("A", a), ("B", b)))
    return tuple(sizes[label] for label in terms[C])


@dataclass(frozen=True, slots=True)
class Outer:
    """The outer of a batch's two dimensions: its size, and its stride in each operand."""

    size: int
    strides: tuple[int, ...]


def matrices(
    equation: str,
    operands: Sequence[tuple[str, View]],
    whole: Sequence[str] = (),
    nested: bool = False,
) -> tuple[list[View], Outer | None]:
    """Views of the same memory as matrices, or as batches of matrices unless the whole batch shares
    one: A [m, k], B [k, n], out [m, n] and other operands with the layout of out, by name. If the
    batch has two dimensions, also the outer one. Batches of A and B alone are summed into out.

    whole: roles (``m``, ``n``) that must each be one dimension.
    nested: dimensions that belong to a batch already are not merged.

    Raises `BadArgument`.
    """
    said = parse(equation)
    terms = (*said, *(said[C] for _ in operands[3:]))
    # The strides of an array without elements may be anything.
    operands = [
        (name, replace(view, strides=packed(view.shape)) if 0 in view.shape else view)
        for name, view in operands
    ]
    for name, view in operands:
        if view.pointers:
            raise BadArgument(f"{name} is pointers; an equation takes arrays")
        if any(s < 0 for n, s in zip(view.shape, view.strides, strict=True) if n > 1):
            raise BadArgument(f"{name} has strides {view.strides}; dimensions must run forwards")
    walk = _Walk(equation, tuple(n for n, _ in operands), tuple(0 in v.shape for _, v in operands))
    joined: dict[str, list[_Dim]] = {"batch": [], "m": [], "n": [], "k": []}
    for label, size in _sizes(equation, terms, operands).items():
        strides = tuple(
            view.strides[labels.index(label)] if label in labels else 0
            for labels, (_, view) in zip(terms, operands, strict=True)
        )
        role = _ROLES[_where(label, said)]
        if size != 1 or (nested and role == "batch"):
            joined[role].append(_Dim((label,), size, strides))
    joined = {
        role: dims if nested and role == "batch" else walk.join(dims)
        for role, dims in joined.items()
    }
    one = _Dim((), 1, (1,) * len(operands))
    of_sum = [*joined["batch"], *joined["m"][1:], *joined["n"][1:]]
    if len(joined["k"]) == 2 and not of_sum:
        return _summed(walk, operands, joined, one), None
    for role in ("k", *whole):
        if len(joined[role]) > 1:
            raise BadArgument(walk.apart(joined[role]))
    k = (joined["k"] or [one])[0]
    # One dimension of M's role can be M, or none; the others go to the batch. The same holds for N.
    of_m = joined["m"] or [one] if "m" in whole else [*joined["m"], one]
    of_n = joined["n"] or [one] if "n" in whole else [*joined["n"], one]
    tried = []
    for m, n in itertools.product(of_m, of_n):
        rest = [d for d in (*joined["m"], *joined["n"]) if d not in (m, n)]
        batch = [*joined["batch"], *rest] if nested else walk.join([*joined["batch"], *rest])
        axes = [(m, k), (k, n), *((m, n) for _ in operands[2:])]
        tried.append((len(batch), -m.size * n.size, walk.objection(axes, batch), axes, batch))
    # A batch of two dimensions needs one kind of kernel only: prefer large matrices to it.
    tried.sort(key=lambda t: (bool(t[2]), t[0] > 1, t[1]))
    *_, why, axes, batch = tried[0]
    if why:
        raise BadArgument(why)
    batch.sort(key=lambda d: said[C].index(d.labels[0]))  # the outer one comes first in out
    inner = batch.pop() if batch else None
    found = [
        _as_matrix(view, place, two, inner)
        for place, ((_, view), two) in enumerate(zip(operands, axes, strict=True))
    ]
    return found, Outer(batch[0].size, batch[0].strides) if batch else None


def _summed(
    walk: _Walk,
    operands: Sequence[tuple[str, View]],
    joined: Mapping[str, Sequence[_Dim]],
    one: _Dim,
) -> list[View]:
    """Views of products whose sum is out: a dimension of K is K, the other a batch. Raises
    `BadArgument`."""
    (m, *_), (n, *_) = [*joined["m"], one], [*joined["n"], one]
    tried = []
    for outer, inner in itertools.permutations(joined["k"]):
        axes = [(m, inner), (inner, n), *((m, n) for _ in operands[C:])]
        why = walk.objection(axes, [outer])
        if not any(outer.strides[:C]):  # expanded in A and in B: no operand would say how many
            why = walk.apart(joined["k"])
        tried.append((why, -inner.size, axes, outer))
    tried.sort(key=lambda t: (bool(t[0]), t[1]))
    why, _, axes, outer = tried[0]
    if why:
        raise BadArgument(why)
    return [
        _as_matrix(view, place, two, outer if place < C else None)
        for place, ((_, view), two) in enumerate(zip(operands, axes, strict=True))
    ]


def _sizes(
    equation: str, terms: Sequence[Labels], operands: Sequence[tuple[str, View]]
) -> dict[str, int]:
    found: dict[str, tuple[int, str]] = {}
    for (name, view), labels in zip(operands, terms, strict=True):
        if len(labels) != len(view.shape):
            raise BadArgument(
                f"equation '{equation}': {name} has {len(labels)} labels but shape {view.shape}"
            )
        for label, size in zip(labels, view.shape, strict=True):
            known, where = found.setdefault(label, (size, name))
            if known != size:
                raise BadArgument(
                    f"equation '{equation}': '{label}' is {known} in {where} but {size} in {name}"
                )
    return {label: size for label, (size, _) in found.items()}


@dataclass(frozen=True, slots=True)
class _Walk:
    """The operands, by name, in which dimensions are walked. The strides of the `empty` ones say
    nothing."""

    equation: str
    names: tuple[str, ...]
    empty: tuple[bool, ...]

    def join(self, dims: Sequence[_Dim]) -> list[_Dim]:
        """`dims` with dimensions merged that every operand walks as one: a step of the outer is as
        long as the whole inner dimension."""
        for outer, inner in itertools.permutations(dims, 2):
            steps = zip(outer.strides, inner.strides, self.empty, strict=True)
            if all(nothing or x == y * inner.size for x, y, nothing in steps):
                others = [d for d in dims if d not in (outer, inner)]
                both = _Dim(outer.labels + inner.labels, outer.size * inner.size, inner.strides)
                return self.join([*others, both])
        return list(dims)

    def objection(self, axes: Sequence[tuple[_Dim, _Dim]], batch: Sequence[_Dim]) -> str:
        """The reason why operands with these rows and columns are no matrices; "" if they are
        matrices."""
        if len(batch) > 2:
            return self.apart(batch, 2)
        for place, two in enumerate(axes):
            real = [d for d in two if d.size > 1]
            if not self.empty[place] and not _is_matrix(real, place):
                listed = " and ".join(f"{d} (stride {d.strides[place]})" for d in real)
                return (
                    f"equation '{self.equation}': {self.names[place]} is no matrix over {listed}: "
                    "one must be contiguous and the other behind all of it; pass a contiguous copy"
                )
        return ""

    def apart(self, dims: Sequence[_Dim], most: int = 1) -> str:
        """The reason why these dimensions cannot be merged into `most`, as a GEMM needs."""
        strides = "; ".join(
            f"{name} {', '.join(str(d.strides[place]) for d in dims)}"
            for place, name in enumerate(self.names)
            if any(d.strides[place] for d in dims)
        )
        return (
            f"equation '{self.equation}': dimensions {', '.join(map(str, dims))} of sizes "
            f"{', '.join(str(d.size) for d in dims)} must be walked as {('one', 'two')[most - 1]}, "
            f"but their strides are "
            f"{strides}; pass copies in which they are neighbours in the same order"
        )


def _is_matrix(dims: Sequence[_Dim], place: int) -> bool:
    """Whether an operand's dimensions (those larger than 1) are rows and columns of a matrix."""
    if len(dims) < 2:
        return all(d.strides[place] for d in dims)
    return any(
        inner.strides[place] == 1 and outer.strides[place] >= inner.size
        for outer, inner in itertools.permutations(dims, 2)
    )


def _as_matrix(view: View, place: int, two: tuple[_Dim, _Dim], batch: _Dim | None) -> View:
    """An operand as a matrix, or as a batch of matrices unless all share one."""
    shape = tuple(d.size for d in two)
    strides = tuple(d.strides[place] for d in two)
    if batch is not None and (batch.strides[place] or place == C):
        shape = (batch.size, *shape)
        strides = (batch.strides[place], *strides)
    return replace(view, shape=shape, strides=strides)
