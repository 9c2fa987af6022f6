"""``tune`` and ``retune``: proven kernels for problems, in a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.options import FamilyName, Json, StorePath, TrustStore, examples, words
from tilewright.cli.options import store as open_store
from tilewright.errors import BadArgument

if TYPE_CHECKING:
    from tilewright.tables.row import Row
    from tilewright.tables.table import Table
    from tilewright.tune.sweep import Group
    from tilewright.tune.tuner import Job, Tuned

TablePath = Annotated[
    Path,
    typer.Option(
        "--table", help="The table: read if it is there, and written.", metavar="FILE.twt"
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Directory of the measurements [default: the table's, .sweep]", metavar="DIR"
    ),
]
Devices = Annotated[
    str, typer.Option("--devices", help="As of sweep: all GPUs, how many, which, or cpu.")
]
Budget = Annotated[
    float | None,
    typer.Option("--budget", min=0, help="Minutes after which no search takes another step."),
]
Exhaustive = Annotated[
    bool, typer.Option("--exhaustive", help="Measure every candidate, whether it pays or not.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, help="Seconds that one measurement may take.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--settings",
        help="How the search measures, as budget_seconds=0.5; may be repeated.",
        metavar="KEY=VALUE",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.command(
        short_help="Find the proven kernel for each problem of a list.",
        epilog=examples(
            "tilewright tune --problems shapes.csv --table mine.twt",
            "tilewright tune space.json --problems gemm:small --table mine.twt --budget 15",
        ),
    )(tune)
    app.command(
        short_help="Tune a table's problems again.",
        epilog=examples(
            "tilewright retune mine.twt",
            "tilewright retune h200.twt --all --devices 0,1",
        ),
    )(retune)


def tune(
    problems: Annotated[
        list[str],
        typer.Option(
            "--problems",
            help="Problem list, captured file or shipped set; may be repeated.",
            metavar="FILE.json|FILE.csv|FAMILY:SET",
        ),
    ],
    table: TablePath,
    spaces: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to choose from: space files, kernel names, shipped sets "
            "[default: each problem's usual kernels, with splits]",
            metavar="SPACE.json|NAME|FAMILY:SET…",
        ),
    ] = None,
    out: Out = None,
    devices: Devices = "all",
    budget: Budget = None,
    exhaustive: Exhaustive = False,
    family: FamilyName = None,
    signature: Annotated[
        list[str] | None,
        typer.Option(
            "--signature",
            help="What spaces and problems leave open, as dtype=bf16; may be repeated.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    arch: Annotated[str | None, typer.Option("--arch", help="What the interpreter plays.")] = None,
    settings: Settings = None,
    timeout: Timeout = 60.0,
    store: StorePath = None,
    trust_store: TrustStore = False,
    as_json: Json = False,
) -> None:
    """Find the proven kernel for each problem, and write it into a table.

    A search measures the present choice and the best by estimate first, then more until they bring
    nothing (or the budget ends); those near the best are measured once more, together; of those
    that cannot be told apart a fixed rule takes one. The table is written as it goes. Stop it at
    any time, and run it again to go on: nothing is measured twice. Exits with 1 if there was no
    right kernel for some problem.
    """
    from tilewright.cli.selection import select
    from tilewright.tune.problems import load_problems, shipped

    said = words(signature)
    work = _Work(table, out, devices, arch, settings, timeout, store, trust_store)
    found: list[Job] = []
    for group in work.groups:
        name = group.device.arch
        configs: Sequence[Any] = ()
        if spaces:
            files = [str(shipped(word, "space.json") or word) for word in spaces]
            configs = select(files, name, family, said).configs
        listed = load_problems(problems, _arch(name), family, said).problems
        found += work.jobs(group, listed, configs)
    work.run(found, budget, exhaustive, as_json)


def retune(
    table: Annotated[Path, typer.Argument(help="The table.", metavar="FILE.twt")],
    every: Annotated[
        bool, typer.Option("--all", help="Problems of other devices' rows too, on these devices.")
    ] = False,
    out: Out = None,
    devices: Devices = "all",
    budget: Budget = None,
    exhaustive: Exhaustive = False,
    settings: Settings = None,
    timeout: Timeout = 60.0,
    store: StorePath = None,
    trust_store: TrustStore = False,
    as_json: Json = False,
) -> None:
    """Tune a table's problems again: those of the live devices' rows, or all.

    A row's kernel is measured beside the others, and replaced only by one that is faster by more
    than the noise. Rows of other devices stay as they are.
    """
    work = _Work(table, out, devices, None, settings, timeout, store, trust_store)
    if work.table is None:
        raise BadArgument(f"{table} does not exist: tune makes one")
    found: list[Job] = []
    for group in work.groups:
        rows = [row for row in work.table if every or row.device == group.device]
        found += work.jobs(group, list(dict.fromkeys(row.problem for row in rows)))
    if not found:
        names = ", ".join(dict.fromkeys(device.name for device in work.table.devices))
        raise BadArgument(
            f"{table} has no row of these devices (it is of {names}); --all takes its problems"
        )
    work.run(found, budget, exhaustive, as_json)


def _arch(name: str) -> Any:
    from tilewright.arch import arch

    return arch(name)


class _Work:
    """What both commands do, once it is known what is to be tuned."""

    def __init__(
        self,
        path: Path,
        out: Path | None,
        devices: str,
        arch: str | None,
        settings: list[str] | None,
        timeout: float,
        store: Path | None,
        trust_store: bool,
    ) -> None:
        from tilewright.cli.sweep_request import read_settings
        from tilewright.tables import file
        from tilewright.tune.groups import groups

        file.form(path)
        self.path, self.out = path, out or path.with_suffix(".sweep")
        self.settings = read_settings(words(settings))
        self.store = open_store(store, trust_store)
        self.table: Table | None = file.load(path) if path.is_file() else None
        self.groups, self._start = groups(
            devices, self.store, self.settings, timeout=timeout, arch=arch
        )

    def jobs(self, group: Group, problems: Iterable[Any], configs: Sequence[Any] = ()) -> list[Job]:
        from tilewright.tune.tuner import jobs_of

        with output.busy("ranking the candidates of every problem"):
            return jobs_of(group, problems, self.table, configs)

    def save(self, rows: Iterable[Row]) -> None:
        """These rows, and those of the table that they do not replace."""
        from tilewright.tables import file
        from tilewright.tables.table import Table

        kept = {(row.device, row.problem): row for row in self.table or ()}
        kept.update({(row.device, row.problem): row for row in rows})
        if kept:
            file.save(Table.of(kept.values(), str(self.path)), self.path)

    def run(
        self, jobs: Sequence[Job], budget: float | None, exhaustive: bool, as_json: bool
    ) -> None:
        from tilewright.build import show_progress
        from tilewright.tune.progress import show_measuring
        from tilewright.tune.results import Results
        from tilewright.tune.search import Effort
        from tilewright.tune.tuner import Tuner

        with Results(self.out, write=True) as results, closing(self._start()) as crew:
            tuner = Tuner(
                jobs,
                results,
                self.store,
                crew,
                self.settings,
                self.save,
                Effort(patience=0) if exhaustive else Effort(),
                seconds=None if budget is None else 60 * budget,
                building=show_progress,
                measuring=show_measuring,
            )
            try:
                tuned = tuner.run()
            except KeyboardInterrupt:
                typer.echo(
                    f"stopped; what was found is in {self.path}, and the same command goes on",
                    err=True,
                )
                raise
        document = self._document(jobs, tuned)
        if as_json:
            output.emit(document)
        else:
            _show(document)
        if tuned.without:
            raise typer.Exit(FAILED)

    def _document(self, jobs: Sequence[Job], tuned: Tuned) -> dict[str, Any]:
        return {
            "table": str(self.path),
            "measurements": str(self.out),
            "measured": tuned.measured,
            "out_of_time": tuned.out_of_time,
            "rows": [
                {
                    "problem": str(jobs[number].problem),
                    "device": row.device.name,
                    "kernel": row.kernel,
                    "before": jobs[number].present,
                    "was_proven": jobs[number].proven,
                    "median_us": row.median_us,
                    "interval_us": row.interval_us,
                    "tflops": row.tflops,
                    "ties": len(row.ties),
                    "final": number in tuned.final,
                }
                for number, row in tuned.rows.items()
            ],
            "without": [str(jobs[number].problem) for number in tuned.without],
        }


def _show(document: dict[str, Any]) -> None:
    rows = document["rows"]
    if rows:
        output.table(
            ("problem", "µs", "TFLOP/s", "ties", "", "kernel"),
            [
                (
                    row["problem"],
                    f"{row['median_us']:.4g}",
                    f"{row['tflops']:.4g}",
                    str(row["ties"]),
                    "kept" if row["kernel"] == row["before"] else "new",
                    row["kernel"],
                )
                for row in rows
            ],
        )
    for problem in document["without"]:
        output.line(f"no kernel came out right for {problem}")
    kept = sum(row["kernel"] == row["before"] for row in rows)
    output.line()
    output.fields(
        {
            "rows": f"{len(rows)}: {kept} as chosen before, {len(rows) - kept} new",
            "measured": f"{document['measured']}, in {document['measurements']}",
            "table": document["table"],
        }
    )
    if document["out_of_time"]:
        output.line("the budget ended: the same command goes on")
