"""`tools/mutants`: which mutants it makes, whether its switch turns each of them on, and whether it
tells planted ones apart."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import tilewright
from mutants import __main__ as program
from mutants import outcomes
from mutants.changes import Mutant, Text, mutants
from mutants.outcomes import Map
from mutants.places import Uses
from mutants.rooms import ROOMS, rooms
from mutants.tree import Drawn, Work, sampled, weave
from mutants.weave import FUTURE, woven

PACKAGE = Path(tilewright.__file__).parent


def made(*lines: str) -> set[tuple[str, str]]:
    return {(one.old, one.new) for one in mutants("file.py", "\n".join(lines).encode())}


def test_operators_numbers_conditions_and_statements_change() -> None:
    assert made(
        "def f(a, b):", "    if a < b and not a:", "        g(a, 1)", "    return a + b"
    ) == {
        ("a < b", "a <= b"),
        ("a < b and not a", "a < b or not a"),
        ("a < b and not a", "True"),
        ("a < b and not a", "False"),
        ("not a", "a"),
        ("g(a, 1)", "g(1, a)"),
        ("g(a, 1)", "pass"),
        ("1", "2"),
        ("1", "0"),
        ("a + b", "a - b"),
        ("a + b", "None"),
    }


@pytest.mark.parametrize(
    "line",
    [
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "@cache(3)\ndef f(): ...",
        "@triton.jit\ndef f(a):\n    return a + 1",
        "def f(a):\n    match a:\n        case 3: g()".replace("g()", "x = a"),
        'x = f"{1 + 2}"',
        'x = "a" + "b"',
        "x = zip(a, strict=True)",
        "x = isinstance(a, b)",
        "if TYPE_CHECKING:\n    x = 1",
    ],
)
def test_what_is_no_code_to_change_stays(line: str) -> None:
    assert made(line) == set()


def test_a_mutant_says_whether_it_runs_at_import_and_under_which_name() -> None:
    text = "A = 1\nclass B:\n    c: int = 2\n    def d(self, e=3):\n        return 4\n"
    told = {one.old: one for one in mutants("file.py", text.encode())}
    assert [(told[n].at_import, told[n].name, told[n].within) for n in "1234"] == [
        (True, "A", ""),
        (True, "c", "B"),
        (True, "d", "B"),
        (False, "", "B.d"),
    ]


def test_a_value_of_the_import_is_used_where_its_name_is_read_however_indirectly() -> None:
    text = b"A = 1\nB = {0: A}\ndef f():\n    return B\ndef g():\n    return h()\n"
    (one,) = (one for one in mutants("file.py", text) if (one.old, one.new) == ("1", "2"))
    uses = Uses.of({"file.py": Text(text)})
    assert [text[start:end] for _, start, end in uses.places_of(one)] == [b"B"]


class _Switched(ast.NodeTransformer):
    """A woven tree with one mutant on and the rest off."""

    def __init__(self, on: int) -> None:
        self._on = on

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        number = _number(node.test, "on")
        node = self.generic_visit(node)
        return node if number is None else node.body if number == self._on else node.orelse

    def visit_If(self, node: ast.If) -> ast.AST:
        test = node.test.operand if isinstance(node.test, ast.UnaryOp) else None
        number = _number(test, "on")
        node = self.generic_visit(node)
        if number is None:
            return node
        return ast.Pass() if number == self._on else node.body[0]

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        number = _number(node.values[0], "used")
        node = self.generic_visit(node)
        return node if number is None else node.values[1]


def _number(node: ast.AST | None, what: str) -> int | None:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == f"_p.{what}":
        return node.args[0].value
    return None


@pytest.mark.parametrize("file", ["select/tuned.py", "custom/extents.py", "registry.py"])
def test_a_woven_file_is_the_original_or_one_mutant_line_by_line(file: str) -> None:
    text = (PACKAGE / file).read_bytes()
    every = mutants(file, text)
    uses = Uses.of({file: Text(text)})
    places = [(900 + n, place) for n, place in enumerate(uses.calls[file])]
    numbered = [*enumerate(every, 1)]
    wove = woven(text, numbered, places)
    assert len(wove.splitlines()) == len(text.splitlines())
    for number, one in [(0, None), *numbered[:: max(1, len(every) // 25)]]:
        wanted = text
        if one is not None:
            new = one.new if one.kind == "statement" else f"({one.new})"
            wanted = text[: one.start] + new.encode() + text[one.end :]
        wanted = wanted.replace(FUTURE, FUTURE + b"import tilewright_probe as _p\n")
        assert _dump(_Switched(number).visit(ast.parse(wove))) == _dump(ast.parse(wanted)), one


def _dump(tree: ast.AST) -> str:
    return ast.unparse(tree)


def test_every_room_has_files_and_is_drawn_from_evenly() -> None:
    root = PACKAGE.parents[1]
    found = rooms(root)
    assert all(found[room] for room in ROOMS)
    files = [file for some in found.values() for file in some]
    assert len(files) == len(set(files))
    drawn = {room: len(some) for room, some in sampled(root, 40, 1).items()}
    assert sum(drawn.values()) == 40 and {*drawn.values()} == {2, 3}


# --- planted mutants ----------------------------------------------------------------------------

TOY = """
from __future__ import annotations

LIMIT = 3

def larger(a, b):
    return a > b

def unseen(a):
    return a >= 0

def count(n):
    done = 0
    while done < n:
        done += 1
    return done

def child():
    print(1 + 1)

def below(n):
    return n < LIMIT

