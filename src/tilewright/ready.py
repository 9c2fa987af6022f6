"""Launches that are ready: plans with their kernels loaded, found again by what a call looks like.

`dispatch` prepares them. The compiled launcher finds and launches them; Python helps it where a
call has a stream of its own, needs another workspace, or passes an operand at a new address.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tilewright import arrays, calls, capturing
from tilewright.calls import Arrays, Spoken
from tilewright.plan import KEPT, Plan
from tilewright.runtime.bound import Bound, BoundLaunch
from tilewright.runtime.launcher import launcher
from tilewright.runtime.workspace import Workspaces


@dataclass(frozen=True, slots=True)
class Ready:
    """A plan with its kernels loaded on GPU `index`, ready to launch.

    chosen: the plan of the problem: this one, or that whose kernel is being built, for which this
        one stands in.
    """

    plan: Plan
    chosen: Plan
    bound: BoundLaunch
    operands: tuple[Bound, ...]
    index: int


Layouts = tuple[tuple[Any, ...], ...]
"""Shape, strides, dtype and device of each output that a call makes."""


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """How calls that look alike are answered while the kernel of their plan is being built.

    chosen: that plan.
    under_way: whether its kernel is still being built.
    answer: (inputs, outputs, addresses, scalars): computes on the current stream.
    operands: of the problem, in the order of the arrays.
    made: outputs to make; None where they are passed.
    """

    chosen: Plan
    under_way: Callable[[], bool]
    answer: Callable[[Sequence[Any], Sequence[Any], tuple[int, ...], Sequence[Any]], None]
    operands: tuple[Bound, ...]
    made: Layouts | None = None

    def touches(self, addresses: Sequence[int]) -> bool:
        """Whether the bytes of a passed output touch another operand's."""
        spans = [
            (at, at + one.bytes, one.role != "in")
            for at, one in zip(addresses, self.operands, strict=True)
        ]
        return any(
            written and low < other_high and other_low < high
            for i, (low, high, written) in enumerate(spans)
            for j, (other_low, other_high, _) in enumerate(spans)
            if i != j
        )


class Fast:
    """Functions and objects of the compiled path, looked up once, when a GPU is first used.

    torch's public `current_stream`, `current_device` and `increment_version` call the private
    functions; the public ones would cost more than the launch itself.
    """

    def __init__(self) -> None:
        import torch

        native = launcher()
        self.call = native.call
        self.describe = native.describe
        self.repeat = native.repeat
        self.signature = native.signature
        self.split = native.split
        self.recipe = native.recipe
        self.current_stream = torch._C._cuda_getCurrentRawStream
        self.current_device = torch._C._cuda_getDevice
        self.empty = torch.empty_strided
        self.is_capturing = torch.cuda.is_current_stream_capturing
        self.several_gpus = torch.cuda.device_count() > 1
        self.torch = (
            self.current_stream,
            self.current_device if self.several_gpus else None,
            torch.is_grad_enabled,
            torch.cuda.is_current_stream_capturing,
            torch._C._increment_version,
            torch._C._functorch.peek_interpreter_stack,
        )
        self.torch_unrecorded = (*self.torch[:-1], bool)
        """For calls whose gradients are not recorded: as if a transform were always at work."""


class Mark:
    """Says of `Launches`, to C++ that holds a recipe of theirs, whether others took their place."""

    forgotten = False


