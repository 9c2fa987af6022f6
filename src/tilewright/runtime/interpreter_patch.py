"""Corrections to Triton's interpreter. Everything that depends on Triton's internals is in this
file.

Triton 3.6's own interpreter keeps bf16 as 16-bit integers and computes with the bit patterns, and
rounds fp8 casts wrongly; later releases are not relied on. Here bf16 and fp8 values are ml_dtypes
arrays, so that every NumPy operation on them is right. The few operations that NumPy lacks are
overridden:

- Casts round to nearest even. To fp8 they saturate: values beyond the largest finite value,
  infinity included, become the largest finite value, and NaN stays NaN. Triton compiles fp32
  sources to the same (``cvt.rn.satfinite`` on NVIDIA sm_90 and up, integer code for OCP types on
  gfx942; the result of gfx942's FNUZ instruction for infinity is unverified). Triton's casts from
  16-bit types to e5m2 on NVIDIA are integer tricks that round ties away from zero, and from fp16
  overflow to infinity; they are not imitated.
- `tl.dot` accumulates in fp32 (fp64 for fp64, exact int32 for int8), more precisely than Hopper's
  fp8 units. ``input_precision="tf32"``, Triton's default for fp32 on NVIDIA, drops the low 13 bits
  of the inputs, as the tensor cores do; "ieee" and the split forms stay fp32.
- `tl.dot_scaled`, which Triton's interpreter lacks, multiplies the elements by their e8m0 scales
  (255 is NaN) and sums in fp64. Neither a scaled element nor a product overflows there, as it may
  where the compiler scales in bf16.
- `tl.maximum`, `tl.minimum` and `tl.clamp` ignore a NaN operand unless told to propagate it.
- Loads, stores and atomics outside of the operands raise `BadAccess` instead of corrupting the
  process; so do stores to an input or between the elements of a strided output. One access must
  stay within one operand.

Programmatic dependent launch does nothing: kernels run one after another.

Unsupported, as in Triton: other inline assembly, libdevice functions, and rounding modes other than
nearest even.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as base

from tilewright import dtypes, packing
from tilewright.triton_versions import release

Array = np.ndarray[Any, np.dtype[Any]]

_NUMPY_DTYPES = {
    d.triton: dtypes.numpy_dtype(d) for d in dtypes.DTYPES.values() if d.triton != "u8"
}
_triton_numpy_dtype = base._get_np_dtype
_triton_patch_lang = base._patch_lang


class BadAccess(Exception):
    """A kernel touched memory that is not its own."""


@dataclass(frozen=True)
class Region:
    """Bytes ``start <= address < end`` that a kernel may read, and may write if `writable`.

    elements: if only some of the bytes may be written, True at each element's first byte.
    """

    name: str
    start: int
    end: int
    writable: bool
    elements: Array | None = None


@dataclass
class Memory:
    """All memory that the running kernel may touch."""

    regions: list[Region] = field(default_factory=list)

    def check(self, verb: str, addresses: Array, mask: Array, itemsize: int, write: bool) -> None:
        """Raise `BadAccess` unless every unmasked element lies in one region."""
        active = addresses[np.broadcast_to(mask, addresses.shape)]
        if not active.size:
            return
        low, end = int(active.min()), int(active.max()) + itemsize
        for region in self.regions:
            if low < region.start or end > region.end:
                continue
            if write and not region.writable:
                raise BadAccess(f"{verb} {region.name}, which is not an output")
            if write and region.elements is not None:
                offsets = active - np.uint64(region.start)
                if not region.elements[offsets].all():
                    raise BadAccess(f"{verb} {region.name} between its elements")
            return
        raise BadAccess(f"{verb} memory {self._nearest(low, end)}")

    def _nearest(self, low: int, end: int) -> str:
        for region in self.regions:
            if low < region.end and end > region.start:
                before, behind = max(0, region.start - low), max(0, end - region.end)
                return f"{before} bytes before and {behind} bytes behind {region.name}"
        return "outside of all operands"


class Builder(base.InterpreterBuilder):  # type: ignore[misc]
    """The interpreter's operations; the wrong and the unchecked ones are overridden."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.grid_idx = None
        # The check for overflow only reports in debug mode, but computes everything twice.
        self.options = base.InterpreterOptions(sanitize_overflow=False)

    def get_bf16(self, value: float) -> Any:
        return base.TensorHandle(np.array([value], dtype=ml_dtypes.bfloat16), tl.bfloat16)

    # --- memory -------------------------------------------------------------------------
    def _check(self, verb: str, ptrs: Any, mask: Any, write: bool) -> None:
        itemsize = _numpy_dtype(ptrs.get_element_ty()).itemsize
        self.memory.check(verb, ptrs.data, np.asarray(mask.data).astype(bool), itemsize, write)

    # After `other` and `mask` come hints for caches, which differ between Triton's releases.
    # Elements are moved as integers of their width: Triton 3.9 moves only NumPy's own types.
    def create_masked_load(
        self, ptrs: Any, mask: Any, other: Any, *_hints: Any, **_more_hints: Any
    ) -> Any:
        self._check("read", ptrs, mask, write=False)
        kind = ptrs.get_element_ty()
        dtype = _numpy_dtype(kind)
        instead = np.zeros(ptrs.data.shape, dtype) if other is None else other.data
        bits = _bits(dtype)
        found = base._interpreter.load(ptrs.data, mask.data, instead.view(bits), bits)
        return base.TensorHandle(found.view(dtype), kind)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *_hints: Any) -> None:
        self._check("wrote", ptrs, mask, write=True)
        bits = _bits(value.data.dtype)
        base._interpreter.store(ptrs.data, value.data.view(bits), mask.data)

    def create_atomic_cas(self, ptr: Any, *rest: Any) -> Any:
        self._check("updated", ptr, base.TensorHandle(np.array([True]), tl.int1), write=True)
        return super().create_atomic_cas(ptr, *rest)

    def create_atomic_rmw(self, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        self._check("updated", ptr, mask, write=True)
        if val.data.dtype != ml_dtypes.bfloat16:
            return super().create_atomic_rmw(op, ptr, val, mask, *rest)
        # Programs run one after the other, so only repeats within this access would be lost.
        active = ptr.data[np.broadcast_to(np.asarray(mask.data).astype(bool), ptr.data.shape)]
        if np.unique(active).size < active.size:
            raise NotImplementedError("bf16 atomic add to one address twice in one access")
        old = self.create_masked_load(ptr, mask, None)
        self.create_masked_store(ptr, self.create_fadd(old, val), mask)
        return old

    def create_inline_asm(self, code: str, *_rest: Any) -> Any:
        """Waits for memory of AMD's GPUs mean nothing here: accesses end before the next begins."""
        if not all(line.startswith(("s_wait", "s_mov")) for line in code.splitlines()):
            raise NotImplementedError(f"the interpreter has no inline assembly: {code}")
        zero = base.TensorHandle(np.zeros(1, np.int32), tl.int32)
        return SimpleNamespace(get_result=lambda _number: zero)

    # --- casts --------------------------------------------------------------------------
    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        return base.TensorHandle(_round(src.data, _numpy_dtype(dst_type)), dst_type.scalar)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding: Any) -> Any:
        if rounding not in (None, ir.ROUNDING_MODE.RTNE):
            raise NotImplementedError(f"the interpreter rounds to nearest even, not {rounding}")
        if "fp8e4b15" in (src.dtype.scalar.name, dst_type.scalar.name):
            raise NotImplementedError("fp8e4b15 is not supported")
        return self.cast_impl(src, dst_type)

    # --- arithmetic ---------------------------------------------------------------------
    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        out = super().binary_op(lhs, rhs, op)
        if out.data.dtype == np.bool_:  # for a comparison, Triton's result has the operands' type
            out.dtype = tl.int1
        return out

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        if propagate_nans == tl.PropagateNan.ALL:
            return super().create_clampf(arg, lo, hi, propagate_nans)
        return self.create_minnumf(self.create_maxnumf(arg, lo), hi)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        # The product is exact in twice the width; the sum is rounded there, then again here.
        wide = np.float64 if z.data.dtype.itemsize > 2 else np.float32
        out = x.data.astype(wide) * y.data.astype(wide) + z.data.astype(wide)
        return base.TensorHandle(out.astype(z.data.dtype), z.dtype.scalar)

    def create_dot(self, a: Any, b: Any, d: Any, input_precision: Any, _imprecise: Any) -> Any:
        """``a @ b + d``: ``[(B,) M, K] @ [(B,) K, N] + [(B,) M, N]``, in `d`'s dtype."""
        out = d.data.dtype
        if a.data.dtype.kind == "i":
            # BLAS has no integers. Products are below 2**14, so sums of 1024 are exact in fp32.
            wide: type[Any] = np.float32 if a.data.shape[-1] <= 1024 else np.float64
            product = np.matmul(a.data.astype(wide), b.data.astype(wide))
            return base.TensorHandle(product.astype(out) + d.data, d.dtype.scalar)
        wide = np.float64 if a.data.dtype == np.float64 else np.float32
        lhs, rhs = a.data.astype(wide), b.data.astype(wide)
        if a.data.dtype == np.float32 and input_precision == ir.INPUT_PRECISION.TF32:
            lhs, rhs = _truncate_to_tf32(lhs), _truncate_to_tf32(rhs)
        total = np.matmul(lhs, rhs) + d.data.astype(wide)
        return base.TensorHandle(total.astype(out), d.dtype.scalar)

    def create_dot_scaled(
        self, a: Any, a_scale: Any, a_format: Any, b: Any, b_scale: Any, b_format: Any,
        _fast_math: bool, a_k_pack: bool, b_k_pack: bool, d: Any,
    ) -> Any:  # fmt: skip
        """``(a * scales) @ (b * scales) + d``; a's scales are ``[(B,) M, K/32]``, b's
        ``[(B,) N, K/32]``, or None."""
        lhs = _elements(a.data, a_format, -1 if a_k_pack else -2)
        rhs = _elements(b.data, b_format, -2 if b_k_pack else -1)
        if a_scale is not None:
            lhs = lhs * _e8m0(a_scale.data).repeat(32, -1)
        if b_scale is not None:
            rhs = rhs * _e8m0(b_scale.data).repeat(32, -1).swapaxes(-1, -2)
        total = np.matmul(lhs, rhs) + d.data.astype(np.float64)
        return base.TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)


