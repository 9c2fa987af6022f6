"""`Dispatcher`: from a problem, or the operands that state one, to the right kernel, launched.

    Problem → candidates (registry or bundles, rules, constraints) → selector → Plan
            → load or build → launch

Planning (`select`, `explain`, `is_supported`) needs no GPU, torch or triton. Running launches on
the GPU where the operands are, or, for CPU arrays, through Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright import arrays, capturing, ops
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.bundle.lacking import lacks
from tilewright.bundle.shelf import OFF, Given, installed, opened
from tilewright.compile import Store, build, find
from tilewright.compile.kernel import Kernel
from tilewright.errors import (
    BadArgument,
    BadFile,
    BuildFailed,
    NotInBundle,
    UnsupportedProblem,
    WrongDevice,
)
from tilewright.ops.nouns import View
from tilewright.plan import Plan, Planner, live_device
from tilewright.registry import Registry
from tilewright.runtime.bound import BoundLaunch
from tilewright.runtime.driver import driver
from tilewright.runtime.launcher import launcher
from tilewright.runtime.workspace import Workspaces
from tilewright.select import Choice
from tilewright.select.configured import Wanted
from tilewright.select.constraints import Constraints
from tilewright.tables.merge import Tables

log = logging.getLogger("tilewright")


@dataclass(frozen=True, slots=True)
class _Ready:
    """A plan that can be launched on GPU `index`."""

    plan: Plan
    bound: BoundLaunch
    index: int


class _Fast:
    """What the compiled path needs, looked up once, when a GPU is first used.

    The two private torch functions are what its public `current_stream` and `current_device`
    call; those would cost more than the launch itself.
    """

    def __init__(self) -> None:
        import torch

        native = launcher()
        self.call = native.call
        self.describe = native.describe
        self.current_stream = torch._C._cuda_getCurrentRawStream
        self.current_device = torch._C._cuda_getDevice
        self.several_gpus = torch.cuda.device_count() > 1
        self.torch = (
            self.current_stream,
            self.current_device if self.several_gpus else None,
            torch.is_grad_enabled,
            torch.cuda.is_current_stream_capturing,
        )


class _Launches:
    """Launches that are ready, by `describe`'s keys, since they were last forgotten. A call adds
    its own to those that there were when it began: if they were forgotten meanwhile, so is it."""

    def __init__(self) -> None:
        self.ready: dict[Any, _Ready] = {}
        self.known: dict[Any, Any] = {}
        """The same, as the compiled path takes them."""

    def add(self, key: Any, ready: _Ready) -> None:
        """Of several threads' the first stays, so that what is known is kept alive by `ready`."""
        self.known[key] = self.ready.setdefault(key, ready).bound.native