def table():
    return [0] * 5
"""
TESTS = """
import os, subprocess, sys
from tilewright import toy

TABLE = toy.table()

def test_table():
    assert len(TABLE) == 5

def test_larger():
    assert toy.larger(2, 1) and not toy.larger(1, 1)

def test_unseen():
    toy.unseen(1)

def test_count():
    assert toy.count(3) == 3

def test_child():
    code = "from tilewright.toy import child; child()"
    assert subprocess.check_output([sys.executable, "-c", code]) == b"2\\n"

def test_below():
    assert toy.below(2) and not toy.below(3)

def test_that_fails():
    assert toy.larger(1, 2)
"""
CONFTEST = """
def pytest_addoption(parser):
    parser.addoption("--selection")
    parser.addoption("--turn")
"""
PLANTED = {
    ("a > b", "a >= b"): ("killed", "test_toy.py::test_larger"),
    ("a >= 0", "a > 0"): ("survived", ""),
    ("done += 1", "pass"): ("killed", "it ended"),
    ("1 + 1", "1 - 1"): ("killed", "test_toy.py::test_child"),
    ("3", "4"): ("killed", "test_toy.py::test_below"),
    ("5", "6"): ("killed", "test_toy.py::test_table"),
}


@pytest.fixture
def planted(tmp_path: Path) -> tuple[Work, list[Drawn]]:
    work = Work(tmp_path, 1)
    tree = work.tree(0)
    (tree / "src/tilewright").mkdir(parents=True)
    (tree / "tools").mkdir()
    (tree / "tools/mutants").symlink_to(Path(program.__file__).parent)
    (tree / "src/tilewright/__init__.py").write_text("")
    (tree / "src/tilewright/toy.py").write_text(TOY)
    (tree / "test_toy.py").write_text(TESTS)
    (tree / "conftest.py").write_text(CONFTEST)
    (tree / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    every = mutants("src/tilewright/toy.py", TOY.encode())
    chosen = [one for one in every if (one.old, one.new) in PLANTED]
    drawn = [Drawn(number, "toy", one) for number, one in enumerate(chosen, 1)]
    weave(tree, {one.number: one.mutant for one in drawn})
    work.write(drawn)
    return work, drawn


@pytest.mark.turns(16)
def test_planted_mutants_are_found_and_told_apart(planted: tuple[Work, list[Drawn]]) -> None:
    work, drawn = planted
    program.make_map(work, "short", ())
    known = Map.read(work.maps("short"))
    by_text = {(one.mutant.old, one.mutant.new): one for one in drawn}
    assert known.asked(by_text["a > b", "a >= b"].number) == ["test_toy.py::test_larger"]
    program.run(work, "short", budget=1, again=False, rooms=None)
    found = outcomes.read(work.outcomes("short"))
    said = {text: found[one.mutant.key] for text, one in by_text.items()}
    assert {text: (one["outcome"], one["test"]) for text, one in said.items()} == PLANTED


# --- outcomes -----------------------------------------------------------------------------------


def drawn(number: int, room: str) -> Drawn:
    one = Mutant("f.py", number, 0, 1, "f", "constant", str(number), "0", False, "", 0)
    return Drawn(number, room, one)


def test_what_the_short_suite_kills_all_kills_and_verdicts_stay() -> None:
    sample = [drawn(1, "a"), drawn(2, "a"), drawn(3, "b")]
    killed, survived = {"outcome": "killed"}, {"outcome": "survived"}
    suites = {
        "short": {sample[0].mutant.key: killed, sample[1].mutant.key: survived},
        "all": {sample[1].mutant.key: killed},
    }
    first = outcomes.document(sample, suites, {})
    assert first["total"] == {"mutants": 3, "short": 1, "all": 2}
    assert first["rooms"]["b"] == {"mutants": 1, "short": 0, "all": 0}
    assert [(one["old"], one["short"], one["all"]) for one in first["survivors"]] == [
        ("2", "survived", "killed"),
        ("3", "not run", "not run"),
    ]
    first["survivors"][1]["verdict"] = "equivalent"
    again = outcomes.document(sample, suites, first)
    assert [one["verdict"] for one in again["survivors"]] == ["", "equivalent"]
    assert outcomes.table(again).splitlines()[-1] == "| all | 3 | 1 (33%) | 2 (67%) |"


def test_cheap_tests_come_first_those_of_one_function_later_and_files_last(tmp_path: Path) -> None:
    def told(test: str, seconds: float, *reached: int, passed: bool = True) -> str:
        return json.dumps(
            {"test": test, "seconds": seconds, "passed": passed, "reached": list(reached)}
        )

    lines = [
        told("a.py::f[1]", 1.0, 7),
        told("a.py::f[2]", 2.0, 7),
        told("a.py::g", 1.0, 5, 6, 7),
        told("a.py::h", 0.1, 6),
        told("a.py::broken", 0.1, 7, passed=False),
        told("b.py", 0.0, 7),
    ]
    (tmp_path / "map").write_text("\n".join(lines))
    known = Map.read([tmp_path / "map"])
    assert known.asked(7) == ["a.py::f[1]", "a.py::g", "a.py::f[2]", "b.py"]
    assert known.asked(9) == []


def test_the_table_of_the_page_is_that_of_the_record() -> None:
    record = json.loads((program.ROOT / "benchmarks/results/mutants.json").read_text())
    page = program.PAGE.read_text()
    assert outcomes.put(page, outcomes.table(record)) == page
    assert all(one["verdict"] for one in record["survivors"]), "somebody has looked at each"
