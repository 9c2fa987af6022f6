"""`Loader`: the kernels of a config as functions on a GPU.

Config → binaries from a bundle, the store or the compiler → loaded functions, by part
"""

from __future__ import annotations

import importlib.util
import logging
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from tilewright.arch import arch, words
from tilewright.arch.model import Device
from tilewright.arch.resolve import emulated
from tilewright.bundle.lacking import lacks
from tilewright.bundle.shelf import OFF, Given, installed, opened
from tilewright.compile import Store, build, find, inspect
from tilewright.compile.kernel import Kernel
from tilewright.errors import (
    BadArgument,
    BadFile,
    BuildFailed,
    LibraryRefused,
    NoDriver,
    NotInBundle,
    TilewrightError,
    WrongDevice,
)
from tilewright.plan import KEPT, Plan, Planner, live_device
from tilewright.registry import Registry
from tilewright.runtime.blaslt import Prepared
from tilewright.runtime.bound import Loaded
from tilewright.runtime.driver import Driver
from tilewright.runtime.drivers import driver
from tilewright.runtime.libraries import opened as opened_library
from tilewright.runtime.libraries import present
from tilewright.runtime.offers import offered_configs
from tilewright.select.configured import Wanted
from tilewright.select.constraints import Constraints
from tilewright.tables.merge import Tables

if TYPE_CHECKING:
    from tilewright.emulate.device import EmulatedGpu

log = logging.getLogger("tilewright")

_NOT_EMULATED = "the emulator executes kernels that are built here, and no vendor's library"


