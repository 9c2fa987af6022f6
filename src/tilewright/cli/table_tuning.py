"""``table compare`` and ``table minimise``: commands that need a GPU, or a sweep's measurements."""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import PairOptions, StoreOptions
from tilewright.cli.options import Json, command
from tilewright.cli.table_files import refuse_rewriting
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.tune.changes import Changed


app = typer.Typer()


@command(
    app,
    "Time two tables against each other on this GPU.",
    "tilewright table compare before.twt after.twt",
    "tilewright table compare before.twt after.twt --update new.twt \\\n      --threshold 0.05",
)
def compare(
    *,
    before: Annotated[Path, typer.Argument(help="The first table.", metavar="BEFORE")],
    after: Annotated[Path, typer.Argument(help="The second.", metavar="AFTER")],
    update: Annotated[
        Path | None,
        typer.Option(
            "--update",
            help="Write BEFORE's rows here, replaced where AFTER improves.",
            metavar="FILE",
        ),
    ] = None,
    threshold: Annotated[
        float,
        typer.Option("--threshold", min=0.0, help="Share by which AFTER must be faster."),
    ] = 0.03,
    timing: PairOptions,
    kept: StoreOptions,
    as_json: Json = False,
) -> None:
    """For each problem of this GPU that both tables have with different kernels, time the kernel
    that a dispatcher runs with BEFORE and the kernel that it runs with AFTER, in pairs. Both are
    verified first.

    The answer is about AFTER. With --update, a row is replaced if the whole confidence interval of
    BEFORE's time over AFTER's is at or above 1 + threshold. Rows that only AFTER has are not copied
    (see table merge). Exits with 1 if a kernel failed or gave a wrong result.
    """
    from tilewright.arch import device as known_device
    from tilewright.arch.detect import live_device
    from tilewright.measure.devices import interpreted_device
    from tilewright.plan import PLANNING_DEVICE
    from tilewright.tables.file import load, save
    from tilewright.tune.changes import Bench, changed, updated

    if update is not None:
        refuse_rewriting(update, (before, after))
    index = timing.gpu()
    played = known_device(PLANNING_DEVICE).arch
    device = interpreted_device(played) if index is None else live_device(index)
    first, second = load(before), load(after)
    pairs = changed(first, second, device)
    seed = secrets.randbits(31)
    changes: list[Changed] = []
    bench = Bench(device, timing.on, kept.open(), timing.method(), seed, timing.rounds)
    with output.busy(f"comparing {len(pairs)} problems"):
        for one in bench.measured(pairs, first, second):
            changes.append(one)
            if not as_json:
                _show_change(one, threshold)
    document = {
        "device": device.name,
        "rows": sum(row.device == device for row in first),
        "different": len(pairs),
        "threshold": threshold,
        "seed": seed,
        "changes": [_change(one, threshold) for one in changes],
        "update": None if update is None else str(update),
    }
    if update is not None:
        save(updated(first, changes, threshold), update)
    output.answer(document, as_json, lambda document: _show(document, changes))
    if any(one.found is None for one in changes):
        raise typer.Exit(FAILED)


def _show_change(one: Changed, threshold: float) -> None:
    output.heading(str(one.problem))
    output.fields(
        {
            "before": one.before.kernel,
            "after": one.after.kernel,
            "answer": f"after is {one.found}" if one.found else f"failed: {one.failed}",
            **({"improves": "by the threshold"} if one.improves(threshold) else {}),
        }
    )


def _show(document: dict[str, Any], changes: list[Changed]) -> None:
    counts = Counter(one.found.answer if one.found else "failed" for one in changes)
    better = sum(one["improves"] for one in document["changes"])
    output.line(
        f"{many(document['rows'], 'row')} of {document['device']}, {document['different']} with "
        f"other kernels: {output.counts(counts) or 'nothing to compare'}"
    )
    if document["update"]:
        output.line(f"{document['update']}: BEFORE's rows, {better} of them replaced")


def _change(one: Changed, threshold: float) -> dict[str, Any]:
    from tilewright.tables.row import said

    found = one.found
    return {
        "problem": said(one.problem),
        "before": one.before.kernel,
        "after": one.after.kernel,
        "answer": found.answer if found else "failed",
        "ratio": found.ratio if found else None,
        "interval": found.interval if found else None,
        "failed": one.failed,
        "improves": one.improves(threshold),
    }


@command(
    app,
    "Find the fewest kernels near the best on every problem of a sweep.",
    "tilewright table minimise mine.sweep --within 0.02",
    "tilewright table minimise DIR --within 0.05 -o few.json",
)
def minimise(
    folder: Annotated[Path, typer.Argument(help="Directory of a sweep.", metavar="DIR")],
    within: Annotated[
        float,
        typer.Option(
            "--within", min=0.0, help="Relative excess over the best time that is allowed."
        ),
    ] = 0.02,
    out: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write the kernels as a registry.", metavar="FILE.json"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find a small set of kernels such that on every measured problem one of them is near the best:
    each kernel is a binary to build and to ship.

    The search is greedy and needs at most 1 + ln(problems) times the fewest kernels; it is exact if
    there are few enough smaller combinations to try. Shows the loss on each problem.
    """
    from tilewright import ops
    from tilewright.measure.results import Results, read_problem
    from tilewright.registry import Registry
    from tilewright.tune.minimise import minimise as do
    from tilewright.tune.minimise import times_of

    with Results(folder) as results, output.busy("looking for the smallest set"):
        times = times_of(results)
        found = do(times, within)
    if out is not None:
        configs = [ops.family_of(name).parse_name(name) for name in found.kernels]
        Registry(f"within {within:.3g} of the best").register_all(configs).save(out)
    document: dict[str, Any] = {
        "within": within,
        "of": len({kernel for one in times.values() for kernel in one}),
        "exact": found.exact,
        "kernels": found.kernels,
        "problems": [
            {
                "problem": str(read_problem(problem, str(folder))),
                "device": device,
                "kernel": kernel,
                "loss": loss,
            }
            for (problem, device), (kernel, loss) in found.choice.items()
        ],
        "out": None if out is None else str(out),
    }
    if as_json:
        output.emit(document)
        return
    output.table(
        ("loss", "problem", "device", "kernel"),
        [
            (f"{one['loss']:.2%}", one["problem"], one["device"], one["kernel"])
            for one in document["problems"]
        ],
    )
    sure = "the fewest there can be" if found.exact else "found greedily"
    output.line(
        f"{len(found.kernels)} of {many(document['of'], 'kernel')}, {sure}: within {within:.3g} of "
        f"the best on {many(len(times), 'problem')}"
    )
    for kernel in found.kernels:
        output.line(kernel)
