"""Every family's operation as a torch operator.

    tilewright::gemm(Tensor[] operands, str said="", Scalar[]? scalars=None) -> Tensor[]
    tilewright::gemm.out(…, *, Tensor(a!)[] out) -> ()

A call that writes operands in place has two more, which tell torch what changes:

    tilewright::gemm.outputs(Tensor[] operands, str said="", *, Scalar[]? scalars=None) -> Tensor[]
    tilewright::gemm.update(…, *, Tensor(a!)[] written) -> ()

and for the second and further operands that it writes there is

    tilewright::changed(Tensor(a!) x, Tensor[] after) -> ()

The backward pass of a call with symbolic sizes is one node, whose steps are planned when they have
become numbers:

    tilewright::gradients(str op, Tensor[] operands, Tensor[] read, Tensor[] arriving, int[] wanted,
                          str said="", Scalar[]? scalars=None) -> Tensor[]

operands: those passed by position, then those passed by keyword.
said: `Said.text`, empty where a call has no keywords.
scalars: the numbers given at the call, in the order of `Said.scalars`, then of `Said.numbers`.
outputs: arrays for the outputs of a call, with anything in them.
written: the first operand that is written in place, of the places `Said.written`, then the outputs.
    The other operands are `operands`, also others that are written in place.
read: outputs that the backward pass reads.
arriving: the gradients of the caller's outputs.
wanted: places of the operands that want a gradient.
changed: computes nothing, and tells torch that x changes, behind the tensors `after`.

An update stands between two `changed` for each further operand that it writes. A cache's keys and
values are often views of one tensor. If one node wrote both, Inductor would copy one of them at
each call, and torch 2.11 would copy it wrongly (pytorch issue 192219).

One schema serves every family, whatever its operands. It is registered with `Library` itself:
``torch.library.custom_op`` adds several microseconds to each call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch

from tilewright import calls, ops
from tilewright.default import default_dispatcher
from tilewright.errors import BadArgument
from tilewright.torch import autocast, direct, fake, gradients, sharding, subclasses
from tilewright.torch.said import Numbers, Said, read

NAMESPACE = "tilewright"
_ARGUMENTS = 'Tensor[] operands, str said="", Scalar[]? scalars=None'
_KEYS = (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.CPU)
"""Where tensors may be. HIP's are CUDA's to torch."""
_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operation's operators.

    scalars: `Launching.scalars`.
    """

    functional: Any
    out: Any
    outputs: Any
    update: Any
    scalars: tuple[str, ...]


def run(op: str, said: Said, tensors: Sequence[Any], numbers: Numbers) -> list[Any]:
    """Run an operation by its operator. Returns all outputs."""
    known, given = operator(op), list(numbers) or None
    inputs = len(tensors) - len(said.named)
    if places := ops.family(op).written(inputs, said.named):
        return in_place(op, list(tensors), replace(said, written=places).text, given, places, None)
    made: list[Any] = known.functional(list(tensors), said.text, given)
    return made


