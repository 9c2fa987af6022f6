"""Shared memory, barriers, and what is in flight, of simulated Gluon kernels.

Copies end at a random time after they were asked for. From the first moment on the bytes that a
copy writes are NaN, so that whoever reads too early, or is read from too long, computes NaN.
A product reads its operands twice: when it is asked for and when it is waited for. The two must be
the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from sim_values import Fault, Int, Kind, Tensor, cast, numpy_of

SPAN = 128
"""Bytes of a row that the widest swizzle spans."""


class Shared:
    """A tile in shared memory, or a view of one.

    data: a view of the bytes' array, with `written`: which elements were stored by threads since
    the last fence, and so are not seen by copies and products. root: both of the whole allocation;
    None is these. torn: why no product may read it: copies bring other slabs.
    """

    torn = ""

    def __init__(
        self, data: Any, dtype: Any, layout: Any, written: Any, root: tuple[Any, Any] | None = None
    ) -> None:
        self.data, self.dtype, self.layout, self.written = data, dtype, layout, written
        self.root = root or (data, written)

    @property
    def shape(self) -> list[int]:
        return list(self.data.shape)

    @property
    def type(self) -> Kind:
        return Kind(self.dtype, tuple(self.data.shape), self.layout)

    @property
    def numel(self) -> int:
        return int(self.data.size)

    def _view(self, how: Callable[[Any], Any]) -> Shared:
        view = Shared(how(self.data), self.dtype, self.layout, how(self.written), self.root)
        view.torn = self.torn
        return view

    def index(self, i: Any) -> Shared:
        if not 0 <= int(i) < self.data.shape[0]:
            raise Fault(f"tile {int(i)} of {self.data.shape[0]} in shared memory")
        return self._view(lambda x: x[int(i)])

    def slice(self, start: Any, length: Any, dim: int = 0) -> Shared:
        if not 0 <= int(start) <= int(start) + int(length) <= self.data.shape[dim]:
            raise Fault(f"slice {int(start)}+{int(length)} of {self.data.shape[dim]}")
        cut = (slice(None),) * dim + (slice(int(start), int(start) + int(length)),)
        return self._view(lambda x: x[cut])

    def permute(self, order: Any) -> Shared:
        return self._view(lambda x: x.transpose(order))

    def reshape(self, shape: Any) -> Shared:
        return self._view(lambda x: x.reshape([int(n) for n in shape]))

    def reinterpret(self, dtype: Any, shape: Any, layout: Any) -> Shared:
        """The bytes from the tile's first on, with another type, shape and layout; also more than
        the tile has, up to the end of its allocation."""
        shape = [int(n) for n in shape]
        if numpy_of(dtype) == self.data.dtype:
            flat, written = (self._from_here(view, whole) for view, whole in self._with_root())
            count = math.prod(shape)
            if count > flat.size:
                raise Fault(f"{shape} is read of {self.shape} in shared memory")
            slab = self.data.shape[-1]
            if shape[-1] > slab == SPAN // flat.itemsize:
                slabs = [*shape[:-2], shape[-1] // slab, shape[-2], slab]
                return Slabs(
                    flat[:count].reshape(slabs), dtype, layout, written[:count].reshape(slabs),
                    self.root,
                )  # fmt: skip
            view = Shared(
                flat[:count].reshape(shape), dtype, layout, written[:count].reshape(shape),
                self.root,
            )  # fmt: skip
            heights = (_height(*of) for of in ((self.shape, self.layout), (shape, layout)))
            if slab > SPAN // flat.itemsize and len({*heights}) > 1:
                view.torn = f"slabs of {self.shape} are read as those of {shape}"
            return view
        flat = self.data.reshape(-1).view(numpy_of(dtype))[: math.prod(shape)]
        return Shared(flat.reshape(shape), dtype, layout, np.zeros(shape, bool))

    _reinterpret = reinterpret

    def _with_root(self) -> Any:
        return zip((self.data, self.written), self.root, strict=True)

    @staticmethod
    def _from_here(view: Any, whole: Any) -> Any:
        """The elements of an allocation from a view's first on."""
        first, begin = (x.__array_interface__["data"][0] for x in (view, whole))
        return whole.reshape(-1)[(first - begin) // whole.itemsize :]

    def load(self, layout: Any = None) -> Tensor:
        return Tensor(self.data.copy(), self.dtype, layout)

    def store(self, value: Tensor) -> None:
        self.data[...] = cast(value, self.dtype).data
        self.written[...] = True


def _height(shape: Any, layout: Any) -> int:
    """Rows of a slab: of wide rows, each span of columns lies in a slab of its own, behind the one
    before. A copy brings the slabs of its own box."""
    rank = getattr(layout, "rank", 2)
    return math.prod(shape[-rank:-1])


class Slabs(Shared):
    """Matrices whose columns lie in slabs as wide as a swizzle's span, one behind the other, as
    they do in shared memory. Copies bring each slab as a box of its own; threads store all."""

    def __init__(
        self, slabs: Any, dtype: Any, layout: Any, written: Any, root: Any, turned: bool = False
    ) -> None:
        self.slabs, self.of_slabs, self.turned = slabs, written, turned
        self.dtype, self.layout, self.root = dtype, layout, root

    def _whole(self, slabs: Any) -> Any:
        found = np.moveaxis(slabs, -3, -2)
        found = found.reshape(*found.shape[:-2], -1)
        return np.swapaxes(found, -1, -2) if self.turned else found

    @property
    def data(self) -> Any:  # type: ignore[override]
        return self._whole(self.slabs)

    @property
    def written(self) -> Any:  # type: ignore[override]
        return self._whole(self.of_slabs)

    def index(self, i: Any) -> Slabs:
        if not 0 <= int(i) < self.slabs.shape[0]:
            raise Fault(f"tile {int(i)} of {self.slabs.shape[0]} in shared memory")
        now, marks = self.slabs[int(i)], self.of_slabs[int(i)]
        return Slabs(now, self.dtype, self.layout, marks, self.root, self.turned)

    def permute(self, order: Any) -> Slabs:
        if [int(n) for n in order] != [1, 0]:
            raise Fault(f"{order} of a matrix in slabs")
        turned = not self.turned
        return Slabs(self.slabs, self.dtype, self.layout, self.of_slabs, self.root, turned)

    def store(self, value: Tensor) -> None:
        new = cast(value, self.dtype).data
        new = np.swapaxes(new, -1, -2) if self.turned else new
        count, width = self.slabs.shape[-3], self.slabs.shape[-1]
        new = new.reshape(*new.shape[:-1], count, width)
        self.slabs[...] = np.moveaxis(new, -2, -3)
        self.of_slabs[...] = True


class Barrier:
    """An mbarrier: it completes a phase when all arrivals and bytes have come."""

    def __init__(self) -> None:
        self.count = 0
        self.missing = self.bytes = self.completed = 0

    def init(self, count: int) -> None:
        self.count = self.missing = int(count)
        self.bytes = self.completed = 0

    def arrive(self, count: int = 1) -> None:
        if not self.count:
            raise Fault("a barrier is used that nothing has initialised")
        self.missing -= int(count)
        if self.missing < 0:
            raise Fault("more arrive at a barrier than it was initialised for")
        self._step()

    def expect(self, count: int) -> None:
        self.bytes += int(count)
        self.arrive()

    def came(self, count: int) -> None:
        self.bytes -= count
        self._step()

    def passed(self, phase: Any) -> bool:
        """Whether the phase of this parity is complete."""
        if not self.count:
            raise Fault("a barrier is waited for that nothing has initialised")
        return self.completed % 2 != int(phase)

    def _step(self) -> None:
        if self.missing == 0 and self.bytes == 0:
            self.completed += 1
            self.missing = self.count


class Barriers:
    """Shared memory of mbarriers."""

    dtype = None

    def __init__(self, shape: Any) -> None:
        self.many = [Barrier() for _ in range(int(shape[0]) if len(shape) > 1 else 1)]

    def index(self, i: Any) -> Barrier:
        if not 0 <= int(i) < len(self.many):
            raise Fault(f"barrier {int(i)} of {len(self.many)}")
        return self.many[int(i)]


class View:
    """A tensor descriptor: a strided view of an array in global memory, and the box of a copy."""

    def __init__(
        self, memory: Any, shape: Any, strides: Any, block: Any, layout: Any, offset: int = 0,
        steps: Any = (),
    ) -> None:  # fmt: skip
        self.memory, self.layout = memory, layout
        self.shape, self.strides = tuple(shape), tuple(strides)
        self.block_shape, self.offset = list(block), offset
        self.dtype = memory.dtype
        self.steps = tuple(steps) or (1,) * len(self.shape)

    @property
    def block_type(self) -> Any:
        kind = Kind(self.dtype, list(self.block_shape), self.layout)  # a list, as Gluon has it
        kind.nbytes = math.prod(self.block_shape) * self.dtype.primitive_bitwidth // 8  # type: ignore[attr-defined]
        return kind

    @property
    def type(self) -> Any:
        return self.block_type

    def places(self, at: Any) -> tuple[Any, Any]:
        """Elements of the memory under the box at `at`, and which of them are inside."""
        where = np.zeros(self.block_shape, np.int64) + self.offset
        inside = np.ones(self.block_shape, bool)
        each = zip(at, self.block_shape, self.steps, strict=True)
        for axis, (start, size, step) in enumerate(each):
            index = int(start) + np.arange(size) * step
            line = [1] * len(self.block_shape)
            line[axis] = size
            index = index.reshape(line)
            where = where + index * self.strides[axis]
            inside = inside & (index >= 0) & (index < self.shape[axis])
        if inside.any():
            touched = where[inside]
            if touched.min() < 0 or touched.max() >= self.memory.flat.size:
                raise Fault(f"{self.memory.name}: the tensor map describes elements that it lacks")
        return where, inside

    def read(self, at: Any) -> Any:
        """The box at `at`, with zeros outside."""
        where, inside = self.places(at)
        found = np.zeros(where.shape, self.memory.flat.dtype)
        found[inside] = self.memory.flat[where[inside]]
        return found

    def write(self, at: Any, tile: Any) -> None:
        where, inside = self.places(at)
        self.memory.flat[where[inside]] = tile[inside]

    def add(self, at: Any, tile: Any) -> None:
        where, inside = self.places(at)
        self.memory.flat[where[inside]] += tile[inside]


def poison(data: Any) -> None:
    """NaN, or a large number, in every element."""
    if np.dtype(data.dtype).kind in "iub":
        data[...] = np.iinfo(data.dtype).max if data.dtype != np.bool_ else True
    else:
        data[...] = np.nan


def fenced(tile: Shared, reader: str) -> None:
    """Raise `Fault` if threads stored to a tile after the last fence."""
    if tile.written.any():
        raise Fault(f"{reader} reads shared memory that threads wrote, without fence_async_shared")


def unchanged(before: Any, after: Any, reader: str) -> None:
    """Raise `Fault` if the bytes that are read in flight changed."""
    before, after = (np.ascontiguousarray(x).view(np.uint8) for x in (before, after))
    if not np.array_equal(before, after):
        raise Fault(f"shared memory changed while {reader} was reading it")


__all__ = ["Barrier", "Barriers", "Int", "Shared", "Slabs", "View", "fenced", "poison", "unchanged"]
