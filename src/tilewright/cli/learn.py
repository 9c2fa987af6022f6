"""``learn``: models that correct the estimate, from measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import learn_tables, output
from tilewright.cli.options import Json, command, examples
from tilewright.cli.vocabulary import FAMILY
from tilewright.errors import BadArgument

if TYPE_CHECKING:
    from tilewright.learn.judge import Judged
    from tilewright.learn.matrix import Block
    from tilewright.learn.train import Sheet
    from tilewright.select.model import Model, Models

app = typer.Typer(
    help="Models that correct the estimate: data, train, evaluate, explain, compare, suggest.",
    short_help="Models that correct the estimate.",
    no_args_is_help=True,
    epilog=examples(
        "tilewright learn train DIR -o model.json",
        "tilewright learn evaluate DIR --page learned.html",
    ),
)

Measured = Annotated[
    list[Path],
    typer.Argument(
        help="Directories of sweeps and tunings, and Parquet files of `learn data`.",
        metavar="DIR|FILE.parquet…",
    ),
]
Lesson = Annotated[
    list[str] | None,
    typer.Option(
        "--class",
        help="Only this class of problems; may be repeated.",
        metavar="NAME",
    ),
]
Folds = Annotated[
    int, typer.Option("--folds", min=2, help="Parts of the problems that are held out in turn.")
]
Count = Annotated[int, typer.Option("--trees", min=2, max=200, help="At most this many trees.")]
Page = Annotated[
    Path | None,
    typer.Option("--page", help="Also write a page for a browser.", metavar="FILE.html"),
]
LISTED = 40
"""Problems that lose most, in a document of `evaluate`."""


@command(
    app,
    "Put measurements in one Parquet file.",
    "tilewright learn data sweep tuning -o measured.parquet",
    "tilewright learn data measured.parquet sweep --anew -o measured.parquet",
)
def data(
    inputs: Measured,
    out: Annotated[Path, typer.Option("-o", "--out", help="The file.", metavar="FILE.parquet")],
    commit: Annotated[str, typer.Option("--commit", help="The commit of the kernels.")] = "",
    anew: Annotated[
        bool,
        typer.Option(
            "--anew",
            help="Take a problem that was timed in several of these from the last alone, so that "
            "no two runs' times are compared.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write every kernel's time on every problem to one Parquet file, with device, versions,
    driver, way of timing and number of samples."""
    from tilewright.learn.matrix import PARQUET, newest, read, write

    if out.suffix != PARQUET:
        raise BadArgument(f"-o {out}: measurements are put in a {PARQUET} file")
    with output.busy(f"reading {', '.join(map(str, inputs))}"):
        count = write((newest if anew else read)(inputs), out, commit)
    document = {"out": str(out), "cells": count, "bytes": out.stat().st_size}
    output.answer(document, as_json, learn_tables.data)


@command(
    app,
    "Train a model for each class of problems.",
    "tilewright learn train DIR -o model.json",
    f"tilewright learn train DIR --class {FAMILY}_bf16 -o model.json",
)
def train(
    inputs: Measured,
    out: Annotated[Path, typer.Option("-o", "--out", help="The models.", metavar="FILE.json")],
    classes: Lesson = None,
    count: Folds = 5,
    trees: Count = 200,
    page: Page = None,
    as_json: Json = False,
) -> None:
    """Train a model for each class of problems that was measured, judge it on problems that
    training did not see, and write all of them to one file.

    Name the file in TILEWRIGHT_MODELS to use it.
    """
    from tilewright.learn.judge import beside, learn
    from tilewright.select.model import Models, save

    if out.suffix != ".json":
        raise BadArgument(f"-o {out}: models are put in a .json file")
    _can_be_written(page)
    found, lessons = [], {}
    every = _sheets(inputs)
    taught, left_out = _foldable(_of_classes(every, classes), count)
    for lesson, sheets in taught.items():
        with output.busy(f"training a model of {lesson}, {len(sheets)} problems"):
            model, judged = learn(sheets, lesson, count, trees, beside(every, lesson))
        found.append(model)
        lessons[lesson] = {
            **_judged(judged),
            "importance": model.made["importance"],
            "worst": model.made["worst"],
            "least_gain": model.least_gain,
            "silent_kinds": [*model.silent_kinds],
        }
    save(Models(found), out)
    how = f"Each problem was judged by a model that saw none of its kin ({count} folds)."
    document = {"out": str(out), "how": how, "lessons": lessons, "left_out": left_out}
    _answer(document, page, as_json)


