"""The package's source as a graph of imports, and the words of families that stand in it.

Everything takes the source as text by module, so that tests can plant a breach in a copy.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import tilewright
from tilewright import ops
from tilewright.ops import protocols

ROOT = Path(tilewright.__file__).parent
PACKAGE = ROOT.name

Sources = Mapping[str, str]
"""The text of each module, by its dotted name below the package; ``""`` is the package itself.
A package's ``__init__`` is called as the package."""


class Import(NamedTuple):
    importer: str
    imported: str
    line: int


def sources(root: Path = ROOT) -> dict[str, str]:
    """The package as it is."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text()
    return found


def packages(tree: Sources) -> set[str]:
    """The modules that other modules lie in."""
    return {name.rpartition(".")[0] for name in tree if name} | {""}


def imports(tree: Sources, package: str = PACKAGE) -> list[Import]:
    """All imports of the package's own modules, wherever they stand: at the top, in a function,
    under ``TYPE_CHECKING``, by `importlib.import_module` with a constant name. Importing a module
    imports the packages around it too, except those that the importer lies in itself.

    package: "" for modules that lie in no package; then other imports are of ``""``.
    """
    folders = packages(tree)
    found = []
    for importer, text in tree.items():
        folder = importer if importer in folders else importer.rpartition(".")[0]
        for name, line in _absolute(text, f"{package}.{folder}".strip(".")):
            if package and name != package and not name.startswith(f"{package}."):
                continue
            below = name.removeprefix(package).removeprefix(".")
            while below and below not in tree:  # a name inside a module
                below = below.rpartition(".")[0]
            found.append(Import(importer, below, line))
            around = below.rpartition(".")[0]
            while around and not f"{importer}.".startswith(f"{around}."):
                found.append(Import(importer, around, line))
                around = around.rpartition(".")[0]
    return [found_one for found_one in found if found_one.importer != found_one.imported]


@cache
def _tree(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _absolute(text: str, folder: str) -> list[tuple[str, int]]:
    """Dotted names that a module of package `folder` imports, with their lines."""
    found = []
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _resolved("." * node.level + (node.module or ""), folder)
            found += [(f"{base}.{alias.name}", node.lineno) for alias in node.names]
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0] if node.args else None
            if name in ("import_module", "__import__") and isinstance(first, ast.Constant):
                found.append((_resolved(str(first.value), folder), node.lineno))
    return found


def _resolved(name: str, folder: str) -> str:
    levels = len(name) - len(name.lstrip("."))
    if not levels:
        return name
    base = folder.split(".")[: len(folder.split(".")) - levels + 1]
    return ".".join([*base, *filter(None, [name.lstrip(".")])])


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that reach one another, sorted; nodes alone are none (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in edges.get(node, ()):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in edges:
        if node not in order:
            visit(node)
    return sorted(found)


def graph(found: list[Import]) -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    for one in found:
        edges.setdefault(one.importer, set()).add(one.imported)
    return edges


# --- which way the arrows point ---------------------------------------------------------------

FAMILY_FOLDERS = "ops/<family>"
SMALL = "small modules"
TABLE_TITLE = "| room | may import |"


def rooms(document: str) -> dict[str, set[str]]:
    """The table of docs/architecture.md: each room, from the lowest up, and the rooms that it may
    import. A room of the ``small modules`` may import the others of its row."""
    found: dict[str, set[str]] = {}
    small: list[str] = []
    table = document.partition(TABLE_TITLE)[2].strip().splitlines()
    for line in table[1:]:
        if not line.startswith("|"):
            break
        titles, allowed = line.strip("|").split("|", 1)
        names = re.findall(r"`([^`]*)`", titles)
        assert names, f"a row without a room: {line}"
        listed = set(re.findall(r"`([^`]*)`", allowed))
        if SMALL in titles:
            small = names
            listed = set(names)
        unknown = listed - {*found, *names}
        assert not unknown, f"{names} may import {unknown}, which stand below them in the table"
        if allowed.strip() == "all":
            listed = set(found)
        for name in names:
            assert name not in found, f"{name} stands in two rows"
            found[name] = {*listed, *small}
    return found


def room_of(module: str, known: Mapping[str, set[str]]) -> str | None:
    """The room that a module lies in: the longest name in the table that begins the module's."""
    parts = module.split(".")
    if parts[0] == "ops" and len(parts) > 1 and parts[1] in ops.with_a_folder():
        return FAMILY_FOLDERS
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in known:
            return ".".join(parts[:length])
    return None


