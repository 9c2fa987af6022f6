"""`Place`: where a worker runs, a GPU by its UUID or the interpreter; and the words that name some.

The parent asks a child which GPUs there are, so that it never opens one itself.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from tilewright import __version__
from tilewright.arch import arch, device
from tilewright.arch.known import devices as known_devices
from tilewright.arch.model import INTERPRETED, Device
from tilewright.arch.words import NATIVE, joined, product_of
from tilewright.arch.words import number as numbered
from tilewright.child import Child, Message
from tilewright.compile import Store
from tilewright.errors import BadArgument, NoDriver
from tilewright.jsonfile import convert
from tilewright.measure.measurement import Environment
from tilewright.plan import PLANNING_DEVICE

WORKER = "tilewright.measure.worker"
PRELOAD_VARIABLE = "TILEWRIGHT_WORKER_PRELOADS"
"""Names what a worker imports before it is asked anything: torch, on a GPU, takes seconds, which a
spare worker has."""
CPU = "cpu"
Backend = Literal["cpu", "cuda", "hip"]
_ASKED = "tilewright.arch.asked"
_ASKING_SECONDS = 120.0


class Process(Protocol):
    """A worker's process, as a `Child` is one."""

    @property
    def pid(self) -> int | None:
        """None if it is another machine's."""

    def request(self, message: Message, *, timeout: float) -> tuple[Message, list[bytes]]:
        """Its answer. Raises `ChildDied` and `ChildTimeout`."""

    def interrupt(self) -> None:
        """From any thread: end it."""

    def kill(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels are measured: the GPU with this UUID, or ``"cpu"``, the interpreter.

    device: the GPU's fingerprint; None for the interpreter, which takes any architecture's kernels.
    machine: whose it is, if not this one's.
    """

    uuid: str
    environment: Environment
    device: Device | None = None
    machine: str = ""

    def device_for(self, arch_name: str) -> Device | None:
        """What a kernel of this architecture is measured on here; None if it cannot run here."""
        if self.device is None:
            return interpreted_device(arch_name)
        return self.device if self.device.arch == arch_name else None

    @property
    def backend(self) -> Backend:
        """Whose driver the place has; ``cpu`` is the interpreter."""
        return "cpu" if self.device is None else arch(self.device.arch).backend

    @property
    def variables(self) -> dict[str, str | None]:
        """What pins a process to this place: changes to its environment, None removes one."""
        hidden = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
        if self.backend == "cpu":
            return {**hidden, "HIP_VISIBLE_DEVICES": ""}
        if self.backend == "cuda":
            return {**hidden, "CUDA_VISIBLE_DEVICES": self.uuid}
        # HIP counts among those that are left, in which torch reads CUDA's variable too.
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
    """The device that the interpreter plays: a known one of the architecture, renamed so that
    nothing takes its times for that one's."""
    known = [d for d in known_devices().values() if d.arch == arch(arch_name).name]
    if not known:
        raise BadArgument(f"no known device has architecture {arch_name}; none can be played")
    usual = device(PLANNING_DEVICE)
    played = usual if usual in known else known[0]
    return replace(played, name=f"{INTERPRETED}{played.name}")


_DRIVER_FILES = {"cuda": "/proc/driver/nvidia/version", "hip": "/sys/module/amdgpu/version"}


def environment(backend: Backend) -> Environment:
    """What kernels run with here. The driver's version is its kernel module's."""
    packages = ("triton", "numpy") if backend == "cpu" else ("triton", "torch")
    versions = {"tilewright": __version__, **{package: _version(package) for package in packages}}
    said = ""
    if backend in _DRIVER_FILES:
        with suppress(OSError):
            said = Path(_DRIVER_FILES[backend]).read_text()
    found = re.search(r"\d+\.\d+(\.\d+)*", said)
    return Environment(tuple(sorted(versions.items())), found[0] if found else "")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def interpreter_place() -> Place:
    """The interpreter."""
    return Place(CPU, environment("cpu"))


_WITHOUT = "--devices cpu takes the interpreter"


def gpus() -> list[Place]:
    """The visible GPUs of this machine, in their driver's order. Raises `NoDriver` if there
    is none, or one whose architecture no data file describes (hide it)."""
    with Child(_ASKED) as child:
        answer, _ = child.request({}, timeout=_ASKING_SECONDS)
    if "error" in answer:
        raise NoDriver(f"{answer['error']} ({_WITHOUT})")
    found = [(uuid, convert(fields, Device, "the driver")) for uuid, fields in answer["devices"]]
    return [Place(uuid, environment(arch(d.arch).backend), d) for uuid, d in found]


def parse(words: str, here: Sequence[Place] | None = None) -> list[Place]:
    """The places that `words` name.

    ``all`` or ``native``: all GPUs. A number, ``4``: the first so many. A list of GPUs, each by its
    number (``0,3``, ``cuda:3``; ``3,`` is a list of one), the beginning of its UUID (``GPU-1b2c``),
    or its product (``h200``: all that are). ``cpu``: the interpreter, also in a list, as often as
    there are to be workers. ``ray`` and ``ray:cpu``: a Ray cluster's GPUs and CPUs (see
    `cluster.places`).

    `here`: the GPUs there are, found if not given. Raises `BadArgument`, `NoDriver`, and
    `NoCluster`.
    """
    if words.partition(":")[0] == "ray":
        from tilewright.measure import cluster

        return [*cluster.places(words)]
    items = [word.strip() for word in words.split(",") if word.strip()]
    if not items:
        raise BadArgument(f"devices '{words}' names none; say all, cpu, how many, or which")
    if all(item == CPU for item in items):
        return [interpreter_place() for _ in items]
    found = list(gpus() if here is None else here)
    if not found:
        raise NoDriver(f"no GPU can be used here ({_WITHOUT})")
    if items in (["all"], [NATIVE]):
        return found
    if items[0].isdigit() and "," not in words:
        if not 1 <= (count := int(items[0])) <= len(found):
            raise BadArgument(
                f"{count} GPUs are asked for, this machine has {len(found)} "
                f"(GPU number {count} alone is '{count},')"
            )
        return found[:count]
    chosen: list[Place] = []
    for item in items:
        chosen += [interpreter_place()] if item == CPU else _called(item, found)
    twice = {p.uuid for p in chosen if p.uuid != CPU and chosen.count(p) > 1}
    if twice:
        raise BadArgument(f"devices '{words}' names {', '.join(sorted(twice))} more than once")
    return chosen


def _called(word: str, found: Sequence[Place]) -> list[Place]:
    """The GPU of this number, or whose UUID begins like this; all of this product."""
    number = int(word) if word.isdigit() else numbered(word)
    if number is not None:
        if number < len(found):
            return [found[number]]
        raise BadArgument(f"there is no GPU {number}: this machine has {len(found)}, from 0")
    product = product_of(word)
    if product and joined(product) == joined(word):
        same = [p for p in found if p.device is not None and product_of(p.device.name) == product]
        if same:
            return same
    begins = word.lower().removeprefix("gpu-")
    same = [p for p in found if p.uuid.lower().removeprefix("gpu-").startswith(begins)]
    if len(same) == 1:
        return same
    if same:
        listed = ", ".join(p.uuid for p in same)
        raise BadArgument(f"'{word}' is the beginning of {len(same)} GPUs' UUIDs ({listed})")
    raise BadArgument(f"there is no GPU '{word}' here; these are: {', '.join(map(str, found))}")
