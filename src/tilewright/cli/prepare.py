"""``prepare``: build the kernels of problems before a program needs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.build import BuildOptions, result_document, show_failures
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import PlanOptions
from tilewright.cli.options import FamilyName, Json, OpenWords, command, words
from tilewright.cli.vocabulary import FAMILY
from tilewright.errors import BadArgument

if TYPE_CHECKING:
    from tilewright.compile import Store
    from tilewright.dispatch import Dispatcher
    from tilewright.preparing import Measured, Measuring, Preparation


app = typer.Typer()


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """Whether the choice is measured, and how."""

    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="First measure a few kernels, and the vendor's, for each problem without a row, "
            "on this machine's GPU.",
        ),
    ] = False
    candidates: Annotated[
        int | None,
        typer.Option(
            "--candidates",
            min=1,
            help="With --measure: how many of the best kernels by estimate [default: 4]",
        ),
    ] = None
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", min=0, help="With --measure: after so long, no more problems are begun."
        ),
    ] = None

    def asked(self) -> Measuring | None:
        """How it is measured; None if it is not. Raises `BadArgument` for options that would say
        nothing."""
        from tilewright.preparing import Measuring

        if self.measure:
            how = Measuring(seconds=self.seconds)
            return how if self.candidates is None else replace(how, candidates=self.candidates)
        for word in ("candidates", "seconds"):
            if getattr(self, word) is not None:
                raise BadArgument(f"--{word} is for --measure, which is not given")
        return None


@command(
    app,
    "Build the kernels of a program's problems before it runs.",
    "tilewright prepare shapes.jsonl",
    f"tilewright prepare shapes.csv {FAMILY}:small --device h100_sxm",
    "tilewright prepare shapes.jsonl --device mi300x --store kernels --json",
)
def prepare(
    problems: Annotated[
        list[str],
        typer.Argument(
            help="Files of problems (.csv, .json, .txt, a capture's .jsonl), shipped sets "
            "(FAMILY:SET) or profiles (FAMILY:PROFILE).",
            metavar="FILE|FAMILY:SET…",
        ),
    ],
    plan: PlanOptions,
    building: BuildOptions,
    measuring: MeasureOptions,
    family: FamilyName = None,
    signature: OpenWords = None,
    as_json: Json = False,
) -> None:
    """Plan each problem for one GPU, as a call does, and build all different kernels side by side
    into the store. A program that then meets these problems does not wait for the compiler.

    With --measure, rows go into --table, else into the file that TILEWRIGHT_TABLES names, else into
    the user's folder. Dispatchers read the last two by themselves.

    Needs no GPU if --device names one and nothing is measured. A kernel that cannot be built is
    replaced by the next choice, as in a call. Exits with 1 if there was such a kernel, or if a
    problem has no kernel, or none that is right.
    """
    from tilewright.arch import arch
    from tilewright.compile import show_progress
    from tilewright.measure.problems import load_problems

    how = measuring.asked()
    kept = building.kept.open_if_given()
    there = [table for table in plan.tables or () if how is None or table.is_file()]
    dispatcher = replace(plan, tables=there).dispatcher(plan.device, kept)
    this = arch(dispatcher.device_for_planning().arch)
    listed = load_problems(problems, this, family, words(signature)).problems
    measured = None
    if how is not None:
        measured = _measured(dispatcher, listed, plan, how)
        dispatcher = plan.dispatcher(plan.device, kept)
    with show_progress() as progress:
        found = dispatcher.prepare(
            listed, workers=building.workers, timeout=building.timeout, progress=progress
        )
    found = replace(found, measured=measured)
    if as_json:
        output.emit(_document(found, dispatcher.store))
    else:
        _show(found, dispatcher.store)
    if not found.ok:
        raise typer.Exit(FAILED)


def _measured(
    dispatcher: Dispatcher, problems: Sequence[Any], plan: PlanOptions, how: Measuring
) -> Measured:
    """Measure what no row answers, and say what goes on."""
    from tilewright.compile import show_progress
    from tilewright.measure.progress import show_measuring
    from tilewright.tables import own
    from tilewright.tune import ahead

    given = plan.tables or []
    if len(given) > 1:
        raise BadArgument(f"which of the {len(given)} tables are rows written into? name one")
    path = given[0] if given else own.to_write(dispatcher.device_for_planning())
    shown = ahead.Shown(output.busy, show_progress, show_measuring)
    return ahead.measured(dispatcher, problems, how, path, shown)


def _counts(found: Preparation) -> dict[str, int]:
    """How many problems and different kernels there are, and what became of the kernels' parts."""
    counts = Counter(result.status for result in found.build.results)
    return {
        "problems": len(found.plans) + len(found.unserved),
        "kernels": len({plan.config for plan in found.plans}),
        **{
            status: counts[status]
            for status in ("built", "cached", "not needed", "rejected", "failed")
        },
    }


def _document(found: Preparation, kept: Store) -> dict[str, Any]:
    return {
        "device": asdict(found.device),
        "store": str(kept.path),
        "seconds": found.build.seconds,
        "counts": _counts(found),
        **({"measured": _measured_document(found.measured)} if found.measured else {}),
        "plans": [
            {
                "problem": str(plan.problem),
                "kernel": plan.config.name,
                "by": plan.selector,
                "reason": plan.reason,
            }
            for plan in found.plans
        ],
        "unserved": [
            {"problem": str(problem), "reason": reason} for problem, reason in found.unserved
        ],
        "results": [result_document(result) for result in found.build.results],
    }


def _measured_document(measured: Measured) -> dict[str, Any]:
    return {
        "table": measured.table,
        "rows": measured.rows,
        "changed": measured.changed,
        "wrong": [str(problem) for problem in measured.wrong],
        "left": [{"problem": str(p), "reason": reason} for p, reason in measured.left],
        "seconds": measured.seconds,
    }


def _show(found: Preparation, kept: Store) -> None:
    output.heading(f"{found.device.name} ({found.device.arch})")
    if found.measured:
        output.line(str(found.measured))
        for problem in found.measured.wrong:
            output.line(f"no kernel gave a right result for {problem}")
        if found.measured.left:
            output.table(("problem not measured", "because"), found.measured.left)
    output.records([_counts(found)])
    if found.unserved:
        output.line()
        output.table(("problem without a kernel", "because"), found.unserved)
    show_failures("not usable", found.build)
    output.line()
    output.line(f"{found.build}, in {kept.path}")
