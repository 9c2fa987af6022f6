"""`Loader`: the kernels of a config as functions on a GPU.

Config → binaries from a bundle, the store or the compiler → loaded functions, by part
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.bundle.lacking import lacks
from tilewright.bundle.shelf import OFF, Given, Shelf, installed, opened
from tilewright.candidates import Vendor
from tilewright.compile import (
    BuildReport,
    BuildResult,
    Progress,
    Store,
    UntrustedEntry,
    build,
    find,
    inspect,
)
from tilewright.compile.kernel import Kernel
from tilewright.compile.pool import TIMEOUT_SECONDS
from tilewright.errors import (
    BadArgument,
    BadFile,
    BuildFailed,
    LibraryRefused,
    NoDriver,
    NotInBundle,
    TilewrightError,
)
from tilewright.ops.library import library_of
from tilewright.plan import KEPT, Plan, live_device
from tilewright.runtime.bound import Loaded
from tilewright.runtime.driver import Driver
from tilewright.runtime.drivers import driver
from tilewright.runtime.libraries import opened as opened_library
from tilewright.runtime.offers import offered_configs
from tilewright.runtime.prepared import Prepared

if TYPE_CHECKING:
    from tilewright.emulate.device import EmulatedGpu

log = logging.getLogger("tilewright")

NOT_EMULATED = "the emulator executes kernels that are built here, and no vendor's library"


class Loader:
    """Loads kernels: on GPUs, or on an emulated one.

    bundles: kernels of these go before those of the store.
    prebuilt: only kernels of `bundles` are loaded.
    store: the store of built binaries.
    build_missing: whether to build a kernel that the store has not.
    emulated: the GPU to emulate, if it is not one of this machine.

    Thread-safe.
    """

    def __init__(
        self,
        bundles: Shelf | None,
        prebuilt: bool,
        store: Store,
        build_missing: bool,
        emulated: Device | None,
    ) -> None:
        self._bundles = bundles
        self._prebuilt = bundles if prebuilt else None
        self._store = store
        self._build_missing = build_missing
        self._emulated = emulated
        self._functions: dict[tuple[str, int], dict[str, Loaded]] = {}
        self._gpu: EmulatedGpu | None = None
        self._lock = threading.RLock()

    def loaded(self, plan: Plan, index: int) -> tuple[dict[str, Loaded], dict[Any, Prepared]]:
        """What a plan's steps run on GPU `index`: kernels by part, and what the vendor's library
        computes. Raises `BuildFailed`; `LibraryRefused` if it is the library's fault."""
        theirs = [step.theirs for step in plan.launch.steps if step.theirs is not None]
        if theirs and self._emulated:
            raise LibraryRefused(f"{plan.config.name}: {NOT_EMULATED}")
        on = self.driver(plan.device)
        ready = {one: opened_library(one.library).prepared(on, index, one) for one in theirs}
        if len(theirs) == len(plan.launch.steps):
            return {}, ready
        with self._lock:
            found = self._functions.get((plan.config.name, index))
            if found is None:
                found = self.functions(plan.config, plan.device, index)
                self._functions[plan.config.name, index] = found
        return found, ready

    def has(self, config: Any, target: Device, index: int, look_up: bool = True) -> bool:
        """Whether a kernel can be launched on GPU `index` without a compiler: it is loaded, or an
        algorithm of the vendor's library. look_up: or it is in a bundle or in the store."""
        if library_of(config) or (config.name, index) in self._functions:
            return True
        if not look_up:
            return False
        try:
            return bool(self._bundled(config, target) or find(config, target.arch, self._store))
        except UntrustedEntry:  # it is built again
            return False

    def functions(self, config: Any, target: Device, index: int) -> dict[str, Loaded]:
        """The kernels of a config, by part, with their functions, loaded anew on GPU `index`."""
        if self._emulated:
            return self._load_emulated(config, target)
        load = self.driver(target).load
        return {
            part: Loaded(kernel, load(index, binary, kernel.entry, kernel.shared))
            for part, (kernel, binary) in self.kernels(config, target).items()
        }

    def driver(self, target: Device) -> Driver:
        """The driver of a GPU, or of the emulated one."""
        return self.emulator().driver if self._emulated else driver(arch(target.arch).backend)

    def kernels(self, config: Any, target: Device) -> dict[str, tuple[Kernel, bytes]]:
        """A config's kernels and their binaries, by part: from a bundle, else from the store, else
        newly built."""
        bundle = self._shelf().find(config.name, target.arch)
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
        return {part: (kernel, self._store.read(kernel)) for part, kernel in stored.items()}

    def build(
        self,
        configs: Sequence[Any],
        target: Device,
        workers: int | None = None,
        timeout: float = TIMEOUT_SECONDS,
        progress: Progress | None = None,
    ) -> BuildReport:
        """Have all kernels of `configs` where `kernels` finds them; the rest is as in
        `compile.build`. Raises `BuildFailed` for the first that is lacking if this loader does not
        build."""
        bundled = [self._bundled(config, target) for config in configs]
        missing = [c for c, found in zip(configs, bundled, strict=True) if found is None]
        if not self._build_missing:
            for config in missing:
                self._found(config, target)
        report = build(
            [(config, target.arch) for config in missing],
            store=self._store,
            workers=workers,
            timeout=timeout,
            progress=progress,
        )
        return BuildReport((*filter(None, bundled), *report.results), report.seconds)

    def _bundled(self, config: Any, target: Device) -> BuildResult | None:
        """The result for a kernel that a bundle has, so that nothing is built."""
        bundle = None if self._emulated else self._shelf().find(config.name, target.arch)
        if bundle is None:
            return None
        why = f"is in {bundle.where}"
        return BuildResult(config, config.name, arch(target.arch), "not needed", reason=why)

    def _stored(self, config: Any, target: Device) -> dict[str, Kernel]:
        if self._build_missing:
            report = build([(config, target.arch)], store=self._store, workers=1)
            report.raise_if_failed()
            return {kernel.part: kernel for kernel in report.kernels}
        return self._found(config, target)

    def _found(self, config: Any, target: Device) -> dict[str, Kernel]:
        """A config's kernels in the store, by part. Raises `BuildFailed` if it lacks one."""
        found = find(config, target.arch, self._store)
        if found is None:
            raise BuildFailed(
                f"{config.name} for {target.arch} is not in {self._store.path}, and this "
                "dispatcher does not build; run `tilewright build` for it first"
            )
        return found

    def _shelf(self) -> Shelf:
        return installed() if self._bundles is None else self._bundles

    def emulator(self) -> EmulatedGpu:
        """The emulated GPU."""
        # NumPy is imported with it, and only when a kernel is to run.
        from tilewright.emulate.device import EmulatedGpu

        assert self._emulated is not None
        with self._lock:
            if self._gpu is None:
                self._gpu = EmulatedGpu(self._emulated)
            return self._gpu

    def _load_emulated(self, config: Any, target: Device) -> dict[str, Loaded]:
        """As `functions`. Kernels come from the store, which keeps the compiler's listings; bundles
        have none."""
        if self._prebuilt is not None:
            raise NotInBundle(
                f"{config.name} cannot be emulated from {self._prebuilt.where}, which holds no "
                "listing of it: pass build_missing=True"
            )
        gpu, store = self.emulator(), self._store
        return {
            part: gpu.load(kernel, store.read(kernel), inspect(kernel, store, "amdgcn"))
            for part, kernel in self._stored(config, target).items()
        }


