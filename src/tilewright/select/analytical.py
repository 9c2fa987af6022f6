"""`Analytical`: kernels by the family's estimate, from sizes and data sheets, without measuring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.ops.estimate import ranked
from tilewright.select import Choice, Offers, Skipped


@dataclass(frozen=True, slots=True)
class Analytical:
    """Ranks by the family's estimate of each kernel's time, on any architecture. The reason is the
    estimate's sentence.

    offers: what the vendor's library offers. Its first algorithm goes before all kernels where a
        record says that it is faster than the one with the best estimate
        (`Family.library_faster`). None: the library is not asked.
    """

    ranks_all: ClassVar[bool] = True

    name: str = "analytical"
    offers: Offers | None = None

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> Iterator[Choice]:
        """All candidates, the least estimated time first; before them the library's first
        algorithm, where it is expected to be faster."""
        family = ops.family(problem.family)
        ranking = ranked(family, problem, candidates, device)
        offered = (one for one in self.recall(problem, device) if isinstance(one, Choice))
        theirs = next((one for one in offered if one.config in candidates), None)
        if theirs is not None:
            yield theirs
            ranking = [pair for pair in ranking if pair[0] != theirs.config]
        for config, estimate in ranking:
            yield Choice(config, self.name, f"estimated {estimate}")

    def recall(self, problem: Any, device: Device) -> Iterator[Choice | Skipped]:
        """The first algorithm of the vendor's library, if a record has it ahead of kernels for such
        problems."""
        if self.offers is None:
            return
        family = ops.family(problem.family)
        expected = family.library_faster(problem, device)
        if not expected:
            return
        offered = self.offers(family, problem, device, expected.rule)
        if isinstance(offered, str):
            why = f"the vendor's library, which may be faster, is not asked: {offered}"
            yield Skipped("", self.name, why)
        else:
            why = f"first algorithm of the vendor's library: {expected.reason}"
            yield Choice(offered, self.name, why, settled=True)
