"""What a device says of itself while it is measured: clocks, temperature, power, throttling, and
whether it is somebody else's too.

NVIDIA's through NVML, by the package nvidia-ml-py (the extra ``tune``); without it, and for AMD,
nothing is known, and the fields say so by None.
"""

from __future__ import annotations

import importlib.util
import logging
import statistics
from contextlib import suppress
from functools import cache
from typing import Any

from tilewright.measure.measurement import Flag, Telemetry

log = logging.getLogger(__name__)

# NVML's nvmlClocksEventReason… and nvmlClocksThrottleReason… bits, but for those that are not
# trouble: idle, clocks that were set, and the power limit, at which large products run.
REASONS = {
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}


class Monitor:
    """Reads one device. `read` while it works, then `take` what was seen since the last `take`.

    uuid: NVML's for the device, or ``""`` for one of which nothing can be read. nvml: a stand-in
    for the module ``pynvml``, for tests.
    """

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        self._nvml: Any = nvml or (_nvml() if uuid else None)
        self._handle: Any = None
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        self._clear()

    def _clear(self) -> None:
        self._clocks: list[int] = []
        self._temperatures: list[int] = []
        self._powers: list[float] = []
        self._reasons = 0

    def read(self) -> None:
        """One reading of all but the processes; about a millisecond."""
        if self._handle is None:
            return
        n, handle = self._nvml, self._handle
        # Each for itself: partitions and some products refuse some of them.
        with suppress(n.NVMLError):
            self._clocks.append(n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM))
        with suppress(n.NVMLError):
            self._temperatures.append(n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU))
        with suppress(n.NVMLError):
            self._powers.append(n.nvmlDeviceGetPowerUsage(handle) / 1e3)
        with suppress(n.NVMLError):
            self._reasons |= n.nvmlDeviceGetCurrentClocksThrottleReasons(handle)

    def take(self) -> Telemetry:
        """What was read since the last time, and who is on the device now."""
        clocks, powers = self._clocks, self._powers
        seen = Telemetry(
            clock_mhz=(min(clocks), int(statistics.median(clocks))) if clocks else None,
            temperature_c=max(self._temperatures, default=None),
            power_w=round(max(powers), 1) if powers else None,
            throttle=tuple(word for bit, word in REASONS.items() if self._reasons & bit),
            others=self._others(),
        )
        self._clear()
        return seen

    def _others(self) -> int:
        """Processes that compute on the device, less one: this process is among them, if not
        always by the number it has in its container. No other is ours: a device has one worker,
        and whoever starts it opens none."""
        return 0 if self._handle is None else max(0, _processes(self._nvml, self._handle) - 1)


def _processes(nvml: Any, handle: Any) -> int:
    """How many processes compute on the device; 0 where it does not say."""
    try:
        return len({p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)})
    except nvml.NVMLError:
        return 0


def say_if_shared(uuid: str, device: str, nvml: Any = None) -> None:
    """Warn that somebody computes on the device. Before a worker of ours is there, and from a
    process that does not use the device: NVML opens none."""
    known = nvml or _nvml()
    if known is None:
        return
    with suppress(known.NVMLError):
        count = _processes(known, known.nvmlDeviceGetHandleByUUID(uuid))
        if count:
            others = f"{count} other process{'es' * (count > 1)}"
            log.warning(
                "%s is also used by %s: times may be too long, and are marked contended",
                device,
                others,
            )


def flags(seen: Telemetry, settled: bool, late: bool) -> tuple[Flag, ...]:
    """How samples taken while `seen` are marked."""
    marks: tuple[tuple[Flag, bool], ...] = (
        ("throttled", bool(seen.throttle)),
        ("contended", seen.others > 0),
        ("unsettled", not settled),
        ("late", late),
    )
    return tuple(flag for flag, is_so in marks if is_so)


def say_if_blind() -> None:
    """Warn, once in a process, that NVIDIA's devices are not read."""
    if importlib.util.find_spec("pynvml") is None:
        _say_blind()


@cache
def _say_blind() -> None:
    log.warning(
        "clocks, temperature, power, throttling and other users of the GPU are not read: "
        "pip install 'tilewright[tune]' for that"
    )


@cache
def _nvml() -> Any:
    """The module, started; None where it cannot be."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log.warning("clocks, temperature and power are not read: NVML says %s", error)
        return None
    return nvml
