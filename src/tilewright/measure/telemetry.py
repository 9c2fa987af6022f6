"""Readings of a device while it is measured: clocks, temperature, power, throttling, and whether
somebody else uses it too.

NVIDIA's are read through NVML, by the package nvidia-ml-py (the extra ``tune``). Without the
package, and on AMD, nothing is read and the fields are None.
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

# NVML's nvmlClocksEventReason… and nvmlClocksThrottleReason… bits, except harmless ones: idle,
# clocks set by a user, and the power limit, which large products always reach.
REASONS = {
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}


class Monitor:
    """Reads one device. Call `read` while it works, then `take` for the readings since the last
    `take`.

    uuid: NVML's for the device, or ``""`` if the device cannot be read.
    nvml: replaces the module ``pynvml`` in tests.
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
        """Take one reading of everything except processes; about a millisecond."""
        if self._handle is None:
            return
        n, handle = self._nvml, self._handle
        # Separately, because partitions and some products refuse some of them.
        with suppress(n.NVMLError):
            self._clocks.append(n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM))
        with suppress(n.NVMLError):
            self._temperatures.append(n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU))
        with suppress(n.NVMLError):
            self._powers.append(n.nvmlDeviceGetPowerUsage(handle) / 1e3)
        with suppress(n.NVMLError):
            self._reasons |= n.nvmlDeviceGetCurrentClocksThrottleReasons(handle)

    def take(self) -> Telemetry:
        """The readings since the last call, and the processes on the device now."""
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
        """Processes that compute on the device, minus one: this process is among them, though in a
        container not always under its own number. No other one is ours, because a device has one
        worker and its parent opens no device."""
        return 0 if self._handle is None else max(0, _processes(self._nvml, self._handle) - 1)


def _processes(nvml: Any, handle: Any) -> int:
    """How many processes compute on the device; 0 if it does not say."""
    try:
        return len({p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)})
    except nvml.NVMLError:
        return 0


def say_if_shared(uuid: str, device: str) -> None:
    """Warn if somebody computes on the device. Call it before our worker starts, from a process
    that does not use the device; NVML does not open it."""
    known = _nvml()
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
    """The marks of samples taken while `seen` was read."""
    marks: tuple[tuple[Flag, bool], ...] = (
        ("throttled", bool(seen.throttle)),
        ("contended", seen.others > 0),
        ("unsettled", not settled),
        ("late", late),
    )
    return tuple(flag for flag, is_so in marks if is_so)


def say_if_blind() -> None:
    """Warn once in a process that NVIDIA's devices are not read."""
    if importlib.util.find_spec("pynvml") is None:
        _say_blind()


@cache
def _say_blind() -> None:
    log.warning(
        "clocks, temperature, power, throttling and other users of the GPU are not read; "
        "pip install 'tilewright[tune]' enables this"
    )


@cache
def _nvml() -> Any:
    """The module, initialised; None if that fails."""
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
