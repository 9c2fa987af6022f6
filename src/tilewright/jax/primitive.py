"""A call as a primitive of JAX: its results' shapes, its lowering, and its rule for ``vmap``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.sharding import NamedSharding, PartitionSpec

from tilewright import dtypes, ops
from tilewright.errors import BadArgument
from tilewright.jax import foreign
from tilewright.jax.stated import Stated
from tilewright.jax.tensors import Order, Tensor, dense, order_of
from tilewright.ops.joined import FRONT, Joined
from tilewright.ops.nouns import Operand

call_p = Primitive("tilewright")
"""Takes row-major arrays, and returns the outputs as row-major arrays. One parameter: `Stated`."""
call_p.multiple_results = True


def launch(stated: Stated, bases: Sequence[Any]) -> tuple[Tensor, ...]:
    """Make a call.

    bases: the row-major array of each operand. Raises `BadArgument`.
    """
    outputs = stated.outputs
    orders = [order_of(one.shape, one.strides) for one in outputs]
    if all(0 in one.shape for one in outputs):
        made: Sequence[Any] = [jnp.zeros(*_base(one)) for one in outputs]
    else:
        made = call_p.bind(*bases, stated=stated)
    return tuple(map(Tensor, made, orders))


def stated_of(
    op: str,
    tensors: Sequence[Tensor],
    named: Sequence[str],
    options: dict[str, Any],
    scalars: dict[str, int | float],
) -> Stated:
    """tensors: the operands, those by keyword last, whose names are `named`."""
    views = tuple(x.view for x in tensors)
    return Stated(
        op, views, tuple(named), tuple(sorted(options.items())), tuple(sorted(scalars.items()))
    )


def _base(one: Operand) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of an output's row-major array."""
    order = order_of(one.shape, one.strides)
    return tuple(one.shape[i] for i in order), dtypes.numpy_dtype(dtypes.dtype(one.dtype))


def _abstract(*avals: Any, stated: Stated) -> list[Any]:
    """The results vary over those axes of a mesh over which the first operand varies."""
    like, found = avals[0], []
    for one in stated.outputs:
        shape, dtype = _base(one)
        spec = PartitionSpec(*(None for _ in shape))
        sharding = NamedSharding(like.sharding.mesh, spec)
        found.append(like.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding))
    return found


def _lowering(platform: str, ctx: Any, *operands: Any, stated: Stated) -> Any:
    found = foreign.lowered(stated, platform)
    attributes = {"text": found.text, "key": np.int64(found.key)}
    lower: Any = jax.ffi.ffi_lowering(foreign.TARGET)
    if found.memory:
        memory = jax.core.ShapedArray((found.memory,), np.dtype(np.uint8))
        ctx = ctx.replace(avals_out=[*ctx.avals_out, memory])
    results = list(lower(ctx, *operands, **attributes))
    return results[: len(stated.outputs)]


def _no_derivative(primals: Any, tangents: Any, *, stated: Stated) -> Any:
    raise BadArgument(
        f"{stated.op} has no derivative here: neither a second one (grad of grad) nor a "
        "forward-mode one (jvp, linearize, hessian) of its backward pass; compute this part of the "
        "model with jax.numpy"
    )


# --- one more dimension ------------------------------------------------------------------------


def _batched(args: Sequence[Any], dims: Sequence[int | None], *, stated: Stated) -> Any:
    """Calls over one more dimension: as one call, if the family knows how, else one by one."""
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    first = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    apart = [d is not None for d in dims]
    how = ops.family(stated.op).joined(stated.call, apart)
    if how is None:
        made = _one_by_one(stated, first, apart)
    else:
        made = _together(stated, how, first, apart, size)
    return made, [0] * len(made)


def _one_by_one(stated: Stated, args: Sequence[Any], apart: Sequence[bool]) -> Any:
    mapped = [x for x, differs in zip(args, apart, strict=True) if differs]

    def one(each: Sequence[Any]) -> Any:
        given = iter(each)
        whole = [next(given) if differs else x for x, differs in zip(args, apart, strict=True)]
        return call_p.bind(*whole, stated=stated)

    return jax.lax.map(one, mapped)


def _together(
    stated: Stated, how: Joined, args: Sequence[Any], apart: Sequence[bool], size: int
) -> Any:
    """One call."""
    tensors = []
    for x, view, place, differs in zip(args, stated.views, how.operands, apart, strict=True):
        order = order_of(view.shape, view.strides)
        if place is None:
            tensors.append(Tensor(x, order))
            continue
        whole = x if differs else jnp.broadcast_to(x, (size, *x.shape))
        tensors.append(_joined(whole, order, place))
    one = replace(stated, views=tuple(x.view for x in tensors))
    found = launch(one, [x.base for x in tensors])
    return [
        _parted(x, order_of(single.shape, single.strides), place, size)
        for x, single, place in zip(found, stated.outputs, how.outputs, strict=True)
    ]


def _joined(base: Any, order: Order, place: int) -> Tensor:
    """An operand whose row-major array has the further dimension in front of its own."""
    if place == FRONT:
        return Tensor(base, (0, *(i + 1 for i in order)))
    at = order.index(place)
    moved = jnp.moveaxis(base, 0, at)
    shape = moved.shape
    return Tensor(moved.reshape(*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]), order)


def _parted(whole: Tensor, order: Order, place: int, size: int) -> Any:
    """The row-major array of an output, in an order, with the further dimension in front."""
    if place == FRONT:
        return whole.laid_out((0, *(i + 1 for i in order)))
    base, at = whole.laid_out(order), order.index(place)
    shape = base.shape
    return jnp.moveaxis(base.reshape(*shape[:at], size, -1, *shape[at + 1 :]), at, 0)


call_p.def_impl(partial(xla.apply_primitive, call_p))
call_p.def_abstract_eval(_abstract)
batching.primitive_batchers[call_p] = _batched
ad.primitive_jvps[call_p] = _no_derivative
for _platform in foreign.PLATFORMS:
    mlir.register_lowering(call_p, partial(_lowering, _platform), platform=_platform)

__all__ = ["call_p", "dense", "launch", "stated_of"]