def sources(
    bundle: Given | None, store: Store | None, build_missing: bool | None
) -> tuple[Shelf | None, bool]:
    """Where a dispatcher's kernels come from, by its arguments: the bundles, and whether these are
    the only candidates. Raises `BadArgument` for a store that is of no use."""
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
    return bundles, prebuilt


class Libraries(Vendor):
    """The vendors' libraries of this machine.

    refused: why none of them can be used, if so.
    """

    def __init__(self, refused: str = "") -> None:
        self.index = 0
        """The GPU whose library is asked for algorithms: that of the last call's operands."""
        self._refused = refused
        self._first = lru_cache(maxsize=KEPT)(_first_offered)  # a plan asks it twice

    def lacking(self, library: str, target: Device) -> str:
        """Where plans are made for a GPU of this machine, the library must be here too."""
        return self._refused or _lacking(library, target.arch)

    def offered(self, family: Any, problem: Any, target: Device, kind: str = "") -> Any:
        """A library answers for a GPU of this machine alone."""
        return self._first(family, problem, target, self.index, kind)


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


def _first_offered(family: Any, problem: Any, target: Device, index: int, kind: str) -> Any:
    """The config of the first algorithm that a library of this kind, or any, offers on GPU `index`,
    or why it offers none."""
    try:
        if live_device(index) != target:
            return f"the plan is for {target.name}, which is not GPU {index} here"
        this = arch(target.arch)
        on = driver(this.backend)
        configs, why = offered_configs(on, index, family, problem, this, 1, kind)
    except TilewrightError as error:
        return str(error)
    return configs[0] if configs else why


def _triton_is_here() -> bool:
    try:
        return importlib.util.find_spec("triton") is not None
    except ImportError:
        return False
