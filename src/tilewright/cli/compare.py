"""``compare``: which of two is faster."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.options import (
    Family,
    Json,
    ProblemWords,
    StorePath,
    TrustStore,
    examples,
    gpu_index,
    words,
)
from tilewright.cli.options import store as open_store
from tilewright.cli.vocabulary import FEW, LARGE, SMALL

if TYPE_CHECKING:
    from tilewright.measure.compare import Comparison
    from tilewright.measure.timing import Timer


def add_to(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command(
        short_help="Which of two is faster, with a confidence interval.",
        epilog=examples(
            f"tilewright compare KERNEL vendor {LARGE}",
            f"tilewright compare new.twt old.twt {FEW}",
            f"tilewright compare new.json old.json {FEW}",
            f"tilewright compare store-a store-b {SMALL} --kernel KERNEL",
        ),
    )(compare)


_CONTENDER = "KERNEL|REGISTRY.json|TABLE.twt|STORE|vendor"


def compare(
    first: Annotated[str, typer.Argument(help="What to compare.", metavar="FIRST")],
    second: Annotated[
        str,
        typer.Argument(help=f"With what; both are {_CONTENDER}.", metavar="SECOND"),
    ],
    family: Family,
    pairs: ProblemWords = None,
    kernel: Annotated[
        str, typer.Option("--kernel", help="Of stores: which kernel [default: the one chosen]")
    ] = "",
    rounds: Annotated[int, typer.Option("--rounds", min=6, help="Pairs of samples.")] = 60,
    confidence: Annotated[
        float, typer.Option("--confidence", min=0.5, max=0.9999, help="Of the interval.")
    ] = 0.99,
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, max=0.5, help="Share that does not matter.")
    ] = 0.01,
    on: Annotated[
        str,
        typer.Option("--on", help="Where: a GPU as cuda:0, or cpu (wall time of the interpreter)."),
    ] = "cuda:0",
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Makes the operands [default: fresh]")
    ] = None,
    store: StorePath = None,
    trust_store: TrustStore = False,
    as_json: Json = False,
) -> None:
    """Time two contenders in pairs, in one process, who goes first by a coin, and judge.

    Each is a kernel by name, a registry file or a table (what it would choose), a store's folder
    (its own binaries: before and after a compiler upgrade, say) or `vendor`, the vendor's library
    as torch calls it. Both are verified before they are timed. The answer is about FIRST: faster,
    slower, same (surely within the margin) or undecided.
    """
    from tilewright import ops
    from tilewright.arch import arch, device
    from tilewright.arch.detect import live_device
    from tilewright.measure import compare as tune
    from tilewright.measure.contenders import contender, verified
    from tilewright.plan import PLANNING_DEVICE

    index = gpu_index(on)
    target = live_device(index) if index is not None else device(PLANNING_DEVICE)
    problem = ops.family(family).parse_problem(words(pairs), arch(target.arch))
    kept = open_store(store, trust_store)
    sides = [contender(word, problem, target, kept, kernel) for word in (first, second)]
    seed = secrets.randbits(31) if seed is None else seed
    calls = verified(sides, problem, seed, on)
    found = tune.compare(
        calls[0], calls[1], timer_on(index, target.l2_bytes), rounds, confidence, margin
    )
    document = _document(problem, sides[0].label, sides[1].label, on, seed, found)
    if as_json:
        output.emit(document)
    else:
        _show(document, problem, found)


def timer_on(index: int | None, l2_bytes: int) -> Timer:
    """Device time with L2 flushed, or the wall clock of the interpreter."""
    from tilewright.measure import timing

    if index is None:
        return timing.Wall()
    place = f"cuda:{index}"
    return timing.Events(timing.flusher(l2_bytes, place), place)


def _document(
    problem: Any, first: str, second: str, on: str, seed: int, found: Comparison
) -> dict[str, Any]:
    return {
        "problem": {"family": problem.family, **asdict(problem)},
        "first": first,
        "second": second,
        "on": on,
        "seed": seed,
        "answer": found.answer,
        "ratio": found.ratio,
        "interval": found.interval,
        "confidence": found.confidence,
        "margin": found.margin,
        "medians_us": found.medians_us,
        "first_us": found.first_us,
        "second_us": found.second_us,
        "timer": "wall" if on == "cpu" else "events, L2 flushed",
    }


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
