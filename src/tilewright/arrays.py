"""One view of arrays of any library: torch tensors, NumPy arrays, DLPack objects, and `Pointers` to
arrays.

torch is imported only if a torch tensor or a GPU is involved.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tilewright import dtypes
from tilewright.errors import BadArgument
from tilewright.ops.nouns import Operand, View
from tilewright.pointer_array import Pointers

_ADDRESS_BYTES = 8


def is_torch(array: Any) -> bool:
    """Whether this is a torch tensor (without importing torch to find out)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_numpy(array: Any) -> bool:
    """Whether this is a NumPy array (without importing NumPy to find out)."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(array, numpy.ndarray)


def adopt(array: Any, name: str) -> Any:
    """`array` itself if it is torch's, NumPy's or `Pointers`, otherwise a torch tensor over the
    same memory, through DLPack.

    Raises `BadArgument`, beginning with `name`, for any other object, and for an array without
    elements at an address that kernels can read: see `_check_tensor`.
    """
    if isinstance(array, Pointers):
        return array
    if not is_torch(array) and not is_numpy(array):
        array = _from_dlpack(array, name)
    if is_torch(array):
        _check_tensor(array, name)
    elif is_masked(array):
        raise BadArgument(
            f"{name} is a NumPy masked array, whose mask no kernel reads; pass array.filled(0), "
            "or another value for its masked elements"
        )
    try:
        dtypes.of(array)
    except BadArgument as error:
        raise BadArgument(f"{name}: {error}") from None
    return array


def is_masked(array: Any) -> bool:
    """Whether this is a NumPy array with a mask of its elements."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(array, masked.MaskedArray)


def _from_dlpack(array: Any, name: str) -> Any:
    if not hasattr(array, "__dlpack__"):
        raise BadArgument(
            f"{name} is a {type(array).__name__}; pass a torch tensor, a NumPy array or an object "
            "with __dlpack__"
        )
    from torch.utils.dlpack import from_dlpack

    try:
        return from_dlpack(array)
    except Exception as error:  # a stranger's __dlpack__ may raise anything
        raise BadArgument(
            f"{name} is a {type(array).__name__} whose __dlpack__ fails "
            f"({type(error).__name__}: {error}); pass a torch tensor or a NumPy array"
        ) from error


def _check_tensor(tensor: Any, name: str) -> None:
    """Raise `BadArgument` unless a torch tensor has its elements at an address, in the order of its
    strides."""
    import torch

    refuse_parts(tensor, name)
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.").removeprefix("_")
        raise BadArgument(f"{name} has the layout {layout}; pass a dense copy: tensor.to_dense()")
    if tensor.is_meta:
        raise BadArgument(
            f"{name} is a meta tensor, which has no memory; pass one on a GPU or the CPU, or plan "
            "with select(), which needs none"
        )
    if tensor.is_neg() or tensor.is_conj():
        raise BadArgument(
            f"{name} is a view whose sign torch changes as it is read; pass tensor.resolve_neg() "
            "or tensor.resolve_conj()"
        )
    try:
        there = tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:  # tensors of vmap and grad, and other wrappers
        there = False
    if not there:
        raise BadArgument(
            f"{name} is a {type(tensor).__name__} without memory of its own (fake, or inside "
            "torch.func.vmap, grad or a trace); pass a plain tensor, outside of it"
        )


def refuse_parts(tensor: Any, name: str) -> None:
    """Raise `BadArgument` for a torch tensor of parts: a nested tensor, and a ``DTensor``."""
    if tensor.is_nested:
        raise BadArgument(
            f"{name} is a nested tensor, whose parts have shapes of their own; pass x.values() "
            "with x.offsets() to a packed call (such as flash_attn_varlen_func, or an operation "
            "on groups), or the parts one by one"
        )
    distributed = sys.modules.get("torch.distributed.tensor")
    if distributed is not None and isinstance(tensor, distributed.DTensor):
        raise BadArgument(
            f"{name} is a DTensor, which tilewright.<operation> and its torch operator take "
            "without out=; or pass x.to_local(), and make DTensor.from_local(...) of the result, "
            "or call the operation within torch.distributed.tensor.experimental.local_map"
        )


