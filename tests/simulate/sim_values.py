"""Scalars, tensors and pointers of simulated Gluon kernels, over NumPy.

Integers divide as C's do, towards zero. All integer tensors hold 64 bits: overflow is not noticed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from triton.experimental.gluon import language as gl

NUMPY: dict[str, Any] = {
    "fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp64": np.float64,
    "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2, "int8": np.int8,
    "uint8": np.uint8, "int1": np.bool_,
}  # fmt: skip
"""NumPy's types; of integers of 16 bits and more, int64."""


class Fault(AssertionError):
    """A simulated kernel did what a GPU does not forgive."""


def numpy_of(dtype: Any) -> Any:
    """The NumPy type that holds a Triton dtype."""
    return NUMPY.get(dtype.name, np.int64)


def quotient(a: Any, b: Any) -> Any:
    """Division of integers towards zero."""
    if isinstance(a, int) and isinstance(b, int):
        found = abs(a) // abs(b)
        return found if (a < 0) == (b < 0) else -found
    a, b = np.asarray(a), np.asarray(b)
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


class Int(int):
    """An integer scalar."""

    def __floordiv__(self, other: Any) -> Any:
        return scalar(quotient(int(self), other)) if isinstance(other, int) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return scalar(quotient(int(other), int(self)))

    def __mod__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        return scalar(int(self) - quotient(int(self), int(other)) * int(other))

    def __rmod__(self, other: Any) -> Any:
        return scalar(int(other) - quotient(int(other), int(self)) * int(self))

    def to(self, dtype: Any) -> Any:
        return cast(self, dtype)


def _closed(name: str) -> Any:
    real = getattr(int, name)

    def method(self: Int, *others: Any) -> Any:
        found = real(self, *others)
        return found if found is NotImplemented else scalar(found)

    return method


for _name in ("add", "sub", "mul", "and", "or", "xor", "lshift", "rshift"):
    setattr(Int, f"__{_name}__", _closed(f"__{_name}__"))
    setattr(Int, f"__r{_name}__", _closed(f"__r{_name}__"))
for _name in ("__neg__", "__invert__", "__abs__"):
    setattr(Int, _name, _closed(_name))


class Float(float):
    """A float32 scalar."""

    def to(self, dtype: Any) -> Any:
        return cast(self, dtype)


