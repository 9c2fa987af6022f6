"""What a comparison's words mean: a kernel, a registry's choice, a store's binaries, the vendor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tilewright import arrays, ops, verify
from tilewright.arch.model import Device
from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, VerificationFailed
from tilewright.measure.vendor import VENDOR, Bind, vendor_bind
from tilewright.registry import Registry


@dataclass(frozen=True, slots=True)
class Contender:
    """One side of a comparison. `bind` takes the inputs and the output and returns a call that
    computes, and returns the result; `config` is the kernel's (None: the vendor's)."""

    label: str
    config: Any
    bind: Bind


def contender(word: str, problem: Any, device: Device, store: Store, kernel: str = "") -> Contender:
    """The contender that `word` names, for `problem` on `device`.

    ``vendor``: the vendor's library. A registry file (JSON): what it would choose. A table (.twt):
    what a dispatcher with this table runs, as it runs in production. A folder: the
    binaries of that store, and nothing built; the kernel called `kernel`, or what would be chosen.
    Else the name of a kernel. Raises `BadArgument`, `UnknownName`, `BadFile`,
    `UnsupportedProblem`.
    """
    family = ops.family(problem.family)
    if word == VENDOR:
        name, bind = vendor_bind(problem)
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
    """What `dispatcher` runs for `problem`, called as in production: it chooses."""
    family = ops.family(problem.family)
    options = family.options(problem)
    config = dispatcher.select(problem).config

    def bind(inputs: Sequence[Any], out: Any) -> Callable[[], Any]:
        return partial(dispatcher.run, family.name, *inputs, out=out, **options)

    return Contender(f"{config.name} ({label})", config, bind)


def kernel_bind(dispatcher: Dispatcher, name: str, problem: Any) -> Bind:
    """What makes calls of the kernel called `name`, and of no other, for `problem`."""
    options = ops.family(problem.family).options(problem)
    return lambda inputs, out: partial(dispatcher.run_named, name, *inputs, out=out, **options)


def verified(
    contenders: Sequence[Contender], problem: Any, seed: int, device: str
) -> list[Callable[[], Any]]:
    """Calls of the contenders on the same fresh random operands, each checked against the float64
    reference on a poisoned output first. Raises `VerificationFailed`, and `BadArgument` for the
    vendor's library on a CPU."""
    if device == "cpu" and any(c.config is None for c in contenders):
        raise BadArgument("the vendor's library runs on GPUs: compare with it on cuda:0")
    family = ops.family(problem.family)
    inputs, out = verify.make_operands(problem, seed, device)
    reference = family.reference(problem, [arrays.to_float64(x) for x in inputs])
    calls: list[Callable[[], Any]] = []
    for one in contenders:
        arrays.poison(out)
        call = one.bind(inputs, out)
        check = verify.compare(call(), reference, family.tolerance(problem, one.config))
        if not check.ok:
            raise VerificationFailed(f"{one.label} on {problem} is {check} (seed {seed})")
        calls.append(call)
    return calls