def breaches(tree: Sources, known: Mapping[str, set[str]]) -> list[str]:
    """Every module that has no room, every room that has no module, and every import that the
    table does not allow, as sentences."""
    said = []
    homes = {name: room_of(name or PACKAGE, known) for name in tree}
    said += [f"{name}.py has no row in the table" for name, room in homes.items() if room is None]
    said += [f"{room} is in the table only" for room in known if room not in homes.values()]
    for importer, imported, line in imports(tree):
        here, there = homes[importer], homes[imported]
        if here and there and here != there and there not in known[here]:
            said.append(f"{importer}:{line} imports {imported}: {here} may not import {there}")
    return said


def room_circles(tree: Sources, known: Mapping[str, set[str]]) -> list[list[str]]:
    """Rooms that import one another, each family a room of its own."""

    def room(module: str) -> str:
        found = room_of(module or PACKAGE, known) or module
        return ".".join(module.split(".")[:2]) if found == FAMILY_FOLDERS else found

    edges: dict[str, set[str]] = {}
    for importer, imported, _ in imports(tree):
        if room(importer) != room(imported):
            edges.setdefault(room(importer), set()).add(room(imported))
    return circles(edges)


# --- words of families ------------------------------------------------------------------------

COMMON = frozenset(
    (
        "alignment",
        "columns",
        "dtype",
        "features",
        "first",
        "form",
        "group",
        "groups",
        "inner",
        "left",
        "library",
        "mask",
        "mma",
        "num_stages",
        "num_warps",
        "one",
        "others",
        "outer",
        "pack",
        "pad",
        "pairs",
        "pipeline",
        "precision",
        "right",
        "rows",
        "sizes",
        "states",
        "store",
        "stride",
        "vector",
        "words",
    )
)
"""Fields of a family's problems or configs whose word means something else outside too: `Arch.mma`,
a `Store`, wait states, the sizes of a file, the vendor's library."""


FACES = (
    "aten",
    "flash_attn",
    "jax.functions",
    "moe",
    "serving",
    "torch.functional",
    "torch.installing",
    "torch.porting",
    "transformers",
)
"""Rooms that are about one family: another project's interface to it."""


@cache
def family_words() -> frozenset[str]:
    """Fields and properties that only the families' problems and configs have."""
    found: set[str] = set()
    for family in map(ops.family, ops.with_a_folder()):
        for kind in (family.problem_type, family.config_type):
            found |= {field.name for field in dataclasses.fields(kind)}
            found |= {name for name, v in vars(kind).items() if isinstance(v, property)}
    found = {name for name in found if not name.startswith("_")}
    of_all = {*vars(protocols.Problem), *vars(protocols.KernelConfig), "family"}
    return frozenset(found - COMMON - of_all)


def words_said(tree: Sources) -> Iterator[tuple[str, str, int]]:
    """(module, word, line) wherever a module outside the families' folders and `FACES` says a
    family's name or one of its words: as an attribute, a keyword, a string, or before ``=`` in a
    string. Docstrings are prose."""
    for module, text in tree.items():
        if module.startswith("ops.") and module.split(".")[1] in ops.with_a_folder():
            continue
        if any(f"{module}.".startswith(f"{face}.") for face in (*FACES, "declared")):
            continue
        yield from ((module, word, line) for word, line in _said(text))


@cache
def _said(text: str) -> list[tuple[str, int]]:
    words, names = family_words(), ops.families()
    tree = _tree(text)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    prose = set()
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            for before, after in zip([None, *node.body], node.body, strict=False):
                documents = before is None or isinstance(before, (ast.Assign, ast.AnnAssign))
                if documents and isinstance(after, ast.Expr):
                    prose.add(id(after.value))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in words:
            found.append((node.attr, node.lineno))
        elif isinstance(node, ast.keyword) and node.arg in words:
            found.append((node.arg, node.value.lineno))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in prose:
                continue
            if node.value in words:
                found.append((node.value, node.lineno))
            stated = re.findall(r"\b(\w+)=", node.value)
            found += [(word, node.lineno) for word in stated if word in words]
            named = re.findall(r"(?<![A-Za-z0-9])[a-z][a-z0-9]*(?:_[a-z0-9]+)*", node.value)
            begun = (name for name in names for word in named if f"{word}_".startswith(f"{name}_"))
            found += [(name, node.lineno) for name in begun]
    return found
