"""The problems of cases on this machine's first GPU: what takes part is built, checked against
float64, and timed by `tilewright.measure.timing`."""

from __future__ import annotations

import copy
import random
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

import rivals
from cases import Case, InGraphs, Vendor
from comparison import (
    BY_ESTIMATE,
    EFFORT,
    SIDES,
    Field,
    NothingToCompare,
    Row,
    Samples,
    Way,
    compared,
    rounds_of,
)
from gpu_bench import CHOSEN, OURS, PLACES, Bench, chosen_by
from near import far
from steps import GPU, fixed, replayed
from tilewright import verify
from tilewright.dispatch import Dispatcher
from tilewright.errors import TilewrightError
from tilewright.measure import timing
from tilewright.measure.contenders import bytes_of, dispatched, results
from tilewright.measure.measurement import Settings
from tilewright.ops.library import library_of
from tilewright.ops.protocols import Bind
from tilewright.pointer_array import Pointers

PLACES_SHARE = 0.25
"""Of the free memory, what all places may take."""

BRIEF = Settings(
    warm_up_seconds=0.05, min_samples=8, max_samples=24, precision=0.01, race=0.05,
    budget_seconds=0.2,
)  # fmt: skip
GLANCE = Settings(warm_up_seconds=0, min_samples=5, max_samples=5, precision=0.01)
"""Where nothing is picked by it: how long a round will take."""


def answers_of(bench: Bench, case: Case) -> dict[str, list[Dispatcher]]:
    """By the name of a contender, the dispatchers that it asks: ours first."""
    found = {name: bench.answers[case.ours][name] for name in (OURS, CHOSEN)}
    if case.ours == "prepared":
        found |= {n + BY_ESTIMATE: bench.answers["estimated"][n] for n in (OURS, CHOSEN)}
    return found


class CaseBench(Bench):
    """A bench that prepares and compares the problems of cases."""

    def prepare(
        self, case: Case | InGraphs, problems: Sequence[Any], say: Callable[[str], None]
    ) -> str:
        """Build what the problems of a case will surely want, all at once, on all cores; of a case
        that is ``prepared``, measure before. Returns what its claims note; "" for nothing."""
        if isinstance(case, InGraphs):
            note = case.note
        else:
            note = self.measured(problems, say) if case.ours == "prepared" and problems else ""
        self.built(self.wanted(case, problems), say)
        return note

    def wanted(self, case: Case | InGraphs, problems: Sequence[Any]) -> list[Any]:
        """The kernels that the problems of a case will surely want."""
        wanted: list[Any] = []
        if isinstance(case, InGraphs):
            chooses = self.answers["answered"][CHOSEN][0]
            asked = dict.fromkeys(one for name in problems for one in case.asked(name))
            return [chooses.select(problem).config for problem in asked]
        for problem in problems:
            with suppress(TilewrightError):  # told where the problem is compared
                if case.ours == "searched":
                    job = self.job(problem)
                    first = (
                        job.candidates if case.only is None else filter(case.only, job.candidates)
                    )
                    wanted += [*job.starters, *islice(first, EFFORT.first + EFFORT.step)]
                else:
                    answers = [*answers_of(self, case).values()]
                    if rivals.estimated in case.vendor:
                        answers.append(self.answers["estimated"][OURS])
                    wanted += [each[0].select(problem).config for each in answers]
        return wanted

    def compared(
        self, case: Case | InGraphs, problem: Any, seed: int, say: Callable[[str], None]
    ) -> tuple[Row, dict[str, Any]]:
        """One problem's results, and the configs of the kernels that were picked in any way."""
        if isinstance(case, InGraphs):
            try:
                return self._contested(case, problem, seed, say)
            finally:
                self.release()
        try:
            stage = OnGpu(case, problem, self, seed, say)
            row = compared(str(problem), stage, case.ways)
            ends = ("", BY_ESTIMATE) if case.ours == "prepared" else ("",)
            picked = (
                row.ratio(way, side, named=end)
                for way in row.samples
                for side in SIDES
                for end in ends
            )
            configs = [stage.config(one.kernel) for one in picked if one]
            return row, {c.name: c for c in configs if c is not None}
        finally:
            stage = None  # its arrays are given back
            self.release()

    def _contested(
        self, case: InGraphs, name: str, seed: int, say: Callable[[str], None]
    ) -> tuple[Row, dict[str, Any]]:
        found = case.contest(name, seed, self, say)
        configs = chosen_by(found.calls["ours"])
        samples, late = replayed(found.calls, found.count)
        row = Row(
            name, 1, ("ours",), (), found.vendor, {"graphs": samples}, found.wrong, tuple(late)
        )
        return row, configs


