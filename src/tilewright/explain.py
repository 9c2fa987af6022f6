"""`Explanation`: why this kernel and not another."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tilewright.arch.model import Device

FateWord = Literal["chosen", "candidate", "skipped", "refused", "passed over"]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one kernel: `by` is the selector that placed or skipped it or the rule that
    refused it, `reason` its words."""

    name: str
    fate: FateWord
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every candidate's fate for one problem on one device: the chosen one first, then those
    that would have been next, in order, then the refused.

    Before the refused stand kernels that a row of a table names and that were skipped, each with
    the row and why; one that is a candidate too has two fates. `notes`: of selectors that had no
    answer, in their words.
    """

    problem: Any
    device: Device
    fates: tuple[Fate, ...]
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> str:
        """Name of the chosen kernel, ``""`` if there is none."""
        return next((f.name for f in self.fates if f.fate == "chosen"), "")

    def counts(self) -> dict[str, int]:
        """How many kernels met each fate."""
        return dict(Counter(f.fate for f in self.fates))

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return {
            "problem": {"family": self.problem.family, **asdict(self.problem)},
            "device": asdict(self.device),
            "chosen": self.chosen,
            "fates": [asdict(f) for f in self.fates],
            "notes": [*self.notes],
        }

    def __str__(self) -> str:
        lines = [f"{self.problem} on {self.device.name}"]
        lines += [f"  {f.fate:<11} {f.name}  {f.by}: {f.reason}" for f in self.fates]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)
