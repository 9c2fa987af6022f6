"""``run``: compute one problem, and check the result."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import PlanOptions, ProblemArguments, StoreOptions
from tilewright.cli.options import Json, Seed, command, gpu_index
from tilewright.cli.vocabulary import LARGE, ODD, OTHERS, SMALL
from tilewright.errors import BadArgument, FindingsFound, listed

if TYPE_CHECKING:
    from tilewright.arch.model import Device
    from tilewright.dispatch import Dispatcher
    from tilewright.verify import Check


app = typer.Typer()


@command(
    app,
    "Compute one problem, and check the result.",
    f"tilewright run {SMALL} dtype=bf16",
    f"tilewright run {ODD} dtype=fp8 --device mi300x",
    f"tilewright run {ODD} dtype=fp16 --on emulated:mi300x",
    f"tilewright run {LARGE} --on cuda:0 --seed 7",
    *(f"tilewright run {other}" for other in OTHERS),
)
def run(
    *,
    asked: ProblemArguments,
    plan: PlanOptions,
    kernel: Annotated[
        str | None, typer.Option("--kernel", help="Run this kernel instead of the chosen one.")
    ] = None,
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="Where to run: cpu (the interpreter), a GPU as cuda:0, or an emulated AMD GPU, as "
            "emulated:mi300x.",
        ),
    ] = "cpu",
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare with a float64 reference.")
    ] = True,
    seed: Seed = None,
    kept: StoreOptions,
    as_json: Json = False,
) -> None:
    """Run one problem once, on random operands, and check the result.

    On the CPU the kernel runs in Triton's interpreter: correct, but slow, and its time says nothing
    about a GPU. An emulated GPU executes the machine code that a GPU would be given, and reports
    what no kernel may do (findings). Exits with 1 if the result is outside tolerance, or if there
    are findings.
    """
    from tilewright.arch import words

    if plan.device is not None and words.emulated(plan.device) and on == "cpu":
        on = plan.device  # planned for an emulated GPU, arrays of the CPU are its own
        plan = replace(plan, device=None)
    target = plan.dispatcher(_gpu(on, plan.device), kept.open_if_given())
    problem = asked.on(target.device_for_planning())
    ran = run_once(target, problem, kernel, on, verify, seed)
    if as_json:
        output.emit(ran.document())
    else:
        output.fields(ran.lines())
    if not ran.ok:
        raise typer.Exit(FAILED)


def _gpu(on: str, device: str | None) -> Device | str | None:
    """The GPU to plan for. Raises `BadArgument` for an emulated one and another device."""
    from tilewright.arch import words
    from tilewright.arch.detect import live_device

    if words.emulated(on):
        if device is not None:
            raise BadArgument(
                f"--device {device} and --on {on} both say what to plan for: drop one"
            )
        return on
    index = gpu_index(on, ", or an emulated AMD GPU as emulated:mi300x")
    return live_device(index) if index is not None and device is None else device


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: its problem, kernel, reason for the choice, place, time and errors.

    executed: what an emulated GPU executed, by kernel.
    findings: what it found.
    """

    problem: Any
    kernel: str
    why: str
    planned_for: str
    on: str
    seconds: float
    seed: int
    check: Check | None
    executed: tuple[dict[str, Any], ...] = ()
    findings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the result is right, if it was checked, and nothing was found."""
        return not self.findings and (self.check is None or self.check.ok)

    def document(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "problem": {"family": self.problem.family, **asdict(self.problem)},
            "kernel": self.kernel,
            "why": self.why,
            "planned_for": self.planned_for,
            "on": self.on,
            "seconds": self.seconds,
            "seconds_mean": _meaning(self.on),
            "seed": self.seed,
            "check": asdict(self.check) if self.check else None,
            **({"executed": self.executed, "findings": self.findings} if self.executed else {}),
        }

    def lines(self) -> dict[str, str]:
        """As names and values, for people."""
        shown = {
            "problem": str(self.problem),
            "kernel": self.kernel,
            "chosen": f"{self.why}; planned for {self.planned_for}",
            "ran on": "the CPU, through Triton's interpreter" if self.on == "cpu" else self.on,
            **self._emulated(),
            "wall time": f"{self.seconds:.2f} s ({_meaning(self.on)})",
            "seed": str(self.seed),
        }
        if self.check is None:
            return {**shown, "check": "not checked (--no-verify)"}
        c = self.check
        word = "within" if c.within else "OUTSIDE"
        return {
            **shown,
            "check": f"{word} tolerance: {c.percent} of the elements; the worst error is "
            f"{c.worst:.3g} of the allowed error",
            "errors": f"max {c.max:.3g}, mean {c.mean:.3g}, rms {c.rms:.3g}, 99th percentile "
            f"{c.p99:.3g}; the result's rms is {c.rms_reference:.3g}",
            "tolerance": str(c.tolerance),
        }

    def _emulated(self) -> dict[str, str]:
        """What an emulated GPU executed and found."""
        if not self.executed:
            return {}
        each = (
            f"{one['kernel']}: {one['instructions']:,} instructions of {one['waves']:,} waves"
            for one in self.executed
        )
        return {
            "executed": "; ".join(each),
            "findings": listed(self.findings) if self.findings else "none",
        }


def _meaning(on: str) -> str:
    if on == "cpu":
        return "interpreted; says nothing about a GPU"
    if on.startswith("emulated:"):
        return "emulated, with choosing and building; says nothing about a GPU"
    return "the first call, with choosing, building and loading; not the kernel's time"


def run_once(
    target: Dispatcher,
    problem: Any,
    kernel: str | None = None,
    on: str = "cpu",
    verify: bool = True,
    seed: int | None = None,
) -> Ran:
    """Run `problem` once on fresh operands, and compare with the reference if `verify`."""
    from tilewright import ops
    from tilewright import verify as verification

    family = ops.family(problem.family)
    seed = secrets.randbits(31) if seed is None else seed
    operands = verification.operands_of(problem, seed, on)
    wanted = verification.reference(problem, operands.inputs) if verify else {}
    with output.busy(f"running {problem} on {on}"):
        start = time.perf_counter()
        with suppress(FindingsFound):  # they are read below
            verification.run(target, problem, operands, kernel or "")
        _wait(on)
        seconds = time.perf_counter() - start
        if kernel is not None:
            config, why = family.parse_name(kernel), "asked for by name"
        else:  # read after the run: a kernel that could not be built was passed over
            plan = target.select(problem)
            config, why = plan.config, f"by {plan.selector}: {plan.reason}"
        written = operands.written(problem)
        check = verification.compare_all(problem, config, written, wanted, seed) if verify else None
    planned_for = target.device_for_planning()
    place = f"{planned_for.name} ({planned_for.arch})"
    executed = tuple(
        {
            "kernel": one.kernel.called,
            "instructions": int(one.execution.executed.sum()),
            "waves": one.execution.waves,
            "seconds": one.execution.seconds,
        }
        for one in target.ran
    )
    findings = tuple(text for one in target.ran for text in one.findings)
    if check is not None:
        check = verification.with_findings(check, findings)
    return Ran(problem, config.name, why, place, on, seconds, seed, check, executed, findings)


def _wait(on: str) -> None:
    if on.startswith("cuda"):
        import torch

        torch.cuda.synchronize(on)
