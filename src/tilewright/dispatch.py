"""`Dispatcher`: chooses and launches the right kernel for a problem, or for the operands of a call.

Problem → candidates (registry or bundles, rules, constraints) → selector → Plan
→ load or build → launch

Planning (`select`, `explain`, `is_supported`) needs no GPU, torch or triton. A call launches on the
GPU of its operands; CPU arrays run in Triton's interpreter, or on an emulated GPU.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tilewright import arrays, calls, capturing, ops
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.bundle.shelf import Given
from tilewright.calls import Arrays, Spoken, spoken
from tilewright.compile import Store
from tilewright.errors import (
    BuildFailed,
    FindingsFound,
    LibraryRefused,
    NoKernelFound,
    UnsupportedProblem,
    WrongDevice,
    listed,
)
from tilewright.loader import Loader
from tilewright.ops.nouns import View
from tilewright.plan import Plan
from tilewright.ready import Fast, Launches, Ready, Repeatable
from tilewright.registry import Registry
from tilewright.runtime.bound import BoundLaunch
from tilewright.runtime.workspace import Workspaces
from tilewright.select import Choice
from tilewright.select.configured import Wanted
from tilewright.select.constraints import Constraints
from tilewright.tables.merge import Tables

if TYPE_CHECKING:
    from tilewright.emulate.device import Ran

log = logging.getLogger("tilewright")


class Dispatcher(Loader):
    """Chooses, builds and launches kernels.

    registry: the kernels to choose from; by default, each problem's candidates are the default
    space of its family.
    device: the GPU to plan for, a `Device` or the name of a known GPU; by default the GPU of the
    operands. Planning without operands uses the first GPU of the machine, or else
    `PLANNING_DEVICE`. An emulated GPU, such as ``"emulated:mi300x"``, takes CPU arrays, and
    executes the machine code that an AMD GPU would be given.
    selector: a `Selector`; a function (problem, configs, device) → configs, best first;
    ``"tuned"``, ``"shipped"``, ``"analytical"`` or ``"first_fit"``; or several of these, asked in
    turn. The default is these four names, in this order.
    tables: the tables that ``tuned`` reads: a `Table`, or one or several paths; by default the
    files that ``TILEWRIGHT_TABLES`` names, or none.
    store: the store of built binaries.
    build_missing: whether to build a kernel that neither a bundle nor the store has when it is
    first needed; by default True without a bundle, False with one.
    constraints: requirements on every kernel, whoever chooses it (see `Constraints`).
    max_workspace: the constraint of this name: most bytes of scratch memory that one launch may
    take; 0 allows only kernels that need none.
    bundle: prebuilt kernels: a `Bundle`, one or several paths, or ``"none"``; by default the
    bundles that ``TILEWRIGHT_BUNDLE`` names, or else those of installed wheels of kernels. With a
    `store`, the default is none.

    A bundle's binaries go before the store's. The tables of a given or named bundle are read,
    unless `tables` is given. Unless `build_missing` is True, the kernels of a given or named bundle
    are the only candidates, and nothing is built. The same holds for installed bundles if Triton is
    missing.

    Raises `BadArgument`, `BadFile`, and `StoreError` for an unusable bundle.

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
        super().__init__(
            registry,
            device,
            selector=selector,
            store=store,
            build_missing=build_missing,
            max_workspace=max_workspace,
            constraints=constraints,
            tables=tables,
            bundle=bundle,
        )
        self.workspaces = Workspaces()
        self._launches = Launches()
        self._fast: Fast | None = None
        self.ran: tuple[Ran, ...] = ()
        """What the kernels of the last call on an emulated GPU did."""
        capturing.watch(self)

    def forget_launches(self) -> None:
        """Forget every ready launch: the next call of each kind prepares it again from its plan, so
        that a capture sees the call."""
        self._launches = Launches()

    def _forget(self) -> None:
        super()._forget()
        self.forget_launches()

    def run(
        self, op: str, *operands: Any, out: Any = None, stream: Any = None, **options: Any
    ) -> Any:
        """Compute ``op`` of the operands, into `out` if given, and return the output.

        operands: torch tensors, NumPy arrays or DLPack objects, all on one device.
        out: the output; for an operation with several outputs, a tuple of all of them.
        stream: a ``torch.cuda.Stream`` or a raw handle; by default torch's current stream.
        options: optional operands, scalars given at each call, and other fields of the problem. An
        option of None counts as left out. Numbers are Python's, NumPy's, or in arrays without
        dimensions; the host waits for the number in a tensor on a GPU, and none can be read while
        a graph is captured.

        On a GPU the call queues the work on the stream and returns at once; it may be captured in a
        CUDA graph. CPU arrays run in Triton's interpreter, or on this dispatcher's emulated GPU,
        slowly. An operation with several outputs returns a tuple of them.

        Raises `BadArgument`, `WrongDevice`, `NoKernelFound`, `UnsupportedProblem`, `BuildFailed`,
        `LaunchFailed`, `NoDriver`; on an emulated GPU, `FindingsFound` after the outputs are
        written.
        """
        if stream is None and out is not None and not options and self.launched(op, operands, out):
            return out
        return self.run_given(op, operands, out, stream, options)

    def launched(self, op: str, operands: Sequence[Any], out: Any) -> bool:
        """Launch a call with one output and no keywords if an equal call was launched before.
        Returns whether it launched; if False, nothing has happened."""
        fast = self._fast
        if fast is None or type(out) is tuple:
            return False
        self._forget_if_changed()
        tensors = (*operands, out)
        return not fast.call(fast.torch, self._launches.known, op, tensors, ())

    def run_given(
        self, op: str, operands: Sequence[Any], out: Any, stream: Any, options: Mapping[str, Any]
    ) -> Any:
        """As `run`, for a caller that has the operands and the keywords packed."""
        fast, outputs = self._fast, _outputs(out)
        said = spoken(op, options, len(outputs or ()))
        if said.numbers:
            options = calls.with_arrays(said, options, operands)
            said = spoken(op, options, len(outputs or ()))
        if fast is not None and said.what is not None:
            self._forget_if_changed()
            if outputs is None:
                if stream is None:
                    made = self.repeat(said.what, (*operands, *said.named.values()), said.scalars)
                    if made is not None:
                        return made
                outputs = self._like_before(fast, said, operands)
            if outputs is not None and self._run_cached(fast, said, operands, outputs, stream):
                if out is None and outputs:
                    self._repeat_later(said, operands, outputs)
                return _returned(outputs) if out is None else out
        return self._first_run(op, None, operands, out, stream, said)

    def repeat(self, what: Any, given: tuple[Any, ...], scalars: tuple[Any, ...] = ()) -> Any:
        """Launch a call as an earlier one with the same signature was launched (`remember`), on
        torch's current stream. Returns the output that it makes, a tuple unless there is one, or
        None if nothing was launched."""
        fast = self._fast
        if fast is None:
            return None
        self._forget_if_changed()
        return fast.repeat(fast.torch, self._launches.recipes, what, given, scalars)

    def remember(self, what: Any, said: Spoken, call: Repeatable) -> None:
        """Let `repeat` launch calls like one that was just made, if it was launched on a GPU.

        what: everything that decides the launch besides `call.arrays`.
        said: the keywords of the call that was launched.
        """
        fast, launches = self._fast, self._launches
        if fast is None or said.what is None:
            return
        signature = fast.signature(what, call.arrays)
        if signature is None or signature in launches.recipes:
            return
        try:
            key, _ = fast.describe(said.what, call.operands)
        except AttributeError:
            return
        ready = launches.ready.get(key)
        recipe = None if ready is None else call.recipe(fast, ready.bound.native)
        if recipe is not None:
            launches.add_recipe(signature, recipe)

    def _repeat_later(self, said: Spoken, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
        given, outputs = (*operands, *said.named.values()), tuple(outputs)
        roots = (*range(len(given)), *(-1 - i for i in range(len(outputs))))
        self.remember(said.what, said, Repeatable(given, (*given, *outputs), roots, outputs))

    def run_named(
        self, name: str, *operands: Any, out: Any = None, stream: Any = None, **options: Any
    ) -> Any:
        """As `run`, with the kernel called `name` and no other. Raises `UnknownName` if there is
        no such kernel, `UnsupportedProblem` if it cannot serve these operands within the
        constraints."""
        outputs = _outputs(out)
        said = spoken(name, options, len(outputs or ()))
        if said.numbers:
            said = spoken(name, calls.with_arrays(said, options, operands), len(outputs or ()))
        if self._fast is not None and outputs is not None and said.what is not None:
            self._forget_if_changed()
            if self._run_cached(self._fast, said, operands, outputs, stream):
                return out
        config = (
            self.registry.get(name).config
            if self.registry is not None
            else ops.family_of(name).parse_name(name)
        )
        return self._first_run(config.family, config, operands, out, stream, said)

    def _first_run(
        self, op: str, config: Any, operands: Sequence[Any], out: Any, stream: Any, said: Spoken
    ) -> Any:
        self._forget_if_changed()
        family, launches = ops.family(op), self._launches
        given = calls.read(family, config, operands, said, _outputs(out))
        result = _returned(given.outputs) if out is None else out
        if given.outputs and all(0 in view.shape for view in given.target_views):
            return result
        if self.emulated:
            self._emulate(family, config, given, said.scalars)
            return result
        if given.views[0].device == "cpu":
            self._interpret(family, config, given, said.scalars)
            return result
        ready = self._prepare(family, config, given)
        if config is None:
            _tell(ready.plan)
        addresses = tuple(view.address for view in given.views)
        self._launch(ready, given.all, addresses, stream, said.scalars)
        passed = _outputs(out) or given.outputs
        if said.what is not None and _same(passed, given.outputs):
            followed, made = config is None, out is None
            self._remember(launches, said, operands, passed, ready, followed=followed, made=made)
        return result

    def _remember(
        self,
        launches: Launches,
        said: Spoken,
        operands: Sequence[Any],
        outputs: Sequence[Any],
        ready: Ready,
        *,
        followed: bool,
        made: bool,
    ) -> None:
        """Let the next call like this one find `ready`.

        followed: captures count its launches.
        made: whether the outputs were made here, so that later calls get theirs laid out alike. An
            output that was passed may have another layout or dtype.
        """
        assert self._fast is not None
        describe, named = self._fast.describe, said.named.values()
        try:
            key, _ = describe(said.what, (*operands, *named, *outputs))
            like, _ = describe(said.what, (*operands, *named))
        except AttributeError:  # not a torch tensor: this cache knows no others
            return
        for capture in capturing.active if followed else ():
            capture.follow(ready.plan, ready.bound.launches)
        launches.add(key, ready)
        if made:
            layouts = tuple((tuple(x.shape), x.stride(), x.dtype, x.device) for x in outputs)
            launches.made.setdefault(like, layouts)

    def _like_before(
        self, fast: Fast, said: Spoken, operands: Sequence[Any]
    ) -> tuple[Any, ...] | None:
        """Outputs with the layouts that an equal earlier call made; None if there was no such
        call."""
        inputs = (*operands, *said.named.values())
        try:
            like, _ = fast.describe(said.what, inputs)
        except AttributeError:
            return None
        layouts = self._launches.made.get(like)
        if layouts is None:
            return None
        empty = fast.empty
        return tuple(
            [
                empty(shape, strides, dtype=dtype, device=place)
                for shape, strides, dtype, place in layouts
            ]
        )

    def _run_cached(
        self,
        fast: Fast,
        said: Spoken,
        operands: Sequence[Any],
        outputs: Sequence[Any],
        stream: Any,
    ) -> bool:
        """Run a ready plan; False if none is ready. The compiled path leaves some cases to this
        method: a stream of the caller, a workspace on a new stream or for a graph, another current
        device, an operand at a new address."""
        tensors = (*operands, *said.named.values(), *outputs)
        known = self._launches.known
        if stream is None and not fast.call(fast.torch, known, said.what, tensors, said.scalars):
            return True
        try:
            key, addresses = fast.describe(said.what, tensors)
        except AttributeError:  # not a torch tensor: this cache knows no others
            return False
        ready = self._launches.ready.get(key)
        if ready is not None:
            calls.refuse_gradients(tensors[: len(tensors) - len(outputs)], outputs)
            self._launch(ready, tensors, addresses, stream, said.scalars)
        return ready is not None

    def _launch(
        self,
        ready: Ready,
        tensors: Sequence[Any],
        addresses: tuple[int, ...],
        stream: Any,
        scalars: tuple[int | float | None, ...],
    ) -> None:
        fast = self._fast
        assert fast is not None
        plan, bound = ready.plan, ready.bound
        if scalars:
            family = ops.family(plan.problem.family)
            scalars = tuple(calls.scalar_values(family, plan.problem, scalars).values())
        elsewhere = fast.several_gpus and fast.current_device() != ready.index
        current = stream is None and not elsewhere
        if stream is None:
            stream = fast.current_stream(ready.index)
        elif not isinstance(stream, int):
            stream = stream.cuda_stream
        workspaces = (0, 0)
        if bound.needs_workspace:
            workspaces = self.workspaces.addresses(plan.launch, bound, stream, current)
        if not bound(stream, addresses, workspaces, scalars, elsewhere):
            calls.refuse_overlap([arrays.view(x) for x in tensors], ready.operands)
            bound(stream, addresses, workspaces, scalars, elsewhere, apart=True)
        given = zip(tensors, ready.operands, strict=True)
        arrays.note_writes(x for x, one in given if one.role != "in")

    def _prepare(self, family: Any, config: Any, given: Arrays) -> Ready:
        """A launchable plan on the GPU of the operands. If a kernel cannot be built, the next
        choice is tried."""
        problem, index = given.problem, 0 if self.emulated else _index(given.views[0])
        target = self.device_for_planning() if self.emulated else self._live(index)
        with self._lock:
            if self._fast is None and not self.emulated:
                self._fast = Fast()
            if config is not None:
                plan = self._plan_of(self._named(config, problem, target), problem, target)
                parts, products = self._loaded(plan, index)
            else:
                self._asked_of = index
                while True:
                    plan = self._plan(problem, target)
                    try:
                        parts, products = self._loaded(plan, index)
                        break
                    except BuildFailed as error:
                        log.warning("%s", error)
                        refused = isinstance(error, LibraryRefused)
                        of = problem if refused else target.arch
                        self._unbuildable[plan.config.name, of] = str(error)
                        self._plans.discard((problem, target, None))
        bound = BoundLaunch(
            self._driver(target),
            index,
            parts,
            arch(target.arch).warp_size,
            plan.launch,
            given.bound,
            tuple(family.scalars),
            family.scalar_defaults(problem),
            products,
        )
        return Ready(plan, bound, given.bound, index)

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

    def _interpret(
        self, family: Any, config: Any, given: Arrays, scalars: Sequence[int | float | None]
    ) -> None:
        from tilewright.runtime.interpreter import interpreter

        target, problem = self.device_for_planning(), given.problem
        if config is None:
            plan = self._plan(problem, target)
            _tell(plan)
        else:
            plan = self._plan_of(self._named(config, problem, target), problem, target)
        runs = family.interpreted(plan.config)
        interpreter().run(
            family.sources(runs, arch(target.arch)),
            plan.launch if runs == plan.config else family.launch(runs, problem, target),
            {name: arrays.to_numpy(x) for name, x in given.by_name.items()},
            given.written,
            scalars=calls.scalar_values(family, problem, scalars),
        )
        given.note_writes()

    def _emulate(
        self, family: Any, config: Any, given: Arrays, scalars: Sequence[int | float | None]
    ) -> None:
        if any(view.device != "cpu" for view in given.views):
            raise WrongDevice(
                f"operands are on {given.views[0].device}; an emulated GPU takes arrays in this "
                "machine's memory"
            )
        launches, key = self._launches, (config, given.problem, given.bound)
        ready = launches.ready.get(key)
        if ready is None:
            ready = self._prepare(family, config, given)
            launches.add(key, ready)
        if config is None:
            _tell(ready.plan)
        values = tuple(calls.scalar_values(family, given.problem, scalars).values())
        self.ran = self._emulator().run(
            ready.bound,
            ready.plan.launch,
            {name: arrays.to_numpy(x) for name, x in given.by_name.items()},
            given.written,
            values,
        )
        given.note_writes()
        found = tuple(text for one in self.ran for text in one.findings)
        if found:
            raise FindingsFound(f"{given.problem}, emulated: {listed(found)}", found)


def default_dispatcher() -> Dispatcher:
    """The process's dispatcher. It chooses from the families' default spaces, for the GPU of each
    call's operands.

    While ``torch.use_deterministic_algorithms`` is on, this is a second dispatcher, which chooses
    only kernels that give the same bits in every run. If there is none, it raises `NoKernelFound`;
    under ``warn_only`` it warns and takes any kernel.
    """
    if not _repeats_wanted():
        return _default()
    return _repeating(sys.modules["torch"].is_deterministic_algorithms_warn_only_enabled())


def _look_for_torch() -> bool:
    """`_repeats_wanted` until torch has been imported, which may happen at any time. The private
    name takes half of the time of the public one, at every call."""
    global _repeats_wanted
    torch = sys.modules.get("torch")
    if not hasattr(torch, "are_deterministic_algorithms_enabled"):  # it is being imported
        return False
    _repeats_wanted = torch._C._get_deterministic_algorithms  # type: ignore[union-attr]
    return _repeats_wanted()


_repeats_wanted: Callable[[], bool] = _look_for_torch


@cache
def _default() -> Dispatcher:
    return Dispatcher()


@cache
def _repeating(warn_only: bool) -> Dispatcher:
    made = _WarnOnly if warn_only else Dispatcher
    return made(constraints=Constraints(deterministic=True))


class _WarnOnly(Dispatcher):
    """A dispatcher that warns where no kernel keeps to its constraints, and takes another."""

    def _plan(self, problem: Any, target: Device, constraints: Constraints | None = None) -> Plan:
        try:
            return super()._plan(problem, target, constraints)
        except NoKernelFound as error:
            if constraints is not None:
                raise
            plan = super()._plan(problem, target, Constraints())
            warnings.warn(
                f"{plan.config.name} may give other bits in each run, and "
                f"torch.use_deterministic_algorithms is on with warn_only=True: {error}",
                stacklevel=2,
            )
            return plan


def _outputs(out: Any) -> Sequence[Any] | None:
    """The outputs that a call passes, in order; None if it passes none."""
    if out is None:
        return None
    return out if isinstance(out, tuple | list) else (out,)


def _returned(outputs: Sequence[Any]) -> Any:
    """The return value of a call: its output, a tuple of several, or None if it writes only
    inputs."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs) or None


def _same(passed: Sequence[Any], adopted: Sequence[Any]) -> bool:
    """Whether outputs are used as they were passed, not through DLPack."""
    return all(one is other for one, other in zip(passed, adopted, strict=True))


def _tell(plan: Plan) -> None:
    for capture in capturing.active:
        capture.saw(plan)


def _index(view: View) -> int:
    kind, _, number = view.device.partition(":")
    if kind != "cuda":
        raise WrongDevice(f"operands are on {view.device}; Tilewright runs on GPUs and the CPU")
    return int(number or 0)
