"""Run the tests on small faults in the code.

    export PYTHONPATH=tools:benchmarks
    python -m mutants draw --work FOLDER                  the sample, and copies of the repository
    python -m mutants map --work FOLDER --suite short     which tests reach which mutants
    python -m mutants run --work FOLDER --suite short     their outcomes
    python -m mutants run --work FOLDER --suite all       of what `short` did not kill
    python -m mutants report --work FOLDER --json FILE    also the table in CONTRIBUTING.md

Each goes on where it was stopped. After new tests: `draw` copies the repository again, `map` runs
the tests that it does not know, `run --again` asks those that survived. Words behind `--` go to
pytest: files to map, for example.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import outcomes
from .outcomes import KILLED, Map, is_file
from .tree import ROOT, Drawn, Work, pytest, switch

SUITES = ("short", "all")
PAGE = ROOT / "CONTRIBUTING.md"
MOST_FILES = 8
"""Files of tests that are collected for a mutant that runs at import, which needs a process of its
own."""
MOST_TESTS = 400
TIMEOUT_SECONDS = 300


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("draw", "map", "run", "report"))
    parser.add_argument("--work", type=Path, required=True, help="a folder outside the repository")
    parser.add_argument("--suite", choices=SUITES, default="short")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes that run tests")
    parser.add_argument("--budget", type=int, default=60, help="processor seconds for a mutant")
    parser.add_argument("--rooms", nargs="+", help="only mutants of these rooms")
    parser.add_argument("--again", action="store_true", help="those that survived, once more")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    options, behind = parser.parse_args(words[:split]), words[split + 1 :]
    work = Work(options.work.resolve(), options.jobs)
    match options.what:
        case "draw":
            print(len(work.draw(options.count, options.seed)), "mutants")
        case "map":
            make_map(work, options.suite, behind)
        case "run":
            run(work, options.suite, options.budget, options.again, options.rooms)
            report(work, options.seed, None)
        case "report":
            report(work, options.seed, options.json)


def selected(suite: str) -> list[str]:
    """The same tests for every commit, so that a map stays true (`tests/selection.py`)."""
    return ["--selection", suite, "--turn", "mutants", "-m", "not gpu"]


def make_map(work: Work, suite: str, words: Sequence[str]) -> None:
    """Run the suite, a share of its files in each tree."""

    def one(job: int) -> None:
        switch(work.tree(job), 0)
        to = ["--reach-to", os.fspath(work.map(suite, job)), "--share", f"{job}/{work.jobs}"]
        pytest(work.tree(job), [*selected(suite), *to, *words])

    with ThreadPoolExecutor(work.jobs) as pool:
        list(pool.map(one, range(work.jobs)))


def run(work: Work, suite: str, budget: int, again: bool, rooms: Sequence[str] | None) -> None:
    """Judge the mutants that no smaller suite has killed and this one has not judged yet."""
    known = Map.read(work.maps(suite))
    done = {name: outcomes.read(work.outcomes(name)) for name in SUITES[: SUITES.index(suite) + 1]}

    def is_left(one: Drawn) -> bool:
        found = [by_key.get(one.mutant.key, {}).get("outcome") for by_key in done.values()]
        return KILLED not in found and (again or found[-1] is None)

    def asked(one: Drawn) -> dict[str, Any]:
        tests = known.asked(one.number)[:MOST_TESTS]
        # What runs only while tests are imported, no fork can run again.
        at_import = one.mutant.at_import or all(map(is_file, tests))
        told = {"key": one.mutant.key, "number": one.number, "at_import": at_import}
        return {**told, "tests": tests}

    left = [asked(o) for o in work.sample() if is_left(o) and (not rooms or o.room in rooms)]
    with ThreadPoolExecutor(work.jobs) as pool:
        list(pool.map(lambda job: _run(work, job, suite, budget, left[job :: work.jobs]),
                      range(work.jobs)))  # fmt: skip


def _run(work: Work, job: int, suite: str, budget: int, left: list[dict[str, Any]]) -> None:
    """Judge these mutants in one tree: in forks of one process, or in a process for each that runs
    at import."""
    switch(work.tree(job), 0)
    called = [told for told in left if not told["at_import"]]
    if called:
        _judged(work, job, suite, budget, called, work.outcomes(suite))
    for told in left:
        if told["at_import"]:
            outcome = _at_import(work, job, suite, budget, told)
            with work.outcomes(suite).open("a") as file:
                file.write(json.dumps({"key": told["key"], **outcome}) + "\n")


def _at_import(
    work: Work, job: int, suite: str, budget: int, told: dict[str, Any]
) -> dict[str, str]:
    """The outcome of a mutant that is on while its tests are imported."""
    files = list(dict.fromkeys(_file(test) for test in told["tests"]))[:MOST_FILES]
    tests = [*(test for test in told["tests"] if _file(test) in files), *files]
    to = work.folder / f"outcome-{job}.jsonl"
    broken: list[str] = []
    """Tests that fail without the mutant too."""

    def judged(number: int, tests: Sequence[str]) -> dict[str, str]:
        to.unlink(missing_ok=True)
        switch(work.tree(job), number)
        _judged(work, job, suite, budget, [{**told, "tests": tests, "but": broken}], to)
        switch(work.tree(job), 0)
        ended = {"outcome": KILLED, "test": "the import"}
        found = next(iter(outcomes.read(to).values()), ended)
        return {"outcome": found["outcome"], "test": found["test"]}

    if not tests:
        return {"outcome": "not run", "test": ""}
    while True:
        found = judged(told["number"], tests)
        test = found["test"]
        if "::" not in test or judged(0, [test])["outcome"] != KILLED:
            return found
        broken.append(test)


def _judged(
    work: Work, job: int, suite: str, budget: int, mutants: list[dict[str, Any]], to: Path
) -> None:
    asked = work.folder / f"mutants-{job}.jsonl"
    asked.write_text("".join(json.dumps(told) + "\n" for told in mutants))
    files = sorted({_file(test) for told in mutants for test in told["tests"]})
    words = ["--mutants", os.fspath(asked), "--outcomes-to", os.fspath(to)]
    words += ["--budget", str(budget), "-o", f"timeout={TIMEOUT_SECONDS}", *selected(suite)]
    pytest(work.tree(job), [*words, *files], quiet=len(mutants) == 1)


def _file(test: str) -> str:
    return test.partition("::")[0]


def report(work: Work, seed: int, to: Path | None) -> None:
    """Print the table; write the document, and the table into `PAGE`."""
    before = json.loads(to.read_text()) if to and to.exists() else {}
    suites = {s: outcomes.read(work.outcomes(s)) for s in SUITES if work.outcomes(s).exists()}
    found = outcomes.document(work.sample(), suites, before)
    print(outcomes.table(found))
    if to:
        from environment import environment  # benchmarks/environment.py

        made = {"environment": environment(), "seed": seed, **found}
        to.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(outcomes.put(PAGE.read_text(), outcomes.table(made)))


if __name__ == "__main__":
    main()
