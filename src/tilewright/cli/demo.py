"""``demo``: declare, prune, build, run, verify, choose and explain, on any CPU."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.options import Json, StorePath, command

if TYPE_CHECKING:
    from tilewright.cli.run import Ran
    from tilewright.cli.selection import Selection
    from tilewright.compile import BuildReport
    from tilewright.dispatch import Dispatcher
    from tilewright.plan import Plan

BEST_BUILT = 3
"""Number of best kernels of each problem that the demo builds."""

SEED = 1
"""Seed of the operands: the demo shows the same numbers each time."""


app = typer.Typer()


@dataclass(frozen=True, slots=True)
class Script:
    """The steps of a family's demo (``ops/<family>/demo/problems.json``).

    devices: the GPUs to plan for; kernels are built for their architectures.
    signatures: the words to expand the space beside this file (``space.json``) with.
    run, choose, explain: problems, as words.
    """

    devices: list[str]
    signatures: list[dict[str, str]]
    run: list[dict[str, str]]
    choose: list[dict[str, str]]
    explain: dict[str, str]


@command(
    app,
    "Show all steps on this CPU, in under a minute.",
    "tilewright demo",
    "tilewright demo --store /tmp/demo",
)
def demo(store: StorePath = None, as_json: Json = False) -> None:
    """Show all steps in under a minute, without a GPU: expand a space, build for two vendors, run
    and verify on the CPU, choose kernels and explain one choice.

    Kernels are built into the usual store unless --store names another, so a second run finds them
    there. Exits with 1 if anything failed.
    """
    from tilewright.cli import explain, selection
    from tilewright.cli.build import compile_all
    from tilewright.compile import Store

    start = time.monotonic()
    family, space, script = _find()
    kept = Store(store)

    selections = _expand(space, script)
    if not as_json:
        _show_expanded(space, script, selections)

    dispatchers = [_dispatcher(d, selections[d], kept) for d in script.devices]
    requests = _best(family, script, dispatchers)
    if not as_json:
        _section(f"2  Build the {BEST_BUILT} best kernels of each problem below; no GPU is needed")
    report = compile_all(requests, kept)
    if not as_json:
        _show_built(report, str(kept.path))

    if not as_json:
        _section("3  Run on this CPU, and compare each result with a float64 reference")
    with output.busy("running on the CPU"):
        ran = _run(family, script, dispatchers)
    if not as_json:
        _show_ran(ran)

    plans = [d.select(_problem(family, w, d)) for w in script.choose for d in dispatchers]
    if not as_json:
        _show_plans(plans)

    asked = dispatchers[0]
    explanation = asked.explain(_problem(family, script.explain, asked))
    if not as_json:
        _section("5  Explain one choice")
        explain.show(explanation, limit=2)

    seconds = time.monotonic() - start
    failed = len(report.failures) + sum(not _right(r) for r in ran)
    if as_json:
        output.emit(
            {
                "space": str(space),
                "expanded": [selection.summary(s) for d in script.devices for s in selections[d]],
                "built": dict(Counter(r.status for r in report.results)),
                "failures": [str(r) for r in report.failures],
                "ran": [r.document() for r in ran],
                "chosen": [
                    {"problem": str(p.problem), "device": p.device.name, "kernel": p.config.name}
                    for p in plans
                ],
                "explanation": explanation.to_dict(),
                "store": str(kept.path),
                "seconds": seconds,
            }
        )
    else:
        _close(family, space, script, report, ran, seconds)
    if failed:
        raise typer.Exit(FAILED)


# --- the steps --------------------------------------------------------------------------------


def _find() -> tuple[str, Path, Script]:
    """The name of the first family that ships a demo, its space, and the demo's steps."""
    from tilewright import ops
    from tilewright.errors import BadFile
    from tilewright.jsonfile import convert, load_json

    root = Path(ops.__path__[0])
    for family in ops.families():
        file = root / family / "demo" / "problems.json"
        if file.is_file():
            script = convert(load_json(file), Script, str(file))
            return family, file.with_name("space.json"), script
    raise BadFile(f"no family in {root} has a demo")


def _expand(space: Path, script: Script) -> dict[str, list[Selection]]:
    """The kernels of the space on each GPU, for each signature."""
    from tilewright.arch import device
    from tilewright.cli.selection import select

    return {
        name: [select([str(space)], device(name).arch, None, s) for s in script.signatures]
        for name in script.devices
    }


def _dispatcher(device: str, selections: Sequence[Selection], kept: Any) -> Dispatcher:
    """A dispatcher over the kernels of the space that are legal on a GPU."""
    from tilewright.dispatch import Dispatcher
    from tilewright.registry import Registry

    registry = Registry("demo")
    for selection in selections:
        registry.register_all(selection.configs)
    return Dispatcher(registry, device, store=kept)


