"""Gluon for CDNA as the kernels use it: every name that is spelt differently in some Triton
release.

Written for Triton 3.6 to 3.9 (`triton.experimental.gluon.language.amd`). Triton's `cdna3` and
`cdna4` are mostly one set of functions. gfx90a uses the `cdna3` functions, which compile for it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd import AMDMFMALayout, AMDWMMALayout
from triton.experimental.gluon.language.amd.cdna3 import buffer_load, buffer_store, mfma
from triton.experimental.gluon.language.amd.cdna4 import mfma_scaled
from triton.experimental.gluon.language.amd.cdna4.async_copy import (
    buffer_load_to_shared,
    commit_group,
    load_shared_relaxed,
    wait_group,
)
from triton.experimental.gluon.language.amd.gfx1250 import wmma
from triton.runtime.jit import constexpr_function

from tilewright.ops.device.gluon_api import reinterpreted as _reinterpreted

jit = gluon.jit


@constexpr_function
def wmma_layout(transposed, warps_m, warps_n, shape):
    """The accumulator layout of gfx1250's WMMA with this (m, n, k); warps lie beside each other
    along N first. Triton 3.6 takes the numbers of warps. Later releases take the offset for each
    bit of a warp's number."""
    if "warps_per_cta" in AMDWMMALayout.__dataclass_fields__:
        return AMDWMMALayout(3, transposed, [warps_m, warps_n], shape)
    across = [[0, 1 << i] for i in range(warps_n.bit_length() - 1)]
    down = [[1 << i, 0] for i in range(warps_m.bit_length() - 1)]
    return AMDWMMALayout(3, transposed, across + down, instr_shape=shape)


@gluon.jit
def reinterpreted(tile, LAYOUT: gl.constexpr):
    """The bytes of a tile in shared memory, read through another layout."""
    return _reinterpreted(tile, tile.dtype, tile.shape, LAYOUT)


@gluon.jit
def keep_order(token):
    """Prevents the instruction scheduler from moving memory accesses across this point; otherwise
    it puts loads where their result is needed. It is an assembly statement without instructions;
    `token` is a register that passes through it."""
    return gl.inline_asm_elementwise("", "=v,0", [token], gl.int32, is_pure=False, pack=1)


@gluon.jit
def whole_registers(tile):
    """`tile` unchanged, but 16-bit elements stay packed in their registers until here. Otherwise
    the compiler unpacks them an iteration early, when the loads have only just begun. 8-bit
    elements, which Triton 3.6 does not compile here, were not seen unpacked."""
    out = tile
    if tile.dtype.primitive_bitwidth == 16:
        out = gl.inline_asm_elementwise("", "=v,0", [tile], tile.dtype, is_pure=True, pack=2)
    return out


__all__ = [
    "AMDMFMALayout",
    "AMDWMMALayout",
    "buffer_load",
    "buffer_load_to_shared",
    "buffer_store",
    "commit_group",
    "constexpr_function",
    "gl",
    "jit",
    "keep_order",
    "load_shared_relaxed",
    "mfma",
    "mfma_scaled",
    "reinterpreted",
    "wait_group",
    "whole_registers",
    "wmma",
    "wmma_layout",
]
