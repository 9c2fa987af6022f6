"""``run``: compute one problem, and check the result."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.options import (
    BatchInvariant,
    Blocked,
    Deterministic,
    DeviceName,
    Family,
    Json,
    MaxWorkspace,
    Pipelines,
    ProblemWords,
    RegistryFile,
    StorePath,
    TableFiles,
    TrustStore,
    constraints,
    dispatcher,
    examples,
    gpu_index,
    problem,
)
from tilewright.cli.options import store as open_store
from tilewright.cli.vocabulary import LARGE, ODD, SMALL

if TYPE_CHECKING:
    from tilewright.dispatch import Dispatcher
    from tilewright.verify import Check


def add_to(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command(
        short_help="Compute one problem, and check the result.",
        epilog=examples(
            f"tilewright run {SMALL} dtype=bf16",
            f"tilewright run {ODD} dtype=fp8 --device mi300x",
            f"tilewright run {LARGE} --on cuda:0 --seed 7",
        ),
    )(run)


def run(
    family: Family,
    pairs: ProblemWords = None,
    device: DeviceName = None,
    kernel: Annotated[
        str | None, typer.Option("--kernel", help="Run this kernel instead of the chosen one.")
    ] = None,
    registry: RegistryFile = None,
    on: Annotated[
        str, typer.Option("--on", help="Where to run: cpu (the interpreter), or a GPU as cuda:0.")
    ] = "cpu",
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare with a float64 reference.")
    ] = True,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of the operands [default: random]")
    ] = None,
    store: StorePath = None,
    trust_store: TrustStore = False,
    tables: TableFiles = None,
    deterministic: Deterministic = False,
    batch_invariant: BatchInvariant = False,
    max_workspace: MaxWorkspace = None,
    pipelines: Pipelines = None,
    blocked: Blocked = None,
    as_json: Json = False,
) -> None:
    """Run one problem once, on random operands, and check the result.

    On the CPU the kernel runs in Triton's interpreter: correct, but slow, and its time says nothing
    about a GPU. Exits with 1 if the result is outside tolerance.
    """
    from tilewright.arch.detect import live_device

    index = gpu_index(on)
    gpu = live_device(index) if index is not None and device is None else device
    asked = constraints(deterministic, batch_invariant, max_workspace, pipelines, blocked)
    kept = open_store(store, trust_store) if store is not None or trust_store else None
    target = dispatcher(gpu, registry, kept, asked, tables)
    ran = run_once(target, problem(family, pairs, target), kernel, on, verify, seed)
    if as_json:
        output.emit(ran.document())
    else:
        output.fields(ran.lines())
    if ran.check is not None and not ran.check.ok:
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: its problem, kernel, reason for the choice, place, time and errors."""

    problem: Any
    kernel: str
    why: str
    planned_for: str
    on: str
    seconds: float
    seed: int
    check: Check | None

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
        }

    def lines(self) -> dict[str, str]:
        """As names and values, for people."""
        shown = {
            "problem": str(self.problem),
            "kernel": self.kernel,
            "chosen": f"{self.why}; planned for {self.planned_for}",
            "ran on": "the CPU, through Triton's interpreter" if self.on == "cpu" else self.on,
            "wall time": f"{self.seconds:.2f} s ({_meaning(self.on)})",
            "seed": str(self.seed),
        }
        if self.check is None:
            return {**shown, "check": "not checked (--no-verify)"}
        c = self.check
        word = "within" if c.ok else "OUTSIDE"
        return {
            **shown,
            "check": f"{word} tolerance: {c.share:.4%} of the elements; the worst error is "
            f"{c.worst:.3g} of the allowed error",
            "errors": f"max {c.max:.3g}, mean {c.mean:.3g}, rms {c.rms:.3g}, 99th percentile "
            f"{c.p99:.3g}; the result's rms is {c.rms_reference:.3g}",
            "tolerance": f"{c.tolerance.relative:.3g} of each element + {c.tolerance.scaled:.3g} "
            "of the result's rms",
        }


def _meaning(on: str) -> str:
    if on == "cpu":
        return "interpreted; says nothing about a GPU"
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
    return Ran(problem, config.name, why, place, on, seconds, seed, check)


def _wait(on: str) -> None:
    if on != "cpu":
        import torch

        torch.cuda.synchronize(on)
