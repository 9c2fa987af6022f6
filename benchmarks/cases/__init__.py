"""What the runner measures: each case is a record in a file of this folder.

Importing the cases needs no GPU and no torch. `benchmarks/run.py` runs them.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import rivals
from comparison import SECONDS, WAYS, Row, Way
from tilewright import verify

if TYPE_CHECKING:
    from gpu_bench import Bench
    from turn import Turn

Vendor = Callable[[Any, "Bench"], Mapping[str, Any]]
"""The vendor's contenders for a problem, by name. Raises `rivals.Absent` for one that is not
installed."""

Steps = Callable[[], Mapping[str, Callable[[], object]]]
"""Makes calls by name, each checked."""


@dataclass(frozen=True, slots=True)
class Part:
    """A further claim out of the samples of a case.

    end: of its name, behind the case's. against: what its ratios compare with.
    vendor: the contenders of the vendor that count; () for all.
    where: the problems that count; None for all.
    named: the end of the names of the contenders that stand for ours (`comparison.Row.ratio`).
    """

    end: str
    against: str
    vendor: tuple[str, ...] = ()
    where: Callable[[Any], bool] | None = None
    named: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """Kernels against the vendor, problem by problem.

    name: of the claim.
    says: what is compared, in words.
    against: what the ratios compare with.
    problems: states them.
    ours: ``searched``: kernels of the tuning spaces are tried in the tuner's order. ``answered``:
        what a dispatcher without tables of the user chooses, once with `only_ours`.
        ``estimated``: what it chooses without the shipped tables. ``learned``: without these, by
        the shipped models and the estimate. ``prepared``: without these, after `prepare` measured
        a few candidates of each problem; the claims note how long that took. What the estimate
        chooses is timed beside it, and parts may name it.
    only: of the kernels searched, those that may take part.
    library: whether the library's algorithms are candidates, and the vendor's too.
    vendor: what else is the vendor's.
    beside: what is timed too, counts on neither side by itself, and computes another thing, so that
        its results are not checked; parts may name it.
    operands: (problem, seed, device) → operands.
    exact: whether the vendor's results are held to the reference. False where it computes another
        thing for comparison; ``near`` where it rounds between calls (`near.far`).
    parts: further claims.
    ways: of timing.
    seconds: of the samples of one way on one problem.
    ahead: (problem, operands, turn): compiles what the vendor's calls of a problem need, and leaves
        it in caches on disk (`ahead`); None where nothing is compiled.
    apart: an ending of its name. A pattern names the case only if it ends so too.
    figures: what the claim notes of the results besides ratios.
    """

    name: str
    says: str
    against: str
    problems: Callable[[], Sequence[Any]]
    ours: Literal["searched", "answered", "estimated", "learned", "prepared"] = "searched"
    only: Callable[[Any], bool] | None = None
    library: bool = False
    vendor: tuple[Vendor, ...] = (rivals.torch_calls,)
    beside: tuple[Vendor, ...] = ()
    operands: Callable[[Any, int, str], verify.Operands] = verify.operands_of
    exact: bool | Literal["near"] = True
    parts: tuple[Part, ...] = ()
    ways: tuple[Way, ...] = WAYS
    seconds: float = SECONDS
    ahead: Callable[[Any, verify.Operands, Turn], object] | None = None
    apart: str = ""
    figures: Callable[[Mapping[Any, Row]], str] | None = None


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Times of the host, which compare with nothing.

    samples: takes them: microseconds, by what was timed.
    """

    name: str
    says: str
    samples: Callable[[], Mapping[str, Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Programs:
    """Whole programs, ours and the vendor's, step by step.

    programs: by the name of a claim, what makes a step of either side, after it has checked that
        the results agree: `ours` and `vendor`. One that bears the case's name has no claim apart.
    """

    name: str
    says: str
    against: str
    programs: Mapping[str, Steps]


@dataclass(frozen=True, slots=True)
class Contest:
    """Those who compute one thing, each checked.

    calls: by name, a step of `count` calls of each; ``ours`` is ours. A graph can hold each.
    vendor: the names of the vendor's; others are beside.
    wrong: who was left out, with the reason.
    """

    calls: Mapping[str, Callable[[], object]]
    count: int
    vendor: tuple[str, ...]
    wrong: Mapping[str, str]


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class InGraphs:
    """Computations by several hands, each in a graph.

    names: of the computations.
    contest: (name, seed, bench, say) → who computes it.
    asked: name → problems that ours will be asked.
    ahead: names → what others compile for them, each leaving it in caches on disk (`ahead`).
    note: of its claims: how the computations were chosen.
    parts: further claims; `Part.where` is given a name.
    """

    name: str
    says: str
    against: str
    names: tuple[str, ...]
    contest: Callable[[str, int, Bench, Say], Contest]
    asked: Callable[[str], Sequence[Any]]
    ahead: Callable[[Sequence[str]], Sequence[Callable[[Turn], object]]]
    note: str
    parts: tuple[Part, ...] = ()

    def problems(self) -> Sequence[str]:
        return self.names


AnyCase = Case | HostTimes | Programs | InGraphs


SHARE = "TILEWRIGHT_BENCHMARK_SHARE"
"""An environment variable, ``0/2`` for the first of two shares: of the problems and programs of
every case, one in so many. Then several GPUs can share cases."""


def every() -> dict[str, AnyCase]:
    """All cases by name, in the order of the files. Raises `ValueError` for two of one name."""
    found: dict[str, AnyCase] = {}
    mine, shares = map(int, os.environ.get(SHARE, "0/1").split("/"))
    for case in _declared():
        if case.name in found:
            raise ValueError(f"two cases are called {case.name}")
        found[case.name] = case if shares == 1 else shared(case, mine, shares)
    return found


def shared(case: AnyCase, mine: int, shares: int) -> AnyCase:
    """A share of a case: its problems or programs number `mine`, `mine` + `shares`, and so on."""
    if isinstance(case, Case):
        return replace(case, problems=lambda: case.problems()[mine::shares])
    if isinstance(case, Programs):
        some = islice(case.programs.items(), mine, None, shares)
        return replace(case, programs=dict(some))
    if isinstance(case, InGraphs):
        return replace(case, names=case.names[mine::shares])
    return case


def _declared() -> Iterator[AnyCase]:
    for module in pkgutil.iter_modules(__path__):
        yield from importlib.import_module(f"{__name__}.{module.name}").CASES


def claims_of(case: AnyCase) -> list[str]:
    """The names of the claims that a case writes."""
    more: list[str] = []
    if isinstance(case, Case | InGraphs):
        more = [f"{case.name}-{part.end}" for part in case.parts]
    elif isinstance(case, Programs):
        more = [name for name in case.programs if name != case.name]
    return [case.name, *more]
