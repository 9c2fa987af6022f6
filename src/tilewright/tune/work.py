"""`Work`: a tuning from lists of problems to the file of a table. Which devices measure, what the
table has already, what the vendor's libraries offer; `Tuner` does the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.compile import Store
from tilewright.compile.report import Progress as BuildProgress
from tilewright.errors import BadArgument
from tilewright.measure.algorithms import Offer, offered
from tilewright.measure.groups import groups
from tilewright.measure.measurement import Settings
from tilewright.measure.results import Results
from tilewright.measure.sweep import Group, Progress
from tilewright.select.constraints import Constraints
from tilewright.tables import file
from tilewright.tables.row import Row
from tilewright.tables.table import Table
from tilewright.tune.jobs import NO_CONSTRAINTS, Job, jobs_of
from tilewright.tune.search import Effort
from tilewright.tune.tuner import SEARCH, TOGETHER, Tuned, Tuner, final_of


def _nothing(what: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Shown:
    """Contexts that show what goes on; by default nothing does.

    busy: of a sentence, while something takes its time.
    building, measuring: of each sweep (`Tuner`).
    """

    busy: Callable[[str], AbstractContextManager[None]] = _nothing
    building: Callable[[], AbstractContextManager[BuildProgress | None]] = nullcontext
    measuring: Callable[[], AbstractContextManager[Progress | None]] = nullcontext


QUIET = Shown()


class Work:
    """Problems to tune into a table: `add` some, then `run`.

    path: the table to write; if it exists, it is read first.
    out: the directory of the measurements; by default the table's name with ``.sweep``.
    devices: words for the devices that measure (`places.parse`).
    timeout: of a crew. arch: the architecture that the interpreter plays.
    seconds: after which no search takes another step.
    constraints: what every kernel keeps to.

    Raises `BadArgument` for a table's ending of no form and for devices that time nothing,
    `BadFile`, and as `groups` does.
    """

    def __init__(
        self,
        path: Path,
        store: Store,
        settings: Settings = SEARCH,
        *,
        out: Path | None = None,
        devices: str = "all",
        timeout: float = 60.0,
        arch: str | None = None,
        seconds: float | None = None,
        constraints: Constraints = NO_CONSTRAINTS,
        shown: Shown = QUIET,
    ) -> None:
        file.form(path)
        self.path, self.out = path, out or path.with_suffix(".sweep")
        self.store, self.settings, self.seconds = store, settings, seconds
        self.constraints = constraints
        self.table: Table | None = file.load(path) if path.is_file() else None
        self.groups, self._start = groups(devices, store, settings, timeout=timeout, arch=arch)
        if any(group.emulated for group in self.groups):
            raise BadArgument(f"{devices} has no times, so nothing can be tuned on it: say a GPU")
        self.jobs: list[Job] = []
        self.skipped = 0
        self.alike = 0
        self.unsupported: list[tuple[Any, str]] = []
        self.offers: list[Offer] = []
        """What the vendor's library offers for each problem on a GPU."""
        self._shown = shown

    def add(
        self,
        group: Group,
        problems: Sequence[Any],
        configs: Sequence[Any] = (),
        missing: bool = False,
    ) -> None:
        """Add problems to tune.

        configs: the candidates; by default each problem's usual ones.
        missing: add only problems for which the table has no row.
        """
        if missing and self.table is not None:
            table, given = self.table, len(problems)
            problems = [one for one in problems if table.get(one, group.device) is None]
            self.skipped += given - len(problems)
        asked = [] if configs or self.constraints.only_ours else problems
        with (
            self._shown.busy("ranking the candidates of every problem"),
            ThreadPoolExecutor(1) as beside,
        ):
            offers = beside.submit(self._offered, group, asked)
            jobs, unsupported = jobs_of(
                group, problems, self.table, configs, offers.result, self.constraints
            )
        self.alike += len(problems) - len(jobs) - len(unsupported)
        self.jobs += jobs
        self.unsupported += unsupported

    def _offered(self, group: Group, problems: Sequence[Any]) -> dict[Any, Sequence[Any]]:
        """The algorithms that the vendor's library offers, by problem."""
        if not (group.real and problems):
            return {}
        offers = offered(group, problems)
        self.offers += offers.values()
        return {problem: offer.configs for problem, offer in offers.items()}

    def save(self, rows: Iterable[Row]) -> None:
        """Save these rows, and the rows of the table that they do not replace."""
        kept = {(row.device, row.problem): row for row in self.table or ()}
        kept.update({(row.device, row.problem): row for row in rows})
        if kept:
            file.save(Table.of(kept.values(), str(self.path)), self.path)

    def run(self, effort: Effort, together: int = TOGETHER) -> Tuned:
        """Tune. Rows found before an error or an interruption are in the table.

        together: see `Tuner`.
        """
        # Times of the interpreter say nothing about a GPU, so the finals are measured at most once.
        played = all(group.interpreted for group in self.groups)
        if played:
            effort = replace(effort, takes=min(1, effort.takes))
        with Results(self.out, write=True) as results, closing(self._start()) as crew:
            crew.prepare()
            return Tuner(
                self.jobs,
                results,
                self.store,
                crew,
                self.settings,
                self.save,
                effort,
                final=self.settings if played else final_of(self.settings),
                seconds=self.seconds,
                together=together,
                building=self._shown.building,
                measuring=self._shown.measuring,
            ).run()