def view(array: Any) -> View:
    """Shape, strides, dtype, address and device of a torch tensor, NumPy array or `Pointers`."""
    kind = dtypes.of(array)
    if isinstance(array, Pointers):
        strides = (0, *array.strides)
        return View(
            array.shape, strides, kind.name, array.data_ptr(), array.device, array.alignment
        )
    if is_torch(array):
        device = str(array.device)
        return View(tuple(array.shape), array.stride(), kind.name, array.data_ptr(), device)
    for stride in array.strides:
        if stride % kind.bytes:
            raise BadArgument(f"a stride of {stride} bytes is not made of whole {kind.name}s")
    strides = tuple(stride // kind.bytes for stride in array.strides)
    return View(array.shape, strides, kind.name, array.ctypes.data, "cpu")


def span(v: View) -> tuple[int, int]:
    """First and past-the-last byte address of the elements of `v`; equal if there are no elements.
    For `Pointers`, of the addresses themselves."""
    if v.pointers:
        return v.address, v.address + _ADDRESS_BYTES * v.shape[0]
    if 0 in v.shape:
        return v.address, v.address
    reach = [(n - 1) * s for n, s in zip(v.shape, v.strides, strict=True)]
    low = v.address + v.itemsize * sum(r for r in reach if r < 0)
    return low, v.address + v.itemsize * (sum(r for r in reach if r > 0) + 1)


def pointers_to(arrays: Sequence[Any]) -> Pointers:
    """`Pointers` to arrays (at least one) of the same shape, strides, dtype and device."""
    views = [view(x) for x in arrays]
    first = views[0]
    addresses: Any = [v.address for v in views]
    if first.device == "cpu":
        import numpy as np

        addresses = np.array(addresses, np.int64)
    else:
        import torch

        addresses = torch.tensor(addresses, dtype=torch.int64, device=first.device)
    return Pointers(
        addresses,
        (len(arrays), *first.shape),
        first.strides,
        arrays[0].dtype,
        _alignment([v.address for v in views]),
        first.device,
        tuple(arrays),
    )


def note_writes(written: Iterable[Any]) -> None:
    """Count a write to each array in torch's version counters, if it is a torch tensor or
    `Pointers` to tensors: a graph that saved the tensor before must not use it."""
    each = (getattr(x, "arrays", (x,)) for x in written)
    tensors = [x for some in each for x in some if is_torch(x)]
    if tensors:
        sys.modules["torch"].autograd.graph.increment_version(tensors)


def _alignment(addresses: Sequence[int]) -> int:
    combined = 16
    for address in addresses:
        combined |= address
    return combined & -combined


def empty(operand: Operand, device: str = "cpu", like: Any = None) -> Any:
    """An uninitialised array for `operand`: NumPy if `like` is NumPy (or without `like` and on
    the CPU), otherwise torch on `device`. For an operand passed by pointers: `Pointers` to such
    arrays."""
    if isinstance(like, Pointers):
        like = next(iter(like.arrays), None)
    if operand.pointers:
        one = replace(operand, shape=operand.shape[1:], strides=operand.strides[1:], pointers=False)
        count = operand.shape[0]
        made = pointers_to([empty(one, device, like) for _ in range(max(1, count))])
        if count:
            return made
        return replace(made, addresses=made.addresses[:0], shape=operand.shape, arrays=())
    steps = [(n - 1) * s for n, s in zip(operand.shape, operand.strides, strict=True)]
    count = 0 if 0 in operand.shape else 1 + sum(steps)
    d = dtypes.dtype(operand.dtype)
    if is_numpy(like) or (like is None and device == "cpu"):
        import numpy as np

        kind = dtypes.numpy_dtype(d)
        strides = [s * d.bytes for s in operand.strides]
        return np.ndarray(operand.shape, kind, np.empty(count * d.bytes, np.uint8), 0, strides)
    import torch

    return torch.empty_strided(
        operand.shape, operand.strides, dtype=getattr(torch, d.torch), device=device
    )


def to_numpy(array: Any) -> Any:
    """A NumPy view of a CPU array's memory, with ml_dtypes for types that NumPy lacks; for
    `Pointers`, `Pointers` to such views."""
    if is_numpy(array):
        return array
    if isinstance(array, Pointers):
        return replace(array, arrays=tuple(map(to_numpy, array.arrays)))
    # Not by `Tensor.numpy`: torch forbids to resize the storage of a tensor that NumPy has seen,
    # which FSDP does.
    v = view(array)
    return _array_at(v, array).view(dtypes.numpy_dtype(dtypes.dtype(v.dtype)))


def fill_random(
    arrays: Sequence[Any],
    seed: int,
    values: Sequence[tuple[float, float] | Callable[[int], Sequence[Any]] | None] = (),
) -> None:
    """Fill arrays with fresh random values: standard normal, rounded to the dtype; integers over
    the dtype's range.

    values: for each array, two bounds (floats are uniform between them, integers from the first up
    to and without the second), a function that makes the values from the seed, or None.

    Raises `BadArgument` for bounds between which there is no integer of the dtype.

    Elements that share memory (strides of 0) are filled once.
    """
    for number, given in enumerate(arrays):
        array = _distinct(given)
        bounds = values[number] if values else None
        if isinstance(array, Pointers):
            fill_random(array.arrays, seed + number, [bounds] * len(array.arrays))
            continue
        integer = dtypes.of(array).kind == "int"
        if callable(bounds):
            import numpy as np

            made = np.asarray(bounds(seed + number)).reshape(array.shape)
            if is_torch(array):
                import torch

                array.copy_(torch.from_numpy(made))
            else:
                array[...] = made
        elif is_torch(array):
            import torch

            generator = torch.Generator(array.device).manual_seed(seed + number)
            if integer:
                low, past = _whole_bounds(bounds, torch.iinfo(array.dtype))
                # torch's upper bound for all of int64 is None: one past its largest is no int64.
                high = None if past > torch.iinfo(torch.int64).max else past
                whole = torch.empty(array.shape, dtype=torch.int64, device=array.device)
                array.copy_(whole.random_(low, high, generator=generator))
            elif bounds:
                even = torch.rand(array.shape, generator=generator, device=array.device)
                array.copy_(even * (bounds[1] - bounds[0]) + bounds[0])
            else:
                array.copy_(torch.randn(array.shape, generator=generator, device=array.device))
        else:
            import numpy as np

            rng = np.random.default_rng(seed + number)
            if integer:
                low, past = _whole_bounds(bounds, np.iinfo(array.dtype))
                array[...] = rng.integers(low, past - 1, array.shape, array.dtype, endpoint=True)
            elif bounds:
                array[...] = rng.uniform(*bounds, array.shape).astype(array.dtype)
            else:
                normal = rng.standard_normal(array.shape, dtype=np.float32)
                array[...] = normal.astype(array.dtype)


def _whole_bounds(bounds: tuple[float, float] | None, info: Any) -> tuple[int, int]:
    """The least integer to draw, and the one past the largest."""
    if bounds is None:
        return int(info.min), int(info.max) + 1
    low, past = math.ceil(bounds[0]), math.ceil(bounds[1])
    if not info.min <= low < past <= info.max + 1:
        raise BadArgument(
            f"values=({bounds[0]}, {bounds[1]}): there is no {info.dtype} from "
            "the first up to the second"
        )
    return low, past


class Random:
    """Makes inputs on `device`, the same for the same seed (`tilewright.ops.protocols.Rng`)."""

    def __init__(self, seed: int, device: str = "cpu") -> None:
        self._seed, self._device = seed, device
        self._drawn = 0
        self._numpy: Any = None

    @property
    def numpy(self) -> Any:
        """A `numpy.random.Generator`."""
        if self._numpy is None:
            import numpy as np

            self._numpy = np.random.default_rng(self._seed)
        return self._numpy

    def independent(self, operands: Iterable[Operand]) -> dict[str, Any]:
        """An array for each operand, filled independently of all others (`fill_random`)."""
        listed = [*operands]
        made = [empty(one, self._device) for one in listed]
        fill_random(made, self._seed + self._drawn, [one.values for one in listed])
        self._drawn += len(listed)
        return {one.name: array for one, array in zip(listed, made, strict=True)}

    def filled(self, operand: Operand, values: Any) -> Any:
        """An array for `operand` with these values, NumPy's or torch's, rounded to its dtype."""
        made = empty(operand, self._device)
        if is_torch(made):
            import torch

            made.copy_(values if is_torch(values) else torch.from_numpy(values))
        else:
            made[...] = values.astype(made.dtype)
        return made


def copied(array: Any) -> Any:
    """A copy with the layout of `array`; for `Pointers`, copies of the arrays that they point
    to."""
    if isinstance(array, Pointers):
        return replace(array, arrays=tuple(map(copied, array.arrays)))
    return array.clone() if is_torch(array) else array.copy(order="K")


def overwrite(array: Any, values: Any) -> None:
    """Put the elements of `values` into `array`."""
    if isinstance(array, Pointers):
        for each, value in zip(array.arrays, values.arrays, strict=True):
            overwrite(each, value)
    else:
        array[...] = values


def _distinct(array: Any) -> Any:
    """`array` without repeated elements: each dimension of stride 0 has size 1."""
    if isinstance(array, Pointers):
        return array
    strides = array.stride() if is_torch(array) else array.strides
    once = (*(slice(None) if s else slice(0, 1) for s in strides), ...)
    return array[once]


def poison(array: Any) -> None:
    """Fill with a value that no right kernel leaves in its output."""
    if isinstance(array, Pointers):
        for each in array.arrays:
            poison(each)
    else:
        array[...] = poison_of(dtypes.of(array))


def poison_of(kind: dtypes.DType) -> float:
    """The poison for an output of this type: NaN, the least integer, or the largest byte (zeros are
    what a kernel would write by mistake)."""
    if kind.name == "uint8":
        return 255.0
    return float(-(2 ** (kind.bits - 1))) if kind.kind == "int" else float("nan")


def to_float64(array: Any) -> Any:
    """A float64 copy on the array's device."""
    array = stacked(array)
    if is_torch(array):
        return array.detach().double()
    return array.astype("float64")


def rounded(array: Any, dtype: str) -> Any:
    """A float64 array with its values rounded to `dtype`: to nearest even; to 8 bits,
    saturating."""
    d = dtypes.dtype(dtype)
    if d.largest:
        array = array.clip(-d.largest, d.largest)
    if is_torch(array):
        import torch

        return array.to(getattr(torch, d.torch)).double()
    import numpy as np

    with np.errstate(over="ignore"):
        return array.astype(dtypes.numpy_dtype(d)).astype("float64")


def permuted(array: Any, order: Sequence[int]) -> Any:
    """A contiguous array with the dimensions of `array` in this order."""
    if is_torch(array):
        return array.permute(*order).contiguous()
    import numpy as np

    return np.ascontiguousarray(array.transpose(order))


def stacked(array: Any) -> Any:
    """For `Pointers`, the arrays they point to, stacked into one; any other array unchanged."""
    if not isinstance(array, Pointers):
        return array
    if len(array.arrays) != array.shape[0]:
        raise BadArgument(f"{array} has addresses only; only the caller can read their memory")
    if is_torch(array.addresses):
        import torch

        return torch.stack(array.arrays) if array.arrays else torch.empty(array.shape)
    import numpy as np

    return np.stack(array.arrays) if array.arrays else np.empty(array.shape)


def overlap(one: View, other: View) -> bool:
    """Whether two arrays share the memory of an element (exactly: interleaved columns do not)."""
    (low, high), (other_low, other_high) = span(one), span(other)
    if one.device != other.device or high <= other_low or other_high <= low:
        return False
    if one.pointers or other.pointers:
        return True
    import numpy as np

    return bool(np.shares_memory(_array_at(one), _array_at(other)))


class _Address:
    """Memory for NumPy: elements at a view's addresses, and the object that keeps them alive."""

    def __init__(self, v: View, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "shape": v.shape,
            "strides": tuple(s * v.itemsize for s in v.strides),
            "typestr": f"|V{v.itemsize}",
            "data": (v.address, False),
        }


def _array_at(v: View, owner: Any = None) -> Any:
    """A NumPy array whose elements have these addresses. Without an owner of the memory it is for
    arithmetic on the addresses only, and never read."""
    import numpy as np

    if 0 in v.shape:  # perhaps at address 0, which NumPy takes for none
        return np.empty(v.shape, f"V{v.itemsize}")
    return np.asarray(_Address(v, owner))