def _problem(family: str, words: Mapping[str, str], dispatcher: Dispatcher) -> Any:
    from tilewright import ops
    from tilewright.arch import arch

    this = arch(dispatcher.device_for_planning().arch)
    return ops.family(family).parse_problem(words, this)


def _best(family: str, script: Script, dispatchers: Sequence[Dispatcher]) -> list[tuple[Any, Any]]:
    """The best few kernels for every problem of the script, on each GPU, without repeats."""
    from tilewright import ops

    requests: dict[tuple[Any, str], None] = {}
    for dispatcher in dispatchers:
        arch = dispatcher.device_for_planning().arch
        for words in (*script.run, *script.choose):
            fates = dispatcher.explain(_problem(family, words, dispatcher)).fates
            best = [f.name for f in fates if f.fate in ("chosen", "candidate")][:BEST_BUILT]
            requests |= dict.fromkeys((ops.family(family).parse_name(n), arch) for n in best)
    return list(requests)


def _run(family: str, script: Script, dispatchers: Sequence[Dispatcher]) -> list[Ran]:
    """Run every problem with the kernel that each GPU would get."""
    from tilewright.cli.run import run_once

    return [
        run_once(dispatcher, _problem(family, words, dispatcher), seed=SEED)
        for words in script.run
        for dispatcher in dispatchers
    ]


def _right(ran: Ran) -> bool:
    return ran.check is not None and ran.check.ok


# --- output -----------------------------------------------------------------------------------


def _section(title: str) -> None:
    output.line()
    output.heading(title)


def _show_expanded(
    space: Path, script: Script, selections: Mapping[str, Sequence[Selection]]
) -> None:
    from tilewright.cli.selection import rules

    output.heading("1  Expand a space of kernels; a rule drops each one that cannot work")
    output.line(f"the space: {space}, a sweep in CK Tile Engine's form")
    output.table(
        ("arch", "signature", "legal", "dropped", "by"),
        [
            (
                s.arch.name,
                " ".join(signature.values()),
                len(s.configs),
                len(s.dropped),
                ", ".join(f"{one['rule']} {one['count']}" for one in rules(s.dropped)),
            )
            for found in selections.values()
            for signature, s in zip(script.signatures, found, strict=True)
        ],
    )
    for found in selections.values():
        dropped = found[0].dropped
        if dropped:
            example = dropped[-1].verdict
            output.line(f"for example on {found[0].arch.name}, {example}")


def _show_built(report: BuildReport, store: str) -> None:
    statuses = Counter((r.arch.name, r.status) for r in report.results)
    output.records(
        {
            "arch": arch,
            "built now": statuses[arch, "built"],
            "in the store before": statuses[arch, "cached"],
            "failed": statuses[arch, "failed"] + statuses[arch, "rejected"],
        }
        for arch in dict.fromkeys(r.arch.name for r in report.results)
    )
    output.line(f"{report.seconds:.1f} s, into {store}")


def _show_ran(ran: Sequence[Ran]) -> None:
    output.table(
        ("problem", "as on", "worst error / allowed", "result"),
        [
            (
                r.problem,
                r.planned_for,
                f"{r.check.worst:.3f}" if r.check else "-",
                "right" if _right(r) else f"WRONG: {r.check} by {r.kernel}",
            )
            for r in ran
        ],
    )
    seconds = sum(r.seconds for r in ran)
    output.line(
        f"{seconds:.1f} s in Triton's interpreter; this time says nothing about the speed of a GPU"
    )


def _show_plans(plans: Sequence[Plan]) -> None:
    _section("4  Choose a kernel for each problem and GPU (by estimate: nothing is measured here)")
    for problem in dict.fromkeys(str(p.problem) for p in plans):
        output.say(problem)
        for plan in plans:
            if str(plan.problem) == problem:
                output.line(f"  {plan.device.name}: {plan.reason}")
                output.say(f"    {plan.config.name}")


def _close(
    family: str,
    space: Path,
    script: Script,
    report: BuildReport,
    ran: Sequence[Ran],
    seconds: float,
) -> None:
    right = sum(map(_right, ran))
    made = sum(r.ok for r in report.results)
    problem = " ".join(f"{key}={value}" for key, value in script.run[0].items())
    _section(
        f"Done in {seconds:.0f} s: {made} of {len(report.results)} kernels built, "
        f"{right} of {len(ran)} results right."
    )
    output.line("Next, try")
    for words in (
        f"run {family} {problem}",
        f"explain {family} {problem} --device {script.devices[-1]}",
        "kernels list",
        f"expand {space} --arch sm_90",
    ):
        output.say(f"  {_program()} {words}")


def _program() -> str:
    """What to type for this program: its name where the shell finds it, else as it was called."""
    called = sys.argv[0]
    named = shutil.which("tilewright") or Path(called).name != "tilewright"
    return "tilewright" if named else shlex.quote(called)
