"""Runs a launch of a Gluon kernel for sm_90 in NumPy, for tests: its source, warp by warp.

Gluon has no interpreter. Here the kernel's file is loaded with other meanings of the names in
`ops/device/gluon_api`: tensors are NumPy arrays, and every partition of every workgroup is a
thread, of which one runs at a time. At each barrier, copy and product another one may go on, as a
seed says, which also makes some threads and the copies slow; so a run can be repeated. What is
asynchronous on the GPU is as late here as it may be there:

* A copy into shared memory makes the tile NaN when it is requested, and fills it later.
* A product reads its operands when it is waited for, and gives nothing before.
* A copy out of shared memory reads later.

So a tile that is read too early, or released or written over too early, gives wrong numbers. If
nobody can go on, that is a `Deadlock`. Pointers know where their array ends, and outputs how often
each element was written.

What it does not show: layouts, whether the compiler keeps an order, and what memory fences do.
"""

from __future__ import annotations

import importlib.util
import math
import random
import sys
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

from tilewright.ops.nouns import Descriptor, Given, KernelSource, Launch, Pointer, Scalar

KERNELS = "tilewright.ops.attention.kernels"


class Deadlock(Exception):
    """No thread can go on."""


class Broken(Exception):
    """A thread did something that a kernel must not do."""


# --- numbers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    name: str
    numpy: Any

    @property
    def primitive_bitwidth(self) -> int:
        return np.dtype(self.numpy).itemsize * 8

    @property
    def element_ty(self) -> Type:
        return self


BF16 = Type("bf16", ml_dtypes.bfloat16)
TYPES = {
    "bf16": BF16,
    "fp16": Type("fp16", np.float16),
    "fp32": Type("fp32", np.float32),
    "int32": Type("int32", np.int32),
    "int64": Type("int64", np.int64),
}


def _towards_zero(a: Any, b: Any) -> Any:
    return np.trunc(np.asarray(a) / np.asarray(b)).astype(np.int64)


class Int(int):
    """A scalar: division rounds towards zero, and 32 bits are all there are."""

    def to(self, dtype: Type) -> Int:
        return self


def _scalar(method: str) -> Callable[[Any, Any], Any]:
    plain = getattr(int, method)

    def applied(self: Int, other: Any) -> Any:
        if method in ("__floordiv__", "__mod__") and isinstance(other, int):
            quotient = abs(int(self)) // abs(int(other))
            quotient = quotient if (self < 0) == (other < 0) else -quotient
            return Int(quotient if method == "__floordiv__" else int(self) - quotient * int(other))
        found = plain(self, other)
        if found is NotImplemented or isinstance(found, bool):
            return found
        if not -(2**31) <= found < 2**31:
            raise Broken(f"{found} is beyond 32 bits")
        return Int(found)

    return applied


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod", "xor", "and"):
    setattr(Int, f"__{_name}__", _scalar(f"__{_name}__"))


class Tensor:
    """An array in registers; one without values is the result of a product that still runs."""

    def __init__(self, values: Any, layout: Any = None) -> None:
        self.held = values
        self.type = types.SimpleNamespace(layout=layout)

    @property
    def values(self) -> np.ndarray:
        if self.held is None:
            raise Broken("the result of a product was read before the product was waited for")
        return self.held

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> Type:
        return next(t for t in TYPES.values() if t.numpy == self.values.dtype)

    def to(self, dtype: Type) -> Tensor:
        with np.errstate(all="ignore"):
            return Tensor(self.values.astype(dtype.numpy), self.type.layout)


def _values(x: Any) -> Any:
    return x.values if isinstance(x, Tensor) else x


def _like(x: Any, values: Any) -> Tensor:
    return Tensor(np.asarray(values), x.type.layout)


def _elementwise(operation: Callable[..., Any]) -> Callable[..., Any]:
    def applied(*given: Any) -> Any:
        tensors = [x for x in given if isinstance(x, Tensor)]
        with np.errstate(all="ignore"):
            found = operation(*map(_values, given))
        if tensors:
            if found.dtype == np.float64:
                found = found.astype(np.float32)
            return _like(tensors[0], found)
        plain = np.asarray(found).item()
        return Int(plain) if isinstance(plain, int) and not isinstance(plain, bool) else plain

    return applied


