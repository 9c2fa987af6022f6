"""`Explanation`: why a dispatcher chose one kernel and not another."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tilewright.arch.model import Device

FateWord = Literal["chosen", "candidate", "skipped", "refused", "passed over"]


@dataclass(frozen=True, slots=True)
class Fate:
    """The result for one kernel.

    by: the selector that placed or skipped it, or the rule that refused it.
    reason: in the words of `by`.
    """

    name: str
    fate: FateWord
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every candidate's fate for one problem on one device: the chosen kernel, then the kernels
    that would have been next, in order, then refused kernels.

    Skipped kernels, which a row of a table names, stand before the refused ones, each with the row
    and the reason. A skipped kernel that is also a candidate has two fates.

    notes: messages of selectors that had no answer.
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
