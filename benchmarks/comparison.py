"""Which kernel is the fastest on a problem, and how much faster than the vendor: the flow, without
a GPU in it. `on_gpu` gives it contenders that run; tests give it some that do not.

A search tries kernels in the tuner's order until steps bring no gain (`tilewright.tune.search`).
The few fastest, the library's algorithms and the vendor's calls are then timed in turns, the same
number of rounds each. Every other round picks: the fastest of each side. The rounds between report:
a ratio is the vendor's time over ours by rounds, its mean over the middle half.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from claims import Ratios
from tilewright.errors import TilewrightError
from tilewright.measure.statistics import midmean, ratios
from tilewright.tune.search import Effort, next_step

Way = Literal["calls", "graphs"]
Side = Literal["ours", "with_library"]
WAYS: tuple[Way, ...] = ("calls", "graphs")
"""Single calls with L2 flushed, and calls in a replayed CUDA graph."""
SIDES: tuple[Side, ...] = ("ours", "with_library")
BY_ESTIMATE = " by the estimate"
"""Ends the names of what the estimate chooses, where it is timed beside another choice."""

EFFORT = Effort(first=8, step=16, patience=1)
"""Between the tuner's usual effort and its quick one; `search` says what each reaches."""
FINALISTS = 6
"""Kernels built here that are timed to the end."""

SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 2.0, 12, 40
"""Usual time of the samples of one way on one problem, and the bounds on the number of rounds."""

Samples = Mapping[str, Sequence[float]]
"""Microseconds of each contender, by round."""


class NothingToCompare(TilewrightError):
    """A problem that no kernel computes right, or that no call of the vendor does."""


class VendorWrong(NothingToCompare):
    """A problem that a kernel of ours computes right, and no call of the vendor."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How one problem came out.

    kernel, vendor: the contenders that were picked.
    ratio: the vendor's time over the kernel's. us, vendor_us: medians of the reporting rounds.
    """

    kernel: str
    vendor: str
    ratio: float
    us: float
    vendor_us: float


def halves(samples: Samples) -> tuple[Samples, Samples]:
    """The rounds that pick, and those that report: every other one, so that a drift of the clock
    is in both."""
    return {n: s[::2] for n, s in samples.items()}, {n: s[1::2] for n, s in samples.items()}


def rounds_of(round_us: float, seconds: float = SECONDS) -> int:
    """How many rounds of `round_us` are taken: an even number, as many as fit into `seconds`."""
    fitting = int(seconds * 1e6 / max(round_us, 1.0))
    return min(max(fitting, LEAST_ROUNDS), MOST_ROUNDS) // 2 * 2


def judged(samples: Samples, ours: Collection[str], vendor: Collection[str]) -> Ratio:
    """The fastest contender of either side, picked by one half of the rounds, compared by the
    other. Raises `NothingToCompare` if a side has no samples."""
    picking, reporting = halves(samples)
    kernel, against = (_fastest(picking, names) for names in (ours, vendor))
    us, vendor_us = reporting[kernel], reporting[against]
    return Ratio(
        kernel, against, midmean(ratios(vendor_us, us)),
        statistics.median(us), statistics.median(vendor_us),
    )  # fmt: skip


def _fastest(samples: Samples, names: Collection[str]) -> str:
    timed = [name for name in names if name in samples]
    if not timed:
        raise NothingToCompare(f"nothing was timed of {', '.join(names) or 'no contender'}")
    return min(timed, key=lambda name: statistics.median(samples[name]))


@dataclass(frozen=True, slots=True)
class Field:
    """The contenders of a problem, by name.

    ours: kernels built here, in the order in which they are tried.
    starters: those of them that are tried first.
    library: what is timed beside them as a candidate: the library's algorithms, or, where a
        dispatcher answers, its answer.
    vendor: calls of the vendor.
    beside: what is timed with them and is on no side.
    answered: whether `library` is all that the side with the library has.
    rivals: whether the library's algorithms count as the vendor's too.
    chosen_by: the selector of a dispatcher's answer; "" for a search.
    """

    ours: tuple[str, ...]
    starters: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    vendor: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    answered: bool = False
    rivals: bool = False
    chosen_by: str = ""


