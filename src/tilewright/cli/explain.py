"""``explain``: the kernel that serves a problem, and why the others do not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import options, output
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import PlanOptions, ProblemArguments
from tilewright.cli.options import Json, TrustBundle, command
from tilewright.cli.vocabulary import FEW, LARGE, ODD

if TYPE_CHECKING:
    from tilewright.dispatch import Dispatcher
    from tilewright.explain import Explanation, Fate
    from tilewright.moe import LayerPlan


app = typer.Typer()


@command(
    app,
    "Explain which kernel serves a problem, and why others do not.",
    f"tilewright explain {LARGE} dtype=bf16",
    f"tilewright explain {FEW} dtype=fp8 --device mi300x",
    f"tilewright explain {ODD} --registry r.json --all",
    f"tilewright explain {FEW} --device gpu.json \\\n      --table mine.twt --deterministic",
    f"tilewright explain {FEW} --bundle h200.bundle",
)
def explain(
    asked: ProblemArguments,
    plan: PlanOptions,
    bundles: Annotated[
        list[Path] | None,
        typer.Option(
            "--bundle",
            help="Choose only from the kernels of this bundle; may be repeated [default: "
            "TILEWRIGHT_BUNDLE]",
            metavar="FILE",
        ),
    ] = None,
    trust_bundle: TrustBundle = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Number of next best kernels to show.")
    ] = 5,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every kernel, refused ones included.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the kernel chosen for a problem, the reason, the next best kernels, and the rules that
    refused others.

    Of fused_moe, a mixture of experts in the words of `tilewright.moe.plan`, shows every step with
    its kernel and its estimate.

    Only plans: builds and runs nothing, and needs no GPU. Exits with 1 if no kernel serves the
    problem.
    """
    from tilewright.bundle import Bundle
    from tilewright.moe import words

    opened = [Bundle(path, trust_bundle) for path in bundles or ()]
    target = plan.dispatcher(plan.device, bundles=opened)
    if asked.family == words.NAME:
        with output.busy("choosing a kernel for each step"):
            layer = _layer(asked, target)
        output.answer(layer.to_dict(), as_json, lambda _: _show_layer(layer))
        return
    with output.busy("choosing a kernel"):
        found = target.explain(asked.on(target.device_for_planning()))
    if as_json:
        output.emit(found.to_dict())
    else:
        show(found, limit, everything)
    if not found.chosen:
        output.say("error: no kernel serves this problem", err=True)
        raise typer.Exit(FAILED)


def _layer(asked: ProblemArguments, target: Dispatcher) -> LayerPlan:
    """The plan of a layer that is asked for by its words."""
    from tilewright.arch import arch
    from tilewright.moe import plan, words

    here = arch(target.device_for_planning().arch)
    return plan(**words.stated(options.words(asked.pairs), here.fp8), dispatcher=target)


def _show_layer(layer: LayerPlan) -> None:
    """Print the steps of a layer, and why each has its kernel."""
    device = layer.steps[0].plan.device
    output.heading(f"a mixture of experts on {device.name} ({device.arch})")
    rows = [(s.name, round(s.estimated_us, 1), s.plan.config.name) for s in layer.steps]
    rows.append(("all", round(layer.estimated_us, 1), ""))
    output.table(("step", "estimated µs", "kernel"), rows)
    output.line()
    for step in layer.steps:
        output.line(f"{step.name}: {step.problem}")
        output.line(f"  {step.plan.selector}: {step.plan.reason}")


def show(found: Explanation, limit: int, everything: bool = False) -> None:
    """Print an explanation: the choice, at most `limit` others, and the refused kernels by rule."""
    output.heading(f"{found.problem} on {found.device.name} ({found.device.arch})")
    usable = [fate for fate in found.fates if fate.fate in ("chosen", "candidate")]
    shown = usable if everything else usable[: limit + 1]
    rows: list[tuple[Any, ...]] = [(_place(f, n), f.name, _why(f)) for n, f in enumerate(shown)]
    skipped = [fate for fate in found.fates if fate.fate == "skipped"]
    rows += [(fate.fate, fate.name, _why(fate)) for fate in skipped]
    if rows:
        output.table(("fate", "kernel", "why"), rows)
    for note in found.notes:
        output.line(note)
    if len(shown) < len(usable):
        output.line(f"and {len(usable) - len(shown)} more that could serve it (--all shows them)")
    others = [fate for fate in found.fates if fate.fate in ("refused", "passed over")]
    if not others:
        if len(usable) > 1:
            output.line(f"all {len(usable)} kernels considered can serve it; none was refused")
        else:
            output.line("it is the only kernel considered" if usable else "there is no kernel")
        return
    output.line()
    if everything:
        rows = [(f.by, f.name, f.reason) for f in others]
        output.table(("refused by", "kernel", "because"), rows)
    else:
        found_by = output.by_rule((fate.by, fate.reason) for fate in others)
        output.table(("refused by", "kernels", "for example"), found_by)


def _place(fate: Fate, number: int) -> str:
    return "chosen" if fate.fate == "chosen" else f"next {number}"


def _why(fate: Fate) -> str:
    return f"{fate.by}: {fate.reason}"