def install() -> Builder:
    """Replace Triton's builder in this process, permanently, and return the new one."""
    builder = Builder()
    base.interpreter_builder = builder
    base.interpreter_semantic = TritonSemantic(builder)
    base._get_np_dtype = _numpy_dtype
    base._patch_lang = _PatchLang()
    if release(triton.__version__) < (3, 8):
        _take_plain_formats()
    return builder


def tensor(type_name: str, value: float) -> Any:
    """A scalar kernel argument: `type_name` is Triton's (``i32``, ``*bf16``: an address)."""
    kind = tl.str_to_ty(type_name, None)
    data = np.array([value], dtype=_numpy_dtype(kind))
    return tl.tensor(base.TensorHandle(data, kind), kind)


def descriptor(
    pointer: Any,
    shape: list[int],
    strides: list[int],
    block: list[int],
    builder: Builder,
    element_strides: Sequence[int] = (),
) -> Any:
    """A tensor descriptor argument over the memory at `pointer`; zeros are read outside.

    element_strides: see `Descriptor`.
    """
    constants = [tl.constexpr(n) for n in block]
    semantic = TritonSemantic(builder)
    made = semantic.make_tensor_descriptor(pointer, shape, strides, constants, "zero")
    if element_strides:
        made.handle.__class__ = _Stepping
        made.handle.element_strides = element_strides
    return made