class Stage(Protocol):
    """Where the contenders of one problem run."""

    field: Field
    wrong: dict[str, str]
    """Contenders that were not right, were not built or are not here, with the reason."""
    late: set[str]
    """Contenders whose times have the host's in them, although samples were taken again."""

    def tried(self, names: Sequence[str]) -> dict[str, float | None]:
        """Build, check and briefly time these. Microseconds, None for one that is in `wrong`."""

    def timed(self, names: Sequence[str], way: Way) -> Samples:
        """Time these in turns, to the end. A call that cannot be captured is left out of graphs."""


@dataclass(frozen=True, slots=True)
class Row:
    """One problem's results.

    tried: how many kernels of ours.
    ours, with_library: the candidates of either side; of the second () where the library was none.
    vendor: what they are compared with.
    samples: of each way, of every contender that was timed to the end.
    wrong: contenders that were left out, with the reason.
    late: contenders whose times have the host's in them.
    chosen_by: the selector of the kernel that a dispatcher answered with; "" for a search.
    """

    problem: str
    tried: int
    ours: tuple[str, ...]
    with_library: tuple[str, ...]
    vendor: tuple[str, ...]
    samples: Mapping[Way, Samples]
    wrong: Mapping[str, str]
    late: tuple[str, ...] = ()
    chosen_by: str = ""

    def ratio(
        self, way: Way, side: Side, vendor: Collection[str] = (), named: str = ""
    ) -> Ratio | None:
        """The result of one side; None where it or the vendor was not timed.

        vendor: contenders of the vendor; by default all.
        named: the end of the names of the contenders that stand for the side's.
        """
        names = tuple(name + named for name in getattr(self, side))
        samples, against = self.samples.get(way, {}), vendor or self.vendor
        timed = names and samples.keys() & {*against}
        return judged(samples, names, against) if timed else None


def compared(problem: str, stage: Stage, ways: Sequence[Way] = WAYS) -> Row:
    """The results of one problem. Raises `NothingToCompare`."""
    this = stage.field
    known: dict[str, float | None] = {}
    while names := next_step(this.ours, known, EFFORT, this.starters):
        known |= stage.tried(names)
    tried = len(known)
    known |= stage.tried(
        [
            name
            for name in dict.fromkeys((*this.library, *this.vendor, *this.beside))
            if name not in known
        ]
    )
    right = {name: us for name, us in known.items() if us is not None}
    kernels = dict.fromkeys((*this.starters, *this.ours))
    best = tuple(sorted(kernels.keys() & right, key=lambda n: (right[n], n))[:FINALISTS])
    library, calls, beside = (
        tuple(n for n in names if n in right) for names in (this.library, this.vendor, this.beside)
    )
    vendor = (*calls, *library) if this.rivals else calls
    if not best or not vendor:
        kind, what = (VendorWrong, "call of the vendor") if best else (NothingToCompare, "kernel")
        reasons = "; ".join(f"{name}: {why}" for name, why in stage.wrong.items())
        raise kind(f"no {what} is right: {reasons}")
    names = [*dict.fromkeys((*best, *library, *calls, *beside))]
    samples = {way: stage.timed(names, way) for way in ways}
    samples = {way: taken for way, taken in samples.items() if taken.keys() & {*vendor}}
    both = () if not library else library if this.answered else (*best, *library)
    late = tuple(sorted(stage.late))
    wrong, by = dict(stage.wrong), this.chosen_by
    return Row(problem, tried, best, both, vendor, samples, wrong, late, by)


def summed(
    rows: Sequence[Row], way: Way, side: Side, vendor: Collection[str] = (), named: str = ""
) -> Ratios | None:
    """The ratios of all problems; None unless every one was timed so."""
    found = [row.ratio(way, side, vendor, named) for row in rows]
    return Ratios.of(one.ratio for one in found if one) if found and all(found) else None
