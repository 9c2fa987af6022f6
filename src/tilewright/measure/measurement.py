"""`Measurement`: the result of one kernel on one problem, on one device, under one environment and
one way of timing. Every kernel's result is kept, not only the winner's.

`Settings` and `Environment` are part of a measurement's key (`Measurement.key`), so results made in
different ways are never mixed by accident.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Literal, get_args

from tilewright import checks
from tilewright.arch.model import Device
from tilewright.errors import BadArgument, shown
from tilewright.throughput import gb_per_s, tflops
from tilewright.verify import Check

Status = Literal[
    "ok",
    "mismatch",
    "nan",
    "unsupported",
    "launch_failed",
    "illegal_access",
    "timeout",
    "out_of_memory",
    "build_failed",
    "crashed",
    "executed",
    "finding",
]
STATUSES: tuple[Status, ...] = get_args(Status)
"""Ways in which a measurement can end.

ok: timed, and verified if `Settings.verify`.
mismatch: an element is outside the tolerance.
nan: a NaN where the reference has none, or left from the poison.
unsupported: the kernel does not serve the problem.
launch_failed: the driver refused it.
illegal_access: it faulted the device.
timeout: it did not end within its limit.
out_of_memory: of the device or the process.
build_failed: there is no binary.
crashed: its process ended or raised in another way.
executed: right, and not timed: on an emulated GPU, with no finding.
finding: an emulated GPU found that it does what no kernel may, whatever its result.
"""
GOOD: tuple[Status, ...] = ("ok", "executed")
"""Those of kernels without a fault. Only ``ok`` has times, so only such a kernel can be chosen."""

Flag = Literal["throttled", "contended", "unsettled", "late"]
"""Marks of a doubtful measurement.

throttled: the device lowered its clocks because of heat or a power brake. (Reaching the power limit
    does not count: large products always do.)
contended: another process used the device.
unsettled: the budget ended before the median's interval was as narrow as requested.
late: the GPU waited for the host within samples, even after retaking them (`timing.Events`), so
    times are too long.
"""


Method = Literal["single", "graph"]
METHODS: Mapping[Method, Mapping[str, str]] = {
    "single": {"timer": "events", "cache": "flushed"},
    "graph": {"timer": "graph", "cache": "rotated"},
}
"""The two ways to time calls on a GPU that a command takes by one word, as fields of `Settings`.

single: one call at a time, behind a flush of L2.
graph: as a server replays a model: calls back to back in one CUDA graph, each on other copies of
    its inputs, so that nothing stays in L2.