class Dispatcher(Planner):
    """Chooses, builds, launches.

    registry: the kernels to choose from; without one, each problem's candidates are its family's
    default space. device: the GPU to plan for, as a `Device` or the name of a known one; without
    one, the live GPU the operands are on (when planning: the first live GPU, else
    `PLANNING_DEVICE`). selector: a `Selector`; a function (problem, configs, device) → configs,
    best first; ``"tuned"``, ``"shipped"``, ``"analytical"`` or ``"first_fit"``; or several of
    these, asked in turn; by default those named, in this order. tables: what ``tuned`` reads, a
    `Table` or the path of one or of several; by default the files that ``TILEWRIGHT_TABLES`` names,
    and none without. store: where binaries are kept. build_missing: whether kernels that are
    neither in a bundle nor in the store are built when first needed; by default they are, unless a
    bundle is given. constraints: what kernels must keep to, whoever chooses (see `Constraints`).
    max_workspace: its field of that name: bytes of scratch memory that one launch may take; kernels
    that need more are not used (0: only those that need none).

    bundle: prebuilt kernels: a `Bundle`, the path of one or of several, or ``"none"``; by default
    those that ``TILEWRIGHT_BUNDLE`` names, else those that wheels of kernels installed, and none
    where a `store` is given. Their binaries are used before the store's. Of bundles given or named,
    the tables are read unless others are given, and unless `build_missing` is True, their kernels
    are the only candidates and nothing is built; so it is with installed ones where there is no
    Triton.

    Raises `BadArgument`, `BadFile`, and `StoreError` for a bundle that cannot be used.

    Thread-safe. Plans are cached until the registry changes.
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
            bundle = OFF  # the caller says where binaries come from
        bundles = opened(bundle)
        if bundles is None and build_missing is None and not _triton_is_here():
            bundles = installed()  # all that can be launched here
        prebuilt = bool(bundles) and not build_missing
        if prebuilt and store is not None:
            raise BadArgument(
                "a dispatcher that has a bundle and does not build has no use for a store: leave "
                "it out, or say build_missing=True"
            )
        super().__init__(
            registry, device, selector, max_workspace, constraints, tables, bundles, prebuilt
        )
        self.store = store or Store()
        self.build_missing = not prebuilt if build_missing is None else build_missing
        self.workspaces = Workspaces()
        self._launches = _Launches()
        self._fast: _Fast | None = None
        self._functions: dict[tuple[str, int], tuple[Kernel, Any]] = {}
        capturing.watch(self)

    def forget_launches(self) -> None:
        """Prepare every launch anew, from its plan: each call is seen once more by a capture."""
        self._launches = _Launches()

    def _forget(self) -> None:
        super()._forget()
        self.forget_launches()

    def run(
        self, op: str, *operands: Any, out: Any = None, stream: Any = None, **options: Any
    ) -> Any:
        """Compute ``op`` of the operands, into `out` if given, and return the output.

        Operands are torch tensors, NumPy arrays or DLPack objects, all in one place. On a GPU
        the work is queued on `stream` (a ``torch.cuda.Stream`` or a raw handle; by default
        torch's current stream) and the call returns at once; it may be captured in a CUDA
        graph. CPU arrays run through Triton's interpreter, slowly.

        Raises `BadArgument`, `WrongDevice`, `NoKernelFound`, `UnsupportedProblem`,
        `BuildFailed`, `LaunchFailed`, `NoDriver`.
        """
        fast = self._fast
        what = _call_of(op, options) if options else op
        if fast is not None and out is not None and what is not None:
            self._forget_if_changed()
            known, tensors = self._launches.known, (*operands, out)
            if stream is None and not fast.call(fast.torch, known, what, tensors):
                return out
            if self._run_cached(fast, what, operands, out, stream):
                return out
        return self._first_run(op, None, operands, out, stream, options)

    def run_named(
        self, name: str, *operands: Any, out: Any = None, stream: Any = None, **options: Any
    ) -> Any:
        """As `run`, with the kernel called `name` and no other. Raises `UnknownName` if there is
        none, `UnsupportedProblem` if it cannot serve these operands within the constraints."""
        what = _call_of(name, options)
        if self._fast is not None and out is not None and what is not None:
            self._forget_if_changed()
            if self._run_cached(self._fast, what, operands, out, stream):
                return out
        config = (
            self.registry.get(name).config
            if self.registry is not None
            else ops.family_of(name).parse_name(name)
        )
        return self._first_run(config.family, config, operands, out, stream, options)

    def _first_run(
        self,
        op: str,
        config: Any,
        operands: Sequence[Any],
        out: Any,
        stream: Any,
        options: dict[str, Any],
    ) -> Any:
        self._forget_if_changed()
        family, launches = ops.family(op), self._launches
        given = [arrays.adopt(x, f"operand {i}") for i, x in enumerate(operands, 1)]
        inputs = [arrays.view(x) for x in given]
        target_out = None if out is None else arrays.adopt(out, "out")
        out_view = None if target_out is None else arrays.view(target_out)
        places = {v.device for v in (*inputs, *([] if out_view is None else [out_view]))}
        if len(places) > 1:
            raise WrongDevice(f"operands are on {', '.join(sorted(places))}; move them together")
        problem = family.problem_of(inputs, out_view, options, config)
        if out_view is None:
            made = family.output(inputs, options)
            target_out = arrays.empty(made, inputs[0].device, given[0])
            out_view = arrays.view(target_out)
        views = [*inputs, out_view]
        _refuse_overlap(views)
        _refuse_gradients(given)
        if 0 in views[-1].shape:
            return target_out if out is None else out
        if views[0].device == "cpu":
            self._interpret(family, problem, config, given, target_out)
            return target_out if out is None else out
        ready = self._prepare(problem, config, _index(views[0]), views)
        if config is None:
            _tell(ready.plan)
        addresses = tuple(v.address for v in views)
        self._launch(ready, given, target_out, addresses, stream)
        if target_out is out:
            called = op if config is None else config.name
            for capture in capturing.active if config is None else ():
                capture.follow(ready.plan, ready.bound.launches)
            assert self._fast is not None
            key, _ = self._fast.describe(_call_of(called, options), (*operands, out))
            launches.add(key, ready)
        return target_out if out is None else out

    def _run_cached(
        self, fast: _Fast, what: Any, operands: Sequence[Any], out: Any, stream: Any
    ) -> bool:
        """A cached plan in a case the compiled path leaves to Python: a stream of the caller's,
        a workspace on a new stream or for a graph, another current device, an operand at a new
        address."""
        try:
            key, addresses = fast.describe(what, (*operands, out))
        except AttributeError:  # not torch's tensors, which are all this cache knows
            return False
        ready = self._launches.ready.get(key)
        if ready is not None:
            self._launch(ready, operands, out, addresses, stream)
        return ready is not None

    def _launch(
        self,
        ready: _Ready,
        operands: Sequence[Any],
        out: Any,
        addresses: tuple[int, ...],
        stream: Any,
    ) -> None:
        fast = self._fast
        assert fast is not None
        _refuse_gradients(operands)
        launch = ready.plan.launch
        elsewhere = fast.several_gpus and fast.current_device() != ready.index
        current = stream is None and not elsewhere
        if stream is None:
            stream = fast.current_stream(ready.index)
        elif not isinstance(stream, int):
            stream = stream.cuda_stream
        if launch.workspace_bytes:
            workspace = self.workspaces.address(launch, ready.bound, stream, current)
            addresses = (*addresses, workspace)
        if not ready.bound(stream, addresses, elsewhere):
            _refuse_overlap([arrays.view(x) for x in (*operands, out)])
            ready.bound(stream, addresses, elsewhere, apart=True)

    def _prepare(self, problem: Any, config: Any, index: int, views: Sequence[View]) -> _Ready:
        """A launchable plan on GPU `index`; kernels that cannot be built fall to the next."""
        target = self._live(index)
        with self._lock:
            if self._fast is None:
                self._fast = _Fast()
            if config is not None:
                plan = self._plan_of(self._named(config, problem, target), problem, target)
                kernel, function = self._function(config, target, index)
            else:
                while True:
                    plan = self._plan(problem, target)
                    try:
                        kernel, function = self._function(plan.config, target, index)
                        break
                    except BuildFailed as error:
                        log.warning("%s", error)
                        self._unbuildable[plan.config.name, target.arch] = str(error)
                        del self._plans[problem, target, None]
        this = arch(target.arch)
        sizes = [high - low for low, high in map(arrays.span, views)]
        bound = BoundLaunch(
            driver(this.backend), index, function, kernel, this.warp_size, plan.launch, sizes
        )
        return _Ready(plan, bound, index)

    def _named(self, config: Any, problem: Any, target: Device) -> Choice:
        verdict = ops.family(problem.family).supports(config, problem, arch(target.arch))
        if not verdict:
            raise UnsupportedProblem(f"{config.name} does not serve {problem}: {verdict}")
        allowed = self.constraints.allows(config, problem, target)
        if not allowed:
            raise UnsupportedProblem(
                f"{config.name} for {problem} {allowed.reason}: change the dispatcher's "
                f"{allowed.rule}, or let it choose another kernel"
            )
        return Choice(config, "name", "asked for by name")

    def _function(self, config: Any, target: Device, index: int) -> tuple[Kernel, Any]:
        """The kernel and its loaded function on GPU `index`."""
        found = self._functions.get((config.name, index))
        if found is None:
            kernel, binary = self._kernel(config, target)
            this = arch(target.arch)
            function = driver(this.backend).load(index, binary, kernel.entry, kernel.shared)
            found = self._functions[config.name, index] = (kernel, function)
        return found

    def _kernel(self, config: Any, target: Device) -> tuple[Kernel, bytes]:
        """A kernel and its binary: from a bundle, else from the store, else built."""
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
        kernel = self._stored(config, target)
        return kernel, self.store.read(kernel)

    def _stored(self, config: Any, target: Device) -> Kernel:
        if self.build_missing:
            report = build([(config, target.arch)], store=self.store, workers=1)
            report.raise_if_failed()
            return report.kernels[0]
        kernel = find(config, target.arch, self.store)
        if kernel is None:
            raise BuildFailed(
                f"{config.name} for {target.arch} is not in {self.store.path}, and this "
                "dispatcher does not build; run `tilewright build` for it first"
            )
        return kernel

    def _live(self, index: int) -> Device:
        """The fingerprint of GPU `index`; plans are made for it unless a device was named."""
        live = live_device(index)
        if self._device is None:
            return live
        if self._device.arch != live.arch:
            raise WrongDevice(
                f"this dispatcher plans for {self._device.name} ({self._device.arch}), but the "
                f"operands are on GPU {index}, a {live.name} ({live.arch})"
            )
        return self._device

    def _interpret(
        self, family: Any, problem: Any, config: Any, operands: Sequence[Any], out: Any
    ) -> None:
        from tilewright.runtime.interpreter import interpreter

        target = self.device_for_planning()
        if config is None:
            plan = self._plan(problem, target)
            _tell(plan)
        else:
            plan = self._plan_of(self._named(config, problem, target), problem, target)
        runs = family.interpreted(plan.config)
        source = family.source(runs, arch(target.arch))
        launch = plan.launch if runs == plan.config else family.launch(runs, problem, target)
        host = [arrays.to_numpy(x) for x in (*operands, out)]
        interpreter().run(source, launch, host, outputs=[len(host) - 1])


def _triton_is_here() -> bool:
    try:
        return importlib.util.find_spec("triton") is not None
    except ImportError:
        return False


@cache
def default_dispatcher() -> Dispatcher:
    """The process's dispatcher over the families' default spaces, for the live GPU of each
    call's operands."""
    return Dispatcher()


def operation(op: str) -> Callable[..., Any]:
    """A function that runs one family through the default dispatcher (``tilewright.gemm``)."""

    def call(*operands: Any, out: Any = None, stream: Any = None, **options: Any) -> Any:
        return default_dispatcher().run(op, *operands, out=out, stream=stream, **options)

    call.__name__ = call.__qualname__ = op
    call.__doc__ = (
        f"Run {op} on the operands with the kernel the default dispatcher chooses; built on first "
        "use. See `tilewright.Dispatcher.run` for what operands may be and what is raised."
    )
    return call


def _call_of(op: str, options: dict[str, Any]) -> Any:
    """What tells calls apart beside their operands: the operation, or a kernel's name, and the
    options if any; None if an option is not hashable, which no family's is."""
    try:
        hash(what := (op, *options.items()))
    except TypeError:
        return None
    return what if options else op


def _tell(plan: Plan) -> None:
    for capture in capturing.active:
        capture.saw(plan)


def _index(view: View) -> int:
    kind, _, number = view.device.partition(":")
    if kind != "cuda":
        raise WrongDevice(f"operands are on {view.device}; Tilewright runs on GPUs and the CPU")
    return int(number or 0)


def _refuse_overlap(views: Sequence[View]) -> None:
    for view in views[:-1]:
        if arrays.overlap(view, views[-1]):
            raise BadArgument("out shares memory with an operand, which the kernel also reads")


def _refuse_gradients(operands: Sequence[Any]) -> None:
    for x in operands:
        if getattr(x, "requires_grad", False):
            import torch

            if torch.is_grad_enabled():
                raise BadArgument(
                    "an operand requires a gradient, which kernels here do not record; "
                    "run under torch.no_grad() or pass x.detach()"
                )
