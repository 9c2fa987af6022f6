"""Gluon as the kernels use it: every name that is spelt differently in some Triton release.

Written for Triton 3.6 to 3.9 (`triton.experimental.gluon`). Between these releases the copies were
renamed (`async_copy_global_to_shared` became `async_load`, `async_copy_shared_to_global` became
`async_store`), and `_reinterpret` became `reinterpret`. Triton 3.9 keeps the old names of the
copies, but they raise, so the new names are tried first. Edit this file for a new release.
"""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

jit = gluon.jit
constexpr_function = gluon.constexpr_function
copy_arrive = async_copy.mbarrier_arrive
tma_store_wait = tma.store_wait


def _first(module, *names):
    """The first of these names that the module has."""
    return next(getattr(module, name) for name in names if hasattr(module, name))


thread_barrier = _first(gl, "thread_barrier", "barrier")
copy_load = _first(async_copy, "async_load", "async_copy_global_to_shared")
tma_load = _first(tma, "async_load", "async_copy_global_to_shared")
tma_store = _first(tma, "async_store", "async_copy_shared_to_global")


@builtin
def reinterpreted(tile, dtype, shape, layout, _semantic=None):
    """The bytes of a tile in shared memory, read with another type, shape and layout."""
    name = "reinterpret" if hasattr(tile, "reinterpret") else "_reinterpret"
    return getattr(tile, name)(dtype, shape, layout, _semantic=_semantic)


@builtin
def tma_add(descriptor, coordinates, tile, _semantic=None):
    """Add a tile in shared memory to global memory: the copy engine's reduction, in fp32 or an
    integer type. Triton 3.6 has the operation, but no name for it in Gluon."""
    if hasattr(tma, "async_atomic_add"):
        tma.async_atomic_add(descriptor, coordinates, tile, _semantic=_semantic)
    else:
        at = _semantic._convert_to_ir_values(coordinates, require_i64=False)
        kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
        _semantic.builder.create_async_tma_reduce(kind, descriptor.handle, at, tile.handle)


@builtin
def clamp(x, low, high, _semantic=None):
    """`x`, at least `low` and at most `high`: one instruction where these are a constant and its
    negative. NaN becomes either. Gluon has no name for it."""
    low, high = _semantic.to_tensor(low), _semantic.to_tensor(high)
    return _semantic.clamp(x, low, high, ir.PROPAGATE_NAN.NONE)


__all__ = [
    "builtin",
    "clamp",
    "constexpr_function",
    "copy_arrive",
    "copy_load",
    "fence_async_shared",
    "gdc_launch_dependents",
    "gdc_wait",
    "gl",
    "jit",
    "mbarrier",
    "mma_v2",
    "reinterpreted",
    "thread_barrier",
    "tma_add",
    "tma_load",
    "tma_store",
    "tma_store_wait",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]
