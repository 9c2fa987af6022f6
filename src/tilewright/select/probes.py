"""Whether the estimate is still the one that a model corrects.

A model learned what one estimate gets wrong. Of another estimate, in a later version, it may make a
good choice worse, and nothing in its file would show it. So the file keeps probes: some of the
kernels that the model learned from, with their estimates and the model's answers at that time. A
model whose probes come out differently is stale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.errors import TilewrightError
from tilewright.select.features import Described
from tilewright.tables.row import meant, said

PROBLEMS, KERNELS = 8, 8
"""Problems with probes, and the kernels of each, at most. A process that chooses by a model works
all of them out, once."""
MOVED = 0.01
"""By how much, as a share of a time, a probe may come out differently: far more than the last bits,
in which machines differ."""
FIGURES = 6

Answer = Callable[[Described], Any]
"""What a model adds to the logarithm of each kernel's estimate, in the order of the pool."""


@dataclass(frozen=True)
class Probe:
    """Kernels on a problem, and what was said of them when their model was made.

    problem: as tables have it (`tables.row.said`).
    device: the GPU that they were measured on.
    kernels: their names.
    estimated: their estimates in microseconds.
    answers: what the model adds to the logarithms of these.
    """

    problem: dict[str, Any]
    device: Device
    kernels: tuple[str, ...]
    estimated: tuple[float, ...]
    answers: tuple[float, ...]


def taken(described: Sequence[Described], answer: Answer) -> tuple[Probe, ...]:
    """Probes of some of these problems, each of some of its kernels."""
    return tuple(
        _probe(one, number, answer) for number, one in enumerate(_spread(described, PROBLEMS))
    )


def _spread(listed: Sequence[Any], most: int, first: int = 0) -> list[Any]:
    """At most so many, as far apart as can be, from about the one numbered `first` on."""
    step = max(1, len(listed) // most)
    return [*listed[first % step :: step]][:most]


def _probe(described: Described, number: int, answer: Answer) -> Probe:
    names = {config.name: at for at, config in enumerate(described.pool)}
    # Other kernels of each problem, so that all together have more of the forms there are.
    chosen = _spread(sorted(names), KERNELS, number)
    answers = answer(described)
    return Probe(
        said(described.problem),
        described.device,
        tuple(chosen),
        tuple(_rounded(described.us[names[name]]) for name in chosen),
        tuple(_rounded(answers[names[name]]) for name in chosen),
    )


def _rounded(number: Any) -> float:
    return float(f"{float(number):.{FIGURES}g}")


def moved(probes: Sequence[Probe], answer: Answer) -> str:
    """What comes out differently of `probes` now; ``""`` if nothing does."""
    import numpy as np

    differ, first = 0, ""
    for probe in probes:
        now = _now(probe, answer)
        if isinstance(now, str):
            return now
        us, answers = now
        with np.errstate(all="ignore"):
            of_us = np.log(us / np.array(probe.estimated))
            of_all = of_us + answers - np.array(probe.answers)
            apart = ~((abs(of_us) <= MOVED) & (abs(of_all) <= MOVED))
        if apart.any() and not first:
            at = int(apart.argmax())
            first = (
                f"{probe.kernels[at]} on {meant(probe.problem, 'a probe')} is estimated at "
                f"{us[at]:.4g} µs and expected to take {_times(answers[at])} that; then "
                f"{probe.estimated[at]:.4g} µs and {_times(probe.answers[at])}"
            )
        differ += int(apart.sum())
    count = sum(len(probe.kernels) for probe in probes)
    if not differ:
        return ""
    return f"of {differ} of {count} kernels something else is expected now: {first}"


def _times(answer: float) -> str:
    import numpy as np

    with np.errstate(over="ignore"):
        return f"{np.exp(answer):.3f} times"


def _now(probe: Probe, answer: Answer) -> tuple[Any, Any] | str:
    """The estimates and the answers of a probe's kernels, or why there are none."""
    import numpy as np

    try:
        problem = meant(probe.problem, "a probe")
        family, this = ops.family(problem.family), arch(probe.device.arch)
        configs = [family.parse_name(name) for name in probe.kernels]
        for config in configs:
            if not (verdict := family.supports(config, problem, this)):
                return f"kernel {config.name} no longer serves {problem}: {verdict.reason}"
    except TilewrightError as error:
        return str(error)
    described = Described(problem, configs, probe.device)
    places = {config.name: at for at, config in enumerate(described.pool)}
    if lacking := [name for name in probe.kernels if name not in places]:
        return f"{lacking[0]} has no estimate for {problem}"
    order = np.array([places[name] for name in probe.kernels])
    return np.asarray(described.us)[order], np.asarray(answer(described))[order]
