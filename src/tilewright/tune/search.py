"""Which kernels to measure next on a problem, and when to stop: a pure function of measurements.

Candidates are measured in steps, in a fixed order (`jobs`: by estimate, variants of a tile later).
The starters (the kernels chosen today) are measured with the first step. A search ends when several
steps in a row brought no gain. Only measurements decide, so an interrupted search continues where
it stopped. Starters do not count towards a step, so better starters, such as winners of an earlier
search, never make a search longer.

What steps and endings cost, simulated: docs/notes/tune.md.
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

    first: candidates in the first step.
    step: candidates in each further step.
    patience: the search ends after this many steps in a row without gain; 0: never, so that all
        candidates are measured.
    gain: a step is a gain if it improves the best time by this share.
    takes: most takes of the finals.
    steps: the search ends after this many steps, whatever they bring; 0: only as `patience` says.
    beside: whether the vendor's usual calls are measured with the first step, for comparison.

    Raises `BadArgument`.
    """

    first: int = 8
    step: int = 16
    patience: int = 2
    gain: float = 0.005
    takes: int = TAKES
    steps: int = 0
    beside: bool = True

    def __post_init__(self) -> None:
        too_few = min(self.first, self.step, self.takes) < 1 or min(self.patience, self.steps) < 0
        if too_few or not 0 <= self.gain < 1:
            raise BadArgument(
                f"{self}: first, step and takes are at least 1, patience and steps at least 0, "
                "gain from 0 to 1"
            )


EFFORTS = {
    "few": Effort(first=4, takes=1, steps=1, beside=False),
    "quick": Effort(step=8, patience=1, takes=1),
    "usual": Effort(),
    "exhaustive": Effort(patience=0),
}
"""By the names that commands use."""


def next_step(
    ordered: Sequence[str],
    known: Mapping[str, float | None],
    effort: Effort,
    starters: Collection[str] = (),
) -> Sequence[str]:
    """The candidates to measure next, empty if the search is over.

    known: the median of each measured kernel, None if it was not right.
    """
    best, in_vain, at, size, steps = math.inf, 0, 0, effort.first, 0
    while at < len(ordered) or at == 0:
        step = [*ordered[at : at + size]]
        if at == 0:
            step = [*dict.fromkeys([*starters, *step])]
        missing = [name for name in step if name not in known]
        if missing:
            return missing
        steps += 1
        if steps == effort.steps:
            return ()
        least = min((us for name in step if (us := known[name]) is not None), default=math.inf)
        gained = least < best * (1 - effort.gain)
        # A step does not count as in vain before some kernel was right.
        in_vain = 0 if gained or math.isinf(best) else in_vain + 1
        best = min(best, least)
        if effort.patience and in_vain >= effort.patience:
            return ()
        at, size = at + size, effort.step
    return ()
