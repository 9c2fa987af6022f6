"""Signatures, read from source without importing it, and compared.

A signature is written as a call is: ``cls, head_size, *, A, bias=``. A parameter with a default
ends in ``=``. Annotations and the defaults themselves are left out: neither is what an override
has to match.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Class:
    """A class of a source file: the names of its bases, its methods' signatures by name, and its
    other attributes."""

    bases: tuple[str, ...]
    methods: dict[str, str]
    fields: frozenset[str]


@dataclass(frozen=True, slots=True)
class Module:
    """What a source file defines, and where its imported names come from."""

    classes: dict[str, Class] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    values: set[str] = field(default_factory=set)
    imported: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether it defines the name."""
        return name in self.classes or name in self.functions or name in self.values


def read(source: str, package: str) -> Module:
    """The module with this source, which is in this package."""
    module = Module()
    for node in _statements(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            methods = {f.name: signature(f) for f in node.body if isinstance(f, _FUNCTIONS)}
            bases = tuple(ast.unparse(base).partition("[")[0] for base in node.bases)
            fields = frozenset((*_names(node.body), *_attributes(node)))
            module.classes[node.name] = Class(bases, methods, fields)
        elif isinstance(node, _FUNCTIONS):
            module.functions[node.name] = signature(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            module.values.update(_names([node]))
        elif isinstance(node, ast.Import):
            module.imported.update({a.asname: a.name for a in node.names if a.asname})
        elif isinstance(node, ast.ImportFrom):
            outer = package.rsplit(".", node.level - 1)[:1] if node.level else []
            path = ".".join([*outer, *([node.module] if node.module else [])])
            named = {a.asname or a.name: f"{path}.{a.name}" for a in node.names if a.name != "*"}
            module.imported.update(named)
            module.stars.extend(path for a in node.names if a.name == "*")
    return module


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a module, those under an ``if`` or a ``try`` included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If | ast.Try):
            yield from _statements(node)
        elif isinstance(node, ast.stmt):
            yield node


def _names(statements: list[ast.stmt]) -> Iterator[str]:
    """What assignments give a value or an annotation."""
    for node in statements:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (t.id for t in targets if isinstance(t, ast.Name))


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """What methods of a class assign to ``self``."""
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Store)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "self"
        ):
            yield inner.attr


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The parameters of a function."""
    a = function.args
    plain = [*a.posonlyargs, *a.args]
    required = len(plain) - len(a.defaults)
    words = [p.arg + "=" * (i >= required) for i, p in enumerate(plain)]
    if a.vararg or a.kwonlyargs:
        words.append("*" + (a.vararg.arg if a.vararg else ""))
    for p, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        words.append(p.arg + "=" * (default is not None))
    return ", ".join([*words, *(["**" + a.kwarg.arg] if a.kwarg else [])])


@dataclass(slots=True)
class Tree:
    """The modules below a folder, read when they are asked for."""

    folder: Path
    read: dict[str, Module | None] = field(default_factory=dict)

    def module(self, name: str) -> Module | None:
        """A module by its dotted name; None if there is no such file."""
        if name not in self.read:
            place = self.folder.joinpath(*name.split("."))
            self.read[name] = None
            for file, package in (
                (place / "__init__.py", name),
                (place.with_suffix(".py"), name.rpartition(".")[0]),
            ):
                if file.exists():
                    self.read[name] = read(file.read_text("utf-8"), package)
                    break
        return self.read[name]

    def home(self, path: str) -> tuple[str, str] | None:
        """The module and the name of what a dotted path means, imports followed; None for what is
        not in this tree."""
        parts = path.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            name, rest = ".".join(parts[:cut]), parts[cut:]
            module = self.module(name)
            if module is None:
                continue
            if rest[0] in module.imported:
                return self.home(".".join([module.imported[rest[0]], *rest[1:]]))
            if not module.has(rest[0]):
                starred = (self.home(".".join([star, *rest])) for star in module.stars)
                return next((home for home in starred if home is not None), None)
            return name, ".".join(rest)
        return None

    def member(self, module: str, name: str, member: str) -> str | None:
        """The signature of a method of a class or of its bases; ``field`` for another attribute;
        None if none has it."""
        found = self.module(module)
        if found is None or name not in found.classes:
            return None
        here = found.classes[name]
        if member in here.methods:
            return here.methods[member]
        if member in here.fields:
            return "field"
        for base in here.bases:
            home = self.home(f"{module}.{base}")
            above = None if home is None else self.member(*home, member)
            if above is not None:
                return above
        return None


def taken(package: Tree, files: list[str], framework: str) -> Iterator[tuple[str, str, str]]:
    """What our package takes from a framework: (its dotted path, a method or "", our signature or
    "").

    A name that is imported has no method. A class that derives from one has each of our methods.
    """
    for file in files:
        module = package.module(file)
        assert module is not None, file
        theirs = {n: p for n, p in module.imported.items() if p.startswith(framework + ".")}
        for path in theirs.values():
            yield path, "", ""
        for name in module.classes:
            for method, ours in module.classes[name].methods.items():
                for base in _bases(module, name):
                    head, _, rest = base.partition(".")
                    if head in theirs:
                        yield ".".join(filter(None, (theirs[head], rest))), method, ours


def _bases(module: Module, name: str) -> Iterator[str]:
    """Bases of a class that are not of its own module."""
    for base in module.classes[name].bases:
        if base in module.classes:
            yield from _bases(module, base)
        else:
            yield base


def fits(ours: str, theirs: str) -> bool:
    """Whether an override takes every call of what it overrides: the same parameters in the same
    order. It may give a default, and end in parameters with one; ``*args, **kwargs`` take all."""
    mine, other = ours.split(", "), theirs.split(", ")
    if mine[1:] == ["*args", "**kwargs"]:
        return True
    for one, base in itertools.zip_longest(mine, other):
        if one is None or (base is None and not one.endswith("=")):
            return False
        if base is not None and one not in (base, base + "="):
            return False
    return True


def covers(theirs: str, fake: str) -> bool:
    """Whether a release's function takes every call of a fake: the fake's parameters first, and
    defaults for the rest."""
    other, mine = theirs.split(", "), fake.split(", ")
    if theirs == "field" or "*args" in other or mine[1:] == ["*args", "**kwargs"]:
        return True
    rest = other[len(mine) :]
    return other[: len(mine)] == mine and all("=" in word or "*" in word for word in rest)
