"""Atoms of pixels in shared memory, as kernels for groups of 4 to 32 channels read them (sm_90).

An atom is a pixel of eight images by 64 channels, 128 bytes for each image. Two atoms are the 16
rows of an operand of the older matrix instruction, and each thread's registers of it hold elements
of one atom. So a pair of pixels that begins at an odd one needs no reads of its own: it is made of
the registers of two pairs that begin at even ones. Compiled by Triton 3.6, these are moves.
"""

from tilewright.ops.device.gluon_api import gl, jit, reinterpreted

IMAGES = gl.constexpr(8)
"""Rows of an atom."""

SLAB = gl.constexpr(64)
"""Channels of a workgroup: a row of an atom, 128 bytes."""


@jit
def box_at(atoms, at, view):
    """The atoms from number `at` on, as many as one copy of `view` moves."""
    return reinterpreted(atoms.index(at), view.dtype, view.block_type.shape, view.layout)


@jit
def place_of(number, tiles_w, octets):
    """The tile along the width, the eight images and the part of the height of a strip."""
    rest = number // tiles_w
    return number % tiles_w, rest % octets, rest // octets


@jit
def between(left, right):
    """The last pixel of a pair and the first of the next pair, as a pair: [slices, 16, channels].
    Registers change their order and nothing else."""
    PARTS: gl.constexpr = left.shape[0]
    SLICE: gl.constexpr = left.shape[2]
    _, last = left.reshape((PARTS, 2, IMAGES, SLICE)).permute((0, 2, 3, 1)).split()
    first, _ = right.reshape((PARTS, 2, IMAGES, SLICE)).permute((0, 2, 3, 1)).split()
    pair = gl.join(last, first).permute((0, 3, 1, 2)).reshape((PARTS, 2 * IMAGES, SLICE))
    return gl.convert_layout(pair, left.type.layout, assert_trivial=True)


@jit
def pair_at(atoms, at, LAYOUT: gl.constexpr, TURNED: gl.constexpr, SLICE: gl.constexpr):
    """Two pixels of eight images from atom `at` on, by slices: [slices, 16, channels], or TURNED
    [slices, channels, 16]."""
    PARTS: gl.constexpr = SLAB // SLICE
    MATRIX: gl.constexpr = gl.NVMMASharedLayout.get_default_for([2 * IMAGES, SLAB], atoms.dtype)
    found = reinterpreted(atoms.index(at), atoms.dtype, [2 * IMAGES, SLAB], MATRIX)
    found = found.reshape((2 * IMAGES, PARTS, SLICE))
    if TURNED:
        found = found.permute((1, 2, 0))
    else:
        found = found.permute((1, 0, 2))
    return found.load(LAYOUT)


@jit
def pairs_at(
    atoms, first, TAPS: gl.constexpr, COLS: gl.constexpr, LAYOUT: gl.constexpr, SLICE: gl.constexpr
):  # fmt: skip
    """The pairs of neighbours that so many taps join with a row of COLS pixels: one that begins at
    each pixel in turn, from atom `first` on. Pixels are read once, but one for an even number of
    taps."""
    LAST: gl.constexpr = COLS - 2 + TAPS - 1
    now = pair_at(atoms, first, LAYOUT, False, SLICE)
    found = ()
    for begin in gl.static_range(0, LAST + 1, 2):
        found += (now,)  # type: ignore[assignment]
        if begin + 1 < LAST:
            after = pair_at(atoms, first + begin + 2, LAYOUT, False, SLICE)
            found += (between(now, after),)  # type: ignore[assignment]
            now = after
        elif begin + 1 == LAST:
            found += (pair_at(atoms, first + LAST, LAYOUT, False, SLICE),)  # type: ignore[assignment]
    return found