_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "radd": lambda a, b: b + a,
    "sub": lambda a, b: a - b,
    "rsub": lambda a, b: b - a,
    "mul": lambda a, b: a * b,
    "rmul": lambda a, b: b * a,
    "truediv": lambda a, b: a / b,
    "rtruediv": lambda a, b: b / a,
    "floordiv": _towards_zero,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "neg": lambda a: -a,
}
for _name, _operation in _OPERATORS.items():
    setattr(Tensor, f"__{_name}__", _elementwise(_operation))


class Address:
    """A pointer to elements of a flat array, or a tensor of them."""

    def __init__(self, array: np.ndarray, at: Any = 0, written: np.ndarray | None = None) -> None:
        self.array, self.at, self.written = array, at, written

    @property
    def dtype(self) -> Type:
        return next(t for t in TYPES.values() if t.numpy == self.array.dtype)

    def __add__(self, more: Any) -> Address:
        return Address(self.array, np.asarray(self.at) + _values(more), self.written)

    def chosen(self, mask: Any) -> tuple[np.ndarray, np.ndarray]:
        """Places and whether each of them is used. Raises `Broken` beyond the array."""
        at = np.asarray(self.at)
        used = np.broadcast_to(True if mask is None else _values(mask), at.shape)
        if (used & ((at < 0) | (at >= self.array.size))).any():
            raise Broken("a pointer is used beyond its array")
        return at, used


# --- shared memory, barriers and copies -----------------------------------------------------------


