"""How far convolutions are from the floor of a launch and their bytes, from records of
`conv_vendor.py`, as the table in docs/conv.md has it: our time and cuDNN's as multiples.

    python benchmarks/conv_floor.py benchmarks/results/conv_depthwise_bands_h200.json \\
        benchmarks/results/conv_grouped_h200.json

Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from gemm_chains import READ_BYTES_A_US

LAUNCH_US = 3.9
"""Of a kernel that does nothing, on an H200 (see ops/gemm/kernels/small_m.py)."""


def rows(path: Path) -> Iterator[tuple[str, float, float, float]]:
    """(problem, floor in µs, our time, cuDNN's) of each row of a record; single calls, L2
    flushed."""
    for found in json.loads(path.read_text())["sets"].values():
        for row in found:
            us, ours = row["flushed"]["us"], row["kernel"]
            theirs = min(t for name, t in us.items() if name.startswith("aten"))
            yield row["problem"], LAUNCH_US + row["bytes"] / READ_BYTES_A_US, us[ours], theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("records", nargs="+", type=Path, help="of conv_vendor.py")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    table = [
        {"problem": p, "floor_us": round(floor, 1), "ours": round(ours / floor, 2),
         "cudnn": round(theirs / floor, 2)}
        for path in arguments.records
        for p, floor, ours, theirs in rows(path)
    ]  # fmt: skip
    if arguments.json:
        print(json.dumps(table, indent=1))
        return
    for row in table:
        print(
            "{problem:<75} {floor_us:6.1f} µs  ours {ours:6.2f}  cuDNN {cudnn:6.2f}".format(**row)
        )


if __name__ == "__main__":
    main()
