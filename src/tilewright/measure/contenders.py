"""The contenders of a comparison: a kernel, a registry's choice, a store's binaries, the vendor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilewright import arrays, calls, ops, verify
from tilewright.arch.model import Device
from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, VerificationFailed
from tilewright.measure import timing
from tilewright.measure.measurement import Method
from tilewright.measure.vendor import VENDOR, vendor_bind, vendor_names
from tilewright.ops.protocols import Bind
from tilewright.registry import Registry


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of a comparison.

    label: its name in tables.
    config: the kernel's config; None for the vendor's library.
    bind: makes calls of it.
    """

    label: str
    config: Any
    bind: Bind


def contender(word: str, problem: Any, device: Device, store: Store, kernel: str = "") -> Contender:
    """The contender that `word` names, for `problem` on `device`.

    word: ``vendor``: the vendor's library, by its usual call; or one of its calls
        (``vendor.torch.mm``). A registry file (JSON): the kernel that it would choose. A table
        (.twt): the kernel that a dispatcher with this table runs, called as in production. A
        folder: the binaries of this store, without building. Otherwise: a kernel's name.
    kernel: the kernel to take from a store; by default, the one that would be chosen.

    Raises `BadArgument`, `UnknownName`, `BadFile`, `UnsupportedProblem`.
    """
    family = ops.family(problem.family)
    if word == VENDOR or word in vendor_names(problem):
        name, bind = vendor_bind(problem, word)
        return Contender(name, None, bind)
    if Path(word).is_dir():
        kept = Store(word, trusted=store.trusted)
        only = Registry(word).register_all([family.parse_name(kernel)]) if kernel else None
        dispatcher = Dispatcher(only, device, store=kept, build_missing=False)
    elif word.endswith(".twt"):
        return dispatched(word, Dispatcher(device=device, store=store, tables=word), problem)
    elif Path(word).is_file():
        dispatcher = Dispatcher(Registry.load(word), device, store=store)
    elif word.endswith(".json") or "/" in word:
        raise BadArgument(f"there is no file or folder '{word}' to compare")
    else:
        config = family.parse_name(word)
        dispatcher = Dispatcher(Registry(word).register_all([config]), device, store=store)
    config = dispatcher.select(problem).config
    label = config.name if config.name == word else f"{config.name} ({word})"
    return Contender(label, config, kernel_bind(dispatcher, config.name, problem))


def dispatched(label: str, dispatcher: Dispatcher, problem: Any) -> Contender:
    """The kernel that `dispatcher` chooses for `problem`, called as in production."""
    config = dispatcher.select(problem).config
    bind = _bind(partial(dispatcher.run, problem.family), problem)
    return Contender(f"{config.name} ({label})", config, bind)


def kernel_bind(dispatcher: Dispatcher, name: str, problem: Any) -> Bind:
    """Makes calls of the kernel called `name`, and of no other, for `problem`."""
    return _bind(partial(dispatcher.run_named, name), problem)


def _bind(run: Callable[..., Any], problem: Any) -> Bind:
    def bind(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Callable[[], Any]:
        given, keywords = calls.positional(problem, inputs)
        out = tuple(outputs.values())
        return partial(run, *given, out=out[0] if len(out) == 1 else out or None, **keywords)

    return bind


def results(problem: Any, operands: verify.Operands, returned: Any) -> dict[str, Any]:
    """The outputs of a call, by name. The vendor's call may return memory of its own."""
    outputs = returned if isinstance(returned, tuple) else (returned,)
    names = operands.outputs
    in_place = operands.written(problem)
    return in_place | dict(zip(names, outputs, strict=True)) if names else in_place


def bytes_of(operands: Iterable[Any]) -> int:
    """Bytes of the arrays' spans; scalars have none."""
    there = [x for x in operands if not isinstance(x, int | float)]
    low_high = [arrays.span(arrays.view(x)) for x in there]
    return sum(high - low for low, high in low_high)


def prepared(
    contenders: Sequence[Contender],
    problem: Any,
    seed: int,
    on: str,
    l2_bytes: int,
    method: Method,
) -> tuple[list[Callable[[], Any]], timing.Timer]:
    """Verified calls of the contenders on the same fresh random operands, and what times them.

    on: ``cuda:0``, or ``cpu``, where calls are timed by the wall clock, whatever the method.
    l2_bytes: of the device.

    Raises the errors of `verified`.
    """
    operands = verify.operands_of(problem, seed, on)
    if on == "cpu":
        return verified(contenders, problem, seed, [operands], on), timing.Wall()
    if method == "single":
        flush = timing.flusher(l2_bytes, on)
        return verified(contenders, problem, seed, [operands], on), timing.Events(flush, on)
    count = timing.copies_to_rotate(bytes_of(operands.inputs.values()), l2_bytes)
    copies = [operands]
    for _ in range(count - 1):
        made = verify.operands_of(problem, seed, on)
        copies.append(verify.Operands(made.inputs, operands.outputs))
    timer = timing.Graphs(timing.pause, on, count)
    return verified(contenders, problem, seed, copies, on), timer


def verified(
    contenders: Sequence[Contender],
    problem: Any,
    seed: int,
    copies: Sequence[verify.Operands],
    device: str,
) -> list[Callable[[], Any]]:
    """Calls of the contenders, which take the copies of the operands in turns. Each is first
    checked against the float64 reference, on the first copy and a poisoned output. Raises
    `VerificationFailed`, and `BadArgument` for the vendor's library on a CPU.

    seed: that made the operands.
    """
    if device == "cpu" and any(c.config is None for c in contenders):
        raise BadArgument("the vendor's library runs on GPUs: compare with it on cuda:0")
    operands = copies[0]
    before = verify.snapshot(problem, operands.inputs)
    wanted = verify.reference(problem, operands.inputs)
    made: list[Callable[[], Any]] = []
    for one in contenders:
        verify.reset(operands, before)
        call = one.bind(operands.inputs, operands.outputs)
        written = results(problem, operands, call())
        check = verify.compare_all(problem, one.config, written, wanted)
        if not check.ok:
            raise VerificationFailed(f"{one.label} on {problem} is {check} (seed {seed})")
        others = [one.bind(each.inputs, each.outputs) for each in copies[1:]]
        made.append(timing.rotated([call, *others]) if others else call)
    return made
