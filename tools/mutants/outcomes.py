"""What became of the mutants: which tests to ask, the document, and the table."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tree import Drawn

Key = tuple[str, ...]
KILLED = "killed"
MARKS = ("<!-- mutants: written by tools/mutants -->", "<!-- /mutants -->")


@dataclass(frozen=True)
class Map:
    """The tests that reach each mutant, by number, and what each test costs: its seconds, times how
    many mutants it reaches. A test of few things is more likely to notice a fault in one of them.
    """

    tests: Mapping[int, Sequence[str]]
    costs: Mapping[str, float]

    @classmethod
    def read(cls, files: Iterable[Path]) -> Map:
        """Of tests that passed. What was noted last of a test counts."""
        last = {}
        for path in files:
            for line in path.read_text().splitlines():
                told = json.loads(line)
                last[told["test"]] = told
        tests: dict[int, list[str]] = defaultdict(list)
        for test, told in last.items():
            for number in told["reached"] if told["passed"] else ():
                tests[number].append(test)
        costs = {test: told["seconds"] * len(told["reached"]) for test, told in last.items()}
        return cls(tests, costs)

    def asked(self, number: int) -> list[str]:
        """The tests for a mutant, cheap ones first. Of a function's tests the second counts twice,
        the third three times, and so on: others may see what its first did not. Last the files of
        tests whose import reaches it, which stand for all their tests."""
        turns: Counter[str] = Counter()
        order = []
        for test in sorted(self.tests.get(number, ()), key=lambda test: (self.costs[test], test)):
            turns[test.partition("[")[0]] += 1
            cost = self.costs[test] * turns[test.partition("[")[0]]
            order.append((is_file(test), cost, test))
        return [test for *_, test in sorted(order)]


def is_file(test: str) -> bool:
    """Whether this is no test, but a file of tests."""
    return "::" not in test


def read(path: Path) -> dict[Key, dict[str, Any]]:
    """Of each mutant the last outcome."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {tuple(told["key"]): told for told in map(json.loads, lines)}


def document(
    sample: Sequence[Drawn],
    suites: Mapping[str, Mapping[Key, Mapping[str, Any]]],
    before: Mapping[str, Any],
) -> dict[str, Any]:
    """What is written down: counts by room, and each mutant that a suite let live, with the verdict
    that somebody wrote in `before`, the document of an earlier run.

    suites: outcomes, from the smallest suite on. What one kills, those behind it kill.
    """
    verdicts = {_key(one): one["verdict"] for one in before.get("survivors", ())}
    by_room: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for one in sample:
        by_room[one.room]["mutants"] += 1
        dead, told = False, {}
        for suite, outcomes in suites.items():
            outcome = outcomes.get(one.mutant.key, {}).get("outcome", "not run")
            dead = dead or outcome == KILLED
            told[suite] = KILLED if dead else outcome
            by_room[one.room][suite] += dead
        if set(told.values()) != {KILLED}:
            place = {name: getattr(one.mutant, name) for name in _PLACE}
            place = {"room": one.room, "line": one.mutant.line, **place, **told}
            survivors.append({**place, "verdict": verdicts.get(one.mutant.key, "")})
    total: Counter[str] = Counter()
    for counts in by_room.values():
        total.update(counts)
    return {
        "total": dict(total),
        "rooms": {room: dict(counts) for room, counts in by_room.items()},
        "survivors": survivors,
    }


_PLACE = ("file", "within", "kind", "old", "new", "number")
"""What tells a mutant from others, in the order of its key."""


def _key(told: Mapping[str, Any]) -> Key:
    return tuple(str(told[name]) for name in _PLACE)


def table(told: Mapping[str, Any]) -> str:
    """The document's counts as a table in Markdown."""
    suites = [name for name in told["total"] if name != "mutants"]
    heads = ["room", "mutants", *(f"killed by `{suite}`" for suite in suites)]
    lines = [heads, ["---"] * len(heads)]
    lines += [[room, *_counts(counts, suites)] for room, counts in told["rooms"].items()]
    lines.append(["all", *_counts(told["total"], suites)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def put(page: str, table: str) -> str:
    """The page with the table between its marks."""
    before, begin, rest = page.partition(MARKS[0])
    _, end, behind = rest.partition(MARKS[1])
    return "".join((before, begin, "\n", table, end, behind))


def _counts(counts: Mapping[str, int], suites: Sequence[str]) -> list[str]:
    every = counts["mutants"]
    shares = [f"{counts[suite]} ({counts[suite] / every:.0%})" for suite in suites]
    return [str(every), *shares]
