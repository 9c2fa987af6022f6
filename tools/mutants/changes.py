"""The mutants of a file.

Another comparison, `and` for `or`, a condition always true or never, `not` left out, a number more
or less by one, another arithmetic operator, True for False, None returned, arguments swapped, a
statement left out; in functions, class bodies, defaults of parameters and at the top of a module.
Not in annotations, decorators, patterns of `match`, the words of messages, or Triton's functions;
nor whether `zip` is strict, which guards against lists that never come.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Div: ast.Mult, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift,
}  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PASSED_OVER = ("annotation", "returns", "decorator_list", "msg", "pattern", "type_params", "bases")
"""Fields of nodes that hold no code of ours to change."""
TYPES_ASKED = ("isinstance", "issubclass", "cast", "getattr", "setattr", "hasattr")
"""Their arguments in another order are an error at once, which proves nothing."""


@dataclass(frozen=True)
class Mutant:
    """One change: bytes `start` to `end` of a file become `new`. A statement becomes "pass".

    file: relative to the repository.
    line: the first line of what changes.
    within: the qualified name of the function or class around it; "" at the top of a module.
    at_import: the place runs when the module is imported, not when a test calls something.
    name: of what runs at import, the name under which its value is used; "" if it has none.
    number: counts the mutants of this file that are otherwise the same.
    """

    file: str
    line: int
    start: int
    end: int
    within: str
    kind: str
    old: str
    new: str
    at_import: bool
    name: str
    number: int

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from others, also after lines around it have changed."""
        return (self.file, self.within, self.kind, self.old, self.new, str(self.number))

    def turn(self, seed: int) -> str:
        """Mutants are drawn in the order of this digest. So a change of one file leaves the sample
        of the others as it is."""
        return hashlib.sha256("\0".join((str(seed), *self.key)).encode()).hexdigest()


@dataclass(frozen=True)
class _Around:
    within: str = ""
    at_import: bool = True
    name: str = ""


class Text:
    """A file's bytes, and where its nodes stand in them."""

    def __init__(self, text: bytes) -> None:
        self.bytes = text
        self.tree = ast.parse(text)
        self._begins = [0]
        for line in text.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))

    def span(self, node: Any) -> tuple[int, int]:
        """The first byte of a node, and the one behind its last."""
        return (
            self._begins[node.lineno - 1] + node.col_offset,
            self._begins[node.end_lineno - 1] + node.end_col_offset,
        )


def mutants(file: str, text: bytes) -> list[Mutant]:
    """All of a file."""
    source = Text(text)
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for node, around in _nodes(source.tree, _Around()):
        for place, kind, new in _changes(node):
            start, end = source.span(place)
            old = text[start:end].decode()
            if old == new:
                continue
            same = (around.within, kind, old, new)
            found.append(
                Mutant(
                    file, place.lineno, start, end, around.within, kind, old, new,
                    around.at_import, around.name, seen[same],
                )
            )  # fmt: skip
            seen[same] += 1
    return found


def bound(statement: ast.AST) -> list[str]:
    """The names that a statement at the top of a module or class gives values to."""
    match statement:
        case ast.Assign(targets=targets):
            return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return [name]
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
    return []


def _nodes(node: ast.AST, around: _Around) -> Iterator[tuple[ast.AST, _Around]]:
    """Each node that may change, with what is around it."""
    if isinstance(node, ast.JoinedStr) or _for_types_alone(node):
        return
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        if any("jit" in ast.unparse(one) or "constexpr" in ast.unparse(one)
               for one in node.decorator_list):  # fmt: skip
            return
        within = f"{around.within}.{node.name}".lstrip(".")
        if isinstance(node, FUNCTIONS):
            by = around if not around.at_import else _Around(around.within, True, node.name)
            yield from _nodes(node.args, by)
        for statement in node.body:
            inner = _Around(within, around.at_import and isinstance(node, ast.ClassDef))
            yield from _nodes(statement, inner)
        return
    if around.at_import and (names := bound(node)):
        around = _Around(around.within, True, names[0])
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    yield node, around
    inside = _Around(around.within, False) if isinstance(node, ast.Lambda) else around
    for field, value in ast.iter_fields(node):
        if field not in PASSED_OVER:
            for below in value if isinstance(value, list) else [value]:
                if isinstance(below, ast.AST):
                    yield from _nodes(below, inside)


def _for_types_alone(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _changes(node: Any) -> Iterator[tuple[Any, str, str]]:
    """The changes of one node: the place, the kind of change, and the new text."""
    match node:
        case ast.Compare(ops=[operator, *others]) if type(operator) in COMPARISONS:
            other = COMPARISONS[type(operator)]()
            made: ast.expr = ast.Compare(node.left, [other, *others], node.comparators)
            yield node, "comparison", ast.unparse(made)
        case ast.BoolOp(op=operator):
            made = ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), node.values)
            yield node, "and, or", ast.unparse(made)
        case ast.UnaryOp(op=ast.Not()):
            yield node, "not", ast.unparse(node.operand)
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC and not _of_words(node):
            made = ast.BinOp(node.left, ARITHMETIC[type(operator)](), node.right)
            yield node, "arithmetic", ast.unparse(made)
        case ast.Constant(value=bool()):
            yield node, "constant", str(not node.value)
        case ast.Constant(value=int()):
            yield node, "constant", str(node.value + 1)
            yield node, "constant", str(node.value - 1)
        case ast.Call(args=[first, second, *others]):
            starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
            if not starred and ast.unparse(node.func) not in TYPES_ASKED:
                made = ast.Call(node.func, [second, first, *others], node.keywords)
                yield node, "arguments", ast.unparse(made)
        case ast.If() | ast.IfExp() | ast.While():
            yield node.test, "condition", "True"
            yield node.test, "condition", "False"
        case ast.comprehension():
            for test in node.ifs:
                yield test, "condition", "True"
        case ast.Return(value=ast.expr()):
            yield node.value, "return", "None"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield node, "statement", "pass"
        case ast.Continue() | ast.Break():
            yield node, "statement", "pass"


def _of_words(node: ast.BinOp) -> bool:
    """Whether the expression builds text."""
    sides = (node.left, node.right)
    return any(isinstance(getattr(side, "value", None), str) for side in sides)
