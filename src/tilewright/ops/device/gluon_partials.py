"""Moves partial sums between wgmma's registers and memory, 16 bytes a thread: for `reduce` on
sm_90.

A slot holds a partial in the order of registers. A thread holds elements of a row in pairs, and
beside each pair the pair eight rows below. These four elements are adjacent in the slot, followed
by those of the next thread. So each warp accesses 512 contiguous bytes. Given addresses of single
elements, the compiler would not find these vectors; and it has no addition of four elements at once
to memory. A form without flags that was tried: docs/notes/device-gluon_partials.md.
"""

from tilewright.ops.device.gluon_api import gl, jit


@jit
def within_registers(TILE_M: gl.constexpr, TILE_N: gl.constexpr, LAYOUT: gl.constexpr):
    """The offset in its slot of each element of a partial in wgmma's layout."""
    m = gl.arange(0, TILE_M, gl.SliceLayout(1, LAYOUT))
    n = gl.arange(0, TILE_N, gl.SliceLayout(0, LAYOUT))
    of_row = m // 8 % 2 * 2 + m % 8 * 16 + m // 16 % 4 * 128 + m // 64 * (64 * TILE_N)
    of_col = n % 2 + n // 2 % 4 * 4 + n // 8 * 512
    return of_row[:, None] + of_col[None, :]


@jit
def store(slot, within, part):
    """Write a partial to its slot."""
    VALUE: gl.constexpr = ",r,r,r,r" if part.dtype.is_int() else ",f,f,f,f"
    gl.inline_asm_elementwise(
        "st.relaxed.gpu.global.v4.b32 [$4], {$8, $9, $10, $11}; "
        "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;",
        "=r,=r,=r,=r,l,l,l,l" + VALUE,
        [(slot + within).to(gl.int64), part],
        dtype=gl.int32,
        is_pure=False,
        pack=4,
    )


@jit
def load(slot, within, like):
    """A partial, with the dtype of `like`, read from its slot, bypassing L1."""
    VALUE: gl.constexpr = "=r,=r,=r,=r" if like.dtype.is_int() else "=f,=f,=f,=f"
    return gl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.v4.b32 {$0, $1, $2, $3}, [$4];",
        VALUE + ",l,l,l,l",
        [(slot + within).to(gl.int64)],
        dtype=like.dtype,
        is_pure=False,
        pack=4,
    )


@jit
def add(slot, within, part):
    """Add a partial to the contents of its slot."""
    if part.dtype.is_int():
        gl.inline_asm_elementwise(
            "red.relaxed.gpu.global.add.s32 [$4], $8; red.relaxed.gpu.global.add.s32 [$4+4], $9; "
            "red.relaxed.gpu.global.add.s32 [$4+8], $10; "
            "red.relaxed.gpu.global.add.s32 [$4+12], $11; "
            "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;",
            "=r,=r,=r,=r,l,l,l,l,r,r,r,r",
            [(slot + within).to(gl.int64), part],
            dtype=gl.int32,
            is_pure=False,
            pack=4,
        )
    else:
        gl.inline_asm_elementwise(
            "red.relaxed.gpu.global.add.v4.f32 [$4], {$8, $9, $10, $11}; "
            "mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;",
            "=r,=r,=r,=r,l,l,l,l,f,f,f,f",
            [(slot + within).to(gl.int64), part],
            dtype=gl.int32,
            is_pure=False,
            pack=4,
        )
