"""Which small faults in the code the tests notice: a sample of mutants, each run by the tests that
run its line.

    pip install coverage
    python benchmarks/mutants.py map --work /tmp/mutants     # once: which tests run which lines
    python benchmarks/mutants.py run --work /tmp/mutants --count 350 --json RESULT

``map`` copies the tree into the work folder and runs the tests of `TESTS` there, two processes at a
time. ``run`` changes one place of one of the files in the copy, runs up to `MOST_TESTS` tests that
run its line (one of each function first, quick ones before slow), and stops at the first failure:
the mutant is killed. So it is if the tests hang. Mutants are drawn with a fixed seed; a run that is
started again goes on where it was. ``run --again`` runs only those that survived: after new tests,
make the map again.

Mutants: another comparison, `and` for `or`, a condition always true or never, `not` left out, a
number more or less by one, another arithmetic operator, True for False, None returned, arguments
swapped, a statement left out. Only in functions, which is where lines are run by tests; neither in
annotations nor in the words of messages.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from environment import environment

ROOT = Path(__file__).resolve().parents[1]
GEMM = ("rules", "cdna", "warpgroups", "swap", "sizes", "small_m", "scales", "lowbit", "shuffle",
        "pre", "batch")  # fmt: skip
"""GEMM's rules, and what they ask."""
FILES = (
    "dispatch.py",
    "plan.py",
    "select/*.py",
    "tables/*.py",
    *(f"ops/gemm/{name}.py" for name in GEMM),
    "ops/grouped_gemm/rules.py",
)
TESTS = (
    *(f"tests/test_{name}.py" for name in
      ("dispatch", "registry", "capturing", "space", "verify", "problem")),
    "tests/select", "tests/tables", "tests/gemm", "tests/grouped_gemm",
    *(f"tests/runtime/test_{name}.py" for name in ("captured_launches", "bound", "workspace")),
    *(f"tests/cli/test_cli_{name}.py" for name in ("planning", "table", "targets")),
    "tests/tune/test_filters.py",
)  # fmt: skip
MOST_TESTS, SLOW_SECONDS = 40, 1.0
"""How many tests a mutant meets, of those that took no longer when the map was made."""
MOST_AGAIN, SLOW_AGAIN = 120, 5.0
"""The same for those that survived it (`--again`)."""
TEST_SECONDS = 300
"""What a test may take on a mutant, which may hang."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Div: ast.Mult, ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift,
}  # fmt: skip
NOT_CODE = (ast.JoinedStr, ast.FunctionDef, ast.ClassDef)
"""Messages; and functions in functions, which are met by themselves."""


@dataclass(frozen=True)
class Mutant:
    """Bytes `start` to `end` of a file become `new`; `line` is the first of them."""

    file: str
    line: int
    start: int
    end: int
    kind: str
    old: str
    new: str


# --- making them ------------------------------------------------------------------------------


def mutants(file: str, text: bytes) -> list[Mutant]:
    """All of a file."""
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    found = []
    for outer in ast.walk(ast.parse(text)):
        if isinstance(outer, ast.FunctionDef):
            for statement in outer.body:
                for node in _inside(statement):
                    for place, kind, new in _changes(node):
                        start = begins[place.lineno - 1] + place.col_offset
                        end = begins[place.end_lineno - 1] + place.end_col_offset
                        new = f"({new})" if isinstance(place, ast.expr) else new
                        old = text[start:end].decode()
                        found.append(Mutant(file, place.lineno, start, end, kind, old, new))
    return found


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """This node and the nodes below it, without other functions, annotations and messages."""
    if isinstance(node, NOT_CODE):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "msg"):
            for below in value if isinstance(value, list) else [value]:
                if isinstance(below, ast.AST):
                    yield from _inside(below)


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
            if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
                made = ast.Call(node.func, [second, first, *others], node.keywords)
                yield node, "arguments", ast.unparse(made)
        case ast.If() | ast.IfExp() | ast.While():
            yield node.test, "condition", "True"
            yield node.test, "condition", "False"
        case ast.comprehension():
            for test in node.ifs:
                yield test, "condition", "True"
        case ast.Return(value=ast.expr()) if not _is_none(node.value):
            yield node, "return", "return None"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield node, "statement", "pass"
        case ast.Continue() | ast.Break():
            yield node, "statement", "pass"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _of_words(node: ast.BinOp) -> bool:
    """Whether the expression builds text."""
    sides = (node.left, node.right)
    return any(isinstance(getattr(side, "value", None), str) for side in sides)


# --- running them -----------------------------------------------------------------------------


def watched(tree: Path) -> list[str]:
    """The changed files, in a copy of the tree."""
    package = tree / "src" / "tilewright"
    found = [path for pattern in FILES for path in sorted(package.glob(pattern))]
    return [os.fspath(path.relative_to(tree)) for path in found]


def pytest(tree: Path, *words: str) -> None:
    """pytest in a copy of the tree; it imports the package from the copy."""
    path = [tree / "src", tree / "benchmarks", *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    subprocess.run(command, cwd=tree, env=env, check=False)


def copy(to: Path) -> None:
    """The tree as git sees it."""
    shutil.rmtree(to, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)


def make_map(work: Path) -> None:
    tree = work / "tree"
    copy(tree)
    shutil.rmtree(work / "map", ignore_errors=True)
    lines = [word for file in watched(tree) for word in ("--lines-of", file)]
    options = ["-p", "mutants_plugin", "-n", "2", "--lines-to", os.fspath(work / "map")]
    pytest(tree, *options, *lines, *TESTS)


@dataclass(frozen=True)
class Map:
    """The tests that run each line, by file and line, and each test's seconds."""

    tests: dict[tuple[str, int], list[str]]
    seconds: dict[str, float]

    @classmethod
    def read(cls, folder: Path, slow: float) -> Map:
        tests: dict[tuple[str, int], list[str]] = defaultdict(list)
        seconds = {}
        for path in sorted(folder.glob("*.json")):
            for test, told in json.loads(path.read_text()).items():
                if told["passed"] and told["seconds"] <= slow:
                    seconds[test] = told["seconds"]
                    for file, lines in told["lines"].items():
                        for line in lines:
                            tests[file, line].append(test)
        return cls(tests, seconds)

    def asked(self, mutant: Mutant, most: int, matching: str) -> list[str]:
        """The tests for a mutant: one of each function, then a second of each, and so on; those
        that interpret kernels, which take long to start, come last."""
        turns: Counter[str] = Counter()
        order = []
        for test in sorted(self.tests[mutant.file, mutant.line], key=self.seconds.__getitem__):
            if not re.search(matching, test):
                continue
            function = test.partition("[")[0]
            order.append(("_interpreted" in test, turns[function], test))
            turns[function] += 1
        order.sort(key=lambda turn: turn[:2])
        return [test for *_, test in order[:most]]


