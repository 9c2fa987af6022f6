"""Which kernels of a space a sweep takes: by name, by an expression over their fields, and no more
than a given number, spread evenly over the space."""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tilewright.errors import BadArgument, EmptySpace, nearest, shown


@dataclass(frozen=True, slots=True)
class LeftOut:
    """How many kernels a filter left out, and which filter."""

    count: int
    why: str


@dataclass(frozen=True, slots=True)
class Filters:
    """Conditions that a kernel must meet to be swept.

    match: shell patterns of names; a kernel's name must fit one of them.
    where: an expression over fields of the kernel's config (comparisons, ``and``, ``or``, ``not``,
        ``in``, arithmetic), as in ``num_warps >= 8 and pipeline in ('tma', 'basic')``. Nothing is
        called or looked up. A field that may be None is compared after a test: ``split != None and
        split > 2``.
    max_kernels: at most this many kernels: one from each of this many equal stretches of the
        space, chosen by a digest of the names, so always the same one.

    Raises `BadArgument` for an expression that cannot be read.
    """

    match: tuple[str, ...] = ()
    where: str = ""
    max_kernels: int | None = None

    def __post_init__(self) -> None:
        for text in (self.where, *self.match):
            if not isinstance(text, str):
                raise BadArgument(f"a pattern and a condition are texts, not {shown(text)}")
        if self.where:
            _parsed(self.where)
        if self.max_kernels is not None and self.max_kernels < 1:
            raise BadArgument(f"max_kernels = {self.max_kernels} is not at least 1")

    def apply(self, configs: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[LeftOut, ...]]:
        """The configs that pass, in their order, and how many each filter left out.

        Raises `BadArgument` for a field that a config does not have and for values that cannot be
        compared, and `EmptySpace` when nothing passes.
        """
        kept = list(configs)
        left: list[LeftOut] = []

        def keep(these: list[Any], why: str) -> list[Any]:
            if len(these) < len(kept):
                left.append(LeftOut(len(kept) - len(these), why))
            return these

        if self.match:
            names = " or ".join(self.match)
            kept = keep(
                [c for c in kept if any(fnmatch.fnmatchcase(c.name, p) for p in self.match)],
                f"the name does not match {names}",
            )
        if self.where:
            expression = _parsed(self.where)
            kept = keep([c for c in kept if _holds(expression, c, self.where)], f"not {self.where}")
        if self.max_kernels is not None and len(kept) > self.max_kernels:
            kept = keep(
                _evenly(kept, self.max_kernels), f"at most {self.max_kernels} kernels, evenly"
            )
        if not kept:
            reasons = "; ".join(f"{one.count}: {one.why}" for one in left) or "there was none"
            raise EmptySpace(f"no kernel is left for the sweep ({reasons})")
        return tuple(kept), tuple(left)


def _evenly(configs: Sequence[Any], count: int) -> list[Any]:
    """One config of each of `count` stretches. A fixed stride would keep a single value of the axes
    that vary fastest."""
    ends = [i * len(configs) // count for i in range(count + 1)]
    return [
        min(configs[low:high], key=lambda c: hashlib.sha256(c.name.encode()).digest())
        for low, high in itertools.pairwise(ends)
    ]


# --- expressions ------------------------------------------------------------------------------

_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


MOST_CHARACTERS = 20_000
MOST_NESTED = 100
"""Operations inside one another, as in a sum of this many terms. A chain of ``and`` and ``or`` is
one operation of any length."""


def _parsed(text: str) -> ast.expr:
    """The expression, which uses only the nodes that `_value` knows. Raises `BadArgument`."""
    if len(text) > MOST_CHARACTERS:
        raise BadArgument(
            f"{shown(text)}: {len(text)} characters are over {MOST_CHARACTERS}, the limit"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree, text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, BadArgument):
            raise
        raise BadArgument(f"{shown(text)} is not an expression over a kernel's fields") from None
    return tree


def _check(node: ast.expr, text: str, inside: int = 0) -> None:
    if inside > MOST_NESTED:
        raise BadArgument(f"{shown(text)}: over {MOST_NESTED} operations inside one another")
    parts: Sequence[ast.expr] = ()
    if isinstance(node, ast.BoolOp):
        parts = node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        parts = [node.operand]
    elif isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        parts = [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        parts = [node.left, node.right]
    elif isinstance(node, ast.Tuple | ast.List):
        parts = node.elts
    elif not isinstance(node, ast.Name | ast.Constant):
        raise BadArgument(
            f"{shown(ast.unparse(node))} in {shown(text)}: only fields, values, comparisons, "
            "and, or, not, in and arithmetic are allowed"
        )
    for part in parts:
        _check(part, text, inside + 1)


def _holds(expression: ast.expr, config: Any, text: str) -> bool:
    try:
        return bool(_value(expression, config))
    except (TypeError, ArithmeticError) as error:  # a division by 0, an integer beyond floats
        raise BadArgument(f"{shown(text)} cannot be evaluated for {config.name}: {error}") from None


def _value(node: ast.expr, config: Any) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        known = [f.name for f in fields(config)]
        if node.id not in known:
            raise BadArgument(
                f"{config.family} kernels have no field '{node.id}'{nearest(node.id, known)}; "
                f"they have {', '.join(known)}"
            )
        return getattr(config, node.id)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(part, config) for part in node.elts)
    if isinstance(node, ast.BoolOp):
        both = all if isinstance(node.op, ast.And) else any
        return both(_value(part, config) for part in node.values)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, config)
        return not value if isinstance(node.op, ast.Not) else -value
    if isinstance(node, ast.BinOp):
        sides = [_value(side, config) for side in (node.left, node.right)]
        if not all(isinstance(side, int | float) for side in sides):
            raise TypeError("arithmetic is for numbers")
        return _ARITHMETIC[type(node.op)](*sides)
    assert isinstance(node, ast.Compare)
    left = _value(node.left, config)
    for op, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part, config)
        if not _COMPARE[type(op)](left, right):
            return False
        left = right
    return True
