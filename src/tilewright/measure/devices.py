"""`Place`: where a worker runs (a GPU by its UUID, the interpreter, or an emulated GPU), and the
words that name places.

The parent asks a child which GPUs exist, so the parent never opens a GPU.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from tilewright import variables
from tilewright.arch import arch, device, words
from tilewright.arch.known import devices as known_devices
from tilewright.arch.model import EMULATED, INTERPRETED, Device
from tilewright.arch.resolve import emulated
from tilewright.child import Child, Message
from tilewright.compile import Store
from tilewright.errors import BadArgument, NoDriver
from tilewright.jsonfile import convert
from tilewright.measure.measurement import Environment, Settings
from tilewright.plan import PLANNING_DEVICE
from tilewright.version import __version__, installed

WORKER = "tilewright.measure.worker"
PRELOAD_VARIABLE = variables.WORKER_PRELOADS
"""Names the modules that a worker imports before its first request. On a GPU, importing torch takes
seconds, which a spare worker has."""
CPU = "cpu"
Backend = Literal["cpu", "cuda", "hip"]
_ASKED = "tilewright.arch.asked"
_ASKING_SECONDS = 120.0


class Process(Protocol):
    """A worker's process. `Child` is one."""

    @property
    def pid(self) -> int | None:
        """None if the process is on another machine."""

    def request(self, message: Message, *, timeout: float) -> tuple[Message, list[bytes]]:
        """The worker's answer. Raises `ChildDied` and `ChildTimeout`."""

    def interrupt(self) -> None:
        """End it, from any thread."""

    def kill(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels are measured.

    uuid: the GPU's UUID, ``"cpu"`` for the interpreter, or the word for an emulated GPU.
    device: the GPU's fingerprint; None for the interpreter, which takes kernels of any
        architecture.
    machine: the name of another machine; empty for this one.
    """

    uuid: str
    environment: Environment
    device: Device | None = None
    machine: str = ""

    def device_for(self, arch_name: str) -> Device | None:
        """The device on which a kernel of this architecture is measured here; None if it cannot run
        here."""
        if self.device is None:
            return interpreted_device(arch_name)
        return self.device if self.device.arch == arch_name else None

    @property
    def backend(self) -> Backend:
        """The driver of the place; ``cpu`` is the interpreter, or an emulated GPU's."""
        return "cpu" if self.device is None or self.emulated else arch(self.device.arch).backend

    @property
    def emulated(self) -> bool:
        """Whether the GPU is an emulated one."""
        return words.emulated(self.uuid)

    def settings(self, asked: Settings) -> Settings:
        """The settings as this place applies them."""
        if self.emulated:
            return asked.emulated
        return asked.interpreted if self.device is None else asked

    @property
    def variables(self) -> dict[str, str | None]:
        """Changes to the environment that bind a process to this place; None removes a variable."""
        hidden = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
        if self.backend == "cpu":
            return {**hidden, "HIP_VISIBLE_DEVICES": ""}
        if self.backend == "cuda":
            return {**hidden, "CUDA_VISIBLE_DEVICES": self.uuid}
        # HIP numbers the GPUs that remain visible, and torch also reads CUDA's variable there.
        unset = {"HIP_VISIBLE_DEVICES": None, "CUDA_VISIBLE_DEVICES": None}
        return {**unset, "ROCR_VISIBLE_DEVICES": self.uuid}

    def start(self, store: Store) -> Process:
        """Start a worker here, for kernels of `store`."""
        preload = "" if self.backend == "cpu" else "torch"
        return Child(WORKER, {**self.variables, PRELOAD_VARIABLE: preload})

    def __str__(self) -> str:
        name = "the interpreter" if self.device is None else f"{self.device.name} ({self.uuid})"
        return f"{name} of {self.machine}" if self.machine else name


@cache
def interpreted_device(arch_name: str) -> Device:
    """The device that the interpreter plays: a known device of the architecture, renamed so that
    nobody takes its times for that device's."""
    known = [d for d in known_devices().values() if d.arch == arch(arch_name).name]
    if not known:
        raise BadArgument(f"no known device has architecture {arch_name}; none can be played")
    usual = device(PLANNING_DEVICE)
    played = usual if usual in known else known[0]
    return replace(played, name=f"{INTERPRETED}{played.name}")


_DRIVER_FILES = {"cuda": "/proc/driver/nvidia/version", "hip": "/sys/module/amdgpu/version"}


def environment(backend: Backend) -> Environment:
    """The versions that kernels run with here. The driver's version is that of its kernel
    module."""
    packages = ("triton", "numpy") if backend == "cpu" else ("triton", "torch")
    versions = {package: installed(package) or "absent" for package in packages}
    versions["tilewright"] = __version__
    said = ""
    if backend in _DRIVER_FILES:
        with suppress(OSError):
            said = Path(_DRIVER_FILES[backend]).read_text()
    found = re.search(r"\d+\.\d+(\.\d+)*", said)
    return Environment(tuple(sorted(versions.items())), found[0] if found else "")


def interpreter_place() -> Place:
    """The interpreter."""
    return Place(CPU, environment("cpu"))


def emulated_place(word: str) -> Place:
    """The emulated GPU that a word names. Its device is renamed, so that nobody takes what was seen
    of it for the device's."""
    played = emulated(word)
    renamed = replace(played, name=f"{EMULATED}{played.name}")
    return Place(word.strip().lower(), environment("cpu"), renamed)


def gpus() -> list[Place]:
    """The visible GPUs of this machine, in their driver's order. Raises `NoDriver` if there is no
    GPU, or if no data file describes the architecture of one (hide that GPU)."""
    with Child(_ASKED) as child:
        answer, _ = child.request({}, timeout=_ASKING_SECONDS)
    if "error" in answer:
        raise NoDriver(str(answer["error"]))
    found = [(uuid, convert(fields, Device, "the driver")) for uuid, fields in answer["devices"]]
    return [Place(uuid, environment(arch(d.arch).backend), d) for uuid, d in found]