class _Stepping(base.TensorDescHandle):  # type: ignore[misc]
    """A descriptor whose copies advance by more than one element of the view."""

    element_strides: Sequence[int]

    def materialize_pointers(self, offsets: Sequence[Any]) -> Any:
        itemsize = self.base.dtype.element_ty.primitive_bitwidth // 8
        pointers = np.broadcast_to(self.base.data, self.block_shape)
        masks = np.ones(self.block_shape, dtype=bool)
        for dim, (extent, step) in enumerate(
            zip(self.block_shape, self.element_strides, strict=True)
        ):
            along = [1] * len(self.block_shape)
            along[dim] = extent
            at = (offsets[dim].data + step * np.arange(extent)).reshape(along)
            pointers = pointers + (itemsize * at * self.strides[dim].data).astype(np.uint64)
            masks = masks & (at >= 0) & (at < self.shape[dim].data)
        return base.TensorHandle(pointers, self.base.dtype.scalar), masks


def is_kernel(function: object) -> bool:
    """Whether this function was decorated with `triton.jit` while the interpreter was on."""
    return isinstance(function, base.InterpretedFunction)


def root_cause(error: BaseException) -> BaseException:
    """The error that a kernel raised, without the interpreter's wrappers around it."""
    while isinstance(error, base.InterpreterError) and error.__cause__ is not None:
        error = error.__cause__
    return error


