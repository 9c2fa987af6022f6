"""Where a value that is made at import is used: the functions whose tests are asked about a mutant
that runs at import."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .changes import FUNCTIONS, Mutant, Text, bound

Place = tuple[str, int, int]
"""A file, and the bytes of an expression in it."""
MOST_PLACES, STEPS = 40, 3


@dataclass
class Uses:
    """By name: the expressions in functions that read it, and the names at the top of modules whose
    values are made from it. Names are not told apart by module: a test too many costs little."""

    places: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))
    made_from: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    calls: dict[str, list[Place]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, texts: Mapping[str, Text]) -> Uses:
        """texts: the files of the package."""
        uses = cls()
        for file, text in texts.items():
            for node, inside, names in _read(text.tree, False, ()):
                name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", None)
                if name is None:
                    uses.calls[file].append((file, *text.span(node)))
                elif inside:
                    uses.places[name].append((file, *text.span(node)))
                else:
                    uses.made_from[name].update(names)
        return uses

    def places_of(self, mutant: Mutant) -> list[Place]:
        """Where the value of a mutant that runs at import is used, those of its file first. If it
        is used nowhere by name: the calls in its file."""
        names, new = set[str](), {mutant.name} - {""}
        for _ in range(STEPS):
            names |= new
            new = {other for name in new for other in self.made_from[name]} - names
        found = [place for name in sorted(names) for place in self.places[name]]
        found = found or self.calls[mutant.file]
        return sorted(found, key=lambda place: place[0] != mutant.file)[:MOST_PLACES]


def _read(
    node: ast.AST, inside: bool, names: tuple[str, ...]
) -> Iterator[tuple[ast.Name | ast.Attribute | ast.Call, bool, tuple[str, ...]]]:
    """Names, attributes and (in functions) calls that are read: whether in a function, and the
    names that the statement around it at the top of the module gives values to."""
    if isinstance(node, ast.JoinedStr):
        return
    match node:
        case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
            yield node, inside, names
        case ast.Call() if inside:
            yield node, inside, names
    if not inside:
        names = (*names, *bound(node))
    inside = inside or isinstance(node, FUNCTIONS)
    passed = ("annotation", "returns", "decorator_list", "pattern")
    for name, value in ast.iter_fields(node):
        if name in passed or (name == "args" and isinstance(node, FUNCTIONS)):
            continue
        if name == "func" and isinstance(value, ast.Attribute):
            value = value.value  # a method that is called is no value
        for below in value if isinstance(value, list) else [value]:
            if isinstance(below, ast.AST):
                yield from _read(below, inside, names)