class Shared:
    """Bytes of shared memory, as an array of some type and shape."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def dtype(self) -> Type:
        return next(t for t in TYPES.values() if t.numpy == self.array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def layout(self) -> None:
        return None

    def index(self, i: int) -> Shared:
        if not 0 <= i < len(self.array):
            raise Broken(f"slot {i} of {len(self.array)}")
        return Shared(self.array[int(i)])

    def permute(self, order: Any) -> Shared:
        return Shared(self.array.transpose(order))

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        assert dim == 0
        return Shared(self.array[start : start + length])

    def load(self, layout: Any) -> Tensor:
        return Tensor(self.array.copy(), layout)

    def store(self, value: Tensor) -> None:
        assert self.array.shape == value.values.shape
        assert self.array.dtype == value.values.dtype
        self.array[...] = value.values


class Barriers:
    """mbarriers in shared memory."""

    def __init__(self, count: int) -> None:
        self.all = [Barrier() for _ in range(count)]

    def index(self, i: int) -> Barrier:
        return self.all[int(i)]


@dataclass(eq=False)
class Barrier:
    """count: arrivals of a phase. missing: those that it still lacks. bytes: that copies owe it.
    phase: of which the present one is."""

    count: int = 0
    missing: int = 0
    bytes: int = 0
    phase: int = 0

    def changed(self) -> None:
        if self.missing < 0:
            raise Broken("a barrier was arrived at too often")
        if self.missing == 0 and self.bytes == 0:
            self.phase ^= 1
            self.missing = self.count


@dataclass
class Described:
    """A tensor descriptor: a view of an array, and the box of one copy."""

    view: np.ndarray
    box: tuple[int, ...]
    written: np.ndarray | None = None

    @property
    def dtype(self) -> Type:
        return next(t for t in TYPES.values() if t.numpy == self.view.dtype)

    @property
    def block_type(self) -> Any:
        size = math.prod(self.box) * self.view.dtype.itemsize
        return types.SimpleNamespace(shape=list(self.box), nbytes=size)

    def inside(self, at: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The part of a box that lies in the view: there, and in the box."""
        there, here = [], []
        for start, size, extent in zip(at, self.box, self.view.shape, strict=True):
            begin = max(0, start)
            end = max(begin, min(extent, start + size))
            there.append(slice(begin, end))
            here.append(slice(begin - start, end - start))
        return tuple(there), tuple(here)

    def read(self, at: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
        found = np.zeros(self.box, self.view.dtype)
        there, here = self.inside(at)
        if all(s.stop > s.start for s in there):
            found[here] = self.view[there]
        return found.reshape(shape)

    def write(self, at: tuple[int, ...], values: np.ndarray) -> None:
        there, here = self.inside(at)
        if all(s.stop > s.start for s in there):
            self.view[there] = values.reshape(self.box)[here]
            if self.written is not None:
                self.written[there] += 1


# --- threads --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Warps:
    """A partition of a workgroup."""

    workgroup: int
    speed: float
    turn: threading.Event = field(default_factory=threading.Event)
    ready: Callable[[], bool] | None = None
    done: bool = False
    products: list[Callable[[], None]] = field(default_factory=list)
    stores: list[Callable[[], None]] = field(default_factory=list)


class Machine:
    """Runs threads one at a time, in an order that a seed decides."""

    def __init__(self, workgroups: int, seed: int) -> None:
        self.workgroups = workgroups
        self.random = random.Random(seed)
        self.eager = self.random.choice((0.5, 0.02))  # how soon copies are made
        self.threads: list[Warps] = []
        self.copies: list[Callable[[], None]] = []
        self.failure: BaseException | None = None
        self.here = threading.local()
        self.over = threading.Event()

    @property
    def me(self) -> Warps:
        return self.here.warps

    def start(self, workgroup: int, function: Callable[[], None]) -> None:
        warps = Warps(workgroup, self.random.choice((1.0, 0.03)))

        def run() -> None:
            warps.turn.wait()
            self.here.warps = warps
            try:
                if self.failure is None:
                    function()
            except BaseException as error:
                self.failure = self.failure or error
            warps.done = True
            self.hand_on()

        self.threads.append(warps)
        threading.Thread(target=run, daemon=True).start()

    def hand_on(self) -> None:
        """Let a thread go on, or the copy engine. When all have ended, so has the launch."""
        while True:
            waiting = [t for t in self.threads if not t.done]
            if self.failure is not None or not (waiting or self.copies):
                if waiting:
                    waiting[0].turn.set()
                else:
                    self.over.set()
                return
            able = [t for t in waiting if t.ready is None or t.ready()]
            if self.copies and (not able or self.random.random() < self.eager):
                copy = self.copies.pop(self.random.randrange(len(self.copies)))
                try:
                    copy()
                except Exception as error:
                    self.failure = error
                continue
            if not able:
                self.failure = Deadlock(f"{len(waiting)} threads wait for one another")
                continue
            self.random.choices(able, [t.speed for t in able])[0].turn.set()
            return

    def pause(self, ready: Callable[[], bool] | None = None) -> None:
        """Let others run; go on only when `ready`."""
        me = self.me
        me.ready = ready
        me.turn.clear()
        self.hand_on()
        me.turn.wait()
        me.ready = None
        if self.failure is not None:
            raise Broken("another thread failed")

    def run(self) -> None:
        self.hand_on()
        self.over.wait()
        if self.failure is not None:
            raise self.failure


# --- the language ---------------------------------------------------------------------------------


def _reduced(operation: Callable[..., Any]) -> Callable[..., Any]:
    def applied(x: Tensor, axis: int) -> Any:
        found = operation(x.values, axis=axis)
        if found.ndim == 0:
            return Int(found) if found.dtype.kind == "i" else float(found)
        return Tensor(found, ("slice", axis, x.type.layout))

    return applied


def _load(pointer: Address, mask: Any = None, other: Any = 0) -> Any:
    at, used = pointer.chosen(mask)
    found = np.where(used, pointer.array[np.where(used, at, 0)], other)
    if found.ndim == 0:
        return Int(found) if pointer.array.dtype.kind == "i" else float(found)
    return Tensor(found.astype(pointer.array.dtype))


def _store(pointer: Address, value: Any, mask: Any = None) -> None:
    at, used = pointer.chosen(mask)
    values = np.broadcast_to(_values(value), at.shape)
    pointer.array[at[used]] = values[used]
    if pointer.written is not None:
        np.add.at(pointer.written, at[used], 1)


def _api(machine: Machine) -> types.ModuleType:
    """The module that takes the place of `gluon_api`."""

    def atomic(change: Callable[[int, int], int]) -> Callable[[Address, int], Int]:
        def applied(pointer: Address, value: int) -> Int:
            machine.pause()
            before = int(pointer.array[pointer.at])
            pointer.array[pointer.at] = change(before, value)
            return Int(before)

        return applied

    def allocate(dtype: Type, shape: list[int], layout: Any) -> Any:
        if layout == "barrier":
            return Barriers(shape[0])
        size = math.prod(shape) * np.dtype(dtype.numpy).itemsize
        return Shared(np.full(size, 0xFF, np.uint8).view(dtype.numpy).reshape(shape))

    def reinterpreted(tile: Shared, dtype: Type, shape: list[int], layout: Any) -> Shared:
        flat = tile.array.reshape(-1).view(np.uint8)
        size = math.prod(shape) * np.dtype(dtype.numpy).itemsize
        assert size <= flat.size
        return Shared(flat[:size].view(dtype.numpy).reshape(shape))

    def warp_specialize(parts: Any, warps: Any, registers: Any) -> None:
        assert len(parts) == len(warps) + 1 == len(registers) + 1
        for function, arguments in parts:
            machine.start(machine.me.workgroup, lambda f=function, a=arguments: f(*a))

    def wait(barrier: Barrier, phase: int) -> None:
        machine.pause(lambda: barrier.phase != phase)

    def init(barrier: Barrier, count: int) -> None:
        barrier.count = barrier.missing = count

    def arrive(barrier: Barrier, count: int = 1, pred: Any = True) -> None:
        if pred:
            barrier.missing -= count
            barrier.changed()
        machine.pause()

    def expect(barrier: Barrier, size: int) -> None:
        barrier.missing -= 1
        barrier.bytes += size
        barrier.changed()

    def tma_load(source: Described, at: Any, barrier: Barrier, tile: Shared) -> None:
        tile.array[...] = np.nan

        def arrives() -> None:
            tile.array[...] = source.read(tuple(at), tile.array.shape)
            barrier.bytes -= source.block_type.nbytes
            barrier.changed()

        machine.copies.append(arrives)
        machine.pause()

    def tma_store(target: Described, at: Any, tile: Shared) -> None:
        mine = machine.me.stores

        def leaves() -> None:
            target.write(tuple(at), tile.array)
            mine.remove(leaves)

        mine.append(leaves)
        machine.copies.append(leaves)
        machine.pause()

    def tma_store_wait(pendings: int) -> None:
        mine = machine.me.stores
        machine.pause(lambda: len(mine) <= pendings)

    def warpgroup_mma(
        a: Any, b: Shared, acc: Tensor, use_acc: Any = True, is_async: bool = False
    ) -> Tensor:
        assert is_async
        result = Tensor(None, acc.type.layout)

        def product() -> None:
            left = (a.array if isinstance(a, Shared) else a.values).astype(np.float32)
            with np.errstate(all="ignore"):
                found = left @ b.array.astype(np.float32)
                result.held = found + acc.values if use_acc else found

        machine.me.products.append(product)
        machine.pause()
        return result

    def warpgroup_mma_wait(pendings: int, deps: tuple[Any, ...]) -> Any:
        machine.pause()
        while len(machine.me.products) > pendings:
            machine.me.products.pop(0)()
        return deps if len(deps) > 1 else deps[0]

    def scan(x: Tensor, axis: int, combine: Callable[..., Any]) -> Tensor:
        assert combine(2, 3) == 5
        return _like(x, np.cumsum(x.values, axis=axis, dtype=x.values.dtype))

    gl = types.SimpleNamespace(
        constexpr=lambda x: x,
        float32=TYPES["fp32"],
        int32=TYPES["int32"],
        int64=TYPES["int64"],
        BlockedLayout=lambda *given: ("blocked", *map(str, given)),
        SliceLayout=lambda axis, layout: ("slice", axis, layout),
        NVMMADistributedLayout=lambda *given: ("mma", *map(str, given)),
        DotOperandLayout=lambda *given: ("operand", *given),
        SwizzledSharedLayout=lambda *given: "swizzled",
        NVMMASharedLayout=types.SimpleNamespace(get_default_for=lambda shape, dtype: "shared"),
        static_range=range,
        multiple_of=lambda x, count: x,
        program_id=lambda axis: Int(machine.me.workgroup),
        num_programs=lambda axis: Int(machine.workgroups),
        arange=lambda a, b, layout: Tensor(np.arange(a, b, dtype=np.int32), layout),
        full=lambda shape, value, dtype, layout: Tensor(np.full(shape, value, dtype.numpy), layout),
        zeros=lambda shape, dtype, layout: Tensor(np.zeros(shape, dtype.numpy), layout),
        zeros_like=lambda x: _like(x, np.zeros_like(x.values)),
        full_like=lambda x, value: _like(x, np.full_like(x.values, value)),
        expand_dims=lambda x, axis: _like(x, np.expand_dims(x.values, axis)),
        convert_layout=lambda x, layout, assert_trivial: Tensor(x.values, layout),
        maximum=_elementwise(np.maximum),
        minimum=_elementwise(np.minimum),
        where=_elementwise(np.where),
        exp2=_elementwise(np.exp2),
        log2=_elementwise(np.log2),
        abs=_elementwise(np.abs),
        fma=_elementwise(lambda a, b, c: a * b + c),
        max=_reduced(np.max),
        sum=_reduced(np.sum),
        associative_scan=scan,
        load=_load,
        store=_store,
        atomic_add=atomic(lambda before, value: before + value),
        atomic_xchg=atomic(lambda before, value: value),
        allocate_shared_memory=allocate,
        warp_specialize=warp_specialize,
    )
    api = types.ModuleType("tilewright.ops.device.gluon_api")
    api.__dict__.update(
        gl=gl,
        jit=lambda function: function,
        mbarrier=types.SimpleNamespace(
            MBarrierLayout=lambda: "barrier", wait=wait, init=init, arrive=arrive, expect=expect
        ),
        fence_async_shared=lambda: None,
        thread_barrier=lambda: None,
        reinterpreted=reinterpreted,
        tma_load=tma_load,
        tma_store=tma_store,
        tma_store_wait=tma_store_wait,
        warpgroup_mma=warpgroup_mma,
        warpgroup_mma_wait=warpgroup_mma_wait,
    )
    return api


def _loaded(name: str, modules: dict[str, types.ModuleType]) -> types.ModuleType:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    module = types.ModuleType(name)
    exec(compile(Path(spec.origin).read_text(), spec.origin, "exec"), module.__dict__)
    modules[name] = module
    return module


def run(
    source: KernelSource,
    launch: Launch,
    arrays: Mapping[str, np.ndarray],
    given: Mapping[str, Any],
    helpers: tuple[str, ...],
    seed: int = 0,
    workgroups: int | None = None,
) -> dict[str, np.ndarray]:
    """Run a launch of one step. Returns how often each element of each array was written.

    arrays: the operands by name, contiguous; outputs are written in place. helpers: the modules
    that the kernel's imports from its folder, in order. workgroups: instead of the grid's number,
    for a kernel that takes any.
    """
    (step,) = launch.steps
    machine = Machine(workgroups or step.grid[0], seed)
    memory = {name: array.reshape(-1) for name, array in arrays.items()}
    for one in launch.temporaries:
        memory[one.name] = np.zeros(math.prod(one.shape), TYPES[one.dtype].numpy)
    written = {name: np.zeros(array.size, np.int32) for name, array in memory.items()}
    parameters: dict[str, Any] = dict(source.constants)
    pending = iter(step.arguments)
    for name, _ in source.arguments:
        argument = next(pending)
        value: Any
        if isinstance(argument, Pointer):
            value = Address(memory[argument.operand], 0, written[argument.operand])
        elif isinstance(argument, Descriptor):
            view, counts = (
                np.lib.stride_tricks.as_strided(
                    flat,
                    argument.shape,
                    [stride * flat.itemsize for stride in argument.strides],
                )
                for flat in (memory[argument.operand], written[argument.operand])
            )
            value = Described(view, argument.block, counts)
        elif isinstance(argument, Scalar):
            value = Int(argument.value) if argument.type.startswith("i") else argument.value
        else:
            assert isinstance(argument, Given)
            value = given[argument.name]
        whole, dot, _ = name.partition(".")
        if dot:
            parameters[whole] = (*parameters.get(whole, ()), value)
        else:
            parameters[name] = value
    assert next(pending, None) is None
    modules: dict[str, types.ModuleType] = {"tilewright.ops.device.gluon_api": _api(machine)}
    with mock.patch.dict(sys.modules, modules):
        for helper in helpers:
            sys.modules[f"{KERNELS}.{helper}"] = _loaded(f"{KERNELS}.{helper}", modules)
        kernel = getattr(_loaded(source.module, modules), source.function)
    for workgroup in range(machine.workgroups):
        machine.start(workgroup, lambda: kernel(**parameters))
    machine.run()
    for one in launch.temporaries:
        if one.initial == "kept_zero" and memory[one.name].any():
            raise Broken(f"{one.name} is not zero when the launch ends")
    return written
