"""`Explanation`: why this kernel and not another."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tilewright.arch.model import Device

FateWord = Literal["chosen", "candidate", "passed over", "refused"]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of one kernel: `by` is the selector that placed it or the rule that refused
    it, `reason` its words."""

    name: str
    fate: FateWord
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every candidate's fate for one problem on one device: the chosen one first, then those
    that would have been next, in order, then the refused."""

    problem: Any
    device: Device
    fates: tuple[Fate, ...]

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
        }

    def __str__(self) -> str:
        lines = [f"{self.problem} on {self.device.name}"]
        lines += [f"  {f.fate:<11} {f.name}  {f.by}: {f.reason}" for f in self.fates]
        return "\n".join(lines)
