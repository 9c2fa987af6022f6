"""`Analytical`: kernels by the family's estimate, from sizes and data sheets, without measuring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.select import Choice


@dataclass(frozen=True, slots=True)
class Analytical:
    """Ranks by the family's estimate of each kernel's time, on any architecture. The reason is the
    estimate's sentence."""

    name: str = "analytical"

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> Iterator[Choice]:
        """All candidates, the least estimated time first."""
        for config, estimate in ops.family(problem.family).rank(problem, candidates, device):
            yield Choice(config, self.name, f"estimated {estimate}")