class Loader(Planner):
    """Chooses kernels, and loads them: on GPUs, or on an emulated one if `device` names it.
    `Dispatcher` adds launching, and documents the parameters.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        device: Device | str | None = None,
        *,
        selector: Wanted | None = None,
        store: Store | None = None,
        build_missing: bool | None = None,
        max_workspace: int | None = None,
        constraints: Constraints | None = None,
        tables: Tables | None = None,
        bundle: Given | None = None,
    ) -> None:
        if bundle is None and store is not None:
            bundle = OFF  # the caller names the source of binaries
        bundles = opened(bundle)
        if bundles is None and build_missing is None and not _triton_is_here():
            bundles = installed()  # without Triton, only these can be launched
        prebuilt = bool(bundles) and not build_missing
        if prebuilt and store is not None:
            raise BadArgument(
                "a dispatcher that has a bundle and does not build has no use for a store: leave "
                "it out, or pass build_missing=True"
            )
        on_emulator = isinstance(device, str) and words.emulated(device)
        if isinstance(device, str) and on_emulator:
            device = emulated(device)
        super().__init__(
            registry, device, selector, max_workspace, constraints, tables, bundles, prebuilt
        )
        self.store = store or Store()
        self.build_missing = not prebuilt if build_missing is None else build_missing
        self.emulated = on_emulator
        """Whether calls run on an emulated GPU."""
        self.counting = False
        """Whether calls on an emulated GPU count what kernels do (`Ran.counted`)."""
        self._asked_of = 0
        """The GPU whose library is asked for algorithms: that of the last call's operands."""
        self._first_of_library = lru_cache(maxsize=KEPT)(_first_offered)  # a plan asks it twice
        self._functions: dict[tuple[str, int], dict[str, Loaded]] = {}
        self._gpu: EmulatedGpu | None = None

    def _function(self, config: Any, target: Device, index: int) -> dict[str, Loaded]:
        """The kernels of a config, by part, with their functions loaded on GPU `index`."""
        found = self._functions.get((config.name, index))
        if found is None and self.emulated:
            found = self._load_emulated(config, target)
        if found is None:
            load = self._driver(target).load
            found = {
                part: Loaded(kernel, load(index, binary, kernel.entry, kernel.shared))
                for part, (kernel, binary) in self._kernels(config, target).items()
            }
        self._functions[config.name, index] = found
        return found

    def _loaded(self, plan: Plan, index: int) -> tuple[dict[str, Loaded], dict[Any, Prepared]]:
        """What a plan's steps run on GPU `index`: kernels by part, and what the vendor's library
        computes. Raises `BuildFailed`; `LibraryRefused` if it is the library's fault."""
        theirs = [step.matmul for step in plan.launch.steps if step.matmul is not None]
        if theirs and self.emulated:
            raise LibraryRefused(f"{plan.config.name}: {_NOT_EMULATED}")
        on = self._driver(plan.device)
        ready = {one: opened_library(one.library).prepared(on, index, one) for one in theirs}
        if len(theirs) == len(plan.launch.steps):
            return {}, ready
        return self._function(plan.config, plan.device, index), ready

    def _lacking(self, library: str, target: Device) -> str:
        """Where plans are made for a GPU of this machine, the library must be here too."""
        return _NOT_EMULATED if self.emulated else _lacking(library, target.arch)

    def _offered(self, family: Any, problem: Any, target: Device) -> Any:
        """The library answers for a GPU of this machine alone."""
        return self._first_of_library(family, problem, target, self._asked_of)

    def _driver(self, target: Device) -> Driver:
        return self._emulator().driver if self.emulated else driver(arch(target.arch).backend)

    def _kernels(self, config: Any, target: Device) -> dict[str, tuple[Kernel, bytes]]:
        """A config's kernels and their binaries, by part: from a bundle, else from the store, else
        newly built."""
        bundles = installed() if self._bundles is None else self._bundles
        bundle = bundles.find(config.name, target.arch)
        if bundle is not None:
            try:
                return bundle.load(config, target.arch)
            except (BadFile, BuildFailed) as error:
                if self._prebuilt is not None:
                    raise BuildFailed(str(error)) from None
                log.warning("%s", error)
        if self._prebuilt is not None:
            raise NotInBundle(lacks(self._prebuilt, config.name, target))
        stored = self._stored(config, target)
        return {part: (kernel, self.store.read(kernel)) for part, kernel in stored.items()}

    def _stored(self, config: Any, target: Device) -> dict[str, Kernel]:
        if self.build_missing:
            report = build([(config, target.arch)], store=self.store, workers=1)
            report.raise_if_failed()
            return {kernel.part: kernel for kernel in report.kernels}
        found = find(config, target.arch, self.store)
        if found is None:
            raise BuildFailed(
                f"{config.name} for {target.arch} is not in {self.store.path}, and this "
                "dispatcher does not build; run `tilewright build` for it first"
            )
        return found

    def _live(self, index: int) -> Device:
        """The fingerprint of GPU `index`. Plans are made for it unless a device was named."""
        live = live_device(index)
        if self._device is None:
            return live
        if self._device.arch != live.arch:
            raise WrongDevice(
                f"this dispatcher plans for {self._device.name} ({self._device.arch}), but the "
                f"operands are on GPU {index}, a {live.name} ({live.arch})"
            )
        return self._device

    def emulates(self, word: str) -> bool:
        """Whether calls run on the emulated GPU that `word` names."""
        return self.emulated and emulated(word) == self.device_for_planning()

    def _emulator(self) -> EmulatedGpu:
        # NumPy is imported with it, and only when a kernel is to run.
        from tilewright.emulate.device import EmulatedGpu

        with self._lock:
            if self._gpu is None:
                self._gpu = EmulatedGpu(self.device_for_planning())
            self._gpu.counting = self.counting
            return self._gpu

    def _load_emulated(self, config: Any, target: Device) -> dict[str, Loaded]:
        """As `_function`. Kernels come from the store, which keeps the compiler's listings; bundles
        have none."""
        if self._prebuilt is not None:
            raise NotInBundle(
                f"{config.name} cannot be emulated from {self._prebuilt.where}, which holds no "
                "listing of it: pass build_missing=True"
            )
        gpu, store = self._emulator(), self.store
        return {
            part: gpu.load(kernel, store.read(kernel), inspect(kernel, store, "amdgcn"))
            for part, kernel in self._stored(config, target).items()
        }


@cache
def _lacking(library: str, arch_name: str) -> str:
    """Why this machine's GPU, if it has one of this architecture, cannot use a library; else
    ``""``."""
    try:
        if live_device(0).arch == arch_name:
            opened_library(library)
    except NoDriver:
        return ""
    except LibraryRefused as error:
        return str(error)
    return ""


def _first_offered(family: Any, problem: Any, target: Device, index: int) -> Any:
    """The config of the first algorithm that the vendor's library offers on GPU `index`, or why it
    offers none."""
    try:
        if live_device(index) != target:
            return f"the plan is for {target.name}, which is not GPU {index} here"
        this = arch(target.arch)
        on = driver(this.backend)
        configs, why = offered_configs(present(this.backend), on, index, family, problem, this, 1)
    except TilewrightError as error:
        return str(error)
    return configs[0] if configs else why


def _triton_is_here() -> bool:
    try:
        return importlib.util.find_spec("triton") is not None
    except ImportError:
        return False
