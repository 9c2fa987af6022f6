"""Cases, workers and a GPU for tests of the runner: none of them measures anything."""

from __future__ import annotations

import math
from types import MappingProxyType

from test_comparison import OURS, TIMES, Fake

import claims
from cases import Case
from comparison import Field, NothingToCompare, VendorWrong, compared
from one_case import run_case
from tilewright.arch import arch

NEVER = math.inf


def case(name="toy", problems=("a", "b"), **more) -> Case:
    return Case(name, "toys", "others", lambda: list(problems), **more)


class Bench:
    """A GPU that answers at once, or takes `seconds`; problems in `bad` cannot be compared, and the
    vendor is wrong on those in `unmatched`. chosen_by: a selector by problem."""

    arch = arch("sm_90")
    note = ""

    def __init__(
        self, bad=(), seconds=0.0, clock=None, unmatched=(), chosen_by=MappingProxyType({})
    ) -> None:
        self._chosen_by = chosen_by
        self.seeds: list[int] = []
        self.released = 0
        self._unmatched = unmatched
        self._bad, self._seconds, self._clock = bad, seconds, clock

    def compared(self, case, problem, seed, say):
        self.seeds.append(seed)
        if self._clock is not None:
            self._clock[0] += self._seconds
        if problem in self._bad:
            raise NothingToCompare("no kernel is right")
        if problem in self._unmatched:
            raise VendorWrong("no call of the vendor is right")
        mm = {"a": 22.0, "b": 44.0}.get(problem, 20.0)
        by = self._chosen_by.get(problem, "")
        field = Field(OURS, (), (), ("mm", "bmm"), chosen_by=by)
        stage = Fake(field, TIMES | {"mm": mm, "bmm": 100.0})
        return compared(problem, stage), {}

    def prepare(self, case, problems, say):
        self.prepared = list(problems)
        return self.note

    def stepped(self, make):
        return {name: [call()] * 10 for name, call in make().items()}, {}

    def release(self):
        self.released += 1


def ran(case, bench, deadline=NEVER):
    said = []
    return run_case(case, lambda: bench, deadline, lambda *words: said.append(words)), said


def claim(name: str) -> claims.Claim:
    return claims.Claim(name, None, None, None, None, {}, times_us={"call": 1.0})


def script(*workers):
    """Workers that say these words one after the other; each must be asked for."""
    left = list(workers)
    asked = []

    def messages(names, deadline):
        asked.append(list(names))
        yield from left.pop(0)

    return messages, asked


def steps(us):
    return lambda: {"ours": lambda: 10.0, "vendor": lambda: us}
