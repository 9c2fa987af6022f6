"""What a record of drawn problems says of cuDNN's first engine beside the estimate's choice: the
classes in which a rule may answer with the engine. `conv_counted` and `attention_counted` say of
which problems."""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claims import Ratios
from rivals import FIRST
from tilewright import Constraints
from tilewright.dispatch import Dispatcher
from tilewright.ops.library_record import Recorded

RESULTS = Path(__file__).parent / "results"
OURS = "chosen of ours"

Timed = tuple[Any, float, float, float]
"""A problem, and microseconds: of the estimate's choice, of the library's first engine, and of the
fastest of the library."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Problems drawn by chance, a record of their times, and a rule that is counted from it.

    problems: of a half: what is counted is counted from half 0; half 1 takes no part in it.
    record: the file.
    least: how many problems a class has at least.
    class_of: the class of a problem, None for a problem that is in none. recorded: the rule.
    """

    problems: Callable[[int], Iterable[Any]]
    record: Path
    least: int
    class_of: Callable[[Any], Any]
    recorded: tuple[Recorded, ...]

    def summarised(self, paths: Iterable[Path]) -> dict[str, Any]:
        """The record of runs: the median of each contender in replayed graphs, in microseconds."""
        times: dict[str, dict[str, float]] = {}
        environments = []
        for path in paths:
            document = json.loads(lzma.decompress(path.read_bytes()))
            environments.append(document["environment"])
            for row in (row for case in document["cases"].values() for row in case["rows"]):
                if "graphs" in row["samples"]:
                    times[row["problem"]] = {
                        name: round(statistics.median(samples), 3)
                        for name, samples in row["samples"]["graphs"].items()
                    }
        ours = Constraints(only_ours=True)
        dispatcher = Dispatcher(device="h200_sxm", selector="analytical", constraints=ours)
        kernels = {
            str(problem): dispatcher.select(problem).config.name
            for half in (0, 1)
            for problem in self.problems(half)
            if str(problem) in times
        }
        return {"environments": environments, "kernels": kernels, "graphs_us": times}

    def timed(self, half: int) -> Iterator[Timed]:
        """The problems of a half that were timed."""
        known = json.loads(self.record.read_text())["graphs_us"]
        for problem in self.problems(half):
            if us := known.get(str(problem)):
                theirs = [time for name, time in us.items() if not name.startswith("chosen")]
                yield problem, us[OURS], us[FIRST], min(theirs)

    def as_chosen(self, half: int) -> Iterator[Timed]:
        """The problems for which the estimate still chooses the kernel that was timed. One that is
        no longer chosen says nothing of today's."""
        chosen = json.loads(self.record.read_text()).get("kernels", {})
        ours = Constraints(only_ours=True)
        dispatcher = Dispatcher(device="h200_sxm", selector="analytical", constraints=ours)
        for row in self.timed(half):
            name = chosen.get(str(row[0]))
            if name is None or name == dispatcher.select(row[0]).config.name:
                yield row

    def counted(self, rows: Iterable[Timed]) -> tuple[Recorded, ...]:
        """The rule's record as the rows give it: classes in all of whose problems the engine was
        faster."""
        found: dict[Any, list[float]] = defaultdict(list)
        for problem, ours, first, _ in rows:
            found[self.class_of(problem)].append(first / ours)
        return tuple(
            Recorded(of, len(shares), round(statistics.geometric_mean(shares), 3))
            for of, shares in sorted(found.items(), key=lambda pair: str(pair[0]))
            if of is not None and len(shares) >= self.least and max(shares) < 1
        )

    def answered(self, rows: Iterable[Timed]) -> tuple[Ratios, Ratios]:
        """The library's fastest beside the estimate's choice, and beside the rule's answer."""
        known = {one.of for one in self.recorded}
        each = [
            (best / ours, best / (first if self.class_of(problem) in known else ours))
            for problem, ours, first, best in rows
        ]
        before, after = zip(*each, strict=True)
        return Ratios.of(before), Ratios.of(after)

    def main(self, says: str) -> None:
        """Print what is counted, and what the rule makes of both halves. says: of the command."""
        parser = argparse.ArgumentParser(description=says.splitlines()[0])
        parser.add_argument("--from", dest="runs", type=Path, nargs="+", metavar="FILE")
        args = parser.parse_args()
        if args.runs:
            text = json.dumps(self.summarised(args.runs), indent=1, ensure_ascii=False)
            self.record.write_text(text + "\n")
        print(*self.counted(self.as_chosen(0)), sep="\n")
        for half, said in ((0, "counted"), (1, "held out")):
            rows = [*self.timed(half)]
            before, after = self.answered(rows)
            print(f"{said}, {len(rows)} problems: estimate {before}, rule {after}")