def scalar(value: Any) -> Any:
    """A Python or NumPy number as a scalar of kernels."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return Int(value)
    if isinstance(value, float | np.floating):
        return Float(np.float32(value))
    return value


class Kind:
    """What `.type` of a tensor says."""

    def __init__(self, dtype: Any, shape: tuple[int, ...], layout: Any) -> None:
        self.element_ty = self.scalar = self.dtype = dtype
        self.shape, self.layout = shape, layout


class Tensor:
    """A tensor in registers. `token`: the product in flight that makes it, which must be waited for
    first."""

    def __init__(self, data: Any, dtype: Any, layout: Any = None, token: Any = None) -> None:
        self._data, self.dtype, self.layout, self.token = np.asarray(data), dtype, layout, token

    @property
    def data(self) -> Any:
        if self.token is not None:
            raise Fault("the result of a wgmma is used before warpgroup_mma_wait returns it")
        return self._data

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._data.shape)

    @property
    def type(self) -> Kind:
        return Kind(self.dtype, self.shape, self.layout)

    def to(self, dtype: Any, bitcast: bool = False, **_: Any) -> Tensor:
        if bitcast:  # integers are wider here than they say
            bits = self.data.astype(f"u{dtype.primitive_bitwidth // 8}")
            return Tensor(bits.view(numpy_of(dtype)), dtype, self.layout)
        return cast(self, dtype)

    def reshape(self, *shape: Any) -> Tensor:
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return Tensor(self.data.reshape([int(n) for n in shape]), self.dtype, self.layout)

    def permute(self, *order: Any) -> Tensor:
        order = order[0] if len(order) == 1 and not isinstance(order[0], int) else order
        return Tensor(self.data.transpose(order), self.dtype, self.layout)

    @property
    def T(self) -> Tensor:
        return self.permute(tuple(reversed(range(len(self.shape)))))

    def split(self) -> tuple[Tensor, Tensor]:
        return tuple(Tensor(self.data[..., i], self.dtype, self.layout) for i in (0, 1))  # type: ignore[return-value]

    def sum(self, axis: int | None = None) -> Any:
        return reduced(np.sum, self, axis)

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.data[key], self.dtype, self.layout)

    def __neg__(self) -> Tensor:
        return Tensor(-self.data, self.dtype, self.layout)

    def __invert__(self) -> Tensor:
        return Tensor(~self.data, self.dtype, self.layout)


def _result(function: Any, a: Any, b: Any) -> Any:
    """An elementwise operation of tensors and scalars."""
    if isinstance(a, Pointer) or isinstance(b, Pointer):
        return NotImplemented
    dtype = _common(a, b)
    if dtype is None:
        return NotImplemented
    wide = numpy_of(dtype)
    compare = function in _COMPARISONS
    x, y = (np.asarray(one.data if isinstance(one, Tensor) else one) for one in (a, b))
    if function in (operator.floordiv, operator.mod):
        q = quotient(x.astype(wide), y.astype(wide))
        found = q if function is operator.floordiv else x - q * y
    elif function is operator.truediv and np.dtype(wide).kind == "i":
        dtype, found = gl.float32, np.float32(x) / np.float32(y)
    else:
        with np.errstate(all="ignore"):  # a GPU does not warn of infinities and NaNs either
            found = function(x.astype(wide), y.astype(wide))
    layout = next((t.layout for t in (a, b) if isinstance(t, Tensor)), None)
    return Tensor(
        found if compare else found.astype(numpy_of(dtype)), gl.int1 if compare else dtype, layout
    )


def _common(a: Any, b: Any) -> Any:
    tensors = [t for t in (a, b) if isinstance(t, Tensor)]
    others = [t for t in (a, b) if not isinstance(t, Tensor)]
    if others and not isinstance(others[0], int | float | np.number):
        return None
    if len(tensors) == 2 and tensors[0].layout != tensors[1].layout:
        both = [t for t in tensors if t.layout is not None and t.shape != ()]
        if len(both) == 2:
            raise Fault(f"layouts differ: {tensors[0].layout} and {tensors[1].layout}")
    kinds = [t.dtype for t in tensors]
    if others and isinstance(others[0], float) and not kinds[0].is_floating():
        return gl.float32
    floats = [k for k in kinds if k.is_floating()]
    if floats:
        return max(floats, key=lambda k: k.primitive_bitwidth)
    return max(kinds, key=lambda k: k.primitive_bitwidth)


_COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
_BINARY = (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "and",
    "or",
    "xor",
    "lshift",
    "rshift",
)


def _install(name: str) -> None:
    function = getattr(operator, f"{name}_" if name in ("and", "or") else name)
    setattr(Tensor, f"__{name}__", lambda self, other: _result(function, self, other))
    if function not in _COMPARISONS:
        setattr(Tensor, f"__r{name}__", lambda self, other: _result(function, other, self))


for _name in (*_BINARY, "lt", "le", "gt", "ge", "eq", "ne"):
    _install(_name)
Tensor.__hash__ = None  # type: ignore[assignment]


def cast(x: Any, dtype: Any) -> Any:
    """A tensor or a scalar, converted: to fp8 with saturation, as the hardware does."""
    if not isinstance(x, Tensor):
        return Float(np.float32(x)) if dtype.is_floating() else Int(x)
    data = x.data
    if dtype.name.startswith("fp8"):
        most = float(ml_dtypes.finfo(numpy_of(dtype)).max)
        data = np.clip(np.asarray(data, np.float32), -most, most)
    if dtype.is_floating() and np.dtype(numpy_of(dtype)).itemsize == 1:
        data = np.asarray(data, np.float32)
    return Tensor(data.astype(numpy_of(dtype)), dtype, x.layout)


def reduced(function: Any, x: Tensor, axis: int | None) -> Any:
    """A reduction of a tensor along an axis; of all of it, a scalar."""
    if axis is None:
        return scalar(function(x.data))
    found = function(x.data, axis)
    if found.ndim == 0:
        return scalar(found)
    layout = gl.SliceLayout(axis, x.layout) if x.layout is not None else None
    return Tensor(found, x.dtype, layout)


class Memory:
    """An array in global memory: its elements, flat, and who is told of an access by pointers."""

    def __init__(self, name: str, array: Any, dtype: Any) -> None:
        self.name, self.flat, self.dtype = name, array, dtype
        self.told: Callable[[Memory, bool], None] | None = None

    def accessed(self, *, writes: bool) -> None:
        if self.told is not None:
            self.told(self, writes)


class Pointer:
    """A pointer, or a tensor of pointers, to elements of one array."""

    def __init__(self, memory: Memory, at: Any, layout: Any = None) -> None:
        self.memory, self.at, self.layout = memory, at, layout
        self.dtype = Kind(memory.dtype, (), None)

    @property
    def type(self) -> Kind:
        return Kind(Kind(self.memory.dtype, (), None), np.shape(self.at), self.layout)

    def __add__(self, other: Any) -> Pointer:
        if isinstance(other, Tensor):
            return Pointer(self.memory, self.at + other.data, other.layout)
        return Pointer(self.memory, self.at + other, self.layout)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Pointer:
        return self + (-other)

    def __getitem__(self, key: Any) -> Pointer:
        return Pointer(self.memory, np.asarray(self.at)[key], self.layout)

    def to(self, *_: Any, **__: Any) -> Pointer:
        return self

    def _checked(self, mask: Any) -> tuple[Any, Any]:
        at = np.asarray(self.at)
        on = np.asarray(True if mask is None else mask.data if isinstance(mask, Tensor) else mask)
        at, on = np.broadcast_arrays(at, on)
        outside = on & ((at < 0) | (at >= self.memory.flat.size))
        if outside.any():
            raise Fault(
                f"{self.memory.name}: element {at[outside].ravel()[0]} of {self.memory.flat.size} "
                "is accessed"
            )
        return np.where(on, at, 0), on

    def load(self, mask: Any = None, other: Any = 0) -> Any:
        self.memory.accessed(writes=False)
        at, on = self._checked(mask)
        other = other.data if isinstance(other, Tensor) else other
        if self.memory.flat.size == 0:
            found = np.zeros(at.shape, numpy_of(self.memory.dtype))
        else:
            found = self.memory.flat[at]
        if not on.all():
            # Without `other` the value is undefined.
            instead = np.asarray(0 if other is None else other).astype(found.dtype)
            found = np.where(on, found, instead)
        if found.ndim == 0:
            return scalar(found.item()) if found.dtype.kind in "iub" else scalar(np.float32(found))
        wide = numpy_of(self.memory.dtype)
        return Tensor(found.astype(wide), self.memory.dtype, self.layout)

    def store(self, value: Any, mask: Any = None) -> None:
        self.memory.accessed(writes=True)
        at, on = self._checked(mask)
        data = value.data if isinstance(value, Tensor) else value
        if isinstance(value, Tensor):
            data = cast(value, self.memory.dtype).data
        data = np.broadcast_to(np.asarray(data), at.shape)
        self.memory.flat[at[on]] = data[on].astype(self.memory.flat.dtype)
