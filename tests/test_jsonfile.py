"""`jsonfile`: whatever a hand-edited file contains, the error names the file and the place."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import BadFile
from tilewright.jsonfile import convert, load_json, parse_json


@dataclasses.dataclass(frozen=True)
class Leaf:
    size: int
    weight: float = 1.0


@dataclasses.dataclass(frozen=True)
class Tree:
    name: str
    leaves: tuple[Leaf, ...] = ()
    by_key: dict[str, Leaf] = dataclasses.field(default_factory=dict)
    best: Leaf | None = None
    corner: tuple[int, int] = (0, 0)


def test_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    file.write_text('{"name": "oak", "leaves": [{"size": 3}], "best": {"size": 1, "weight": 2}}')
    tree = convert(load_json(file), Tree, str(file))
    assert tree == Tree("oak", (Leaf(3),), {}, Leaf(1, 2.0))


def test_bad_json_names_file_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text('{\n  "name": "oak",\n  oops\n}')
    with pytest.raises(BadFile, match=r"broken\.json: is not JSON: line 3, column 3"):
        load_json(file)


def test_missing_file_is_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"absent\.json: cannot be read"):
        load_json(tmp_path / "absent.json")


def test_a_path_that_cannot_be_is_a_bad_file() -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        load_json("a\0b.json")


def test_binary_file_is_a_bad_file(tmp_path: Path) -> None:
    file = tmp_path / "binary.json"
    file.write_bytes(b'"\xff"')
    with pytest.raises(BadFile, match="not UTF-8 at byte 1"):
        load_json(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "key 'a' appears twice"),
        ("NaN", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("[" * 200_000, "nested too deeply"),
        ("9" * 10_000, "the number '999.* is out of range"),
        (str(2**64), "is out of range"),
        ("-1e999", "the number '-1e999' is out of range"),
        ("[" * 66 + "]" * 66, "nested too deeply: over 64 levels"),
        (r'["\ud800"]', "half a character"),
        ('"\ud800"', "half a character"),
        ("{" + '"a": 1, ' * 20_000 + '"b": 2}', "key 'a' appears twice"),
    ],
)
def test_what_python_accepts_but_json_should_not(text: str, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        parse_json(text, "here")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"nam": "oak"}, r"f: unknown field 'nam' \(did you mean 'name'\?\); known: name, leaves"),
        ({}, "f: missing field 'name'"),
        ({"name": 3}, "f: name: Expected `str`, got `int`"),
        ({"name": "oak", "leaves": [{"size": 1}, {"sise": 2}]}, r"'leaves\[1\]\.sise'.*'size'"),
        ({"name": "oak", "leaves": [{}]}, r"missing field 'leaves\[0\]\.size'"),
        ({"name": "oak", "leaves": [{"size": "3"}]}, r"leaves\[0\]\.size: Expected `int`"),
        ({"name": "oak", "leaves": [{"size": True}]}, r"leaves\[0\]\.size: Expected `int`"),
        ({"name": "oak", "leaves": {}}, "leaves: Expected `array`"),
        ({"name": "oak", "by_key": {"a": {"size": 1, "x": 2}}}, "unknown field 'by_key.a.x'"),
        ({"name": "oak", "best": {"sizes": 1}}, "unknown field 'best.sizes'"),
        ({"name": "oak", "corner": [1, 2, 3]}, "corner: Expected `array` of length 2"),
        ([], "f: Expected `object`, got `array`"),
    ],
)
def test_wrong_data_names_the_place(data: object, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        convert(data, Tree, "f")


leaves = st.builds(
    Leaf,
    size=st.integers(-(2**60), 2**60),
    weight=st.floats(allow_nan=False, allow_infinity=False),
)
trees = st.builds(
    Tree,
    name=st.text(),
    leaves=st.lists(leaves, max_size=3).map(tuple),
    by_key=st.dictionaries(st.text(), leaves, max_size=3),
    best=st.none() | leaves,
    corner=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)


@given(trees)
def test_round_trip(tree: Tree) -> None:
    assert convert(parse_json(json.dumps(dataclasses.asdict(tree)), "t"), Tree, "t") == tree


@given(st.text())
def test_any_text_parses_or_is_a_bad_file(text: str) -> None:
    try:
        parse_json(text, "t")
    except BadFile as error:
        assert str(error).startswith("t: ")
