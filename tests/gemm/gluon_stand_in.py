"""Runs the Gluon kernel for CDNA on NumPy: what its source says, not what a compiler made of it.

The kernel's functions are taken as the Python they are written in, with a stand-in for each Gluon
name. A program runs as one thread that sees whole tiles, programs one after the other. Modelled, so
that mistakes show:

- memory is exactly what an operand spans, with NaN between its rows; a load or store outside,
  an offset beyond 32 bits and a load that is not 16 bytes a lane are errors;
- shared memory holds a tile where its layout puts it, so reading it through another layout
  gives what the hardware would read;
- a copy straight to shared memory destroys what was there at once and arrives when waited for;
- every element of C is stored exactly once;
- flags are found zero and left zero, and so are partial sums that atomics add up; other partial
  sums are found as NaN.

Not modelled: warps, barriers between them, and registers.
"""

from __future__ import annotations

import importlib
import math
import types
from typing import Any

import numpy as np

from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem
from tilewright.ops.nouns import MAIN, Operand, Pointer, Scalar, Temporary


class Tile(np.ndarray):
    """A tensor in registers, in float64."""

    layout = None

    @property
    def type(self) -> Tile:
        return self

    def to(self, _: object) -> Tile:
        return self


def tile(values: Any) -> Tile:
    return np.asarray(values, np.float64).view(Tile)


class Cells:
    """A pointer into a temporary, or a tile of pointers."""

    def __init__(self, values: np.ndarray, at: Any = 0) -> None:
        self.values, self.at = values, at

    def __add__(self, elements: Any) -> Cells:
        return Cells(self.values, self.at + np.asarray(elements).astype(int))

    def to(self, _: object) -> Cells:
        return self

    def load(self) -> Any:
        found = self.values[self.at]
        return tile(found) if np.ndim(found) else found

    def store(self, x: Any) -> None:
        self.values[self.at] = x

    def add(self, x: Any) -> Any:
        before = self.load()
        self.store(before + x)
        return before


class Element:
    def __init__(self, bits: int) -> None:
        self.primitive_bitwidth = bits

    def is_int8(self) -> bool:
        return False  # rounding to it is not modelled: results are compared as they are


