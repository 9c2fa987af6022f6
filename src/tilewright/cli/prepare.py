"""``prepare``: build the kernels of problems before a program needs them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.build import BuildOptions, result_document, show_failures
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import PlanOptions
from tilewright.cli.options import FamilyName, Json, OpenWords, command, words
from tilewright.cli.vocabulary import FAMILY

if TYPE_CHECKING:
    from tilewright.compile import Store
    from tilewright.preparing import Preparation


app = typer.Typer()


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
    family: FamilyName = None,
    signature: OpenWords = None,
    as_json: Json = False,
) -> None:
    """Plan each problem for one GPU, as a call does, and build all different kernels side by side
    into the store. A program that then meets these problems does not wait for the compiler.

    Needs no GPU if --device names one. A kernel that cannot be built is replaced by the next
    choice, as in a call. Exits with 1 if there was such a kernel, or if a problem has no kernel.
    """
    from tilewright.arch import arch
    from tilewright.compile import show_progress
    from tilewright.measure.problems import load_problems

    dispatcher = plan.dispatcher(plan.device, building.kept.open_if_given())
    this = arch(dispatcher.device_for_planning().arch)
    listed = load_problems(problems, this, family, words(signature)).problems
    with show_progress() as progress:
        found = dispatcher.prepare(
            listed, workers=building.workers, timeout=building.timeout, progress=progress
        )
    if as_json:
        output.emit(_document(found, dispatcher.store))
    else:
        _show(found, dispatcher.store)
    if not found.ok:
        raise typer.Exit(FAILED)


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


def _show(found: Preparation, kept: Store) -> None:
    output.heading(f"{found.device.name} ({found.device.arch})")
    output.records([_counts(found)])
    if found.unserved:
        output.line()
        output.table(("problem without a kernel", "because"), found.unserved)
    show_failures("not usable", found.build)
    output.line()
    output.line(f"{found.build}, in {kept.path}")