def drawn(tree: Path, count: int, seed: int) -> list[Mutant]:
    """The first of them all in an order of chance: those of a smaller count are among them."""
    every = []
    for file in watched(tree):
        text = (tree / file).read_bytes()
        every += [m for m in mutants(file, text) if m.old != m.new.strip("()")]
    return random.Random(seed).sample(every, len(every))[:count]


def run(
    work: Path, count: int, seed: int, jobs: int, again: bool, matching: str
) -> dict[Mutant, str]:
    """The outcomes. They stand in the work folder as they come: a run that is started again goes on
    there. again: mutants that survived are asked again."""
    most, slow = (MOST_AGAIN, SLOW_AGAIN) if again else (MOST_TESTS, SLOW_SECONDS)
    tree, known = work / "tree", Map.read(work / "map", slow)
    told = work / f"outcomes-{seed}.jsonl"
    sample = drawn(tree, count, seed)
    done = outcomes(told)
    left = [m for m in sample if m not in done or (again and not done[m].startswith("killed"))]
    lines = [
        json.dumps({**asdict(mutant), "tests": known.asked(mutant, most, matching)})
        for mutant in left
    ]
    options = ["-p", "mutants_plugin", "-p", "no:xdist", "-o", f"timeout={TEST_SECONDS}"]
    with ThreadPoolExecutor(jobs) as pool:
        for job in range(jobs):
            asked = work / f"mutants-{job}.jsonl"
            asked.write_text("\n".join(lines[job::jobs]))
            files = ["--mutants", os.fspath(asked), "--outcomes", os.fspath(told)]
            pool.submit(pytest, tree, *options, *files, *TESTS)
    done = outcomes(told)
    return {mutant: done[mutant] for mutant in sample}


def outcomes(path: Path) -> dict[Mutant, str]:
    """Of each mutant the last."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        mutant = json.loads(line)
        result = mutant.pop("outcome")
        found[Mutant(**mutant)] = result
    return found


def summary(outcomes: dict[Mutant, str], before: dict[str, Any]) -> dict[str, Any]:
    """What is written down: counts by file, and each survivor with the verdict that somebody wrote
    in `before`, the document of an earlier run."""
    files: dict[str, Counter[str]] = defaultdict(Counter)
    verdicts = {key(s): s["verdict"] for s in before.get("survivors", ())}
    survivors = []
    for mutant, result in outcomes.items():
        files[mutant.file][result.partition(" by ")[0]] += 1
        if not result.startswith("killed"):
            told = {**asdict(mutant), "outcome": result}
            survivors.append({**told, "verdict": verdicts.get(key(told), "")})
    killed = sum(result.startswith("killed") for result in outcomes.values())
    return {
        "mutants": len(outcomes),
        "killed": killed,
        "share": round(killed / len(outcomes), 3),
        "files": {file: dict(counts) for file, counts in sorted(files.items())},
        "survivors": survivors,
    }


def key(told: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(told[name]) for name in ("file", "kind", "old", "new", "line"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the tests on changed code.")
    parser.add_argument("what", choices=("map", "run"))
    parser.add_argument("--work", type=Path, required=True, help="a folder outside the tree")
    parser.add_argument("--count", type=int, default=350)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="those that survived, once more")
    parser.add_argument("--tests", default="", help="a pattern: only tests whose names have it")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    work = options.work.resolve()
    if options.what == "map":
        make_map(work)
        return
    outcomes = run(work, options.count, options.seed, options.jobs, options.again, options.tests)
    before = {}
    if options.json and options.json.exists():
        before = json.loads(options.json.read_text())
    document = {"environment": environment(), "seed": options.seed, **summary(outcomes, before)}
    print(f"{document['killed']} of {document['mutants']} killed")
    if options.json:
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