class Memory:
    """A pointer into an operand's memory."""

    def __init__(self, values: np.ndarray, bits: int, at: int = 0, stores: Any = None) -> None:
        self.values, self.bits, self.at = values, bits, at
        self.stores = np.zeros(len(values), int) if stores is None else stores
        self.dtype = types.SimpleNamespace(element_ty=Element(bits))

    def __add__(self, elements: int) -> Memory:
        assert abs(elements) * self.bits // 8 < 2**31
        return Memory(self.values, self.bits, self.at + int(elements), self.stores)

    def places(self, offsets: np.ndarray, mask: np.ndarray) -> np.ndarray:
        offsets, mask = np.broadcast_arrays(offsets, mask)
        assert (np.abs(offsets[mask]) * (self.bits // 8) < 2**31).all()
        where = np.where(mask, offsets + self.at, -1)
        assert ((where >= 0) & (where < len(self.values)))[mask].all(), "outside of the operand"
        return where

    def load(self, offsets: np.ndarray, mask: np.ndarray) -> Tile:
        where = self.places(offsets, mask)
        if where.ndim == 2:  # of an epilogue's operands, vectors are no more than they need be
            _sixteen_bytes(where, 128 // self.bits)
        return tile(np.where(where < 0, 0, self.values[where]))


def _sixteen_bytes(where: np.ndarray, count: int) -> None:
    """Along one dimension of the tile, every `count` neighbours are neighbours in memory and lie
    together within the operand, or together without."""
    for lying in (where, where.T):
        if lying.shape[1] % count == 0:
            runs = lying.reshape(-1, count)
            whole = (runs == runs[:, :1] + np.arange(count)).all(axis=1) & (runs[:, 0] % count == 0)
            if (whole | (runs < 0).all(axis=1)).all():
                return
    raise AssertionError("not 16 bytes a lane")


def places(layout: Any, shape: tuple[int, int]) -> np.ndarray:
    """Where each element of a tile lies in shared memory, in elements."""
    rows, cols = np.indices(shape)
    if hasattr(layout, "vec"):
        inner, outer = (cols, rows) if layout.order[0] == 1 else (rows, cols)
        chunk = inner // layout.vec ^ outer // layout.per_phase % layout.max_phase
        return outer * shape[layout.order[0]] + chunk * layout.vec + inner % layout.vec
    found = np.zeros(shape, int)
    for place in range(shape[0] * shape[1]):
        row = col = 0
        for bit, basis in enumerate(layout.offset_bases):
            if place >> bit & 1:
                row, col = row ^ basis[0], col ^ basis[1]
        found[row, col] = place
    assert len(np.unique(found)) == found.size
    return found


_PLACES: dict[Any, np.ndarray] = {}


class Shared:
    """A tile in shared memory, or several."""

    def __init__(self, bytes_: np.ndarray, shape: tuple[int, ...], layout: Any, turned=False):
        self.bytes, self.shape, self.layout, self.turned = bytes_, shape, layout, turned

    def index(self, i: int) -> Shared:
        return Shared(self.bytes[i], self.shape[1:], self.layout)

    def permute(self, order: tuple[int, int]) -> Shared:
        assert order == (1, 0)
        return Shared(self.bytes, self.shape, self.layout, not self.turned)

    def through(self, layout: Any) -> Shared:
        return Shared(self.bytes, self.shape, layout, self.turned)

    @property
    def places(self) -> np.ndarray:
        key = (str(self.layout), self.shape)
        if key not in _PLACES:
            _PLACES[key] = places(self.layout, self.shape)
        return _PLACES[key]

    def store(self, values: Tile) -> None:
        self.bytes[self.places] = values

    def load(self, _: object = None) -> Tile:
        read = self.bytes[self.places]
        return tile(read.T if self.turned else read)


class Machine:
    """The names a kernel uses, for one program after the other."""

    def __init__(self, programs: int, warps: int) -> None:
        self.programs, self.warps, self.program = programs, warps, 0
        self.under_way: list[list[tuple[Shared, Tile]]] = []
        self.group: list[tuple[Shared, Tile]] = []

    # --- gl
    def names(self) -> dict[str, Any]:
        from triton.experimental.gluon import language as real

        from tilewright.ops.device import reduce

        gl = types.SimpleNamespace(
            arange=lambda low, high, layout=None: np.arange(low, high).view(Tile),
            where=lambda c, x, y: np.where(c, x, y) if np.ndim(c) else (x if c else y),
            zeros=lambda shape, dtype, layout: tile(np.zeros(shape)),
            cdiv=lambda x, y: -(-x // y),
            to_tensor=lambda x: x,
            static_range=range,
            num_warps=lambda: self.warps,
            program_id=lambda axis: self.program,
            num_programs=lambda axis: self.programs,
            allocate_shared_memory=self.allocate,
            SliceLayout=lambda *_: None,
            DotOperandLayout=lambda *_: None,
            int32=None,
            float32=None,
            BlockedLayout=real.BlockedLayout,
            constexpr=real.constexpr,
        )
        return {
            "gl": gl,
            "tl": types.SimpleNamespace(
                where=lambda c, x, y: tile(np.where(c, x, y)),
                load=lambda p, cache_modifier="": (
                    p.load() if isinstance(p, Cells) else tile(p.values[p.at])
                ),
                store=lambda p, x: p.store(x),
                atomic_add=lambda p, x, sem: p.add(x),
                debug_barrier=lambda: None,
                inline_asm_elementwise=lambda *_, **__: None,
                pointer_type=lambda element: None,
                cast=lambda x, element: x,
                cdiv=lambda x, y: -(-x // y),
                static_range=range,
                float32=None,
                int32=None,
                int64=None,
                exp=np.exp,
                reshape=lambda x, shape: x.reshape(shape),
                split=lambda x: (x[..., 0], x[..., 1]),
            ),
            "TURN": reduce.TURN.value,
            "DELIVERED": reduce.DELIVERED.value,
            "BY_BARRIER": reduce.BY_BARRIER.value,
            "AMDMFMALayout": lambda *_: None,
            "buffer_load": lambda base, offsets, mask: base.load(offsets, mask),
            "buffer_store": self.buffer_store,
            "buffer_load_to_shared": self.copy,
            "commit_group": self.commit,
            "wait_group": self.wait,
            "keep_order": lambda token: token,
            "whole_registers": lambda values: values,
            "reinterpreted": lambda shared, layout: shared.through(layout),
            "load_shared_relaxed": lambda shared, layout: shared.load(),
            "mfma": lambda x, y, acc: acc + x @ y,
            "mfma_scaled": lambda x, s, f, y, t, g, acc: acc + x @ y,
        }

    def allocate(self, element: Element, shape: list[int], layout: Any) -> Shared:
        flat = np.full((*shape[:-2], shape[-2] * shape[-1]), np.nan)
        return Shared(flat, tuple(shape), layout)

    def copy(self, shared: Shared, base: Memory, offsets: np.ndarray, mask: np.ndarray) -> None:
        self.group.append((shared, base.load(offsets, mask)))
        shared.bytes[:] = np.nan

    def commit(self) -> None:
        self.under_way.append(self.group)
        self.group = []

    def wait(self, left: int) -> None:
        while len(self.under_way) > left:
            for shared, values in self.under_way.pop(0):
                shared.store(values)

    def buffer_store(self, values: Tile, base: Memory, offsets: np.ndarray, mask: Any) -> None:
        where = base.places(offsets, mask)
        kept = where >= 0
        base.values[where[kept]] = values[kept]
        np.add.at(base.stores, where[kept], 1)


class Python:
    """Kernels' functions as Python functions that see `names` in place of Gluon's and Triton's."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.modules: dict[str, dict[str, Any]] = {}

    def function(self, found: Any) -> Any:
        inner = found.fn
        if type(found).__name__ == "ConstexprFunction":
            return found
        scope = self.modules.get(inner.__module__)
        if scope is None:
            own = vars(importlib.import_module(inner.__module__))
            scope = self.modules[inner.__module__] = {**own, **self.names}
            for name, value in own.items():
                if name not in self.names and hasattr(value, "fn"):
                    scope[name] = self.function(value)
        defaults = tuple(
            self.function(x) if hasattr(x, "fn") else x for x in inner.__defaults__ or ()
        )
        return types.FunctionType(inner.__code__, scope, inner.__name__, defaults)

    def named(self, module: str, name: str) -> Any:
        return self.function(getattr(importlib.import_module(module), name))


def run(config: GemmConfig, problem: GemmProblem, device: Device, seed: int = 0) -> None:
    """Compute `problem` from small integers and compare with the reference."""
    source = FAMILY.sources(config, arch(device.arch))[MAIN]
    launch = FAMILY.launch(config, problem, device)
    (step,) = launch.steps
    rng = np.random.default_rng(seed)
    operands = FAMILY.operands(problem)
    memories = {operand.name: _memory(operand, rng) for operand in operands}
    temporaries = {one.name: _cells(one) for one in launch.temporaries}
    given: dict[str, Any] = {"extra": ()}
    for (name, _), x in zip(source.arguments, step.arguments, strict=True):
        assert isinstance(x, Pointer | Scalar)
        value = x.value if isinstance(x, Scalar) else (memories | temporaries)[x.operand]
        if name.startswith("extra."):
            given["extra"] = (*given["extra"], value)
        else:
            given[name] = value
    machine = Machine(step.grid[0], config.num_warps)
    python = Python(machine.names())
    kernel = python.named(source.module, source.function)
    chains = {
        name: tuple(python.named(*one.split(":")) for one in called)
        for name, called in source.functions
    }
    for machine.program in range(step.grid[0]):
        kernel(**given, **dict(source.constants), **chains)
        machine.under_way = []
    matrices = {o.name: _matrix(o, memories[o.name].values) for o in operands}
    wanted = FAMILY.reference(problem, {o.name: matrices[o.name] for o in operands if o.read})
    written = [o for o in operands if o.written]
    assert wanted.keys() == {o.name for o in written}
    for one in written:
        np.testing.assert_allclose(matrices[one.name], wanted[one.name], rtol=1e-12)
        stored = memories[one.name].stores
        stores = _matrix(one, stored)
        assert (stores == 1).all() and stored.sum() == stores.size
    for one in launch.temporaries:
        if one.initial == "kept_zero":
            assert not temporaries[one.name].values.any(), one


def _cells(one: Temporary) -> Cells:
    """A temporary as a launch finds it."""
    count = math.prod(one.shape)
    if one.initial != "anything":
        return Cells(np.zeros(count, int if DTYPES[one.dtype].kind == "int" else float))
    return Cells(np.full(count, np.nan))


def _memory(operand: Operand, rng: np.random.Generator) -> Memory:
    span = 1 + sum((n - 1) * s for n, s in zip(operand.shape, operand.strides, strict=True))
    values = np.full(span, np.nan)
    if operand.read:
        _matrix(operand, values)[:] = rng.integers(-4, 5, operand.shape)
    return Memory(values, 8 * DTYPES[operand.dtype].bytes)


def _matrix(operand: Operand, values: np.ndarray) -> np.ndarray:
    strides = [s * values.itemsize for s in operand.strides]
    return np.lib.stride_tricks.as_strided(values, operand.shape, strides)
