"""Hardware counters of a kernel's run: which counters are read, and how they are parsed from the
output of Nsight Compute (ncu). `measure.nsight` runs ncu."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import BadFile, TilewrightError


class NoCounters(TilewrightError):
    """Hardware counters cannot be read. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A number shown for a kernel.

    metric: ncu's name for it.
    scale: from ncu's base unit to `unit`.
    adds: whether the values of several launches add up. If not, they are averaged, weighted by
        time.
    """

    name: str
    unit: str
    metric: str
    scale: float = 1.0
    adds: bool = False


TIME = Counter("time", "us", "gpu__time_duration.sum", 1e-3, adds=True)
_ACTIVE = "avg.pct_of_peak_sustained_active"
_ELAPSED = "avg.pct_of_peak_sustained_elapsed"

COUNTERS = (
    TIME,
    Counter("dram_read", "byte", "dram__bytes_read.sum", adds=True),
    Counter("dram_written", "byte", "dram__bytes_write.sum", adds=True),
    Counter("l2", "byte", "lts__t_bytes.sum", adds=True),
    Counter("l2_hits", "%", "lts__t_sector_hit_rate.pct"),
    Counter("matrix_units", "%", f"sm__pipe_tensor_cycles_active.{_ELAPSED}"),
    Counter("compute_units", "%", f"sm__throughput.{_ELAPSED}"),
    Counter("issue_slots", "%", f"smsp__issue_active.{_ACTIVE}"),
    Counter("occupancy", "%", f"sm__warps_active.{_ACTIVE}"),
    Counter("bank_conflicts", "", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", adds=True),
    Counter("local_read", "byte", "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum", adds=True),
    Counter("local_written", "byte", "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum", adds=True),
)
"""``compute_units`` is the busiest part of a compute unit. ``local_…`` is memory traffic of
registers that the compiler spilled."""

STALLS = "WarpStateStats"
"""ncu's section with the reasons why warps wait. Each chip has its own reasons."""
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")
_ISSUING = "selected"
"""Not a reason to wait: the warp issues an instruction."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch that ncu profiled.

    function: the kernel's function.
    grid, block: as ncu writes them.
    metrics: values by metric, in base units. A metric that ncu could not read is left out.
    """

    function: str
    grid: str
    block: str
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Counters:
    """The counts of all launches of one call.

    values: by `Counter.name`, in its unit.
    stalls: for each reason to wait, its share of the warps' time, largest first.
    missing: counters that this chip, or this ncu, does not have.
    """

    launches: tuple[Launch, ...]
    values: dict[str, float]
    stalls: dict[str, float]
    missing: tuple[str, ...]


_COLUMNS = ("Kernel Name", "Grid Size", "Block Size")
"""Those of ncu's columns that every table has."""


def parse(log: str) -> list[Launch]:
    """The launches in the output of ``ncu --csv --page raw --print-units base``: a line of names, a
    line of units, a line for each launch, between ncu's own lines (``==PROF== …``). Raises
    `BadFile` for a table that is not ncu's."""
    lines = [line for line in log.splitlines() if not line.startswith("==")]
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), None)
    if start is None:
        return []
    try:
        table = list(csv.reader(lines[start:]))
    except csv.Error as error:
        raise BadFile(f"ncu's table is no CSV: {error}") from None
    names = table[0]
    for name in _COLUMNS:
        if name not in names:
            raise BadFile(f"ncu's table has no column '{name}'")
    launches = []
    for row in table[2:]:
        if len(row) != len(names):  # output of another program after the table
            continue
        cells = dict(zip(names, row, strict=True))
        numbers = {name: _number(cell) for name, cell in cells.items() if "__" in name}
        launches.append(
            Launch(
                cells["Kernel Name"],
                cells["Grid Size"],
                cells["Block Size"],
                {name: number for name, number in numbers.items() if number is not None},
            )
        )
    return launches


def _number(cell: str) -> float | None:
    """The value of a cell, such as ``1,056``; None for ``n/a`` and ``No-CC``."""
    try:
        value = float(cell.replace(",", ""))
    except ValueError:
        return None
    return value if value == value else None


def combine(launches: Sequence[Launch]) -> Counters:
    """The counters of one call from its launches (at least one). A counter that some launch lacks
    is missing."""
    times = [max(launch.metrics.get(TIME.metric, 0.0), 1.0) for launch in launches]

    def mean(metric: str) -> float:
        weighed = (launch.metrics[metric] * t for launch, t in zip(launches, times, strict=True))
        return sum(weighed) / sum(times)

    values = {}
    for counter in COUNTERS:
        if all(counter.metric in launch.metrics for launch in launches):
            total = sum(launch.metrics[counter.metric] for launch in launches)
            values[counter.name] = (total if counter.adds else mean(counter.metric)) * counter.scale
    reasons = {
        match[1]: mean(metric)
        for metric in launches[0].metrics
        if (match := _STALL.fullmatch(metric))
        and all(metric in launch.metrics for launch in launches)
    }
    whole = sum(reasons.values()) or 1.0
    stalls = {reason: there / whole for reason, there in reasons.items() if reason != _ISSUING}
    return Counters(
        tuple(launches),
        values,
        dict(sorted(stalls.items(), key=lambda item: -item[1])),
        tuple(counter.name for counter in COUNTERS if counter.name not in values),
    )


_REMEDY = (
    "run as root, with CAP_SYS_ADMIN, or have the driver loaded with "
    "NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)


def refusal(log: str, said: str) -> str:
    """Why ncu's log has no launch: its error, and the last words of the program that it ran."""
    if "ERR_NVGPUCTRPERM" in log:
        return f"this user may not read the GPU's counters (ERR_NVGPUCTRPERM): {_REMEDY}"
    errors = [line.removeprefix("==ERROR==").strip() for line in _starting("==ERROR==", log)]
    warnings = [line.removeprefix("==WARNING==").strip() for line in _starting("==WARNING==", log)]
    told = (errors or warnings[-1:] or ["it profiled no launch"])[0].rstrip(".")
    last = said.strip().rpartition("\n")[2]
    return f"ncu: {told}" + (f" ({last})" if last else "")


def unknown(log: str, metrics: Sequence[str]) -> list[str]:
    """The metrics that ncu's errors name. ncu refuses to profile if it does not know a metric."""
    errors = " ".join(_starting("==ERROR==", log))
    return [metric for metric in metrics if metric in errors]


def _starting(mark: str, log: str) -> list[str]:
    return [line for line in log.splitlines() if line.startswith(mark)]
