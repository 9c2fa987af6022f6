"""A measured choice among few candidates, before a program runs: the tuner's least effort for the
problems that no measurement answers.

Problems → those whose plan has no time measured on this device → `Work` with the effort ``few`` →
rows in a table, which the next plans are made by
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, NoKernelFound, UnsupportedProblem, WrongDevice
from tilewright.jsonfile import convert
from tilewright.measure import devices
from tilewright.measure.measurement import METHODS, Settings
from tilewright.plan import Plan
from tilewright.preparing import Measured, Measuring
from tilewright.tune.search import EFFORTS
from tilewright.tune.tuner import SEARCH
from tilewright.tune.work import QUIET, Shown, Work

__all__ = ["Shown", "measured"]

BUDGET_SECONDS = 0.06
"""For each kernel, in the search and once more in the finals; a quarter of what a tuning's search
has: a program is to run soon."""
TOGETHER = 8
"""Problems that are measured before the time is looked at: their kernels keep some thirty compilers
busy at once."""


def measured(
    dispatcher: Dispatcher,
    problems: Sequence[Any],
    how: Measuring,
    path: Path,
    shown: Shown = QUIET,
) -> Measured:
    """Measure candidates for the problems for which `dispatcher` has no time measured on its
    device, and write the winners as rows into the table `path`. Problems that no kernel serves are
    passed over.

    Candidates keep to the dispatcher's constraints; of a registry only its kernels are candidates.
    A batch-invariant choice is one for every batch, so such problems are left out.

    Raises `BadArgument` for a dispatcher that does not build or whose GPU is emulated, `NoDriver`
    and `WrongDevice` if its GPU is not in this machine, and as `Work` and a tuning do.
    """
    if dispatcher.emulated:
        raise BadArgument("an emulated GPU has no times: there is nothing to measure on it")
    if not dispatcher.build_missing:
        raise BadArgument(
            "this dispatcher takes prebuilt kernels alone (a bundle's), and builds none to measure"
        )
    begun, device = time.monotonic(), dispatcher.device_for_planning()
    before: dict[Any, Plan] = {}
    left: list[tuple[Any, str]] = []
    for problem in dict.fromkeys(problems):
        if problem.batch_invariant or dispatcher.constraints.batch_invariant:
            left.append((problem, "a batch-invariant choice is one for every batch"))
            continue
        try:
            plan = dispatcher.select(problem)
        except (NoKernelFound, UnsupportedProblem):  # who prepares says so
            continue
        if not plan.measured_us:
            before[problem] = plan
    if not before:
        return Measured(str(path), left=tuple(left))
    work = Work(
        path,
        dispatcher.store,
        settings_for(device),
        devices=_words(device),
        arch=device.arch,
        seconds=how.seconds,
        constraints=dispatcher.constraints,
        shown=shown,
    )
    [group] = work.groups
    kernels = dispatcher.registry
    configs = [entry.config for entry in kernels] if kernels is not None else []
    work.add(group, [*before], configs)
    tuned = work.run(replace(EFFORTS["few"], first=how.candidates), TOGETHER)
    rows = [(work.jobs[number].problem, row) for number, row in tuned.rows.items()]
    left += work.unsupported
    left += [(work.jobs[number].problem, "the time was over") for number in tuned.untried]
    return Measured(
        str(path),
        len(rows),
        sum(before[problem].config.name != row.kernel for problem, row in rows),
        tuple(work.jobs[number].problem for number in tuned.without),
        tuple(left),
        time.monotonic() - begun,
    )


def settings_for(device: Device) -> Settings:
    """How a search measures here: calls back to back in a graph, over copies of the inputs, as they
    come in a model. Solvers of MIOpen cannot be captured, so on AMD's GPUs single calls."""
    graphs = not device.interpreted and arch(device.arch).backend == "cuda"
    method = METHODS["graph" if graphs else "single"]
    how = {**asdict(SEARCH), **method, "budget_seconds": BUDGET_SECONDS}
    return convert(how, Settings, "settings")


def _words(device: Device) -> str:
    """The words for the first GPU of this machine that is `device`; for the interpreter, its
    word."""
    if device.interpreted:
        return "cpu"
    here = [place.device for place in devices.gpus()]
    if device not in here:
        raise WrongDevice(
            f"{device.name} is no GPU of this machine, and only those can be measured: leave the "
            "device out, or prepare without measuring"
        )
    return f"{here.index(device)},"
