"""`Learned`: kernels by a model of what the estimate gets wrong, learned from measurements."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.ops.pool import Pool
from tilewright.select import Choice, Offers, Skipped
from tilewright.select.analytical import Analytical
from tilewright.select.features import Described
from tilewright.select.model import Model, Models

log = logging.getLogger("tilewright")

DIGITS = 9
"""Decimal digits of the logarithm of an expected time that count: the last bits of a logarithm
differ between machines, and the choice must not."""


FARTHEST = 2.0
"""Times the least estimate. A kernel that is estimated to take longer is left to the estimate: the
fastest one measured was estimated at over twice for 13 problems of 3,948 (docs/learning.md)."""

CAUTION = 0.4
"""The two halves of a model learned the same in different ways. Of how far each is from their mean,
this share is added to the time expected of a kernel, as it is beside the estimate's first. So where
they disagree, the estimate's first stays the likelier. Held out, the mean is as without; of kernels
that take over 5 % more than the estimate's first there are a fifth less (docs/learning.md)."""

MOST_POOLS = 64
"""Kept, of kernels that serve a kind of problem."""

_MOST = 700.0
"""Beyond, an exponential is infinite."""


class Learned:
    """Ranks by the estimate, corrected by the model of the problem's class. The reason has both
    figures.

    It says nothing, and warns once, if the model is stale: the estimate that it corrects has
    changed since it was made. It says nothing, so that the next selector chooses, where it was not
    taught: without a model of
    the class, on an architecture that was not measured, for a problem with a feature out of what
    training saw, or of a kind of which the model was behind the estimate; or if the kernel that the
    estimate puts first is of a pipeline, or has another feature, that training did not see. It says
    nothing either where the best kernel is not expected to be faster than that by the model's least
    gain, and where a record has the vendor's library ahead.

    A model that learned from kernels of tuning's spaces too (`Model.wide`) is asked about all of
    them: the kernel that comes first then is a candidate beside the dispatcher's.

    offers: what the vendor's library offers; None: it is not asked.
    """

    name = "learned"

    def __init__(self, models: Models, offers: Offers | None = None) -> None:
        self.models = models
        self._offers = offers
        self._warned: set[str] = set()
        self._pools: dict[tuple[Any, ...], Pool] = {}

    def knows(self, family: str, device: Device) -> bool:
        """See `tilewright.select.Knows`."""
        return any(model.family == family for model in self.models.listed())

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> Iterator[Choice]:
        """The candidates that the model can judge, the least time expected first; none where it
        says nothing."""
        found = self._judged(problem, candidates, device)
        if isinstance(found, str):
            return
        first = found.expected[found.first]
        behind = ops.family(problem.family).library_faster(problem, device)
        for at in found.order:
            config, why = found.described.pool[at], found.said(at)
            best = at == found.order[0]
            if best:
                name = found.described.pool[found.first].name
                why += (
                    f"; of the estimate's first, {name}, {first:.1f} µs are expected: "
                    f"{math.expm1(min(found.gain, _MOST)):.1%} more"
                )
            yield Choice(config, self.name, why, ahead=best and not behind)

    def recall(self, problem: Any, device: Device) -> Iterator[Choice | Skipped]:
        """The first kernel of all that a dispatcher or a tuning chooses from, by a model that
        learned from both; or the estimate's first of them, where the model expects of no other a
        gain that counts."""
        model = self._model(problem, device)
        if isinstance(model, str) or not model.wide or self._behind(problem, None, device):
            return
        pool = self._wide(problem, device)
        found = judged(model, Described(problem, pool, device))
        if not isinstance(found, str):
            at = found.order[0] if found.gain >= model.least_gain else found.first
            said = f"{found.said(at)}; the first of {len(pool)} kernels, tuning's among them"
            behind = ops.family(problem.family).library_faster(problem, device)
            yield Choice(found.described.pool[at], self.name, said, True, ahead=not behind)

    def _wide(self, problem: Any, device: Device) -> Pool:
        """The kernels of the dispatcher's space and of tuning's that serve a problem."""
        family, this = ops.family(problem.family), arch(device.arch)
        spaces = [family.default_space(problem, this), *family.tuning_spaces(problem, this)]
        key = (this.name, *(space.key for space in spaces))
        if key not in self._pools:
            if len(self._pools) >= MOST_POOLS:
                self._pools.pop(next(iter(self._pools)), None)
            found = (config for space in spaces for config in space.expand(this).configs)
            self._pools[key] = Pool(tuple(dict.fromkeys(found)))
        pool = self._pools[key]
        return pool.part(family.serving(problem, pool, this)) if pool else pool

    def silence(self, problem: Any, candidates: Sequence[Any], device: Device) -> str:
        """Why it says nothing about the candidates; ``""`` if it does."""
        found = self._judged(problem, candidates, device)
        return found if isinstance(found, str) else ""

    def _warn(self, model: Model) -> None:
        """Once for each model."""
        if model.lesson not in self._warned:
            self._warned.add(model.lesson)
            log.warning("%s: not used: %s", self.models.where or "models", model.stale)

    def _model(self, problem: Any, device: Device) -> Model | str:
        """The model of a problem's class, or why it is not asked."""
        family = ops.family(problem.family)
        lesson = family.lesson(problem)
        model = self.models.get(lesson)
        if model is None or model.family != problem.family:
            return f"no model of {lesson}"
        if device.arch in model.archs and model.stale:
            self._warn(model)
            return model.stale
        if (kind := family.kind(problem)) in model.silent_kinds:
            return f"the model of {lesson} was not ahead on problems of kind {kind}"
        return model

    def _behind(self, problem: Any, candidates: Sequence[Any] | None, device: Device) -> bool:
        """Whether a record has the vendor's library, be it among the candidates, ahead."""
        offered = Analytical(offers=self._offers).recall(problem, device)
        choices = (one.config for one in offered if isinstance(one, Choice))
        return any(candidates is None or config in candidates for config in choices)

    def _judged(self, problem: Any, candidates: Sequence[Any], device: Device) -> _Judged | str:
        """The judgement, or why there is none."""
        model = self._model(problem, device)
        if isinstance(model, str):
            return model
        if self._behind(problem, candidates, device):
            return "a record has the vendor's library ahead for such problems"
        found = judged(model, Described(problem, candidates, device))
        if isinstance(found, str):
            return found
        best = found.described.pool[found.order[0]].name
        if found.order[0] == found.first:
            return f"the estimate's first, {best}, is also the fastest that is expected"
        if found.gain < model.least_gain:
            return (
                f"the estimate's first stays: {found.expected[found.first]:.1f} µs are expected of "
                f"it, {found.expected[found.order[0]]:.1f} µs of the best, {best}, and a gain "
                f"counts from {math.expm1(model.least_gain):.1%}"
            )
        return found