"""

MOST_SAMPLES = 10**6
"""Largest number of samples of a measurement, of kernels that take turns, and of places."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a measurement is made.

    verify: first compare with the float64 reference.
    cache: state of L2 before each sample. ``flushed``, or ``rotated``: operands rotate through more
        copies than L2 holds (inputs only, never an output).
    timer: device ``events``; a CUDA ``graph`` of repeated launches, divided by their number; the
        ``wall`` clock (for the interpreter: its times say nothing about a GPU); or ``none``, for
        emulated GPUs: nothing is timed.
    warm_up_seconds: work before the first sample.
    confidence: of the median's interval.
    precision: samples are taken until the median's confidence interval is within this share of the
        median on either side.
    min_samples, max_samples, budget_seconds: limits for that.
    interleave: number of kernels that take turns.
    race: a kernel gets no more samples once it is certainly slower, by more than this share, than
        the fastest kernel that it takes turns with (O. Maron and A. Moore, Hoeffding Races, NIPS
        1993), compared by rounds. The other kernels end together, when the fastest one's median and
        their times over it are as precise as requested. 0: each kernel is measured by itself. The
        vendor's library is not part of a race. One that takes `timing.HOPELESS` times as long as
        the fastest leaves with a single sample, before the warm-up.
    places: number of copies of operands, output and code, each elsewhere in memory; rounds
        alternate between them. The place changes times, by at most 7 % so far
        (f1dfe4c6:benchmarks/places.py). There is one copy if the device has no room for more, or if
        operands are rotated.
    take: a number that distinguishes several measurements made in the same way.
    """

    verify: bool = True
    cache: Literal["flushed", "rotated"] = "flushed"
    timer: Literal["events", "graph", "wall", "none"] = "events"
    warm_up_seconds: float = 0.1
    confidence: float = 0.95
    precision: float = 0.01
    min_samples: int = 12
    max_samples: int = 200
    budget_seconds: float = 1.0
    interleave: int = 16
    race: float = 0.0
    places: int = 1
    take: int = 0

    def __post_init__(self) -> None:
        for name in ("confidence", "precision"):
            checks.number(name, getattr(self, name))
            if not 0 < getattr(self, name) < 1:
                raise BadArgument(f"{name} = {getattr(self, name)} is not between 0 and 1")
        checks.whole("max_samples", self.max_samples, 1, MOST_SAMPLES)
        checks.whole("min_samples", self.min_samples, -checks.MOST_WHOLE)
        if not 1 <= self.min_samples <= self.max_samples:
            raise BadArgument(
                f"min_samples = {self.min_samples} is not between 1 and max_samples = "
                f"{self.max_samples}"
            )
        checks.number("warm_up_seconds", self.warm_up_seconds, 0, checks.MOST_SECONDS)
        checks.positive("budget_seconds", self.budget_seconds)
        checks.number("budget_seconds", self.budget_seconds, 0, checks.MOST_SECONDS)
        checks.whole("interleave", self.interleave, 1, MOST_SAMPLES)
        checks.whole("places", self.places, 1, MOST_SAMPLES)
        checks.number("race", self.race)
        checks.whole("take", self.take)
        for name in _FLOATS:  # 1 and -0.0 become 1.0 and 0.0: equal settings have one text
            object.__setattr__(self, name, getattr(self, name) + 0.0)

    @property
    def digest(self) -> str:
        """Distinguishes ways of measuring."""
        return digest(self)

    @property
    def interpreted(self) -> Settings:
        """These settings as the interpreter applies them: the wall clock, one place."""
        return replace(self, timer="wall", places=1)

    @property
    def emulated(self) -> Settings:
        """These settings as an emulated GPU applies them: nothing is timed, one place."""
        return replace(self, timer="none", places=1)


_FLOATS = tuple(one.name for one in fields(Settings) if one.type == "float")


@dataclass(frozen=True, slots=True)
class Environment:
    """Everything that a kernel was compiled and run with and that can change a time.

    versions: of packages (``tilewright``, ``triton``, ``torch``…).
    driver: the device's driver version; ``""`` on a CPU.
    """

    versions: tuple[tuple[str, str], ...]
    driver: str = ""

    @property
    def digest(self) -> str:
        """Distinguishes environments."""
        return digest(self)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Readings of the device while samples were taken. None if there was no reading.

    clock_mhz: least and median clock of the compute units.
    temperature_c, power_w: highest.
    throttle: reasons other than the power limit.
    others: number of other processes seen on the device.

    Raises `BadArgument` for numbers that no device reports.
    """

    clock_mhz: tuple[int, int] | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle: tuple[str, ...] = ()
    others: int = 0

    def __post_init__(self) -> None:
        for clock in self.clock_mhz or ():
            checks.whole("clock_mhz", clock)
        if self.temperature_c is not None:
            checks.whole("temperature_c", self.temperature_c, -1000, 10**6)
        if self.power_w is not None:
            checks.number("power_w", self.power_w)
        checks.whole("others", self.others)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of measuring `kernel` on `problem`.

    kernel: its name.
    build: the key of its binary, which changes with its source and compiler.
    samples_us: microseconds of each sample, in the order taken.
    interval_us: the median's confidence interval.
    check: None unless verified.
    attempts: 2 if it was retried alone.
    measured_at: UTC, ISO 8601.
    seconds: its share of a worker's wall time: its own steps, failed attempts, and its part of the
        steps that it shared with other kernels.

    Raises `BadArgument` for an unknown status and for impossible numbers.
    """

    kernel: str
    problem: Any
    device: Device
    environment: Environment
    settings: Settings
    status: Status
    build: str = ""
    reason: str = ""
    samples_us: tuple[float, ...] = ()
    interval_us: tuple[float, float] = (0.0, 0.0)
    check: Check | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    flags: tuple[Flag, ...] = ()
    attempts: int = 1
    measured_at: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise BadArgument(f"status {shown(self.status)} is not one of {', '.join(STATUSES)}")
        for us in self.samples_us:
            checks.microseconds("a sample, in µs,", us)
        if self.samples_us:
            low, high = self.interval_us
            for us in self.interval_us:
                checks.microseconds("an end of the interval, in µs,", us)
            if low > high:
                raise BadArgument(f"{low} to {high} µs is not an interval: its ends are swapped")
        checks.whole("attempts", self.attempts)
        checks.number("seconds", self.seconds, 0, checks.MOST_SECONDS)

    @property
    def key(self) -> tuple[str, str, str, str, str, str]:
        """Identifies the measurement: two with one key measured the same thing."""
        return (
            self.kernel,
            self.build,
            problem_text(self.problem),
            digest(self.device),
            self.environment.digest,
            self.settings.digest,
        )

    @property
    def median_us(self) -> float:
        """The median sample, in microseconds. Raises `BadArgument` without samples."""
        if not self.samples_us:
            raise BadArgument(f"{self.kernel} was not timed: {self.status}, {self.reason}")
        return statistics.median(self.samples_us)

    @property
    def tflops(self) -> float:
        """10¹² operations a second, by the median."""
        return tflops(self.problem.flops, self.median_us)

    @property
    def gb_per_s(self) -> float:
        """10⁹ bytes a second, by the median, counting each operand once."""
        return gb_per_s(self.problem.min_bytes, self.median_us)


@lru_cache(maxsize=65536)
def problem_text(problem: Any) -> str:
    """A problem as canonical JSON: its family, then its fields by name."""
    return _canonical({"family": problem.family, **asdict(problem)})


@lru_cache(maxsize=4096)
def text(noun: Any) -> str:
    """A frozen dataclass as canonical JSON."""
    return _canonical(asdict(noun))


@lru_cache(maxsize=4096)
def digest(noun: Any) -> str:
    """16 hexadecimal digits of the SHA-256 of `text`, to distinguish such nouns."""
    return hashlib.sha256(text(noun).encode()).hexdigest()[:16]


def _canonical(value: Any) -> str:
    """JSON with a single spelling for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
