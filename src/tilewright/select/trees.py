"""`Trees`: a sum of decision trees as flat arrays, and its value for rows of features.

The walk is in C (`trees.c`), or where that cannot be compiled in NumPy. Both add the leaves up in
the same order, so they give the same bits in every process. The sums of the two halves of the trees
are known apart: they are two opinions.
"""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from itertools import pairwise
from operator import ge
from pathlib import Path
from typing import Any

from tilewright import native
from tilewright.errors import BadFile, NoCompiler

log = logging.getLogger("tilewright")

MOST_TREES, MOST_NODES = 10_000, 1_000_000
MOST_VALUE = 100.0
"""Of a leaf: far beyond any logarithm of a ratio of times."""
LEAF = -1


@dataclass(frozen=True)
class Trees:
    """Nodes of all trees, by number. A tree's value is its leaf's; all trees' are added up. Of an
    odd number the first half has one less.

    feature: by which a node decides; `LEAF` of a leaf.
    threshold: a row whose feature is at most this goes left; of a leaf, its value.
    left, right: numbers of a node's children, which are larger than its own; 0 of a leaf.
    roots: the first node of each tree; the others of the tree follow it.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    roots: tuple[int, ...]

    def __getstate__(self) -> dict[str, Any]:
        """Without `_packed`: its addresses are of this process."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def check(self, features: int, where: str) -> None:
        """Raise `BadFile`, which begins with `where`, unless every walk ends and no number is out
        of range. features: how many a row has."""
        count = len(self.feature)
        if count > MOST_NODES or len(self.roots) > MOST_TREES:
            raise BadFile(f"{where}: over {MOST_TREES} trees or {MOST_NODES} nodes")
        for name in ("threshold", "left", "right"):
            if (given := len(getattr(self, name))) != count:
                raise BadFile(f"{where}: {name} has {given} values of {count} nodes")
        starts = (*self.roots, count)
        if starts[0] != 0 or any(map(ge, starts, starts[1:])):
            raise BadFile(f"{where}: roots do not rise from 0 to below {count}, the nodes' number")
        for root, end in pairwise(starts):
            self._check_tree(root, end, features, where)

    def _check_tree(self, root: int, end: int, features: int, where: str) -> None:
        """`check` of the nodes from `root` to before `end`."""
        children = [root]
        for node in range(root, end):
            feature, threshold = self.feature[node], self.threshold[node]
            both = left, right = self.left[node], self.right[node]
            if not LEAF <= feature < features:
                raise BadFile(f"{where}: feature[{node}] is {feature}, of {features} features")
            if not math.isfinite(threshold) or (feature == LEAF and abs(threshold) > MOST_VALUE):
                raise BadFile(f"{where}: threshold[{node}] is {threshold}")
            if feature == LEAF:
                if both != (0, 0):
                    raise BadFile(f"{where}: node {node} is a leaf with children")
            elif node < left < end and node < right < end:
                children += both
            else:
                raise BadFile(
                    f"{where}: the children of node {node} are {left} and {right}, and not after it"
                    f" in its tree, which ends before {end}"
                )
        if len(children) != end - root or len({*children}) != end - root:
            raise BadFile(f"{where}: a node of the tree at {root} has not one parent")

    def values(self, x: Any) -> Any:
        """The value of each row of `x`, an array [rows, features] of finite numbers."""
        first, second = self.halves(x)
        return first + second

    def halves(self, x: Any) -> Any:
        """Of each row of `x`, an array as `values` has it, what the first half of the trees adds up
        to and what the second does: an array [2, rows]. It is fastest for an `x` whose columns lie
        one behind the other."""
        import numpy as np

        walk, count = walker(), len(x)
        if walk is None or not count:
            return self.in_numpy(np.asarray(x, np.float64))
        columns = np.ascontiguousarray(x.T, np.float64)
        words, packed = -(-count // _BITS), self._packed
        waiting = np.empty(packed.largest, np.int32)
        sets = np.empty((len(packed.thresholds) + packed.largest + 1) * words, np.int64)
        totals = np.zeros((2, count))
        rooms = waiting.ctypes.data, sets.ctypes.data, totals.ctypes.data
        walk(columns.ctypes.data, count, *packed.given, *rooms)
        return totals

    def in_numpy(self, x: Any) -> Any:
        """As `halves`, in NumPy."""
        import numpy as np

        if not self.roots:
            return np.zeros((2, len(x)))
        feature, child = np.array(self.feature), np.array([self.left, self.right])
        threshold, roots = np.array(self.threshold), np.array(self.roots)
        at = np.repeat(roots[None, :], len(x), 0).ravel()
        rows = np.repeat(np.arange(len(x)), len(roots))
        walking = np.flatnonzero(feature[at] != LEAF)
        while len(walking):
            here = at[walking]
            right = ~(x[rows[walking], feature[here]] <= threshold[here])
            at[walking] = there = child[right.astype(np.int8), here]
            walking = walking[feature[there] != LEAF]
        leaves, half = threshold[at].reshape(len(x), len(roots)), len(roots) // 2
        # One after another, as in C: `sum` adds in another order.
        parts = [np.cumsum(one, axis=1)[:, -1:] for one in (leaves[:, :half], leaves[:, half:])]
        return np.array([part.sum(axis=1) for part in parts])

    @cached_property
    def _packed(self) -> _Packed:
        """As `trees.c` has them."""
        import numpy as np

        feature, threshold = np.array(self.feature, np.int32), np.array(self.threshold)
        inner = np.flatnonzero(feature != LEAF)
        inner = inner[np.lexsort((threshold[inner], feature[inner]))]
        asked, at_most = feature[inner], threshold[inner]
        other = np.ones(len(inner), bool)  # whether a cut is not that of the node before
        other[1:] = (asked[1:] != asked[:-1]) | (at_most[1:] != at_most[:-1])
        kind = [("value", "f8"), ("cut", "i4"), ("child", "i4", (2,))]
        nodes = np.zeros(len(feature), np.dtype(kind, align=True))
        nodes["value"], nodes["cut"] = threshold, LEAF
        nodes["cut"][inner] = np.cumsum(other) - 1
        nodes["child"] = np.array([self.left, self.right]).reshape(2, -1).T
        ends = np.arange(max(self.feature, default=LEAF) + 2)
        first = np.searchsorted(asked[other], ends).astype(np.int32)
        roots = np.array(self.roots, np.int32)
        largest = int(np.diff([*self.roots, len(feature)]).max(initial=0))
        return _Packed(first, at_most[other], nodes, roots, largest)


@dataclass(frozen=True)
class _Packed:
    """Trees as `trees.c` has them. A cut is a feature and a threshold.

    first: of each feature its first cut, and behind the last feature the number of cuts.
    thresholds: of each cut.
    nodes: with the cut that each decides by.
    roots: the first node of each tree. largest: how many nodes the largest tree has.
    """

    first: Any
    thresholds: Any
    nodes: Any
    roots: Any
    largest: int

    @cached_property
    def given(self) -> tuple[int, ...]:
        """These arguments of `walk`."""
        return (
            len(self.first) - 1, self.first.ctypes.data, self.thresholds.ctypes.data,
            self.nodes.ctypes.data, self.roots.ctypes.data, len(self.roots),
        )  # fmt: skip


_BITS = 64
"""As in `trees.c`."""


@cache
def walker() -> Any:
    """The compiled walk; None where it cannot be compiled, which a warning says once."""
    try:
        library = ctypes.CDLL(str(native.compiled(_SOURCE, what="the walk of models")))
    except (NoCompiler, OSError) as error:
        log.warning("%s; until then a learned choice takes some milliseconds more", error)
        return None
    p, n = ctypes.c_void_p, ctypes.c_int64
    library.walk.argtypes = [p, n, n, p, p, p, p, n, p, p, p]
    library.walk.restype = None
    return library.walk


_SOURCE = Path(__file__).with_name("trees.c")


def joined(parts: Sequence[Trees]) -> Trees:
    """All trees of `parts` as one sum."""
    feature: list[int] = []
    threshold: list[float] = []
    left: list[int] = []
    right: list[int] = []
    roots: list[int] = []
    for part in parts:
        before = len(feature)
        feature += part.feature
        threshold += part.threshold
        for own, theirs in ((left, part.left), (right, part.right)):
            own += [
                n if f == LEAF else n + before for n, f in zip(theirs, part.feature, strict=True)
            ]
        roots += [root + before for root in part.roots]
    return Trees(tuple(feature), tuple(threshold), tuple(left), tuple(right), tuple(roots))
