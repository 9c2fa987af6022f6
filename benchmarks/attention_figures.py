"""Figures of attention's estimate against records of kernels' times: what a choice costs.

    python benchmarks/attention_figures.py           # the figures as they are
    python benchmarks/attention_figures.py --fit     # a search over those of `FITTED`

Needs no GPU. `attention_short_h200.json` has the times of nearly all kernels of the spaces on short
problems in batches, drawn as `cases/attention_unseen.py` says, and on eight long ones. Those of the
first seed and of 2,048 rows are fitted to; those of the second and of 4,096 take no part. Beside
them stand long sequences and decoding, recorded before: figures that make these worse are not to be
taken over.

Two measures of each set. Spread: the geometric standard deviation of estimate over median. Loss:
how much longer the kernel that the estimate puts first takes than the fastest of the record, of
the default spaces: the geometric mean, and the most. All records are of an H200.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import matrix
from cases.attention_unseen import COUNTED, HELD_OUT, PADDED, drawn, gradients
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.attention import AttentionProblem, estimate
from tilewright.ops.attention.pipelines import PIPELINES
from tilewright.ops.attention_backward.estimate import BACKWARD

RESULTS = Path(__file__).parent / "results"
SHORT = RESULTS / "attention_short_h200.json"
PADDED_SHORT = RESULTS / "attention_padded_h200.json"
BACKWARD_SHORT = RESULTS / "attention_short_backward_h200.json"
LONG = RESULTS / "attention_guess_h200.jsonl"
DECODING = RESULTS / "attention_decode_h200.json"
H200 = device("h200_sxm")

FITTED = ("gluon_ws.tile_us", "gluon_ws.beside", "gluon_decode.tile_us", "basic.tile_us")
FITTED_BACKWARD = ("BEGIN_US", "TURN_US")
"""What is searched: fields of pipelines' paces, and figures of
`arch/figures/attention_backward.json`."""
STEPS = (0.5, 0.2, 0.05)
"""By which a value moves at a time: of itself, or of 1 where it is less."""
SLOW = 1.5
"""Kernels that take so many times what the fastest takes count half; slower ones less."""

Times = Mapping[Any, Mapping[str, float]]
_SAID = re.compile(
    r"attention b(\d+) h(\d+)(?::(\d+))? (\d+)×(\d+) d(\d+) (bf16|fp16)( causal)?"
)  # fmt: skip


def short(seed: int) -> Times:
    """The medians of single calls of a draw's problems that are in the record, of kernels of ours
    by name."""
    return _of(SHORT, drawn(seed))


def padded() -> Times:
    """Those of both draws of padded rows."""
    draws = (drawn(seed, step=PADDED) for seed in (COUNTED, HELD_OUT))
    return _of(PADDED_SHORT, itertools.chain.from_iterable(draws))


def backward(seed: int) -> Times:
    """Those of their gradients."""
    return _of(BACKWARD_SHORT, gradients(seed))


def long(rows: int) -> Times:
    """Those of the record's long sequences of so many rows."""
    return _of(SHORT, (p for p in matrix.long() if p.q_len == rows))


def _of(record: Path, problems: Iterable[Any]) -> Times:
    timed = json.loads(record.read_text())["calls_us"]
    return {p: _ours(timed[str(p)]) for p in problems if str(p) in timed}


def before(path: Path, key: str) -> Times:
    """Those of an earlier record: of its plain problems, which have no other words than these."""
    found = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if key in row and (said := _SAID.fullmatch(row["problem"])):
            batch, heads, kv_heads, q_len, kv_len, dim, dtype, causal = said.groups()
            p = AttentionProblem(
                int(batch), int(heads), int(q_len), int(kv_len), int(dim),
                kv_heads=int(kv_heads or 0), dtype=dtype, right=0 if causal else None,
            )  # fmt: skip
            found[p] = _ours(row[key])
    return found


def _ours(times: Mapping[str, float]) -> dict[str, float]:
    return {name: us for name, us in times.items() if name.startswith("attention")}


# --- measures -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fit:
    """spread, loss: see above. worst: the most that a choice costs. count: problems."""

    spread: float
    loss: float
    worst: float
    count: int


