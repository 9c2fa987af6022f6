"""`Tensor`: a dense JAX array, its dimensions in another order, with torch's methods.

Families state their layouts by strides, and their gradients as functions of tensors, by torch's
methods alone. A JAX array has no strides: it is row-major. So an operand that lies otherwise (the
transposed A of a product, images with channels last) is a row-major array and an order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tilewright import dtypes
from tilewright.ops.nouns import View

Order = tuple[int, ...]
"""Of each dimension of a row-major array, outermost first, the dimension of the tensor that it
is."""


def order_of(shape: Sequence[int], strides: Sequence[int]) -> Order:
    """The order of an array without gaps."""
    return tuple(sorted(range(len(shape)), key=lambda i: (-strides[i], i)))


def dense(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """The strides of a tensor of this shape, in elements."""
    strides, step = [0] * len(shape), 1
    for place in reversed(order):
        strides[place] = step
        step *= max(1, shape[place])
    return tuple(strides)


def _back(order: Order) -> Order:
    return tuple(order.index(i) for i in range(len(order)))


class Tensor:
    """See the module. `base` is the row-major array."""

    __slots__ = ("base", "order")

    def __init__(self, base: Any, order: Order | None = None) -> None:
        self.base = base
        self.order: Order = tuple(range(base.ndim)) if order is None else order

    @property
    def array(self) -> Any:
        """The JAX array of this shape."""
        return self.base if self._usual else jnp.transpose(self.base, _back(self.order))

    @property
    def _usual(self) -> bool:
        return self.order == tuple(range(len(self.order)))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.base.shape[place] for place in _back(self.order))

    @property
    def dtype(self) -> Any:
        return self.base.dtype

    @property
    def view(self) -> View:
        """As an operand. XLA aligns its memory to more than any kernel asks for."""
        return View(self.shape, self.stride(), dtypes.of(self.base).name, 0, "cpu")

    def stride(self, dim: int | None = None) -> Any:
        strides = dense(self.shape, self.order)
        return strides if dim is None else strides[dim]

    def dim(self) -> int:
        return len(self.order)

    def is_contiguous(self) -> bool:
        return self._usual

    def contiguous(self) -> Tensor:
        return Tensor(self.array)

    def laid_out(self, order: Order) -> Any:
        """The row-major array whose dimensions these are, in this order."""
        return self.base if order == self.order else jnp.transpose(self.array, order)

    def as_strided(self, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
        """The same elements with another shape. Dimensions of stride 0 repeat them; the others have
        no gaps."""
        kept = [i for i, n in enumerate(shape) if n == 1 or strides[i]]
        sizes, steps = [shape[i] for i in kept], [strides[i] for i in kept]
        order = order_of(sizes, steps)
        found = Tensor(self.base.reshape([sizes[i] for i in order]), order)
        if len(kept) == len(shape):
            return found
        apart = tuple(i for i in range(len(shape)) if i not in kept)
        return Tensor(jnp.broadcast_to(jnp.expand_dims(found.array, apart), shape))

    def transpose(self, one: int, other: int) -> Tensor:
        names = list(range(self.dim()))
        names[one], names[other] = names[other], names[one]
        return Tensor(self.base, tuple(names.index(place) for place in self.order))

    def reshape(self, *shape: Any) -> Tensor:
        return Tensor(self.array.reshape(*shape))

    def flatten(self, start: int) -> Tensor:
        """The dimensions from `start` on as one."""
        return self.reshape(*self.shape[:start], -1)

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        dim %= self.dim()
        return self.reshape(*self.shape[:dim], *sizes, *self.shape[dim + 1 :])

    def unsqueeze(self, dim: int) -> Tensor:
        return Tensor(jnp.expand_dims(self.array, dim))

    def unbind(self, dim: int) -> tuple[Tensor, ...]:
        return tuple(map(Tensor, jnp.unstack(self.array, axis=dim)))

    def new_ones(self, size: int) -> Tensor:
        return Tensor(jnp.ones(size, self.dtype))

    def cumsum(self, dim: int) -> Tensor:
        return Tensor(jnp.cumsum(self.array, dim))

    def expand(self, *sizes: int) -> Tensor:
        whole = [n if n >= 0 else own for n, own in zip(sizes, self.shape, strict=True)]
        return Tensor(jnp.broadcast_to(self.array, whole))

    def repeat_interleave(self, count: int, dim: int) -> Tensor:
        return Tensor(jnp.repeat(self.array, count, axis=dim))

    def sum(self, dim: Any = None, keepdim: bool = False) -> Tensor:
        """In fp32, as torch sums, rounded to the dtype."""
        array = self.array
        if array.dtype.itemsize < 4:
            # XLA would drop the rounding, and write fp32 also where calls of ours read 16 bits.
            array = jax.lax.optimization_barrier(array)
        return Tensor(array.sum(dim, keepdims=keepdim))

    def __getitem__(self, places: Any) -> Tensor:
        return Tensor(self.array[places])

    def to(self, dtype: Any) -> Tensor:
        return self._each(lambda x: x.astype(dtype))

    def float(self) -> Tensor:
        return self.to(jnp.float32)

    def half(self) -> Tensor:
        return self.to(jnp.float16)

    def bfloat16(self) -> Tensor:
        return self.to(jnp.bfloat16)

    def exp(self) -> Tensor:
        return self._each(jnp.exp)

    def tanh(self) -> Tensor:
        return self._each(jnp.tanh)

    def sigmoid(self) -> Tensor:
        return self._each(jax.nn.sigmoid)

    def erf(self) -> Tensor:
        return self._each(jax.scipy.special.erf)

    def clamp(self, min: Any = None, max: Any = None) -> Tensor:
        found = self if min is None else self._with(min, jnp.maximum)
        return found if max is None else found._with(max, jnp.minimum)

    clip = clamp

    def where(self, condition: Tensor, other: Tensor) -> Tensor:
        return Tensor(jnp.where(condition.array, self.array, other.array))

    def masked_fill(self, mask: Tensor, value: Any) -> Tensor:
        return self._with(mask, lambda x, where: jnp.where(where, jnp.asarray(value, x.dtype), x))

    def _each(self, function: Callable[[Any], Any]) -> Tensor:
        return Tensor(function(self.base), self.order)

    def _with(self, other: Any, function: Callable[[Any, Any], Any]) -> Tensor:
        if not isinstance(other, Tensor):
            return self._each(lambda x: function(x, other))
        if self.order == other.order:
            return Tensor(function(self.base, other.base), self.order)
        return Tensor(function(self.array, other.array))

    def __add__(self, other: Any) -> Tensor:
        return self._with(other, lambda x, y: x + y)

    def __radd__(self, other: Any) -> Tensor:
        return self._each(lambda x: other + x)

    def __sub__(self, other: Any) -> Tensor:
        return self._with(other, lambda x, y: x - y)

    def __rsub__(self, other: Any) -> Tensor:
        return self._each(lambda x: other - x)

    def __mul__(self, other: Any) -> Tensor:
        return self._with(other, lambda x, y: x * y)

    def __rmul__(self, other: Any) -> Tensor:
        return self._each(lambda x: other * x)

    def __truediv__(self, other: Any) -> Tensor:
        return self._with(other, lambda x, y: x / y)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._each(lambda x: other / x)

    def __neg__(self) -> Tensor:
        return self._each(jnp.negative)

    def __pow__(self, power: int) -> Tensor:
        return self._each(lambda x: x**power)

    def __lt__(self, other: Any) -> Tensor:
        return self._with(other, lambda x, y: x < y)

    def __le__(self, other: Any) -> Tensor:
        return self._with(other, lambda x, y: x <= y)

    def __gt__(self, other: Any) -> Tensor:
        return self._with(other, lambda x, y: x > y)

    def __or__(self, other: Any) -> Tensor:
        return self._with(other, lambda x, y: x | y)


jax.tree_util.register_pytree_node(
    Tensor, lambda x: ((x.base,), x.order), lambda order, bases: Tensor(bases[0], order)
)