@dataclass(frozen=True, slots=True)
class _Judged:
    """What a model says of kernels.

    expected: microseconds of each kernel in `order`, by its place; with `CAUTION`.
    order: places in the pool of those that it can judge, the least time first; equal ones as the
        estimate has them.
    first: the place of the estimate's first.
    gain: the logarithm of the time expected of that over the least.
    """

    described: Described
    expected: dict[int, float]
    order: list[int]
    first: int
    gain: float

    def said(self, at: int) -> str:
        """Both figures of a kernel."""
        us = float(self.described.us[at])
        return f"expected {self.expected[at]:.1f} µs, estimated {us:.1f} µs"


def judged(model: Model, described: Described) -> _Judged | str:
    """What `model` says of kernels, or why it says nothing."""
    import numpy as np

    if not len(described):
        return "there is no kernel that is built here"
    if described.device.arch not in model.archs:
        return model.unseen(described)
    places = np.array(described.places)
    us = described.us[places]
    places = places[us <= FARTHEST * us[0]]
    x, seen = model.asked.rows(described, places)
    first = described.places[0]
    if not seen[0]:
        name = described.pool[first].name
        return model.unseen(described) or (
            f"{name}, the estimate's first, is unlike the kernels that it learned from"
        )
    places, x = places[seen], x[seen] if not seen.all() else x
    one, other = model.trees.halves(x)
    apart = one - other
    doubt = CAUTION * np.abs(apart - apart[0])
    expected = np.round(np.log(described.us[places]) + one + other + doubt, DIGITS)
    ranks = np.argsort(expected, kind="stable")
    order = places[ranks].tolist()
    # A model knows ratios: the estimate's first is taken to be estimated right.
    level = np.log(described.us[first]) - expected[0]
    us = np.exp(np.minimum(expected[ranks] + level, _MOST)).tolist()
    gain = float(expected[0] - expected[ranks[0]])
    return _Judged(described, dict(zip(order, us, strict=True)), order, first, gain)
