"""What the contenders of all problems share on this machine's first GPU: dispatchers, building, and
what a few timings say. It knows nothing of cases (`on_gpu`).
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from comparison import NothingToCompare, Samples
from steps import GPU, stepped, synchronize
from tilewright import ops
from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.capturing import capture, load
from tilewright.compile import Store, build
from tilewright.default import default_dispatcher
from tilewright.dispatch import Dispatcher
from tilewright.measure import timing
from tilewright.measure.contenders import kernel_bind
from tilewright.measure.measurement import Environment
from tilewright.measure.sweep import Group
from tilewright.ops.library import library_of
from tilewright.ops.protocols import Bind
from tilewright.preparing import Measuring
from tilewright.runtime import libraries
from tilewright.runtime.drivers import driver
from tilewright.runtime.offers import offered_configs
from tilewright.select.constraints import Constraints
from tilewright.select.model import SHIPPED
from tilewright.tables import file
from tilewright.tables.table import Table
from tilewright.tune import ahead
from tilewright.tune.jobs import jobs_of

PLACES = 3
"""Copies of operands, output and code: the place in memory changes times (docs/measuring.md)."""

CHOSEN, OURS = "chosen", "chosen of ours"
PREPARED = "prepared.twt"
"""The table that `prepare` writes, in a folder of the bench's own."""
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "answered": {},
    "estimated": {"selector": "analytical"},
    "learned": {"selector": ("learned", "analytical"), "models": SHIPPED},
    "prepared": {"selector": ("tuned", "analytical"), "tables": PREPARED},
}
"""By what dispatchers choose (`Case.ours`); of the tables the name alone."""


class Bench:
    """The GPU, and what all problems share."""

    def __init__(self, store: Store) -> None:
        self.device = live_device(0)
        self.arch = arch(self.device.arch)
        self.store = store
        self.group = Group(self.device, Environment(()))
        ours = Constraints(only_ours=True)
        self.dispatchers = [self._dispatcher() for _ in range(PLACES)]
        self._folder = tempfile.TemporaryDirectory()
        self._table = Path(self._folder.name) / PREPARED
        file.save(Table.of([]), self._table)
        self.answers = {
            kind: {
                CHOSEN: [self._dispatcher(**chosen) for _ in range(PLACES)],
                OURS: [self._dispatcher(**chosen, constraints=ours) for _ in range(PLACES)],
            }
            for kind, chosen in ANSWERS.items()
        }
        self.flush = timing.flusher(self.device.l2_bytes, GPU)
        self._jobs: dict[Any, Any] = {}

    def _dispatcher(self, **options: Any) -> Dispatcher:
        if options.get("tables") == PREPARED:
            options["tables"] = self._table
        return Dispatcher(device=self.device, store=self.store, build_missing=False, **options)

    def algorithms(self, problem: Any, count: int = libraries.ALGORITHMS) -> list[Any]:
        """The first algorithms that each library of the vendor's offers, as configs."""
        family, on = ops.family(problem.family), driver(self.arch.backend)
        found, why = offered_configs(on, 0, family, problem, self.arch, count)
        if why:
            print(f"    the library has no algorithm for {problem}: {why}", flush=True)
        return found

    def estimated(self, problem: Any) -> Any:
        """The kernel of ours that the estimate puts first, built."""
        config = self.answers["estimated"][OURS][0].select(problem).config
        self.built([config])
        return config

    def kernel(self, name: str, problem: Any, place: int = 0) -> Bind:
        """Makes calls of one kernel."""
        return kernel_bind(self.dispatchers[place], name, problem)

    def built(
        self,
        configs: Iterable[Any],
        say: Callable[[str], None] = lambda text: None,
        workers: int | None = None,
    ) -> dict[str, str]:
        """Build what the store lacks, on so many cores; by default all. The names that cannot be
        built, with the reason."""
        wanted = {c.name: (c, self.arch.name) for c in configs if not library_of(c)}

        def told(result: Any, done: int, total: int) -> None:
            if done % 50 == 0:
                say(f"    built {done} of {total}")

        if not wanted:
            return {}
        report = build([*wanted.values()], store=self.store, progress=told, workers=workers)
        return {r.config.name: str(r) for r in report.results if not r.ok}

    def job(self, problem: Any) -> Any:
        """What a tuning would try on a problem. Raises `NothingToCompare`."""
        if problem not in self._jobs:
            jobs, refused = jobs_of(self.group, [problem], None)
            self._jobs[problem] = jobs[0] if jobs else NothingToCompare(refused[0][1])
        found = self._jobs[problem]
        if isinstance(found, NothingToCompare):
            raise found
        return found

    def measured(self, problems: Sequence[Any], say: Callable[[str], None]) -> str:
        """Measure a few candidates of each problem, as `prepare` does, and let dispatchers choose
        by it."""
        estimating = Dispatcher(device=self.device, store=self.store, selector="analytical")

        def told(result: Any, done: int, total: int) -> None:
            if done % 50 == 0:
                say(f"    {done} of {total}")

        shown = ahead.Shown(building=lambda: nullcontext(told), measuring=lambda: nullcontext(told))
        found = ahead.measured(estimating, problems, Measuring(), self._table, shown)
        for each in self.answers["prepared"].values():
            for dispatcher in each:
                dispatcher.read_tables()
        say(f"    {found}")
        each_s = found.seconds / len(problems)
        return (
            f"prepared in {each_s:.1f} s a problem, kernels built included; {found.changed} of "
            f"{len(problems)} choose another kernel by it than by the estimate"
        )

    def stepped(
        self, make: Callable[[], Mapping[str, timing.Call]]
    ) -> tuple[Samples, dict[str, Any]]:
        """The samples of both sides, and the configs of the kernels that ours chose while the steps
        were made, and in one more: a graph that is replayed chooses none."""
        calls: dict[str, timing.Call] = {}

        def made() -> None:
            calls.update(make())
            calls["ours"]()

        configs = chosen_by(made)
        return stepped(calls), configs

    def wait(self) -> None:
        """Wait for the GPU. Raises after a fault of the device."""
        synchronize()

    def release(self) -> None:
        """Give back the memory of a problem that is done."""
        answers = (each for kind in self.answers.values() for each in kind.values())
        for each in (self.dispatchers, *answers):
            for dispatcher in each:
                dispatcher.forget_launches()
                dispatcher.workspaces.release()
        if dynamo := sys.modules.get("torch._dynamo"):
            dynamo.reset()  # what was compiled for the last problem only costs guards
        gc.collect()
        import torch

        torch.cuda.empty_cache()


def chosen_by(call: timing.Call) -> dict[str, Any]:
    """The configs of the kernels that a call chose."""
    with tempfile.TemporaryDirectory() as folder:
        with capture(path := Path(folder) / "problems.jsonl"):
            call()
        configs = [default_dispatcher().select(p).config for p in load(path)]
    return {c.name: c for c in configs}
