"""`Trees`: a sum of decision trees as flat arrays, and its value for rows of features.

The walk is in C (`trees.c`), or where that cannot be compiled in NumPy. Both add the leaves up in
the same order, so they give the same bits in every process.
"""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
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
    """Nodes of all trees, by number. A tree's value is its leaf's; all trees' are added up.

    feature: by which a node decides; `LEAF` of a leaf.
    threshold: a row whose feature is at most this goes left; of a leaf, its value.
    left, right: numbers of a node's children, which are larger than its own; 0 of a leaf.
    roots: the first node of each tree.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    roots: tuple[int, ...]

    def check(self, features: int, where: str) -> None:
        """Raise `BadFile`, which begins with `where`, unless every walk ends and no number is out
        of range. features: how many a row has."""
        count = len(self.feature)
        if count > MOST_NODES or len(self.roots) > MOST_TREES:
            raise BadFile(f"{where}: over {MOST_TREES} trees or {MOST_NODES} nodes")
        for name in ("threshold", "left", "right"):
            if (given := len(getattr(self, name))) != count:
                raise BadFile(f"{where}: {name} has {given} values of {count} nodes")
        for tree, root in enumerate(self.roots):
            if not 0 <= root < count:
                raise BadFile(f"{where}: roots[{tree}] is {root}, of {count} nodes")
        nodes = zip(self.feature, self.threshold, self.left, self.right, strict=True)
        for node, (feature, threshold, left, right) in enumerate(nodes):
            if not LEAF <= feature < features:
                raise BadFile(f"{where}: feature[{node}] is {feature}, of {features} features")
            if not math.isfinite(threshold) or (feature == LEAF and abs(threshold) > MOST_VALUE):
                raise BadFile(f"{where}: threshold[{node}] is {threshold}")
            if feature == LEAF and (left, right) != (0, 0):
                raise BadFile(f"{where}: node {node} is a leaf with children")
            if feature != LEAF and not (node < left < count and node < right < count):
                raise BadFile(
                    f"{where}: the children of node {node} are {left} and {right}, and not after it"
                    f" among {count} nodes"
                )

    def values(self, x: Any) -> Any:
        """The value of each row of `x`, an array [rows, features] of finite numbers."""
        import numpy as np

        walk, count = walker(), len(x)
        if walk is None or not count:
            return self.in_numpy(np.asarray(x, np.float64))
        width, (nodes, roots) = x.shape[1], self._packed
        rows = np.zeros((-(-count // _TOGETHER) * _TOGETHER, width))
        rows[:count], rows[count:] = x, x[-1]
        totals = np.zeros(len(rows))
        ways = len(nodes) * _STEP_BYTES
        same = ways + len(nodes) * _WAY_BYTES
        room = np.empty(same + width, np.uint8)
        at = room.ctypes.data
        walk(
            rows.ctypes.data, len(rows), width, nodes.ctypes.data, len(nodes), roots.ctypes.data,
            len(roots), at, at + ways, at + same, totals.ctypes.data,
        )  # fmt: skip
        return totals[:count]

    def in_numpy(self, x: Any) -> Any:
        """As `values`, in NumPy."""
        import numpy as np

        nodes, roots = self._packed
        if not len(roots):
            return np.zeros(len(x))
        feature, threshold, child = (
            np.ascontiguousarray(nodes[name]) for name in ("feature", "threshold", "child")
        )
        at = np.repeat(roots[None, :], len(x), 0).astype(np.int64).ravel()
        rows = np.repeat(np.arange(len(x)), len(roots))
        walking = np.flatnonzero(feature[at] != LEAF)
        while len(walking):
            here = at[walking]
            right = ~(x[rows[walking], feature[here]] <= threshold[here])
            at[walking] = there = child[here, right.astype(np.int8)]
            walking = walking[feature[there] != LEAF]
        # One after another, as in C: `sum` adds in another order.
        return np.cumsum(threshold[at].reshape(len(x), len(roots)), axis=1)[:, -1]

    @cached_property
    def _packed(self) -> tuple[Any, Any]:
        """The nodes as `trees.c` has them, and the roots."""
        import numpy as np

        kind = [("threshold", "f8"), ("feature", "i4"), ("child", "i4", (2,))]
        nodes = np.zeros(len(self.feature), np.dtype(kind, align=True))
        nodes["threshold"], nodes["feature"] = self.threshold, self.feature
        if len(nodes):
            nodes["child"] = np.array([self.left, self.right]).T
        return nodes, np.array(self.roots, np.int32)


_STEP_BYTES, _WAY_BYTES = 32, 8
_TOGETHER = 16
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
    library.walk.argtypes = [p, n, n, p, n, p, n, p, p, p, p]
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
