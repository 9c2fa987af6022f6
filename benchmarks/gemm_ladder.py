"""The problems of a table that answers for every M: a list for `tilewright tune`.

    python benchmarks/gemm_ladder.py --least 65 --most 512 > ladder.csv
    tilewright tune --problems ladder.csv --table ladder.twt --signature dtype=bf16 \
        --effort quick --missing --budget 4

A table without a row for some M answers with that of M rounded up to a step of the ladder
(`tilewright.ops.gemm.rows`). The list has the steps, the smallest first, each with every (N, K) of
the sweep `full`. `--missing` goes on where a run was stopped.
"""

from __future__ import annotations

import argparse
import csv
from importlib import resources

from tilewright.ops.gemm.rows import padded


def weights() -> list[tuple[int, int]]:
    """Every (N, K) of the sweep `full`, the smallest first."""
    listed = resources.files("tilewright.ops.gemm") / "sweeps" / "full" / "problems.csv"
    lines = [line for line in listed.read_text().splitlines() if not line.startswith("#")]
    every = {(int(row["n"]), int(row["k"])) for row in csv.DictReader(lines)}
    return sorted(every, key=lambda pair: (pair[0] * pair[1], pair))


def steps(least: int, most: int) -> list[int]:
    """The Ms between `least` and `most` whose rows answer for others too."""
    return [m for m in range(least, most + 1) if m in padded(m - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--least", type=int, default=1, help="least M")
    parser.add_argument("--most", type=int, default=8192, help="most M")
    options = parser.parse_args()
    print("m,n,k")
    for m in steps(options.least, options.most):
        for n, k in weights():
            print(f"{m},{n},{k}")


if __name__ == "__main__":
    main()
