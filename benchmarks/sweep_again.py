"""Whether two sweeps of the same space and problems choose the same kernels.

    python benchmarks/sweep_again.py FIRST SECOND --json benchmarks/results/sweep_again_h200.json

Takes two directories of `tilewright sweep`, made an hour or a machine apart, and of each what both
measured. A problem's best kernel in the first is inside if the second's intervals do not tell it
from its own best (`tune.statistics.indistinguishable`); what it costs is by the second's times.
Devices must be alike, environments and settings the same.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from environment import environment
from tilewright.measure.results import Results
from tilewright.measure.statistics import indistinguishable

Times = dict[str, dict[str, tuple[float, tuple[float, float]]]]
"""Median and interval by kernel by problem."""


def times(folder: Path) -> tuple[Times, str, str]:
    """And what it was measured with, and when the first was."""
    found: Times = defaultdict(dict)
    with Results(folder) as results:
        _, rows = results.query(
            "SELECT problem.text, kernel.name, median_us, low_us, high_us FROM measurement "
            "JOIN problem ON problem.id = problem JOIN kernel ON kernel.id = kernel "
            "WHERE status = 'ok' AND kernel.name NOT LIKE 'vendor.%'"
        )
        _, ((setup, began),) = results.query(
            "SELECT (SELECT text FROM environment) || (SELECT text FROM settings) || "
            "(SELECT text FROM device), min(measured_at) FROM measurement WHERE status = 'ok'"
        )
    for problem, kernel, median, low, high in rows:
        found[problem][kernel] = (median, (low, high))
    return found, setup, began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    (first, setup, began), (second, same, again) = times(options.first), times(options.second)
    assert setup == same, "made with other devices, versions or settings"
    identical = inside = both = 0
    losses, ratios = [], []
    for problem in first.keys() & second.keys():
        kernels = first[problem].keys() & second[problem].keys()
        one, two = ({k: each[problem][k] for k in kernels} for each in (first, second))
        ties = [
            indistinguishable({k: m for k, (m, _) in x.items()}, {k: i for k, (_, i) in x.items()})
            for x in (one, two)
        ]
        a, b = ties[0][0], ties[1][0]
        identical += a == b
        inside += a in ties[1]
        both += a in ties[1] and b in ties[0]
        losses.append(two[a][0] / two[b][0] - 1)
        ratios += [two[k][0] / one[k][0] for k in kernels]
    cuts = statistics.quantiles(ratios, n=20)
    document: dict[str, Any] = {
        "environment": environment(),
        "measured_from": [began, again],
        "problems": len(losses),
        "pairs": len(ratios),
        "identical": identical,
        "first_choice_inside": inside,
        "each_inside_the_others": both,
        "loss_of_first_choice": {
            "mean": statistics.mean(losses),
            "worst": max(losses),
            "problems_over_1_percent": sum(loss > 0.01 for loss in losses),
        },
        "second_time_over_first": {"p05": cuts[0], "median": cuts[9], "p95": cuts[-1]},
    }
    print(json.dumps(document, indent=2))
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