class Launches:
    """The ready launches, by `describe`'s keys, since the last `Dispatcher.forget_launches`. A call
    keeps the instance that it found at its start: if launches are forgotten during the call, its
    own launch is forgotten too.

    At most `KEPT` launches are kept. Beyond, the least recently used quarter is dropped. The native
    launcher stamps each launch at use, so a call spends no time on this.

    workspaces: the scratch memory of launches.
    fast: the compiled path; None until a GPU is used. Until then nothing is found.
    """

    def __init__(self, workspaces: Workspaces, fast: Fast | None = None) -> None:
        self.workspaces = workspaces
        self.fast = fast
        self.ready: dict[Any, Ready] = {}
        self.known: dict[Any, Any] = {}
        """The launches of `ready`, in the form that the compiled path takes."""
        self.meanwhile: dict[Any, Meanwhile] = {}
        """How calls are answered whose kernels are being built."""
        self.made: dict[Any, Layouts] = {}
        """Layouts of the outputs to make for a call, by a key of its inputs."""
        self.recipes: dict[Any, Any] = {}
        """How calls that make their outputs are repeated, by their signatures (see repeat.h)."""
        self.mark = Mark()
        self._lock = threading.Lock()

    def remember(self, what: Any, call: Repeatable) -> None:
        """As `Dispatcher.remember`."""
        fast = self.fast
        if fast is None:
            return
        signature = fast.signature(what, call.arrays)
        if signature is None or signature in self.recipes:
            return
        found = []
        for one in call.launches:
            ready = None
            if one.what is not None:
                ready, _ = self._found(fast, one.what, one.operands)
            if ready is None:
                return
            found.append(ready.bound.native)
        self._add_recipe(signature, call.recipe(fast, found))

    def record(
        self, what: Any, given: tuple[Any, ...], run: Any, arrays: tuple[Any, ...], function: Any
    ) -> None:
        """As `Dispatcher.record`."""
        fast = self.fast
        if fast is None:
            return
        signature = fast.signature(what, given, True)
        if signature is None or signature in self.recipes:
            return
        recipe = self.recipes.get(fast.signature(run, arrays))
        if recipe is not None:
            self._add_recipe(signature, (recipe, function))

    def record_alike(
        self, what: Any, given: tuple[Any, ...], known: Any, arrays: tuple[Any, ...]
    ) -> None:
        """As `Dispatcher.record_alike`."""
        fast = self.fast
        if fast is None or len([x for x in given if x is not None]) != len(arrays):
            return
        if all(x is y for x, y in zip(given, arrays, strict=False)):
            found = self.recipes.get(fast.signature(known, arrays, True))
            signature = fast.signature(what, given, True)
            if found is not None and signature is not None:
                self._add_recipe(signature, found)

    def recipe_of(self, what: Any, given: tuple[Any, ...]) -> tuple[Mark, Any, Any] | None:
        """As `Dispatcher.recipe_of`."""
        fast = self.fast
        signature = None if fast is None else fast.signature(what, given)
        found = None if signature is None else self.recipes.get(signature)
        return None if fast is None or found is None else (self.mark, found, fast.torch)

    def forget_recipes(self) -> None:
        """Forget how calls are repeated: the next like each goes the long way."""
        with self._lock:
            self.recipes.clear()

    def _add_recipe(self, signature: Any, recipe: Any) -> None:
        """recipe: None for a call that has none."""
        with self._lock:
            if len(self.recipes) >= KEPT:
                self.recipes.clear()
            self.recipes[signature] = recipe

    def launched_again(
        self, said: Spoken, operands: Sequence[Any], outputs: Sequence[Any] | None, stream: Any
    ) -> Sequence[Any] | None:
        """Launch a call as an equal earlier one was launched.

        outputs: those passed; None to make some as the earlier call did.

        Returns the outputs; None if nothing was launched.
        """
        fast = self.fast
        if fast is None or said.what is None:
            return None
        inputs = (*operands, *said.named.values())
        made = self._like_before(fast, said.what, inputs) if outputs is None else outputs
        if made is None:
            return None
        tensors = (*inputs, *made)
        if stream is not None or fast.call(
            fast.torch, self.known, said.what, tensors, said.scalars
        ):
            ready, addresses = self._found(fast, said.what, tensors)
            if ready is None:
                return None
            self.launch(ready, inputs, made, addresses, stream, said.scalars)
        if outputs is None and made:
            roots = (*range(len(inputs)), *(-1 - i for i in range(len(made))))
            launched = Launched(said.what, tensors, roots)
            self.remember(said.what, Repeatable(inputs, (launched,), tuple(made), len(made)))
        return made

    def answered_again(
        self, said: Spoken, operands: Sequence[Any], outputs: Sequence[Any] | None
    ) -> tuple[Plan, Sequence[Any]] | None:
        """Answer a call, on the current stream, as an equal earlier one was answered, if its kernel
        is still being built.

        outputs: those passed; None to make some as the earlier call did.

        Returns the plan of that kernel, and the outputs; None if nothing was done. Raises
        `RuntimeError` where torch refuses.
        """
        fast = self.fast
        if not self.meanwhile or fast is None or said.what is None:
            return None
        inputs = (*operands, *said.named.values())
        try:
            key, addresses = fast.describe(said.what, (*inputs, *(outputs or ())))
        except AttributeError:  # not a torch tensor: this cache knows no others
            return None
        found = self.meanwhile.get(key)
        if found is None:
            return None
        if not found.under_way():
            self.meanwhile.pop(key, None)
            return None
        if fast.is_capturing():
            return None
        if outputs is not None and found.touches(addresses):
            return None
        calls.refuse_gradients(inputs, outputs or ())
        if outputs is None:
            assert found.made is not None
            empty = fast.empty
            outputs = [empty(*size, dtype=dtype, device=on) for *size, dtype, on in found.made]
            addresses = (*addresses, *[x.data_ptr() for x in outputs])
        found.answer(inputs, outputs, addresses, said.scalars)
        return found.chosen, outputs

    def answer_again(
        self,
        said: Spoken,
        operands: Sequence[Any],
        outputs: Sequence[Any] | None,
        given: Arrays,
        how: Meanwhile,
    ) -> None:
        """Let `answered_again` answer calls like one that was just answered.

        outputs: those passed; None if the call made some. given: its arrays.
        """
        passed = (*operands, *said.named.values(), *(outputs or ()))
        if self.fast is None or said.what is None:
            return
        if not all(one is other for one, other in zip(passed, given.all, strict=False)):
            return  # used through DLPack
        try:
            key, _ = self.fast.describe(said.what, passed)
        except AttributeError:  # not a torch tensor: this cache knows no others
            return
        if outputs is None:
            how = replace(how, made=_layouts(given.outputs))
        with self._lock:
            if len(self.meanwhile) >= KEPT:
                self.meanwhile.clear()
            self.meanwhile[key] = how

    def stream_of(self, index: int, stream: Any) -> int:
        """The handle of a caller's stream, or of torch's current one on GPU `index` for None."""
        if stream is None:
            self.fast = self.fast or Fast()
            handle: int = self.fast.current_stream(index)
            return handle
        return stream if isinstance(stream, int) else int(stream.cuda_stream)

    def launch(
        self,
        ready: Ready,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        addresses: tuple[int, ...],
        stream: Any,
        scalars: tuple[int | float | None, ...],
    ) -> None:
        """Launch a ready plan on arrays at these addresses, with all that the compiled path leaves
        to Python: a stream of the caller, a workspace on a new stream or for a graph, another
        current device, an operand at a new address."""
        calls.refuse_gradients(inputs, outputs)
        fast = self.fast = self.fast or Fast()
        bound, tensors = ready.bound, (*inputs, *outputs)
        elsewhere = fast.several_gpus and fast.current_device() != ready.index
        current = stream is None and not elsewhere
        stream = self.stream_of(ready.index, stream)
        workspaces = (0, 0)
        if any(bound.workspace):
            workspaces = self.workspaces.addresses(bound.workspace, bound, stream, current)
        if not bound(stream, addresses, workspaces, scalars, elsewhere):
            calls.refuse_overlap([arrays.view(x) for x in tensors], ready.operands)
            bound(stream, addresses, workspaces, scalars, elsewhere, apart=True)
        given = zip(tensors, ready.operands, strict=True)
        arrays.note_writes(x for x, one in given if one.role != "in")

    def keep(
        self,
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
        assert self.fast is not None
        describe, named = self.fast.describe, said.named.values()
        try:
            key, _ = describe(said.what, (*operands, *named, *outputs))
            like, _ = describe(said.what, (*operands, *named))
        except AttributeError:  # not a torch tensor: this cache knows no others
            return
        for capture in capturing.active if followed else ():
            capture.follow(ready.plan, ready.bound.launches)
        self.add(key, ready)
        if made:
            self.made.setdefault(like, _layouts(outputs))

    def add(self, key: Any, ready: Ready) -> None:
        """Add a launch. If several threads add one, the first stays: `ready` keeps the known launch
        alive."""
        with self._lock:
            self.known[key] = self.ready.setdefault(key, ready).bound.native
            if len(self.ready) > KEPT:
                self._drop()

    def _drop(self) -> None:
        oldest = sorted(self.ready.items(), key=lambda item: item[1].bound.last_used())
        for key, _ in oldest[: len(oldest) - KEPT * 3 // 4]:
            self.known.pop(key, None)
            del self.ready[key]
        if len(self.made) > KEPT:
            self.made.clear()
        self.recipes.clear()  # they keep their launches; the next call like each makes it again

    def _found(
        self, fast: Fast, what: Any, tensors: Sequence[Any]
    ) -> tuple[Ready | None, tuple[int, ...]]:
        """The launch of an equal earlier call, if there was one, and where the arrays are."""
        try:
            key, addresses = fast.describe(what, tensors)
        except AttributeError:  # not a torch tensor: this cache knows no others
            return None, ()
        return self.ready.get(key), addresses

    def _like_before(
        self, fast: Fast, what: Any, inputs: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Outputs with the layouts that an equal earlier call made; None if there was no such
        call."""
        try:
            like, _ = fast.describe(what, inputs)
        except AttributeError:
            return None
        layouts = self.made.get(like)
        if layouts is None:
            return None
        empty = fast.empty
        return tuple([empty(*size, dtype=dtype, device=on) for *size, dtype, on in layouts])


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch of a call.

    what: everything that decides the launch besides its operands (`Spoken.what`).
    operands: those of the launch, in its order, outputs included.
    roots: of each operand, the number of the array that it is a view of; -1, -2, … for an output
        that the call makes, in their order.
    """

    what: Any
    operands: tuple[Any, ...]
    roots: Sequence[int]


@dataclass(frozen=True, slots=True)
class Repeatable:
    """A call whose like may be repeated without its Python code.

    arrays: what the call is given: tensors, or None for one that is not there.
    launches: one, or several in the order in which they were queued.
    made: the outputs that the call makes, those returned as they are returned, perhaps in another
        shape.
    returned: how many of them are returned, the first.

    Shapes, strides and dtypes of the arrays must decide everything else about the operands and what
    is returned.
    """

    arrays: tuple[Any, ...]
    launches: tuple[Launched, ...]
    made: tuple[Any, ...]
    returned: int

    def recipe(self, fast: Fast, found: Sequence[Any]) -> Any:
        """The recipe of such calls, for the launcher; None if an operand is no view of its array,
        but a copy.

        found: the launcher's records of the launches.
        """
        parts = []
        for native, one in zip(found, self.launches, strict=True):
            sources = self._sources(one)
            if sources is None:
                return None
            parts.append((native, sources))
        return fast.recipe(tuple(parts), tuple(map(_maker, self.made)), self.returned)

    def _sources(self, one: Launched) -> tuple[tuple[int, int, int], ...] | None:
        if len(one.roots) != len(one.operands):
            return None
        sources = []
        for operand, root in zip(one.operands, one.roots, strict=True):
            base = self.made[-root - 1] if root < 0 else self.arrays[root]
            if base is None or _storage(base) != _storage(operand):
                return None
            address = operand.data_ptr()
            offset = address - base.data_ptr()
            if root < 0 and (offset or _bytes(base) != _bytes(operand)):
                return None
            sources.append((root, offset, address))
        return tuple(sources)


def _layouts(outputs: Sequence[Any]) -> Layouts:
    return tuple((tuple(x.shape), x.stride(), x.dtype, x.device) for x in outputs)


def _storage(tensor: Any) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


def _bytes(tensor: Any) -> int:
    low, high = arrays.span(arrays.view(tensor))
    return high - low


def _maker(like: Any) -> tuple[Any, tuple[Any, ...]]:
    """A function and its arguments that make a tensor of this layout.

    torch's compiled code calls the private function, which takes half of the time of the public
    one. Both make the tensor on the current device, which the launcher has seen to be the right
    one.
    """
    import torch

    shape, strides, place = tuple(like.shape), like.stride(), like.device
    make = getattr(torch._C._dynamo.guards, f"_empty_strided_{place.type}", None)
    if make is None:
        return partial(torch.empty_strided, dtype=like.dtype, device=place), (shape, strides)
    return make, (shape, strides, like.dtype)
