"""The kernels that would be chosen for a list of problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.arch import Arch, Device, devices
from tilewright.arch.targets import Target
from tilewright.cli import output
from tilewright.errors import NoKernelFound, UnsupportedProblem
from tilewright.select.constraints import Constraints
from tilewright.tables.table import Table


@dataclass(frozen=True, slots=True)
class Planning:
    """How kernels are chosen for problems.

    devices: the GPUs to choose for; if empty, the known GPUs of the targets.
    constraints: constraints on the kernels.
    table: tuned choices, used beside the shipped tables.
    """

    devices: tuple[Device, ...] = ()
    constraints: Constraints | None = None
    table: Table | None = None

    def devices_of(self, this: Arch, targets: Sequence[Target]) -> list[Device]:
        """The GPUs of an architecture to choose for."""
        if self.devices:
            return [device for device in self.devices if device.arch == this.name]
        wanted = targets or [Target(this.name)]
        covered = [d for d in devices().values() if any(t.covers(d) for t in wanted)]
        return [device for device in covered if device.arch == this.name]


def planned(
    source: str,
    this: Arch,
    targets: Sequence[Target],
    family: str | None,
    words: Mapping[str, str],
    how: Planning,
) -> tuple[list[Any], list[str]]:
    """The kernels chosen for the problems of a file or a set, without repeats, and notes on
    problems that no kernel serves. Raises as `load_problems` does."""
    from tilewright.measure.problems import load_problems
    from tilewright.plan import Planner

    problems = load_problems([source], this, family, words).problems
    found: dict[Any, None] = {}
    notes: list[str] = []
    for device in how.devices_of(this, targets):
        planner = Planner(None, device, constraints=how.constraints, tables=how.table)
        unserved = []
        with output.busy(f"choosing for {len(problems)} problems of {source} on {device.name}"):
            for problem in problems:
                try:
                    found[planner.select(problem).config] = None
                except (NoKernelFound, UnsupportedProblem) as error:  # noqa: PERF203
                    unserved.append(str(error))
        if unserved:
            notes.append(
                f"{source}: {len(unserved)} of {len(problems)} problems have no kernel on "
                f"{device.name}: {unserved[0]}"
            )
    return [*found], notes
