"""A crew without devices or processes: it answers with times made from names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from tilewright import ops
from tilewright.arch import device
from tilewright.arch.model import Device
from tilewright.compile import build_keys
from tilewright.measure.measurement import Environment, Measurement, Settings
from tilewright.measure.results import now
from tilewright.measure.statistics import median_interval
from tilewright.measure.sweep import Group
from tilewright.measure.vendor import is_vendor, vendor_build
from tilewright.tolerance import Tolerance
from tilewright.verify import Check

H200 = replace(device("h200_sxm"), name="interpreter as H200")
ENVIRONMENT = Environment((("tilewright", "0"),), "1.0")
SETTINGS = Settings(timer="wall", warm_up_seconds=0.0)
GROUP = Group(H200, ENVIRONMENT, interpreted=True)
CHECK = Check(True, 1.0, 0.5, 0.25, 0.01, 0.02, 0.1, 22.5, Tolerance(0.01, 0.001), 7, 4096)


def measurement(kernel: str, problem: Any, group: Group = GROUP, **changes: Any) -> Measurement:
    """What the crew measures: the same for the same question, at another time."""
    said = hashlib.sha256(f"{kernel} {problem} {group.device.name}".encode()).digest()
    samples = tuple(10.0 + said[0] + byte / 256 for byte in said[:12])
    build = _build(kernel, group.device.arch, group.interpreted)
    made = Measurement(
        kernel, problem, group.device, group.environment, SETTINGS, "ok",
        build=build, samples_us=samples, interval_us=median_interval(samples, 0.95), check=CHECK,
        measured_at=now(), seconds=0.01,
    )  # fmt: skip
    return replace(made, **changes)


@cache
def _build(kernel: str, arch: str, interpreted: bool) -> str:
    if is_vendor(kernel):
        return vendor_build()
    return build_keys([ops.family_of(kernel).parse_name(kernel)], arch, interpreted)[0]


class FakeCrew:
    """Measures tasks for groups; `step` is called before each, `change` may change what comes."""

    def __init__(
        self,
        *groups: Group,
        step: Callable[[], None] = lambda: None,
        change: Callable[[Measurement], Measurement] = lambda m: m,
        settings: Settings = SETTINGS,
    ) -> None:
        self.groups = groups or (GROUP,)
        self.step, self.change, self.settings = step, change, settings
        self.made: list[Measurement] = []
        self.closed = 0

    def __call__(self) -> FakeCrew:
        return self

    def run(self, tasks: Iterable[Any], known: Any = frozenset()) -> Iterator[Measurement]:
        for task in tasks:
            for group in self.groups:
                if group.device.arch != task.arch:
                    continue
                made = measurement(task.kernel, task.problem, group, settings=self.settings)
                m = self.change(made)
                if m.key not in known:
                    self.step()
                    self.made.append(m)
                    yield m

    def close(self) -> None:
        self.closed += 1

    def prepare(self) -> None:
        """Nothing has to start."""

    def measuring(self, settings: Settings) -> FakeCrew:
        """One that measures so; what it makes stands in this one's list."""
        on = settings.interpreted
        again = FakeCrew(*self.groups, step=self.step, change=self.change, settings=on)
        again.made = self.made
        return again

    def __enter__(self) -> FakeCrew:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def other(group: Group = GROUP, **changes: Any) -> Group:
    """A group of another device."""
    made: Device = replace(group.device, **{"name": "another", **changes})
    return replace(group, device=made)
