"""Gluon's and Triton's functions, as simulated kernels call them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from sim_shared import Barrier, Barriers, Shared, View, fenced
from sim_values import (
    Fault,
    Int,
    Pointer,
    Tensor,
    cast,
    numpy_of,
    reduced,
    scalar,
)
from sim_world import Product
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper

from tilewright.ops.attention.kernels import gluon_guess
from tilewright.ops.device import gluon_api, gluon_cluster, gluon_roles

world: Any = None
"""The workgroup that is executed (`sim_world.World`)."""


WEIGHTS = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp8e4nv": gl.float8e4nv}
CONVERSIONS = {"bf16": "bf16x2", "fp16": "f16x2", "fp8e4nv": "e4m3x2"}


def _weights(asm: str, *args: Any) -> tuple[Tensor, ...]:
    """`gluon_guess.assembly`: every warp has 16 rows, and decides for itself."""
    *scores, most, total, scale = args
    name, kind = next((n, k) for n, k in WEIGHTS.items() if f".{CONVERSIONS[n]}." in asm)
    s = np.stack([x.data for x in scores]).astype(np.float32)
    most, total = (np.broadcast_to(x.data, s.shape[1:]).astype(np.float32) for x in (most, total))
    factor = np.float32(scale.data if isinstance(scale, Tensor) else scale)

    def exponentials(base: Any) -> Any:
        return np.exp2(s * factor + (gluon_guess.RAISED[name] - base)).astype(np.float32)

    with np.errstate(all="ignore"):
        p = exponentials(most)
        right = p.sum(0, dtype=np.float32) <= gluon_guess.LIMIT[name]
        again = (
            (~right.reshape(-1, 16 * 4)).any(1) if "vote" in asm else np.ones(len(s[0]) // 16, bool)
        )
        again = again.repeat(16)[:, None]
        new = np.maximum(np.fmax.reduce(s, 0).max(1, keepdims=True) * factor, most)
        base = np.where(np.isneginf(new), np.float32(0), new)
        p = np.where(again, exponentials(base), p)
        factors = np.where(again, np.exp2(most - base), np.float32(1))
    found = [np.where(again, new, most), total * factors + p.sum(0, dtype=np.float32), factors]
    words = [
        _word(kind, [p[i] for i in gluon_guess._keys_of(word, len(s), name)])
        for word in range(gluon_guess.words_of(len(s), name))
    ]
    layout = scores[0].layout
    return (
        *(Tensor(word, gl.int32, layout) for word in words),
        *(Tensor(x.astype(np.float32), gl.float32, layout) for x in found),
    )


def _word(kind: Any, numbers: list[Any]) -> Any:
    """Numbers of 8 or 16 bits side by side, the first in the lowest bits."""
    bits = kind.primitive_bitwidth
    each = [cast(Tensor(x, gl.float32), kind).data.view(f"u{bits // 8}") for x in numbers]
    return sum(x.astype(np.int64) << bits * i for i, x in enumerate(each))


def _rescaled(_: str, *args: Any) -> tuple[Tensor, ...]:
    *sums, by = args
    return tuple(x * by for x in sums)


def _barrier(asm: str, *args: Any) -> Any:
    """A hardware barrier of warp groups, each 128 threads and a partition here."""
    words = asm.replace(";", " ").replace(",", " ").split()
    word = next(word for word in words if word in ("bar.sync", "bar.arrive"))
    name, threads = words[words.index(word) + 1 : words.index(word) + 3]
    name = str(int(args[0])) if name == "$1" else name
    world.meet(name, int(threads) // 128, stays=word == "bar.sync")
    return args[0] if args else None


ASSEMBLY: dict[str, Callable[..., Any]] = {
    "bar.sync": _barrier,
    "bar.arrive": _barrier,
    "st.relaxed.gpu.global": lambda _, pointer, value: pointer.store(value),
    "ld.relaxed.gpu.global": lambda _, pointer: pointer.load(),
    "red.relaxed.gpu.global.add": lambda _, pointer, value: pointer.store(pointer.load() + value),
    "mov.b32 $0, 0;": lambda *_: Int(0),
    "@never st.shared": lambda _, held: held,
    "ex2.approx": _weights,
    "vote.sync.any": _rescaled,
    "cp.async.bulk.wait_group 0": lambda _, token: (world.wait_stores(0), token)[1],
}
"""Meanings of pieces of assembly language, by a string that they have: the first that fits."""


def _elementwise(function: Callable[..., Any], *arguments: Any, dtype: Any = None) -> Any:
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    if not tensors:
        return scalar(function(*arguments))
    data = [a.data if isinstance(a, Tensor) else a for a in arguments]
    kind = dtype or tensors[0].dtype
    with np.errstate(all="ignore"):  # a GPU does not warn of infinities and NaNs either
        found = np.asarray(function(*data))
    layout = next((t.layout for t in tensors if t.layout is not None), None)
    return Tensor(found.astype(numpy_of(kind)), kind, layout)


def _extreme(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b, **_: _elementwise(function, a, b)


def where(condition: Any, a: Any, b: Any) -> Any:
    tensors = [t for t in (a, b) if isinstance(t, Tensor)]
    if isinstance(a, Pointer):
        picked = np.where(
            condition.data if isinstance(condition, Tensor) else condition, a.at, b.at
        )
        return Pointer(a.memory, picked, a.layout)
    if not isinstance(condition, Tensor) and not tensors:
        return a if condition else b
    kind = tensors[0].dtype if tensors else gl.float32 if isinstance(a, float) else gl.int32
    data = [t.data if isinstance(t, Tensor) else t for t in (condition, a, b)]
    layout = next((t.layout for t in (condition, *tensors) if isinstance(t, Tensor)), None)
    return Tensor(np.where(*data).astype(numpy_of(kind)), kind, layout)


def full(shape: Any, value: Any, dtype: Any, layout: Any = None) -> Tensor:
    value = value.data if isinstance(value, Tensor) else value
    shape = [int(n) for n in shape]
    return Tensor(np.full(shape, value).astype(numpy_of(dtype)), dtype, layout)


def arange(start: int, end: int, layout: Any = None) -> Tensor:
    return Tensor(np.arange(start, end, dtype=np.int64), gl.int32, layout)


def convert_layout(x: Tensor, layout: Any, assert_trivial: bool = False) -> Tensor:
    return Tensor(x.data, x.dtype, layout)


def expand_dims(x: Tensor, axis: int) -> Tensor:
    if isinstance(x, float):  # a scalar
        return Tensor(np.full((1,), x, np.float32), gl.float32, None)
    layout = x.layout
    if isinstance(layout, gl.SliceLayout):
        if layout.dim != axis:
            raise Fault(f"expand_dims at {axis} of a slice along {layout.dim}")
        layout = layout.parent
    return Tensor(np.expand_dims(x.data, axis), x.dtype, layout)


def _getitem(self: Tensor, key: Any) -> Tensor:
    """``x[:, None]`` and ``x[None, :]``."""
    key = key if isinstance(key, tuple) else (key,)
    for axis, one in enumerate(key):
        if one is None:
            self = expand_dims(self, axis)
    return self


Tensor.__getitem__ = _getitem  # type: ignore[method-assign]


def allocate_shared_memory(dtype: Any, shape: Any, layout: Any, value: Any = None) -> Any:
    if dtype == gl.int64 and isinstance(layout, type(hopper.mbarrier.MBarrierLayout())):
        found = Barriers(shape)
        world.barriers.append(found)
        return found
    shape = [int(n) for n in shape]
    data = np.empty(shape, numpy_of(dtype))
    tile = world.allocate(Shared(data, dtype, layout, np.zeros(shape, bool)))
    if value is not None:
        tile.store(value)
    return tile


def warp_specialize(
    parts: Any, warps: Any = None, registers: Any = None, *_: Any, **__: Any
) -> None:
    each = (world.now.warps, *(warps or (1,) * (len(parts) - 1)))
    named = [
        (f"partition {i} ({function.name})", int(count), lambda f=function, a=arguments: f(*a))
        for i, ((function, arguments), count) in enumerate(zip(parts, each, strict=True))
    ]
    world.specialise(named)


def _specialized(
    multiply: Any,
    work: Any,
    load: Any,
    loads: Any,
    groups: Any,
    registers: Any,
    loading: Any,
    loaders: Any = 1,
) -> None:
    count = int(groups)
    roles = [(multiply, (*work, scalar(group))) for group in range(count)]
    warp_specialize([*roles, (load, loads)], [4] * (count - 1) + [int(loaders)])


def _pointer_op(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(pointer: Pointer, value: Any, mask: Any = None, **_: Any) -> Any:
        old = pointer.load(mask)
        new = (
            _elementwise(function, old, value) if isinstance(old, Tensor) else function(old, value)
        )
        pointer.store(new, mask)
        return old

    return call


def _load(pointer: Pointer, mask: Any = None, other: Any = None, **_: Any) -> Any:
    return pointer.load(mask, other)


def _loaded(pointer: Pointer, mask: Any) -> Any:
    """What a thread's copy brings: zero where the mask is off."""
    found = pointer.load(mask, 0)
    return found.data if isinstance(found, Tensor) else found


