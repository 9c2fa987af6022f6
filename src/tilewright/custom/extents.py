"""Sizes, and arithmetic on sizes: ``"k"``, ``"k // 2"``, ``"(n + 127) // 128"``,
``"min(n, k)"``."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeGuard

from tilewright.errors import BadArgument, shown

Size = str | int
"""A number, the name of a size, or arithmetic on names and numbers with + - * // %, brackets, and
``min`` and ``max`` of two."""

_MOST_CHARACTERS = 200
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {"min": min, "max": max}


def is_name(size: Size) -> bool:
    """Whether a size is a name alone."""
    return isinstance(size, str) and size.isidentifier()


@cache
def names(size: Size) -> tuple[str, ...]:
    """The names in a size, in order. Raises `BadArgument` for text that is no such arithmetic."""
    if not isinstance(size, str):
        return ()
    return tuple(dict.fromkeys(_names(_tree(size))))


@cache
def said(size: Size, stated: frozenset[str]) -> tuple[str, Size]:
    """The name that an extent of this size says, and what it is multiplied by there, of numbers and
    `stated` names: ``("k", 1)`` of ``"k"``, ``("k", "2 - has_b")`` of ``"k * (2 - has_b)"``.
    ``("", 1)`` where an extent says no name."""
    if not isinstance(size, str):
        return "", 1
    tree = _tree(size)
    if isinstance(tree, ast.Name):
        return ("", 1) if tree.id in stated else (tree.id, 1)
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
        for one, other in ((tree.left, tree.right), (tree.right, tree.left)):
            by = ast.unparse(other)
            if isinstance(one, ast.Name) and one.id not in stated and stated.issuperset(names(by)):
                return one.id, by
    return "", 1


def value(size: Size, known: Mapping[str, int]) -> int:
    """The number that a size is, from the values of its names. Raises `BadArgument` where it is
    negative, and where it divides by zero."""
    if not isinstance(size, str):
        return size
    if is_name(size):
        return known[size]
    try:
        found = _value(_tree(size), known)
    except ZeroDivisionError:
        raise BadArgument(f"size '{size}' divides by zero") from None
    if found < 0:
        raise BadArgument(f"size '{size}' is {found}")
    return found


@cache
def _tree(text: str) -> ast.expr:
    try:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree)
    except (SyntaxError, ValueError):
        raise BadArgument(
            f"{shown(text)} is no size: write a name, a number, or arithmetic on them with "
            "+ - * // %, brackets, min and max of two, as k // 2"
        ) from None
    return tree


def _check(node: ast.expr) -> None:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        _check(node.left)
        _check(node.right)
    elif _is_function(node):
        for each in node.args:
            _check(each)
    elif not (
        isinstance(node, ast.Name) or (isinstance(node, ast.Constant) and type(node.value) is int)
    ):
        raise ValueError


def _is_function(node: ast.expr) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _FUNCTIONS
        and len(node.args) == 2
        and not node.keywords
    )


def _names(node: ast.expr) -> list[str]:
    """The names of sizes in arithmetic, in order."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.BinOp):
        return _names(node.left) + _names(node.right)
    return [name for each in node.args for name in _names(each)] if _is_function(node) else []


def _value(node: ast.expr, known: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        return _OPERATIONS[type(node.op)](_value(node.left, known), _value(node.right, known))
    if isinstance(node, ast.Name):
        return known[node.id]
    if _is_function(node):
        assert isinstance(node.func, ast.Name)
        return _FUNCTIONS[node.func.id](*(_value(each, known) for each in node.args))
    assert isinstance(node, ast.Constant) and isinstance(node.value, int)
    return node.value