@command(
    app,
    "Say how good models are.",
    "tilewright learn evaluate DIR",
    "tilewright learn evaluate DIR --model model.json --page learned.html",
)
def evaluate(
    inputs: Measured,
    models: Annotated[
        list[Path] | None,
        typer.Option(
            "--model",
            help="Judge these models, which must not have seen the problems [default: models "
            "trained without each fold in turn]",
            metavar="FILE.json",
        ),
    ] = None,
    classes: Lesson = None,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds",
            min=2,
            help="Without --model: parts of the problems that are held out in turn [default: 5]",
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--trees",
            min=2,
            max=200,
            help="Without --model: at most this many trees [default: 200]",
        ),
    ] = None,
    page: Page = None,
    as_json: Json = False,
) -> None:
    """Compare the kernels that the estimate and the models choose with the fastest one measured:
    mean, median, P10 and least speed, by kind of problem and by pipeline, with the number of
    candidates."""
    from tilewright.learn.judge import applied, beside, crossed, seen, worst

    for option, value in (("--folds", folds), ("--trees", most)):
        if models and value is not None:
            raise BadArgument(f"{option} is of models that are trained; --model names trained ones")
    count, trees = folds or 5, most or 200
    _can_be_written(page)
    known = _models(models) if models else None
    lessons: dict[str, Any] = {}
    every = _sheets(inputs)
    measured = _of_classes(every, classes)
    if known is None:
        measured, left_out = _foldable(measured, count)
    else:
        measured, left_out = _known(measured, known)
    for lesson, sheets in measured.items():
        importance: dict[str, float] = {}
        learned_from = 0
        if known is None:
            with output.busy(f"training without each fold of {len(sheets)} problems"):
                found = crossed(sheets, lesson, count, trees, beside=beside(every, lesson))
        elif (model := known.get(lesson)) is not None:
            found = applied(model, sheets)
            importance = _importance(model)
            learned_from = seen(model, sheets)
        lessons[lesson] = {
            **_judged(found),
            "seen": learned_from,
            "worst": worst(found, LISTED),
            "importance": importance,
        }
    how = (
        f"Each problem was judged by a model that saw none of its kin ({count} folds)."
        if known is None
        else f"Judged: {known.where}."
    )
    _answer({"how": how, "lessons": lessons, "left_out": left_out}, page, as_json)


@command(
    app,
    "Say what models know.",
    "tilewright learn explain model.json",
)
def explain(
    inputs: Annotated[list[Path], typer.Argument(help="Files of models.", metavar="FILE.json…")],
    as_json: Json = False,
) -> None:
    """Show what models were made of, how good they were on problems that training did not see,
    what they ask about, and where they lost most."""
    found = [
        {
            "class": model.lesson,
            "archs": list(model.archs),
            "devices": list(model.devices),
            "versions": model.versions,
            "stale": model.stale,
            "trees": len(model.trees.roots),
            "features": len(model.features),
            "least_gain": model.least_gain,
            "silent_kinds": [*model.silent_kinds],
            **{name: value for name, value in model.made.items() if name != "marks"},
            "importance": _importance(model),
        }
        for model in _models(inputs)
    ]
    output.answer({"models": found}, as_json, learn_tables.models)


@command(
    app,
    "Compare models on the same measurements.",
    "tilewright learn compare DIR --model old.json --model new.json",
)
def compare(
    inputs: Measured,
    models: Annotated[
        list[Path], typer.Option("--model", help="Models; may be repeated.", metavar="FILE.json")
    ],
    as_json: Json = False,
) -> None:
    """Judge several files of models on the same problems, beside the estimate. The problems must be
    ones that none of them saw."""
    from tilewright.learn.judge import applied, seen

    known = {str(path): _models([path]) for path in models}
    rows: list[dict[str, Any]] = []
    left_out: dict[str, list[str]] = {}
    for lesson, sheets in _sheets(inputs).items():
        for path, of_file in known.items():
            if (model := of_file.get(lesson)) is not None:
                judged = _judged(applied(model, sheets))
                learned_from = seen(model, sheets)
                rows.append({"class": lesson, "model": path, "seen": learned_from, **judged})
            else:
                left_out.setdefault(path, []).append(lesson)
    if not rows:
        raise BadArgument("no model is of a class of these problems")
    output.answer({"compared": rows, "left_out": left_out}, as_json, learn_tables.compared)


