"""``compare``: find the faster of two contenders."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.groups import PairOptions, ProblemArguments, StoreOptions
from tilewright.cli.options import Json, Seed, command
from tilewright.cli.vocabulary import FEW, LARGE, SMALL

if TYPE_CHECKING:
    from tilewright.measure.compare import Comparison


app = typer.Typer()


_SAID = {"single": "events, L2 flushed", "graph": "graphs, operands rotated"}

_CONTENDER = "KERNEL|REGISTRY.json|TABLE.twt|STORE|vendor"


@command(
    app,
    "Find the faster of two kernels, with a confidence interval.",
    f"tilewright compare KERNEL vendor {LARGE}",
    f"tilewright compare new.twt old.twt {FEW}",
    f"tilewright compare new.json old.json {FEW}",
    f"tilewright compare store-a store-b {SMALL} --kernel KERNEL",
)
def compare(
    *,
    first: Annotated[str, typer.Argument(help=f"First contender: {_CONTENDER}.", metavar="FIRST")],
    second: Annotated[
        str,
        typer.Argument(help="Second contender, of the same kinds.", metavar="SECOND"),
    ],
    asked: ProblemArguments,
    kernel: Annotated[
        str,
        typer.Option(
            "--kernel",
            help="Kernel to compare, if the contenders are stores [default: the chosen one]",
        ),
    ] = "",
    timing: PairOptions,
    confidence: Annotated[
        float,
        typer.Option("--confidence", min=0.5, max=0.9999, help="Confidence level of the interval."),
    ] = 0.99,
    margin: Annotated[
        float,
        typer.Option("--margin", min=0.0, max=0.5, help="Relative difference that counts as none."),
    ] = 0.01,
    seed: Seed = None,
    kept: StoreOptions,
    as_json: Json = False,
) -> None:
    """Time two contenders in pairs, in one process, in random order, and say which is faster.

    A contender is a kernel's name, a registry file or a table (the kernel it would choose), the
    folder of a store (its own binaries, for example before and after a compiler upgrade) or
    `vendor` (the vendor's library as torch calls it). Both are verified before they are timed. The
    answer is about FIRST: faster, slower, same (the interval lies within the margin) or undecided.
    """
    from tilewright.arch import device
    from tilewright.arch.detect import live_device
    from tilewright.measure import compare as tune
    from tilewright.measure.contenders import contender, prepared
    from tilewright.plan import PLANNING_DEVICE

    index = timing.gpu()
    target = live_device(index) if index is not None else device(PLANNING_DEVICE)
    problem = asked.on(target)
    store = kept.open()
    seed = secrets.randbits(31) if seed is None else seed
    method = timing.method()
    with output.busy(f"comparing on {problem}"):
        sides = [contender(word, problem, target, store, kernel) for word in (first, second)]
        calls, timer = prepared(sides, problem, seed, timing.on, target.l2_bytes, method)
        found = tune.compare(calls[0], calls[1], timer, timing.rounds, confidence, margin)
    document = {
        "problem": {"family": problem.family, **asdict(problem)},
        "first": sides[0].label,
        "second": sides[1].label,
        "on": timing.on,
        "seed": seed,
        "answer": found.answer,
        "ratio": found.ratio,
        "interval": found.interval,
        "confidence": found.confidence,
        "margin": found.margin,
        "medians_us": found.medians_us,
        "first_us": found.first_us,
        "second_us": found.second_us,
        "timer": "wall" if index is None else _SAID[method],
    }
    output.answer(document, as_json, lambda document: _show(document, problem, found))


def _show(document: dict[str, Any], problem: Any, found: Comparison) -> None:
    output.heading(str(problem))
    first, second = found.medians_us
    output.fields(
        {
            "first": f"{document['first']}, {first:.2f} µs",
            "second": f"{document['second']}, {second:.2f} µs",
            "answer": f"first is {found}" if found.answer != "undecided" else str(found),
            "timed": f"{len(found.first_us)} pairs, {document['timer']}, on {document['on']}",
        }
    )
