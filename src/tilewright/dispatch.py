"""`Dispatcher`: chooses and launches the right kernel for a problem, or for the operands of a call.

Problem → candidates (registry or bundles, rules, constraints) → selector → Plan
→ kernels loaded or built → launch

Planning (`select`, `explain`, `is_supported`) needs no GPU, torch or triton. A call launches on the
GPU of its operands; CPU arrays run in Triton's interpreter, or on an emulated GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tilewright import calls, capturing, garbage, ops, preparing, untuned, without_gpu
from tilewright.arch import words
from tilewright.arch.model import Device
from tilewright.arch.resolve import emulated
from tilewright.bundle.shelf import Given
from tilewright.calls import Arrays, Spoken, spoken
from tilewright.checks import flag
from tilewright.compile import Progress, Store
from tilewright.compile.pool import TIMEOUT_SECONDS
from tilewright.errors import LibraryRefused, WrongDevice
from tilewright.explain import Explanation
from tilewright.launchable import Launchable
from tilewright.loader import NOT_EMULATED, Libraries, Loader, sources
from tilewright.ops.nouns import View
from tilewright.plan import Plan, Planner
from tilewright.preparing import Preparation
from tilewright.ready import Launches, Repeatable
from tilewright.registry import Registry
from tilewright.runtime.bound import Bound, BoundLaunch
from tilewright.runtime.workspace import Workspaces
from tilewright.select.configured import Wanted
from tilewright.select.constraints import Constraints
from tilewright.select.model import GivenModels
from tilewright.standing import WAITS
from tilewright.tables.merge import Tables
from tilewright.verdict import Verdict

if TYPE_CHECKING:
    from tilewright.emulate.device import Ran


class Dispatcher:
    """Chooses, builds and launches kernels: it has a `planner` and a `loader`.

    registry: the kernels to choose from; by default, each problem's candidates are the default
    space of its family.
    device: the GPU to plan for, a `Device` or the name of a known GPU; by default the GPU of the
    operands. Planning without operands uses the first GPU of the machine, or else
    `PLANNING_DEVICE`. An emulated GPU, such as ``"emulated:mi300x"``, takes CPU arrays, and
    executes the machine code that an AMD GPU would be given.
    selector: a `Selector`; a function (problem, configs, device) → configs, best first;
    ``"tuned"``, ``"shipped"``, ``"learned"``, ``"analytical"`` or ``"first_fit"``; or several of
    these, asked in turn. The default is these five names, in this order.
    tables: the tables that ``tuned`` reads: a `Table`, or one or several paths; by default the
    files that ``TILEWRIGHT_TABLES`` names, or where it is not set those of the user's folder.
    models: the models that ``learned`` reads: `Models`, or one or several paths, of which
    ``"shipped"`` is the package's; by default those that ``TILEWRIGHT_MODELS`` names, or none.
    store: the store of built binaries.
    build_missing: whether to build a kernel that neither a bundle nor the store has when it is
    first needed; by default True without a bundle, False with one.
    waits: whether a call waits for its kernel to be built. If False, another answers meanwhile that
    needs no compiler and keeps to the constraints: torch's own call for tensors, an algorithm of
    the vendor's library, or a kernel that is built. Results of the first calls may then differ in
    their last bits from those of later calls, so calls wait in any case under the constraints
    ``deterministic`` and ``batch_invariant``, in a CUDA graph, which would keep the kernel, and on
    an emulated GPU. By default what ``TILEWRIGHT_WAITS`` says, or else True; that of
    `default_dispatcher` is False.
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

    _planner_type: ClassVar[type[Planner]] = Planner

    def __init__(
        self,
        registry: Registry | None = None,
        device: Device | str | None = None,
        *,
        selector: Wanted | None = None,
        store: Store | None = None,
        build_missing: bool | None = None,
        waits: bool | None = None,
        max_workspace: int | None = None,
        constraints: Constraints | None = None,
        tables: Tables | None = None,
        models: GivenModels | None = None,
        bundle: Given | None = None,
    ) -> None:
        bundles, prebuilt = sources(bundle, store, build_missing)
        self.emulated = isinstance(device, str) and words.emulated(device)
        """Whether calls run on an emulated GPU."""
        if isinstance(device, str) and self.emulated:
            device = emulated(device)
        libraries = Libraries(NOT_EMULATED if self.emulated else "")
        self.planner = self._planner_type(
            registry,
            device,
            selector,
            max_workspace,
            constraints,
            tables,
            bundles,
            prebuilt,
            libraries,
            models,
        )
        self.registry = registry
        self.selector = self.planner.selector
        self.constraints = self.planner.constraints
        self.store = store or Store()
        self.build_missing = not prebuilt if build_missing is None else build_missing
        on = self.device_for_planning() if self.emulated else None
        self.loader = Loader(bundles, prebuilt, self.store, self.build_missing, on)
        must_wait = self.emulated or not self.build_missing
        self.waits = must_wait or (flag(WAITS, True) if waits is None else waits)
        """Whether calls wait for kernels that have to be built."""
        self._launchable = Launchable(self.planner, self.loader, libraries)
        self.counting = False
        """Whether calls on an emulated GPU count what kernels do (`Ran.counted`)."""
        self.ran: tuple[Ran, ...] = ()
        """What the kernels of the last call on an emulated GPU did."""
        self.workspaces = Workspaces()
        self._launches = Launches(self.workspaces)
        self._version = registry.version if registry is not None else 0
        capturing.watch(self)

    def device_for_planning(self) -> Device:
        """The device that `select`, `explain` and `is_supported` plan for."""
        return self.planner.device_for_planning()

    def select(self, problem: Any, constraints: Constraints | None = None) -> Plan:
        """The plan for `problem`, under `constraints` (by default the dispatcher's). Raises
        `NoKernelFound` with the nearest misses, or `UnsupportedProblem` if even the family's
        default space has no kernel."""
        return self.planner.select(problem, constraints)

    def is_supported(self, problem: Any) -> Verdict:
        """Whether a candidate serves `problem`; if not, why the nearest one does not."""
        return self.planner.is_supported(problem)

    def explain(self, problem: Any, constraints: Constraints | None = None) -> Explanation:
        """Every candidate's fate with its reason, in the order considered; and which kernel stands
        in for the chosen one while that is being built."""
        found = self.planner.explain(problem, constraints)
        standing = (
            f"{plan.config.name} {plan.reason}"
            for plan in self.standing()
            if (plan.problem, plan.device) == (problem, found.device)
        )
        return replace(found, notes=(*found.notes, *standing))

    def standing(self) -> tuple[Plan, ...]:
        """The plans that answer calls now in place of kernels that are being built; none where
        calls wait."""
        return self._launchable.standing()

    def prepare(
        self,
        problems: Iterable[Any],
        *,
        workers: int | None = None,
        timeout: float = TIMEOUT_SECONDS,
        progress: Progress | None = None,
    ) -> Preparation:
        """Build the kernels that calls with these problems will need, side by side, so that no call
        waits for the compiler. Nothing is launched.

        problems: such as `GemmProblem`, or those of `capturing.load`.
        workers: number of compilers at once; by default one for each CPU.
        timeout: longest time to build one kernel, in seconds.
        progress: called with each result.

        Plans are for `device_for_planning`, and are kept. A kernel that cannot be built is replaced
        by the next choice, as in a call; the report has both. Raises `BuildFailed` if a kernel is
        lacking and this dispatcher does not build, and `StoreError` if the store cannot be written.
        """
        build = partial(self.loader.build, workers=workers, timeout=timeout, progress=progress)
        return preparing.prepare(self.planner, build, problems)

    def read_tables(self) -> None:
        """Read the files of tables again, which may have new rows, and forget what was chosen by
        the former ones. Raises `BadFile`."""
        self.planner.read_tables()
        self.selector = self.planner.selector
        self.forget_launches()

    def emulates(self, word: str) -> bool:
        """Whether calls run on the emulated GPU that `word` names."""
        return self.emulated and emulated(word) == self.device_for_planning()

    def forget_launches(self) -> None:
        """Forget every ready launch: the next call of each kind prepares it again from its plan, so
        that a capture sees the call."""
        former = self._launches
        self._launches = Launches(self.workspaces, former.fast)
        former.mark.forgotten = True

    def forget_recipes(self) -> None:
        """Forget how calls are repeated (`remember`, `record`), but no launch."""
        self._launches.forget_recipes()

    def _forget_if_changed(self, registry: Registry) -> None:
        version = registry.version
        if version != self._version:
            self.forget_launches()
            self._version = version

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
        Returns whether it launched; if False, nothing has happened.

        op: an operation, or a kernel's name.
        """
        if self.registry is not None:
            self._forget_if_changed(self.registry)
        launches = self._launches
        fast = launches.fast
        if fast is None or type(out) is tuple:
            return False
        return not fast.call(fast.torch, launches.known, op, (*operands, out), ())

    def run_given(
        self,
        op: str,
        operands: Sequence[Any],
        out: Any,
        stream: Any,
        options: Mapping[str, Any],
        named: bool = False,
    ) -> Any:
        """As `run`, for a caller that has the operands and the keywords packed.

        named: whether `op` is the name of a kernel (see `run_named`).
        """
        outputs = _outputs(out)
        said = spoken(op, options, len(outputs or ()))
        if said.numbers:
            options = calls.with_arrays(said, options, operands)
            said = spoken(op, options, len(outputs or ()))
        if outputs is None and stream is None and said.what is not None:
            given = (*operands, *said.named.values())
            made = self.repeat(said.what, given, said.scalars, record=False)
            if made is not None:
                return made
        if self.registry is not None:
            self._forget_if_changed(self.registry)
        try:
            done = self._launches.launched_again(said, operands, outputs, stream)
            if done is None and stream is None:
                done = self._answered_again(said, operands, outputs)
            if done is None:
                config = self.planner.config(op) if named else None
                done = self._first_run(op, config, operands, outputs, stream, said)
        except LibraryRefused as error:  # for this call's numbers
            if named:
                raise
            self._avoid(op, operands, outputs, said, error)
            return self.run_given(op, operands, out, stream, options)
        return _returned(done) if out is None else out

    def repeat(
        self,
        what: Any,
        given: tuple[Any, ...],
        scalars: tuple[Any, ...] = (),
        record: bool = True,
    ) -> Any:
        """Launch a call as an earlier one with the same signature was launched (`remember`), on
        torch's current stream. Returns the output that it makes, a tuple unless there is one, or
        None if nothing was launched.

        record: whether to record gradients, where torch wants some, as those of an earlier call
            were (`record`); if not, nothing is launched then.
        """
        if self.registry is not None:
            self._forget_if_changed(self.registry)
        launches = self._launches
        fast = launches.fast
        if fast is None:
            return None
        torch = fast.torch if record else fast.torch_unrecorded
        return fast.repeat(torch, launches.recipes, what, given, scalars)

    def signature(self, what: Any, given: tuple[Any, ...]) -> Any:
        """The key by which `repeat` knows a call with recorded gradients; None for a call that it
        does not repeat."""
        fast = self._launches.fast
        return None if fast is None else fast.signature(what, given, True)

    def split(self, name: str, given: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]] | None:
        """What `repeat` takes for a call of a function: the function's name and arguments without
        the torch tensors, and these. None if no call was launched yet, or if an argument is another
        one that may say something else although it is equal, as 1 and True are."""
        fast = self._launches.fast
        return None if fast is None else fast.split(name, given)

    def remember(self, what: Any, call: Repeatable) -> None:
        """Let `repeat` launch calls like one that was just made, if it was launched on a GPU.

        what: everything that decides the call besides `call.arrays`.
        """
        self._launches.remember(what, call)

    def record(
        self, what: Any, given: tuple[Any, ...], run: Any, arrays: tuple[Any, ...], function: Any
    ) -> None:
        """Let `repeat` launch calls like one whose gradients torch just recorded, and record them.

        what, given: as `repeat` takes them.
        run, arrays: as `repeat` takes them to launch the call alone. Nothing is kept unless it can.
        function: (scalars, outputs, arrays…) → what the recorded call returns. It is given the
            outputs as that launch makes them.
        """
        self._launches.record(what, given, run, arrays, function)

    def recipe_of(self, what: Any, given: tuple[Any, ...]) -> tuple[Any, Any, Any] | None:
        """What C++ takes to repeat a call without gradients (`torch/nodes.cpp`): a mark of the
        launches that it is of, its recipe, and functions of torch's. None if it is not repeated."""
        return self._launches.recipe_of(what, given)

    def record_alike(
        self, what: Any, given: tuple[Any, ...], known: Any, arrays: tuple[Any, ...]
    ) -> None:
        """Let `repeat` launch and record calls of `what` as those of `known`, if `given` are the
        same tensors as `arrays`."""
        self._launches.record_alike(what, given, known, arrays)

    def run_named(
        self, name: str, *operands: Any, out: Any = None, stream: Any = None, **options: Any
    ) -> Any:
        """As `run`, with the kernel called `name` and no other. Raises `UnknownName` if there is
        no such kernel, `UnsupportedProblem` if it cannot serve these operands within the
        constraints."""
        plain = stream is None and out is not None and not options
        if plain and self.launched(name, operands, out):
            return out
        return self.run_given(name, operands, out, stream, options, named=True)

    def _first_run(
        self,
        op: str,
        config: Any,
        operands: Sequence[Any],
        outputs: Sequence[Any] | None,
        stream: Any,
        said: Spoken,
    ) -> Sequence[Any]:
        family = ops.family(op if config is None else config.family)
        launches = self._launches
        given = calls.read(family, config, operands, said, outputs)
        if given.outputs and all(0 in view.shape for view in given.target_views):
            return given.outputs
        if self.emulated:
            self._emulate(family, config, given, said.scalars)
        elif given.views[0].device == "cpu":
            without_gpu.interpret(self.planner, family, config, given, said.scalars)
        else:
            index = _index(given.views[0])
            captured = self._captured(index, stream)
            waits = self.waits or captured or config is not None
            if not waits and stream is None and self.planner.torch_may_answer:
                how = self._launchable.answered(family, given, index, said.scalars)
                if how is not None:
                    launches.answer_again(said, operands, outputs, given, how)
                    _saw(how.chosen)
                    return given.outputs
            target = self.planner.live(index)
            addresses = tuple(view.address for view in given.views)
            with self._undisturbed(target) if captured else nullcontext():
                ready = self._launchable.ready(family, config, given, target, index, waits)
                if config is None:
                    _saw(ready.chosen)
                launches.launch(ready, given.inputs, given.outputs, addresses, stream, said.scalars)
            passed = outputs or given.outputs
            final = ready.plan is ready.chosen  # no other is kept, so that each call asks again
            if final and said.what is not None and _same(passed, given.outputs):
                launches.keep(
                    said, operands, passed, ready, followed=config is None, made=outputs is None
                )
            elif not final and stream is None:
                how = self._launchable.stands_in(ready, launches)
                launches.answer_again(said, operands, outputs, given, how)
        return given.outputs

    def _answered_again(
        self, said: Spoken, operands: Sequence[Any], outputs: Sequence[Any] | None
    ) -> Sequence[Any] | None:
        """The outputs of a call that was answered as an equal earlier one was, in place of a kernel
        that is still being built; None if it was not."""
        try:
            found = self._launches.answered_again(said, operands, outputs)
        except RuntimeError:  # torch refuses, and the long way says so
            return None
        if found is None:
            return None
        chosen, done = found
        _saw(chosen)
        return done

    def bound(
        self,
        problem: Any,
        operands: Sequence[Bound],
        scalars: Mapping[str, int | float],
        index: int,
        kernel: str = "",
    ) -> tuple[Plan, BoundLaunch]:
        """The plan for `problem` on GPU `index`, and its launch, for those who launch themselves.
        Its kernels are loaded, and built before that if need be.

        operands: what the launch is given the addresses of, in order.
        scalars: the numbers that a call gives, which become part of the launch.
        kernel: the name of the kernel; by default the chosen one.

        No temporary of the launch is kept zero between calls: each launch zeroes them. Raises
        `NoKernelFound`, `UnsupportedProblem`, `BuildFailed`, `LaunchFailed`, `NoDriver`.
        """
        return self._launchable.bound(problem, operands, scalars, index, kernel)

    def _avoid(
        self,
        op: str,
        operands: Sequence[Any],
        outputs: Sequence[Any] | None,
        said: Spoken,
        error: LibraryRefused,
    ) -> None:
        """Choose the algorithm of a library no more for the problem of a call that it refused."""
        given = calls.read(ops.family(op), None, operands, said, outputs)
        self._launchable.avoid(given.problem, _index(given.views[0]), error)
        self.forget_launches()

    @contextmanager
    def _undisturbed(self, target: Device) -> Iterator[None]:
        """In a graph, planning, building and loading a kernel may take seconds. Garbage that is
        collected meanwhile would invalidate the capture (`garbage`)."""
        with garbage.uncollected(), self.loader.driver(target).capture_allowed():
            yield

    def _captured(self, index: int, stream: Any) -> bool:
        """Whether a CUDA graph captures a call on this stream."""
        on = self.loader.driver(self.planner.live(index))
        with on.current(index):
            return bool(on.capture(self._launches.stream_of(index, stream)))

    def _emulate(
        self, family: Any, config: Any, given: Arrays, scalars: Sequence[int | float | None]
    ) -> None:
        without_gpu.check_in_memory(given)
        launches, key = self._launches, (config, given.problem, given.bound)
        ready = launches.ready.get(key)
        if ready is None:
            target = self.device_for_planning()
            ready = self._launchable.ready(family, config, given, target, 0, waits=True)
            launches.add(key, ready)
        if config is None:
            capturing.saw(ready.plan)
        gpu = self.loader.emulator()
        gpu.counting = self.counting
        self.ran = without_gpu.emulate(gpu, ready, family, given, scalars)
        without_gpu.refuse_findings(given.problem, self.ran)


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


def _saw(plan: Plan) -> None:
    """Tell those who listen of a plan that was chosen for a call on a GPU."""
    capturing.saw(plan)
    untuned.saw(plan)


def _index(view: View) -> int:
    kind, _, number = view.device.partition(":")
    if kind != "cuda":
        raise WrongDevice(f"operands are on {view.device}; Tilewright runs on GPUs and the CPU")
    return int(number or 0)
