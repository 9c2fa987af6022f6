"""docs/environment.md lists every environment variable that the package reads, and no other."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright import variables

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "tilewright").rglob("*.py"))
PAGE = (ROOT / "docs" / "environment.md").read_text()
OWN = re.compile(r"TILEWRIGHT_[A-Z_]+")
CONSTANT = re.compile(r"(.*_)?(VARIABLES?|ENVIRONMENT)")


def names_in(source: str) -> Iterator[str]:
    """The variables that a module reads: Tilewright's own, wherever they stand; the keys of
    ``os.environ``; and the values of constants that are named a variable."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Constant(value=str(text)) if OWN.fullmatch(text):
                yield text
            case ast.Call(func=ast.Attribute(attr="get", value=holder), args=[asked, *_]):
                yield from strings(asked) if is_environ(holder) else ()
            case ast.Call(func=ast.Attribute(attr="getenv"), args=[asked, *_]):
                yield from strings(asked)
            case ast.Subscript(value=holder, slice=asked, ctx=ast.Load()):
                yield from strings(asked) if is_environ(holder) else ()
            case ast.Assign(targets=[target], value=value) if is_constant(target):
                yield from strings(value)


def is_environ(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.environ", "environ", "environment")


def is_constant(target: ast.expr) -> bool:
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    return any(isinstance(name, ast.Name) and CONSTANT.fullmatch(name.id) for name in names)


def strings(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


@pytest.mark.turns(24)
def test_the_page_lists_the_variables_that_the_source_reads():
    read = {name for path in SOURCES for name in names_in(path.read_text())}
    listed = set(re.findall(r"^### (\w+)$", PAGE, re.M))
    assert {"TILEWRIGHT_HOME", "CC", "GPU_ARCHS"} <= read
    assert listed == read


def test_every_variable_has_its_value_default_reader_and_an_example():
    for section in PAGE.split("\n### ")[1:]:
        kinds = re.findall(r"^- (\w[\w ]*): \S", section, re.M)
        assert kinds == ["Value", "Default", "Read by", "Example"], section.partition("\n")[0]


@pytest.mark.parametrize(
    "source",
    [
        'os.environ.get("TILEWRIGHT_NEW")',
        'NAME = "TILEWRIGHT_NEW"\nos.environ.get(NAME)',
        'os.environ["NEW"]',
        'os.getenv("NEW", "0")',
        'NEW_VARIABLE = "NEW"',
        'VARIABLES = ("OLD", "NEW")',
    ],
)
def test_a_new_variable_is_found(source):
    assert {name.removeprefix("TILEWRIGHT_") for name in names_in(source)} & {"NEW"}


def test_names_of_its_own_stand_in_one_module():
    apart = {
        path.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and OWN.fullmatch(str(node.value)) and node.value
        if node.value in variables.KNOWN
    }
    assert apart == {"variables.py"}
    assert {name for name in re.findall(r"^### (\w+)$", PAGE, re.M) if OWN.fullmatch(name)} == (
        variables.KNOWN
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TILEWRIGHT_LISTN", "TILEWRIGHT_LISTEN"),
        ("TILEWRIGHT_TABLE", "TILEWRIGHT_TABLES"),
        ("TILEWRIGHT_SHARED_STORE_TRUST", "TILEWRIGHT_SHARED_STORE_TRUSTED"),
        ("tilewright_waits", "TILEWRIGHT_WAITS"),
        ("TILEWRIGHT_VLLM", None),  # of integrations, as the next one
        ("TILEWRIGHT_SGLANG", None),
        ("TILEWRIGHT_TEST_STORE", None),
        ("TILEWRIGHT_TABLES", None),
    ],
)
def test_a_misspelt_variable_is_known(name, meant):
    assert variables.misspelt({name: "1"}) == ({name: meant} if meant else {})
    assert variables.misspelt({name: ""}) == {}


def test_a_misspelt_variable_is_named_once():
    def said(**environment: str) -> str:
        env = {**os.environ, "TILEWRIGHT_CAPTUR": "a.jsonl", **environment}
        code = "import tilewright, tilewright.errors"
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        return done.stderr

    line = "nothing reads the environment variable TILEWRIGHT_CAPTUR: is it TILEWRIGHT_CAPTURE?\n"
    assert said() == line
    assert said(TILEWRIGHT_PARENT="1") == said(RANK="1") == ""