@command(
    app,
    "Say which problems to measure next.",
    "tilewright learn suggest calls.jsonl --model model.json",
    "tilewright learn suggest calls.jsonl --model model.json -o next.json",
)
def suggest(
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="A capture's files (.jsonl), whose counts weigh, and lists of problems.",
            metavar="FILE|FAMILY:SET…",
        ),
    ],
    models: Annotated[
        list[Path], typer.Option("--model", help="Models; may be repeated.", metavar="FILE.json")
    ],
    device: Annotated[
        str | None, typer.Option("--device", help="The GPU, as for `explain`.", metavar="GPU")
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="At most this many problems.")] = 20,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write them as a list for `sweep`.", metavar="FILE.json"),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the problems where the model and the estimate disagree most, times their calls. Problems
    about which no model says anything are counted by the reason."""
    from tilewright.capturing import ENDING, load
    from tilewright.cli.problems import write_list
    from tilewright.learn.suggest import listed
    from tilewright.learn.suggest import suggest as do
    from tilewright.measure.problems import load_problems
    from tilewright.plan import Planner

    if out is not None and out.suffix != ".json":
        raise BadArgument(f"-o {out}: a list of problems is a .json file")
    from tilewright.arch import arch

    target = Planner(device=device).device_for_planning()
    problems: dict[Any, int] = {}
    for path in inputs:
        counted = (
            load(path)
            if path.endswith(ENDING)
            else dict.fromkeys(load_problems([path], arch(target.arch)).problems, 1)
        )
        for problem, count in counted.items():
            problems[problem] = problems.get(problem, 0) + count
    with output.busy(f"asking about {len(problems)} problems"):
        found = do(problems, _models(models), target)
    some = found.found[:most]
    if out is not None:
        write_list(out, [one.problem for one in some])
    document = {
        "device": target.name,
        "problems": len(problems),
        "suggested": listed(some),
        "unknown": {why: len(listed) for why, listed in found.unknown.items()},
    }
    output.answer(document, as_json, learn_tables.suggested)


# --- what commands share ------------------------------------------------------------------------


def _sheets(inputs: Sequence[Path]) -> dict[str, list[Sheet]]:
    """What was measured, by class. Raises `BadArgument` if nothing was."""
    from tilewright.learn.matrix import blocks, by_lesson, read
    from tilewright.learn.train import Sheet

    with output.busy(f"reading {', '.join(map(str, inputs))}"):
        found: dict[str, list[Block]] = by_lesson(blocks(read(inputs)))
    if not found:
        raise BadArgument("nothing to learn from: no problem has times of two kernels on a GPU")
    return {lesson: [Sheet(block) for block in listed] for lesson, listed in found.items()}


def _of_classes(
    measured: Mapping[str, list[Sheet]], classes: Sequence[str] | None
) -> dict[str, list[Sheet]]:
    """Those of `classes`, by default of all. Raises `BadArgument` for a class of which nothing was
    measured."""
    for name in classes or ():
        if name not in measured:
            raise BadArgument(f"no problem is of class '{name}'; there are {', '.join(measured)}")
    return {lesson: some for lesson, some in measured.items() if not classes or lesson in classes}


def _foldable(
    measured: Mapping[str, list[Sheet]], count: int
) -> tuple[dict[str, list[Sheet]], dict[str, str]]:
    """The classes whose problems can be held out in `count` parts; and of the others, why not.
    Raises `BadArgument` if there is none."""
    from tilewright.learn.judge import too_few

    left_out = {
        lesson: why for lesson, sheets in measured.items() if (why := too_few(sheets, count))
    }
    return _but(measured, left_out)


def _known(
    measured: Mapping[str, list[Sheet]], models: Models
) -> tuple[dict[str, list[Sheet]], dict[str, str]]:
    """As `_foldable`, the classes that there is a model of."""
    left_out = {
        lesson: f"{models.where} has no model of it"
        for lesson in measured
        if models.get(lesson) is None
    }
    return _but(measured, left_out)


def _but(
    measured: Mapping[str, list[Sheet]], left_out: dict[str, str]
) -> tuple[dict[str, list[Sheet]], dict[str, str]]:
    kept = {lesson: sheets for lesson, sheets in measured.items() if lesson not in left_out}
    if not kept:
        raise BadArgument("; ".join(f"{lesson}: {why}" for lesson, why in left_out.items()))
    return kept, left_out


def _can_be_written(page: Path | None) -> None:
    """Raise `BadArgument` for a page that could not be written after minutes of training."""
    if page is not None and page.is_dir():
        raise BadArgument(f"{page} cannot be written: it is a folder; name a file in it")
    if page is not None and not page.parent.is_dir():
        raise BadArgument(f"{page} cannot be written: there is no folder {page.parent}")


def _importance(model: Model) -> dict[str, float]:
    """What a model asks about, most first: a file has it by name."""
    found: dict[str, float] = model.made.get("importance", {})
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def _models(paths: Sequence[Path]) -> Models:
    from tilewright.select.model import gather

    found = gather(list(paths))
    assert found is not None, "a path is given"
    return found


def _judged(found: Judged) -> dict[str, Any]:
    """Figures, and the curves of the page."""
    from tilewright.learn.judge import report

    verdicts, guards = found.verdicts, found.guards
    served = sorted(v.chosen(guard)[0] for v, guard in zip(verdicts, guards, strict=True))
    return {
        **report(verdicts, guards),
        "curves": {
            "estimate": [round(share, 4) for share in sorted(v.share[0] for v in verdicts)],
            "served": [round(share, 4) for share in served],
        },
    }


def _answer(document: dict[str, Any], page: Path | None, as_json: bool) -> None:
    if page is not None:
        from tilewright.report.learned import write

        write(document, page)
        document["page"] = str(page)
    output.answer(document, as_json, learn_tables.judged)
