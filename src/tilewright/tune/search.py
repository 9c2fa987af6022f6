"""Which kernels to measure next on a problem, and when to stop: a pure function of measurements.

Candidates are measured in steps, in a fixed order (as the analytical selector ranks them), and the
starters (what would be chosen today) with the first step. A search is over when several steps in a
row brought nothing that pays. Since nothing but the measurements decides, a search that was stopped
goes on where it was; and since starters are in no step's count, a search with better ones, as the
winners of an earlier one are, never takes a step more.

On an H200, 50 shapes and 200 kernels, by their estimated order alone (benchmarks/tune_search.py,
simulated on a sweep of shapes that the estimates' rates were not fitted to): steps of 8 and then
16, two of them in vain, measured 41 of the 200 and found the best each time; one in vain, 24, and
0.9998 of the best on average, 0.990 at worst; steps of 8, one in vain, 16, 0.9993 and 0.966.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import BadArgument
from tilewright.tune.finals import TAKES


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a tuning goes.

    first: candidates in the first step. step: in each further one. patience: steps in a row without
    gain that end a search; 0: never, so that all are measured. gain: share of the best time by
    which a step has to better it, to count as gain. takes: of the finals, at most. Raises
    `BadArgument`.
    """

    first: int = 8
    step: int = 16
    patience: int = 2
    gain: float = 0.005
    takes: int = TAKES

    def __post_init__(self) -> None:
        too_few = min(self.first, self.step, self.takes) < 1 or self.patience < 0
        if too_few or not 0 <= self.gain < 1:
            raise BadArgument(
                f"{self}: first, step and takes are at least 1, patience at least 0, gain from 0 "
                "to 1"
            )


EFFORTS = {
    "quick": Effort(step=8, patience=1, takes=1),
    "usual": Effort(),
    "exhaustive": Effort(patience=0),
}
"""By the names that commands call them."""


def next_step(
    ordered: Sequence[str],
    known: Mapping[str, float | None],
    effort: Effort,
    starters: Collection[str] = (),
) -> Sequence[str]:
    """The candidates to measure next, none if the search is over. `known`: the median of each that
    was measured, None if it did not come out right."""
    best, in_vain, at, size = math.inf, 0, 0, effort.first
    while at < len(ordered) or at == 0:
        step = [*ordered[at : at + size]]
        if at == 0:
            step = [*dict.fromkeys([*starters, *step])]
        missing = [name for name in step if name not in known]
        if missing:
            return missing
        least = min((us for name in step if (us := known[name]) is not None), default=math.inf)
        gained = least < best * (1 - effort.gain)
        # As long as nothing came out right, no step is in vain.
        in_vain = 0 if gained or math.isinf(best) else in_vain + 1
        best = min(best, least)
        if effort.patience and in_vain >= effort.patience:
            return ()
        at, size = at + size, effort.step
    return ()
