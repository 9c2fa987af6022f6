"""What a record of drawn convolutions says of cuDNN's first engine beside the estimate's choice.

    python benchmarks/conv_counted.py
    python benchmarks/conv_counted.py --from unseen.json.xz first.json.xz    # write the record

Needs no GPU. Of the half of the layers that rules are counted from it prints
`engine_record.RECORD`: the classes with `LEAST` problems and more in all of which the engine was
faster. Of the other half, which took no part, it prints the time of the fastest of cuDNN over that
of the estimate's choice, and over that of what the rule answers: mean, P10, least.

--from: what `run.py 'conv-unseen*' 'conv-first*' --json` wrote; a later file's problems replace an
earlier one's. Run it on the commit of the run: the record gets the names of the kernels that the
estimate chooses.
"""

from __future__ import annotations

import argparse
import json
import lzma
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cases.conv import unseen
from claims import Ratios
from rivals import FIRST
from tilewright import Constraints
from tilewright.dispatch import Dispatcher
from tilewright.ops.conv import ConvProblem, engine_record
from tilewright.ops.conv.engine_record import Class, Recorded, class_of

RECORD = Path(__file__).parent / "results" / "conv_unseen_h200.json"
LEAST = 2
OURS = "chosen of ours"


def summarised(paths: Iterable[Path]) -> dict[str, Any]:
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
        for problem in unseen(half)
        if str(problem) in times
    }
    return {"environments": environments, "kernels": kernels, "graphs_us": times}


Timed = tuple[ConvProblem, float, float, float]
"""A problem, and microseconds: of the estimate's choice, of the library's first engine, and of the
fastest of the library."""


def timed(half: int) -> Iterator[Timed]:
    known = json.loads(RECORD.read_text())["graphs_us"]
    for problem in unseen(half):
        if us := known.get(str(problem)):
            theirs = [time for name, time in us.items() if not name.startswith("chosen")]
            yield problem, us[OURS], us[FIRST], min(theirs)


def counted(rows: Iterable[Timed]) -> tuple[Recorded, ...]:
    """`engine_record.RECORD` as the rows give it."""
    found: dict[Class, list[float]] = defaultdict(list)
    for problem, ours, first, _ in rows:
        found[class_of(problem)].append(first / ours)
    return tuple(
        Recorded(of, len(shares), round(statistics.geometric_mean(shares), 3))
        for of, shares in sorted(found.items(), key=lambda pair: str(pair[0]))
        if len(shares) >= LEAST and max(shares) < 1
    )


def answered(rows: Iterable[Timed]) -> tuple[Ratios, Ratios]:
    """The library's fastest beside the estimate's choice, and beside the rule's answer."""
    known = {one.of for one in engine_record.RECORD}
    each = [
        (best / ours, best / (first if class_of(problem) in known else ours))
        for problem, ours, first, best in rows
    ]
    before, after = zip(*each, strict=True)
    return Ratios.of(before), Ratios.of(after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="runs", type=Path, nargs="+", metavar="FILE")
    args = parser.parse_args()
    if args.runs:
        RECORD.write_text(json.dumps(summarised(args.runs), indent=1, ensure_ascii=False) + "\n")
    print(*counted(timed(0)), sep="\n")
    for half, said in ((0, "counted"), (1, "held out")):
        rows = [*timed(half)]
        before, after = answered(rows)
        print(f"{said}, {len(rows)} problems: estimate {before}, rule {after}")


if __name__ == "__main__":
    main()