class _PatchLang:
    """Triton's `_patch_lang`, done once for each module instead of at every call of a device
    function.

    Triton's own takes 0.5 ms and is undone after each launch. A process that only interprets does
    not need this.
    """

    def __init__(self) -> None:
        self._done: set[frozenset[int]] = set()

    def __call__(self, fn: Any) -> _PatchLang:
        for name, value in list(fn.__globals__.items()):
            if value is gdc_wait or value is gdc_launch_dependents:
                # Kernels run one after another here.
                fn.__globals__[name] = lambda: None
        modules = frozenset(id(m) for m in fn.__globals__.values() if m is tl or m is tl.core)
        if modules not in self._done:
            _triton_patch_lang(fn)
            tl.tensor.__index__ = lambda self: self.handle.data.item()  # NumPy 2.4 refuses int()
            _add_fnuz_types()
            self._done.add(modules)
        return self

    def restore(self) -> None:
        """Does nothing: the patches stay."""


def _add_fnuz_types() -> None:
    triton_to_ir = tl.dtype.to_ir

    def to_ir(self: Any, builder: Any) -> Any:
        if self.name in ("fp8e4b8", "fp8e5b16"):
            return getattr(builder, f"get_{self.name}_ty")()
        return triton_to_ir(self, builder)

    tl.dtype.to_ir = to_ir


def _take_plain_formats() -> None:
    """Triton's `dot_scaled` before 3.8 takes its formats only in the compiler's form."""
    triton_dot_scaled = TritonSemantic.dot_scaled

    def dot_scaled(self: Any, *arguments: Any) -> Any:
        formats = {i: tl.constexpr(arguments[i]) for i in (2, 5)}
        return triton_dot_scaled(self, *(formats.get(i, x) for i, x in enumerate(arguments)))

    TritonSemantic.dot_scaled = dot_scaled


def _numpy_dtype(kind: Any) -> np.dtype[Any]:
    found = _NUMPY_DTYPES.get(kind.scalar.name)
    return _triton_numpy_dtype(kind) if found is None else found


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The integer type as wide as `dtype`; bool stays."""
    return dtype if dtype.kind == "b" else np.dtype(f"u{dtype.itemsize}")


def _round(data: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.itemsize == 1 and dtype.kind not in "biu":  # fp8
        limit = float(ml_dtypes.finfo(dtype).max)
        wide = data if data.dtype == np.float64 else data.astype(np.float32)
        data = np.clip(wide, -limit, limit)
    return data.astype(dtype)


def _elements(data: Array, kind: Any, axis: int) -> Array:
    """The float64 values of an operand of `dot_scaled`. e2m1 elements are packed two to a byte
    along `axis`."""
    if kind == ir.ScaleDotElemTypeTY.E2M1:
        decoded: Array = packing.decode(data, "e2m1", axis)
        return decoded
    wide: Array = data.astype(np.float64)
    return wide


def _e8m0(codes: Array) -> Array:
    if codes.dtype != np.uint8:
        raise NotImplementedError(f"dot_scaled takes e8m0 scales in bytes, not {codes.dtype}")
    wide: Array = codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    return wide


def _truncate_to_tf32(data: Array) -> Array:
    kept: Array = data.view(np.uint32) & np.uint32(0xFFFFE000)
    return kept.view(np.float32)
