"""`Row`: the kernel measured to be best for one problem on one device, and how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.checks import MOST_ERROR, microseconds, number
from tilewright.errors import BadArgument, BadFile, TilewrightError, UnknownName
from tilewright.jsonfile import convert
from tilewright.throughput import gb_per_s, tflops
from tilewright.verdict import Verdict, no


@dataclass(frozen=True, slots=True)
class Row:
    """The kernel that was measured to be best for `problem` on `device`.

    device: the GPU.
    problem: the problem, or the problem that stands for it in tables: it is replaced by its
        `Family.tuning_key`.
    kernel: the winner's name (see `preference`).
    ties: names of the kernels that cannot be told from the winner, fastest first.
    median_us, interval_us: the winner's median and the median's confidence interval, in
        microseconds.
    error: the worst error as a multiple of the tolerance; None if nothing was verified.
    measured_at: UTC, ISO 8601; ``""`` if unknown.
    versions: of the packages that compiled and ran it (``tilewright``, ``triton``…), by name.
    driver: the device's driver; ``""`` if unknown.
    timed: how it was timed: canonical JSON of `tilewright.measure.measurement.Settings`, or the
        words of another library that timed it.
    ours: the name of the fastest kernel that is built here, where the winner and all ties are
        algorithms of the vendor's library; ``""`` otherwise, or if there is none.

    Raises `BadArgument` for numbers that no measurement gives.
    """

    device: Device
    problem: Any
    kernel: str
    ties: tuple[str, ...]
    median_us: float
    interval_us: tuple[float, float]
    error: float | None = None
    measured_at: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    driver: str = ""
    timed: str = ""
    ours: str = ""

    def __post_init__(self) -> None:
        key = ops.family(self.problem.family).tuning_key(self.problem)
        object.__setattr__(self, "problem", key)
        low, high = self.interval_us
        for name, us in (("low_us", low), ("median_us", self.median_us), ("high_us", high)):
            microseconds(f"{self.kernel}: {name}", us)
        if not self.kernel or self.kernel in self.ties or len({*self.ties}) < len(self.ties):
            raise BadArgument(
                f"kernel '{self.kernel}' and its ties {self.ties} are not different names"
            )
        if self.ours in (self.kernel, *self.ties):
            raise BadArgument(
                f"kernel '{self.ours}' is the winner or a tie, and stands there twice"
            )
        if not low <= self.median_us <= high:
            raise BadArgument(
                f"{self.kernel}: {low} to {high} µs is no interval of a median of {self.median_us}"
            )
        if self.error is not None:
            number(f"{self.kernel}: error", self.error, 0, MOST_ERROR)
        if [*self.versions] != sorted(dict(self.versions).items()):
            raise BadArgument(f"{self.kernel}: versions are in the order of their packages' names")

    @property
    def kernels(self) -> tuple[str, ...]:
        """The winner, then its ties, then `ours`: the order in which kernels are tried."""
        return (self.kernel, *self.ties, *([self.ours] if self.ours else []))

    @property
    def tflops(self) -> float:
        """10¹² operations a second, by the median."""
        return tflops(self.problem.flops, self.median_us)

    @property
    def gb_per_s(self) -> float:
        """10⁹ bytes a second, each operand moved once, by the median."""
        return gb_per_s(self.problem.min_bytes, self.median_us)

    def __str__(self) -> str:
        return f"{self.problem} on {self.device.name}: {self.kernel}, {self.median_us:.4g} µs"


def preference(problem: Any, device: Device) -> Callable[[str], tuple[int, str]]:
    """A sort key of kernels' names: of kernels that cannot be told apart, the first wins.

    The smallest workspace comes first, then the name. Times do not count: noise would decide, and
    two tunings of one GPU, or two ranks, would disagree. The order is the same for every problem,
    so problems whose ties overlap share a kernel, and fewer kernels are built.

    The key raises `UnknownName` for a name that does not parse.
    """
    family = ops.family(problem.family)

    def key(name: str) -> tuple[int, str]:
        launch = family.launch(family.parse_name(name), problem, device)
        return launch.workspace_bytes, name

    return key


def still_serves(name: str, row: Row) -> Verdict:
    """Whether the kernel called `name` exists (rule ``no_such_kernel``) and serves the row's own
    problem on the row's own architecture. Raises `UnknownArch`."""
    family, this = ops.family(row.problem.family), arch(row.device.arch)
    try:
        config = family.parse_name(name)
    except UnknownName as error:
        return no("no_such_kernel", str(error))
    return family.judge(config, this) and family.supports(config, row.problem, this)


def said(problem: Any) -> dict[str, Any]:
    """A problem as plain data: its family, and the fields that do not follow from other fields.
    `meant` makes an equal problem of it."""
    stated = asdict(problem)
    values = {f.name: stated[f.name] for f in fields(problem) if stated[f.name] != f.default}
    for left_out in [*values]:
        rest = {name: value for name, value in values.items() if name != left_out}
        with suppress(TypeError, TilewrightError):  # it cannot be left out
            if type(problem)(**rest) == problem:
                values = rest
    return {"family": problem.family, **values}


def meant(data: Any, where: str) -> Any:
    """The problem for which `said` gives `data`; fields left out have their default. Raises
    `BadFile`, which begins with `where`."""
    if not isinstance(data, Mapping) or not isinstance(data.get("family"), str):
        raise BadFile(f"{where}: a problem is an object that says its family")
    told = dict(data)
    try:
        family = ops.family(told.pop("family"))
    except UnknownName as error:
        raise BadFile(f"{where}: {error}") from None
    return convert(told, family.problem_type, where)


def to_data(row: Row) -> dict[str, Any]:
    """A row as plain data, for JSON."""
    return {
        "problem": said(row.problem),
        **{
            f.name: getattr(row, f.name) for f in fields(row) if f.name not in ("problem", "device")
        },
        "device": asdict(row.device),
    }