def _store(pointer: Pointer, value: Any, mask: Any = None, **_: Any) -> None:
    pointer.store(value, mask)


def dot_fma(a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    return Tensor(
        acc.data + a.data.astype(np.float32) @ b.data.astype(np.float32), acc.dtype, acc.layout
    )


def warpgroup_mma(
    a: Any, b: Any, acc: Tensor, *, use_acc: Any = True, precision: Any = None,
    max_num_imprecise_acc: Any = None, is_async: bool = False,
) -> Tensor:  # fmt: skip
    """The product of two tiles; `a` in shared memory or in registers."""
    reads = []
    values = []
    for tile in (a, b):
        if isinstance(tile, Shared):
            fenced(tile, "a wgmma")
            if tile.torn:
                raise Fault(tile.torn)
            reads.append((tile, tile.data.copy()))
            values.append(reads[-1][1])
        else:
            values.append(tile.data)
    if acc.token is not None and not world.in_flight(acc):
        raise Fault("a wgmma adds to a result that was never waited for")
    wide = np.float32 if acc.dtype.is_floating() else np.int64
    with np.errstate(invalid="ignore"):
        product = values[0].astype(wide) @ values[1].astype(wide)
    before = acc._data if bool(use_acc) else 0  # of a product in flight, in order
    found = Tensor((before + product).astype(numpy_of(acc.dtype)), acc.dtype, acc.layout, object())
    world.now.products.append(Product(found, reads))
    world.pause()
    if not is_async:
        return warpgroup_mma_wait(0, (found,))
    return found


def mma_v2(a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    """The product of two tiles in registers, finished at once."""
    with np.errstate(invalid="ignore"):
        found = acc.data + a.data.astype(np.float32) @ b.data.astype(np.float32)
    return Tensor(found, acc.dtype, acc.layout)


def warpgroup_mma_wait(num_outstanding: Any = 0, deps: Any = None) -> Any:
    world.wait_products(int(num_outstanding))
    flying = [product.result.token for product in world.now.products]
    found = tuple(_settled(x, flying) for x in deps)
    world.pause()
    return found[0] if len(found) == 1 else found


def _settled(x: Any, flying: list[Any]) -> Any:
    if not isinstance(x, Tensor) or x.token is None or any(x.token is t for t in flying):
        return x
    return Tensor(x._data, x.dtype, x.layout)


def associative_scan(x: Tensor, axis: int, function: Any, reverse: bool = False) -> Tensor:
    lines = np.moveaxis(x.data, axis, 0)
    lines = lines[::-1] if reverse else lines
    found = [Tensor(lines[0], x.dtype)] if len(lines) else []
    for line in lines[1:]:
        found.append(function(found[-1], Tensor(line, x.dtype)))
    data = np.stack([one.data for one in found][:: -1 if reverse else 1])
    return Tensor(np.moveaxis(data, 0, axis), x.dtype, x.layout)


def join(a: Tensor, b: Tensor) -> Tensor:
    return Tensor(np.stack([a.data, b.data], -1), a.dtype, a.layout)


def inline_asm_elementwise(
    asm: str, constraints: str, args: Any, dtype: Any, is_pure: bool, pack: int
) -> Any:
    for piece, meaning in ASSEMBLY.items():
        if piece in asm:
            return meaning(asm, *args)
    raise Fault(f"the simulation does not know the assembly {asm!r}")


def _exp2(x: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.exp2(np.asarray(x, np.float32))


def _reduce(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis=None, **_: reduced(function, x, axis)


def _wait(barrier: Barrier, phase: Any, pred: Any = True, deps: Any = ()) -> None:
    if bool(pred):
        world.wait(barrier, int(phase), f"a barrier's phase {int(phase)}")


def _arrive(barrier: Barrier, *, count: Any = 1, pred: Any = True) -> None:
    if bool(pred):
        barrier.arrive(count)
    world.pause()


def _expect(barrier: Barrier, size: Any, pred: Any = True) -> None:
    if bool(pred):
        barrier.expect(size)


def _tma_load(
    view: View, at: Any, barrier: Barrier, tile: Shared, pred: Any = True, **_: Any
) -> None:
    if bool(pred):
        world.load(view, at, barrier, tile)


def _dot(a: Any, b: Any, acc: Any = None, **_: Any) -> Any:
    """A product of Triton's, which is over when it is returned."""
    found = np.asarray(a.data, np.float32) @ np.asarray(b.data, np.float32)
    return Tensor(found if acc is None else acc.data + found, gl.float32)


def _clamp(x: Any, low: Any, high: Any, **_: Any) -> Any:
    return _elementwise(lambda y: np.clip(y, low, high), x)


def _umulhi(a: Any, b: Any) -> Any:
    """The upper half of the product of numbers of 32 bits without a sign."""
    x, y = (np.asarray(getattr(one, "data", one)).astype(np.int64) for one in (a, b))
    found = (x.astype(np.uint32).astype(np.uint64) * y.astype(np.uint32).astype(np.uint64)) >> 32
    return Tensor(found.astype(np.int64), gl.uint32, getattr(a, "layout", None))


FUNCTIONS: dict[str, Any] = {
    "umulhi": _umulhi,
    "clamp": _clamp,
    "dot": _dot,
    "program_id": lambda axis=0: Int(world.program[axis]),
    "num_programs": lambda axis=0: Int(world.programs[axis]),
    "arange": arange,
    "full": full,
    "zeros": lambda shape, dtype, layout=None: full(shape, 0, dtype, layout),
    "full_like": lambda x, value, **_: full(x.shape, value, x.dtype, x.layout),
    "zeros_like": lambda x, **_: full(x.shape, 0, x.dtype, x.layout),
    "where": where,
    "maximum": _extreme(np.maximum),
    "minimum": _extreme(np.minimum),
    "max": _reduce(np.max),
    "min": _reduce(np.min),
    "sum": _reduce(np.sum),
    "exp2": lambda x: _elementwise(_exp2, x),
    "exp": lambda x: _elementwise(np.exp, x),
    "log2": lambda x: _elementwise(np.log2, x),
    "log": lambda x: _elementwise(np.log, x),
    "abs": lambda x: _elementwise(np.abs, x),
    "sqrt": lambda x: _elementwise(np.sqrt, x),
    "fma": lambda a, b, c: a * b + c,
    "fdiv": lambda a, b, **_: a / b,
    "cdiv": lambda a, b: scalar(-(-int(a) // int(b))),
    "cast": lambda x, dtype, **_: cast(x, dtype),
    "convert_layout": convert_layout,
    "set_auto_layout": convert_layout,
    "expand_dims": expand_dims,
    "allocate_shared_memory": allocate_shared_memory,
    "warp_specialize": warp_specialize,
    "load": _load,
    "store": _store,
    "atomic_add": _pointer_op(lambda a, b: a + b),
    "atomic_xchg": _pointer_op(lambda a, b: b),
    "associative_scan": associative_scan,
    "cumsum": lambda x, axis: associative_scan(x, axis, operator.add),
    "atomic_max": _pointer_op(lambda a, b: np.maximum(a, b)),
    "join": join,
    "split": lambda x: x.split(),
    "reshape": lambda x, *shape, **_: x.reshape(*shape),
    "permute": lambda x, *order: x.permute(*order),
    "trans": lambda x, *order: x.permute(*order) if order else x.T,
    "broadcast_to": lambda x, shape: Tensor(np.broadcast_to(x.data, shape), x.dtype, x.layout),
    "static_range": lambda *a: range(*(int(x) for x in a)),
    "static_assert": lambda condition, *_: None,
    "thread_barrier": lambda: None,
    "barrier": lambda: None,
    "debug_barrier": lambda: None,
    "multiple_of": lambda x, *_: x,
    "max_contiguous": lambda x, *_: x,
    "assume": lambda *_: None,
    "num_warps": lambda: Int(world.now.warps),
    "dot_fma": dot_fma,
    "inline_asm_elementwise": inline_asm_elementwise,
    "to_tensor": lambda x: scalar(x),
    "device_assert": lambda *_: None,
    "div_rn": lambda a, b: a / b,
}
BARRIER = {
    "init": lambda barrier, count: barrier.init(count),
    "wait": _wait,
    "arrive": _arrive,
    "expect": _expect,
    "invalidate": lambda barrier: None,
}
COPIES = {
    "async_copy_global_to_shared": _tma_load,
    "async_load": _tma_load,
    "async_copy_shared_to_global": lambda view, at, tile: world.store(view, at, tile),
    "async_store": lambda view, at, tile: world.store(view, at, tile),
    "store_wait": lambda pendings: world.wait_stores(int(pendings)),
}
THREADS_COPIES = {
    "async_copy_global_to_shared": lambda tile, pointer, mask=None, **_: world.copy(
        tile, _loaded(pointer, mask)
    ),
    "mbarrier_arrive": lambda barrier, increment_count=True: world.arrive_after_copies(
        barrier, counted=bool(increment_count)
    ),
    "commit_group": lambda: world.commit(),
    "wait_group": lambda num_outstanding=0: world.wait_groups(int(num_outstanding)),
}
OBJECTS: dict[int, Any] = {}
"""Functions that kernels import by name: the simulation's, by the real one's identity."""
for _module, _functions in (
    (hopper.tma, COPIES),
    (hopper.mbarrier, BARRIER),
    (hopper.async_copy, THREADS_COPIES),
):
    for _name, _function in _functions.items():
        if hasattr(_module, _name):
            OBJECTS[id(getattr(_module, _name))] = _function
for _name, _function in (
    ("warpgroup_mma", warpgroup_mma),
    ("warpgroup_mma_wait", warpgroup_mma_wait),
    ("fence_async_shared", lambda **_: world.fence()),
):
    OBJECTS[id(getattr(hopper, _name))] = _function


def _reinterpreted(tile: Shared, dtype: Any, shape: Any, layout: Any) -> Shared:
    found = tile.reinterpret(dtype, shape, layout)
    if found.root[1] is not tile.root[1]:  # fences see its marks too
        world.shared.append(found)
    return found


for _name, _function in (
    ("reinterpreted", _reinterpreted),
    ("clamp", _clamp),
    ("tma_add", lambda view, at, tile: world.store(view, at, tile, add=True)),
):
    OBJECTS[id(getattr(gluon_api, _name))] = _function
OBJECTS[id(gluon_api.mma_v2)] = mma_v2
OBJECTS[id(gluon_api.gdc_wait)] = lambda: world.wait_for_kernel_before()
OBJECTS[id(gluon_api.gdc_launch_dependents)] = lambda: world.let_next_kernel_start()
OBJECTS[id(gluon_roles.specialized)] = _specialized
OBJECTS[id(gluon_cluster.ready)] = lambda: world.get_ready()
OBJECTS[id(gluon_cluster.meet)] = lambda: world.meet_cluster()
OBJECTS[id(gluon_cluster.send)] = lambda tile, value, barrier, rank: world.send(
    tile, cast(value, tile.dtype).data, barrier, int(rank)
)
OBJECTS[id(gluon_cluster.hear)] = lambda barrier, phase: world.hear(barrier, int(phase))
OBJECTS[id(gluon_api.thread_barrier)] = lambda: world.pause()