def in_place(
    op: str,
    tensors: list[Any],
    said: str,
    scalars: list[int | float] | None,
    places: Sequence[int],
    out: list[Any] | None,
) -> list[Any]:
    """Run an operation that writes the operands at `places` in place, by its operators. Returns all
    outputs, which are `out` if given. Dynamo can follow it. Raises `BadArgument` if gradients are
    wanted.

    said: `Said.text`, which says the places too.
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise BadArgument(f"{op} records no gradients where it writes an operand in place")
    own = getattr(torch.ops, NAMESPACE)
    packet = getattr(own, op)
    made = packet.outputs(tensors, said, scalars=scalars) if out is None else out
    first, further = places[0], places[1:]
    for i in further:
        own.changed(tensors[i], [])
    others = [x for i, x in enumerate(tensors) if i != first]
    packet.update(others, said, scalars, written=[tensors[first], *made])
    for i in further:
        own.changed(tensors[i], [tensors[first]])
    return made


def launch(op: str, said: Said, tensors: Sequence[Any], numbers: Numbers) -> list[Any]:
    """Run an operation by the dispatcher, unseen by torch. Returns all outputs."""
    keywords = said.keywords(tensors, numbers)
    made = default_dispatcher().run_given(op, said.positional(tensors), None, None, keywords)
    if made is None:  # all that it writes, it writes in place
        return []
    return list(made) if isinstance(made, tuple) else [made]


def again(
    op: str, said: str, tensors: list[Any], numbers: Numbers | None, record: bool = False
) -> list[Any] | None:
    """As `launch`, for a call like an earlier one; None if it has to be made by `launch`.

    said: `Said.text`.
    record: whether to record gradients where torch wants some.
    """
    what, names = _told_apart(op, said, numbers)
    given: tuple[int | float | None, ...] = ()
    if names:
        values = dict(zip(names, numbers or (), strict=False))  # options follow the scalars
        given = tuple([values.get(name) for name in calls.scalars_of(op)])
    made = default_dispatcher().repeat(what, tuple(tensors), given, record)
    if made is None:
        return None
    return list(made) if isinstance(made, tuple) else [made]


def _told_apart(op: str, said: str, numbers: Numbers | None) -> tuple[Any, tuple[str, ...]]:
    """What the dispatcher tells such calls apart by, and the scalars that they give."""
    count = len(read(said).scalars) if numbers else 0
    return _identity(op, said, tuple(numbers[count:]) if numbers else ())


@lru_cache(maxsize=1024)
def _identity(op: str, text: str, counted: Numbers) -> tuple[Any, tuple[str, ...]]:
    """What the dispatcher tells calls that say `text` apart by, and the scalars that they give.

    counted: the numbers of `Said.numbers`.
    """
    said = read(text)
    whole, _ = said.whole((*(0 for _ in said.scalars), *counted))
    return calls.identity(op, said.named, whole.options), said.scalars


@cache
def operator(op: str) -> Operator:
    """The operators of an operation, which are registered with torch on first use: here for the
    families that there are, later for those that a program adds. Raises `UnknownName`."""
    family = ops.family(op)
    tags = (torch.Tag.pt2_compliant_tag,)
    _LIBRARY.define(f"{op}({_ARGUMENTS}) -> Tensor[]", tags=tags)
    _LIBRARY.define(f"{op}.out({_ARGUMENTS}, *, Tensor(a!)[] out) -> ()", tags=tags)
    # Not with just the arguments of the functional one: torch confuses these two when it ends.
    arguments = _ARGUMENTS.replace("Scalar", "*, Scalar")
    _LIBRARY.define(f"{op}.outputs({arguments}) -> Tensor[]", tags=tags)
    _LIBRARY.define(f"{op}.update({_ARGUMENTS}, *, Tensor(a!)[] written) -> ()", tags=tags)
    packet = getattr(getattr(torch.ops, NAMESPACE), op)
    below_autograd = torch._C._after_autograd_keyset.raw_repr()
    plain_keys = [torch._C.DispatchKeySet(key).raw_repr() for key in _KEYS]

    def functional(
        operands: list[Any], said: str = "", scalars: list[int | float] | None = None
    ) -> list[Any]:
        made = again(op, said, operands, scalars)
        return launch(op, read(said), operands, scalars or ()) if made is None else made

    def into(
        operands: list[Any],
        said: str = "",
        scalars: list[int | float] | None = None,
        *,
        out: list[Any],
    ) -> None:
        what = read(said)
        keywords = what.keywords(operands, scalars or ())
        target = out[0] if len(out) == 1 else tuple(out)
        default_dispatcher().run_given(op, what.positional(operands), target, None, keywords)

    def outputs(
        operands: list[Any], said: str = "", *, scalars: list[int | float] | None = None
    ) -> list[Any]:
        return fake.outputs(op, read(said), operands, scalars or ())

    def update(
        operands: list[Any],
        said: str = "",
        scalars: list[int | float] | None = None,
        *,
        written: list[Any],
    ) -> None:
        what = read(said)
        tensors = what.together(operands, written[0])
        into(tensors, replace(what, written=()).text, scalars, out=written[1:])

    def recorded(
        keys: Any,
        operands: list[Any],
        said: str = "",
        scalars: list[int | float] | None = None,
    ) -> list[Any]:
        gradients.refuse_transforms(op, operands)
        plain = keys.raw_repr() & below_autograd in plain_keys
        if not plain:
            subclasses.refuse(op, operands, sharded=True)
            if any(map(sharding.is_sharded, operands)):
                sharding.register(op, packet.default)
        made = again(op, said, operands, scalars, record=True) if plain else None
        if made is not None:
            return made
        what = read(said)
        if torch.is_grad_enabled() and True in [x.requires_grad for x in operands]:
            told = _told_apart(op, said, scalars)[0] if plain else None
            how = launch if plain else run
            return list(gradients.recorded(how, op, what, operands, scalars or (), told))
        if plain:  # nothing is to be done in between, so spare another trip through torch
            return launch(op, what, operands, scalars or ())
        below = keys & torch._C._after_autograd_keyset
        what, numbers = what.settled(scalars or ())
        given = list(numbers) or None
        with subclasses.served(op, operands):
            below_made: list[Any] = packet.default.redispatch(below, operands, what.text, given)
        return below_made

    def converting(
        operands: list[Any], said: str = "", scalars: list[int | float] | None = None
    ) -> list[Any]:
        what = read(said)
        tensors = autocast.converted(op, operands, what.named, dict(what.options))
        with autocast.off():
            made: list[Any] = packet.default(list(tensors), said, scalars)
        return made

    for key in autocast.KEYS:
        _LIBRARY.impl(op, converting, key.name)

    def guarded(own: Callable[..., None], overload: Any) -> Callable[..., None]:
        """`own`, the implementation of an overload that writes, for plain tensors."""

        def call(
            keys: Any,
            operands: list[Any],
            said: str = "",
            scalars: list[int | float] | None = None,
            **written: list[Any],
        ) -> None:
            if keys.raw_repr() & below_autograd in plain_keys:
                own(operands, said, scalars, **written)
                return
            tensors = (*operands, *next(iter(written.values())))
            subclasses.refuse(op, tensors)
            below = keys & torch._C._after_autograd_keyset
            with subclasses.served(op, tensors):
                overload.redispatch(below, operands, said, scalars, **written)

        return call

    for key in _KEYS:
        _LIBRARY.impl(op, functional, key.name)
        _LIBRARY.impl(f"{op}.out", into, key.name)
        _LIBRARY.impl(f"{op}.outputs", outputs, key.name)
        _LIBRARY.impl(f"{op}.update", update, key.name)
    _LIBRARY.impl(op, recorded, "Autograd", with_keyset=True)
    for one, overload in ((into, packet.out), (update, packet.update)):
        name = f"{op}.{overload._overloadname}"
        _LIBRARY.impl(name, guarded(one, overload), "Autograd", with_keyset=True)

    direct.offer(NAMESPACE, op, packet.default, functional)

    def fake_functional(
        operands: list[Any], said: str = "", scalars: list[int | float] | None = None
    ) -> list[Any]:
        direct.tell_inductor()
        return fake.outputs(op, replace(read(said), written=()), operands, scalars or ())

    def fake_into(
        operands: list[Any],
        said: str = "",
        scalars: list[int | float] | None = None,
        *,
        out: list[Any],
    ) -> None:
        fake.check(op, replace(read(said), written=()), operands, scalars or (), out)

    def fake_update(
        operands: list[Any],
        said: str = "",
        scalars: list[int | float] | None = None,
        *,
        written: list[Any],
    ) -> None:
        what = read(said)
        tensors = what.together(operands, written[0])
        fake.check(op, what, tensors, scalars or (), written[1:])

    name = f"{NAMESPACE}::{op}"
    torch.library.register_fake(name, fake_functional, lib=_LIBRARY)
    torch.library.register_fake(f"{name}.out", fake_into, lib=_LIBRARY)
    torch.library.register_fake(f"{name}.outputs", outputs, lib=_LIBRARY)
    torch.library.register_fake(f"{name}.update", fake_update, lib=_LIBRARY)
    scalars = tuple(family.scalars)
    return Operator(packet.default, packet.out, packet.outputs, packet.update, scalars)


def _changed(x: Any, after: list[Any]) -> None:
    pass


_LIBRARY.define("changed(Tensor(a!) x, Tensor[] after) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
for _key in _KEYS:
    _LIBRARY.impl("changed", _changed, _key.name)
torch.library.register_fake(f"{NAMESPACE}::changed", _changed, lib=_LIBRARY)


def _gradients(
    op: str,
    operands: list[Any],
    read_outputs: list[Any],
    arriving: list[Any],
    wanted: list[int],
    said: str = "",
    scalars: list[int | float] | None = None,
) -> list[Any]:
    what, numbers = read(said), scalars or ()
    return gradients.of_call(launch, op, what, operands, numbers, wanted, read_outputs, arriving)


def _fake_gradients(
    op: str,
    operands: list[Any],
    read_outputs: list[Any],
    arriving: list[Any],
    wanted: list[int],
    said: str = "",
    scalars: list[int | float] | None = None,
) -> list[Any]:
    return [torch.empty_like(operands[place]) for place in wanted]


_LIBRARY.define(
    "gradients(str op, Tensor[] operands, Tensor[] read, Tensor[] arriving, int[] wanted, "
    'str said="", Scalar[]? scalars=None) -> Tensor[]',
    tags=(torch.Tag.pt2_compliant_tag,),
)
for _key in _KEYS:
    _LIBRARY.impl("gradients", _gradients, _key.name)
torch.library.register_fake(f"{NAMESPACE}::gradients", _fake_gradients, lib=_LIBRARY)

for _op in ops.families():
    operator(_op)