@dataclass(frozen=True, slots=True)
class Contender:
    """config: None for the vendor's. bind: makes calls, of a place. checked: whether its result is
    held to the reference (`Case.exact`)."""

    config: Any
    bind: Callable[[int], Bind]
    checked: bool | Literal["near"] = True


def _dispatched(label: str, dispatchers: Sequence[Dispatcher], problem: Any, place: int) -> Bind:
    return dispatched(label, dispatchers[place], problem).bind


def _anywhere(bind: Bind, place: int) -> Bind:
    return bind


class OnGpu:
    """The contenders of one problem of a case (`comparison.Stage`).

    say: is told what is done, before: a kernel that hangs is the last.
    """

    def __init__(
        self, case: Case, problem: Any, bench: Bench, seed: int, say: Callable[[str], None] = print
    ) -> None:
        self._case, self._problem, self._bench, self._seed = case, problem, bench, seed
        self._say = say
        self._contenders: dict[str, Contender] = {}
        self._brief_us: dict[str, float] = {}
        self._same: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        self.late: set[str] = set()
        vendor = self._rivals(case.vendor, case.exact)
        if not (vendor or case.library):
            raise NothingToCompare(
                "; ".join(f"{name} is {why}" for name, why in self.wrong.items())
            )
        self._operands = self._made()
        self._places: list[tuple[Any, verify.Operands]] = []
        self._before = verify.snapshot(problem, self._operands.inputs)
        self._wanted = verify.reference(problem, self._operands.inputs)
        found = (self._searched if case.ours == "searched" else self._answered)(vendor)
        self.field = replace(found, beside=found.beside + self._rivals(case.beside, False))

    def config(self, name: str) -> Any:
        """Of a contender; None for the vendor's."""
        return self._contenders[name].config

    def add(self, configs: Sequence[Any]) -> None:
        """Let these kernels be tried too."""
        self._kernels(configs)

    def _made(self) -> verify.Operands:
        return self._case.operands(self._problem, self._seed, GPU)

    def _another(self, outputs: bool = True) -> verify.Operands:
        """The operands in other memory; the outputs only if it is said. Copying is faster than
        drawing the values once more; not for pointers, which would still say where the first ones
        are."""
        mine = self._operands
        if any(isinstance(x, Pointers) for x in (*mine.inputs.values(), *mine.outputs.values())):
            made = self._made()
        else:  # with strides, and what is shared
            made = verify.Operands(*copy.deepcopy((mine.inputs, mine.outputs if outputs else {})))
        return made if outputs else verify.Operands(made.inputs, mine.outputs)

    # --- contenders -------------------------------------------------------------------------

    def _rivals(self, makers: Iterable[Vendor], checked: bool | Literal["near"]) -> tuple[str, ...]:
        found: dict[str, Bind] = {}
        for make in makers:
            found |= self._here(make)
        for name, bind in found.items():
            self._contenders[name] = Contender(None, partial(_anywhere, bind), checked)
        return tuple(found)

    def _here(self, make: Vendor) -> Mapping[str, Bind]:
        try:
            return make(self._problem, self._bench)
        except rivals.Absent as error:
            self.wrong[error.label] = str(error)
            return {}

    def _kernels(self, configs: Sequence[Any]) -> tuple[str, ...]:
        for config in configs:
            bind = partial(self._bench.kernel, config.name, self._problem)
            self._contenders[config.name] = Contender(config, bind)
        return tuple(config.name for config in configs)

    def _searched(self, vendor: tuple[str, ...]) -> Field:
        job = self._bench.job(self._problem)
        ours, starters = (
            [c for c in some if not library_of(c) and (not self._case.only or self._case.only(c))]
            for some in (job.candidates, job.starters)
        )
        offered = self._bench.algorithms(self._problem) if self._case.library else []
        return Field(
            self._kernels(ours), self._kernels(starters), self._kernels(offered), vendor,
            rivals=True,
        )  # fmt: skip

    def _answered(self, vendor: tuple[str, ...]) -> Field:
        """What dispatchers choose. Of contenders with one kernel the first alone is timed."""
        answers, first = answers_of(self._bench, self._case), dict[Any, str]()
        plans = {name: found[0].select(self._problem) for name, found in answers.items()}
        for name, dispatchers in answers.items():
            config = plans[name].config
            bind = partial(_dispatched, name, dispatchers, self._problem)
            self._contenders[name] = Contender(config, bind)
            if (same := first.setdefault(config, name)) != name:
                self._same[name] = same
        beside = tuple(name for name in answers if name not in (OURS, CHOSEN))
        by = plans[OURS].selector
        return Field((OURS,), (), (CHOSEN,), vendor, beside, answered=True, chosen_by=by)

    # --- checked and timed ------------------------------------------------------------------

    def tried(self, names: Sequence[str]) -> dict[str, float | None]:
        self._say(f"    {len(names)} contenders")
        apart = [name for name in names if name not in self._same]
        configs = [c for n in apart if (c := self._contenders[n].config) is not None]
        unbuilt = self._bench.built(configs)
        calls: dict[str, timing.Call] = {}
        for name in apart:
            config = self._contenders[name].config
            reason = unbuilt.get(config.name) if config is not None else None
            call = None if reason else self._checked(name)
            if reason:
                self.wrong[name] = reason
            elif call is not None:
                calls[name] = call
        if calls:
            events = timing.Events(self._bench.flush, GPU)
            beside = [n for n in calls if self._contenders[n].config is None]
            how = BRIEF if self._case.ours == "searched" else GLANCE
            taken = timing.measure({n: [c] for n, c in calls.items()}, events, how, beside=beside)
            self._brief_us |= {n: statistics.median(s.samples_us) for n, s in taken.items()}
        return {name: self._brief_us.get(self._same.get(name, name)) for name in names}

    def _checked(self, name: str) -> timing.Call | None:
        """A call that is right; else None, with the reason in `wrong`."""
        import torch

        one, operands = self._contenders[name], self._operands
        if one.config is None:
            self._say(f"    {name}")
        verify.reset(operands, self._before)
        try:
            call = one.bind(0)(operands.inputs, operands.outputs)
            returned = call()
            torch.cuda.synchronize()
            if one.checked:
                written = results(self._problem, operands, returned)
                if one.checked == "near":
                    wrong = far(self._problem, written, self._wanted)
                else:
                    found = verify.compare_all(self._problem, one.config, written, self._wanted)
                    wrong = "" if found.ok else str(found)
                if wrong:
                    self.wrong[name] = wrong
                    return None
        except Exception as error:
            self.wrong[name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            torch.cuda.synchronize()  # raises after a fault of the device, which ends the case
            torch.cuda.empty_cache()  # what had no memory left none for the next
            return None
        return call

    def timed(self, names: Sequence[str], way: Way) -> Samples:
        binds = {n: self._contenders[n].bind for n in names if n not in self._same}
        brief = [self._brief_us[name] for name in binds]
        total = sum(brief)
        made: dict[str, list[timing.Call]]
        if way == "calls":
            timer: timing.Timer = timing.Events(self._bench.flush, GPU)
            places = self._spread()
            made = {
                name: [bind(i)(x.inputs, x.outputs) for i, x in enumerate(places)]
                for name, bind in binds.items()
            }
        else:
            self._places.clear()
            copies = self._copies()
            timer = timing.Graphs(timing.pause, GPU, len(copies))
            total = sum(us * timing.calls_of_graph(len(copies), us) for us in brief)
            made = {
                name: [bind(0)(x.inputs, x.outputs) for x in copies]
                for name, bind in binds.items()
                if name not in rivals.UNCAPTURED
            }
        for call in (call for calls in made.values() for call in calls):
            call()  # once outside of samples and captures: then its launch is ready
        if way == "graphs":
            made = {name: [timing.rotated(calls)] for name, calls in made.items()}
        taken = timing.measure(made, timer, fixed(rounds_of(total, self._case.seconds)))
        self.late |= {name for name, series in taken.items() if series.late}
        found = {name: series.samples_us for name, series in taken.items()}
        same = {name: self._same[name] for name in names if name in self._same}
        return found | {name: found[first] for name, first in same.items() if first in found}

    def _spread(self) -> list[verify.Operands]:
        """The operands in several places of memory, if there is room."""
        import torch

        torch.cuda.empty_cache()  # otherwise the new operands would get the same memory
        room = int(torch.cuda.mem_get_info()[0] * PLACES_SHARE / PLACES)
        mine = self._operands
        if bytes_of((*mine.inputs.values(), *mine.outputs.values())) <= room:
            for _ in range(PLACES - 1):
                gap = torch.empty(random.randrange(room), dtype=torch.uint8, device=GPU)
                self._places.append((gap, self._another()))
        return [mine, *(operands for _, operands in self._places)]

    def _copies(self) -> list[verify.Operands]:
        """Copies of the inputs through which calls rotate, so that none is in L2; one output."""
        mine, l2 = self._operands, self._bench.device.l2_bytes
        count = timing.copies_to_rotate(bytes_of(mine.inputs.values()), l2)
        return [mine, *(self._another(outputs=False) for _ in range(count - 1))]