@cache
def _defaults(problem: Any) -> frozenset[str]:
    """Kernels of the default space."""
    this = arch(H200.arch)
    space = ops.family(problem.family).default_space(problem, this)
    return frozenset(c.name for c in space.expand(this).configs)


def _estimated(problem: Any, names: Sequence[str]) -> Sequence[float]:
    family = ops.family(problem.family)
    return [family.estimate(_config(name), problem, H200).total_us for name in names]


@cache
def _config(name: str) -> Any:
    return ops.family_of(name).parse_name(name)


def fit_of(times: Times) -> Fit:
    """How the estimate as it is stands to these times."""
    logs, losses = [], []
    for problem, timed in times.items():
        names = [*timed]
        expected = dict(zip(names, _estimated(problem, names), strict=True))
        logs += [math.log(expected[n] / timed[n]) for n in names]
        known = [n for n in names if n in _defaults(problem)]
        if len(known) > 1:
            first = min(known, key=lambda n: (expected[n], n))
            losses.append(math.log(timed[first] / min(timed[n] for n in known)))
    mean = sum(logs) / len(logs)
    spread = math.sqrt(sum((one - mean) ** 2 for one in logs) / len(logs))
    lost = sum(losses) / max(1, len(losses))
    worst = max(losses, default=0.0)
    return Fit(math.exp(spread), math.exp(lost), math.exp(worst), len(times))


def _error(times: Times) -> float:
    """What a search makes least: the mean of squared logarithms of estimate over median, in which
    kernels count less the slower they are."""
    total = weights = 0.0
    for problem, timed in times.items():
        best = min(timed.values())
        for us, expected in zip(timed.values(), _estimated(problem, [*timed]), strict=True):
            weight = 1 / (1 + (us / best / SLOW) ** 4)
            total += weight * math.log(expected / us) ** 2
            weights += weight
    return total / weights


# --- figures ------------------------------------------------------------------------------------


def value_of(figure: str) -> float:
    pipeline, _, field = figure.rpartition(".")
    return float(getattr(PIPELINES[pipeline].pace if pipeline else BACKWARD, field))


def put(figure: str, value: float) -> None:
    """Let the estimate use another value."""
    pipeline, _, field = figure.rpartition(".")
    if pipeline:
        fields: dict[str, Any] = {field: value}
        pace = replace(PIPELINES[pipeline].pace, **fields)
        PIPELINES[pipeline] = replace(PIPELINES[pipeline], pace=pace)
    else:
        BACKWARD.__dict__[figure] = value
    estimate._step.cache_clear()


def search(figures: Sequence[str], times: Times) -> None:
    """Move one figure at a time as long as the error gets less."""
    best = _error(times)
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for figure in figures:
                value = value_of(figure)
                by = step * max(value, 1.0) if figure.endswith("_us") else step * value
                for other in (value + by, max(0.0, value - by)):
                    put(figure, other)
                    if (now := _error(times)) < best - 1e-5:
                        best, moved = now, True
                        break
                    put(figure, value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sets = {
        "fitted to": {**short(COUNTED), **long(2048)},
        "short, which take no part": short(HELD_OUT),
        "padded, which take no part": padded(),
        "long, which take no part": long(4096),
        "long, recorded before": before(LONG, "brief_us"),
        "decoding": before(DECODING, "times_us"),
        "gradients, fitted to": backward(COUNTED),
        "gradients, which take no part": backward(HELD_OUT),
    }
    result: dict[str, Any] = {}

    def told(when: str) -> None:
        for name, times in sets.items():
            found = fit_of(times)
            print(f"{when}: {name}: {found}", flush=True)
            result.setdefault(when, {})[name] = {
                "problems": found.count, "spread": round(found.spread, 3),
                "loss": round(found.loss, 3), "worst": round(found.worst, 3),
            }  # fmt: skip

    told("as it is")
    if args.fit:
        search(FITTED, sets["fitted to"])
        search(FITTED_BACKWARD, sets["gradients, fitted to"])
        every = (*FITTED, *FITTED_BACKWARD)
        result["values"] = {figure: round(value_of(figure), 3) for figure in every}
        print(result["values"])
        told("fitted")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
