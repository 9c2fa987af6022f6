"""Which matrices of a batch a workgroup's tile belongs to: shared by every GEMM kernel.

The tiles of all matrices are numbered as one sequence, a matrix's tiles behind those of the matrix
before, so every scheduler (see `schedule`) deals with a batch as it deals with one large matrix:
few tiles in each matrix still fill the GPU.

    none      one matrix each of A, B and C
    strided   matrix z of an operand is z strides behind its first; a stride of 0 shares one
    pointers  the operands are arrays of addresses; element z is the address of matrix z

A kernel gets the batch as a tuple, `batch`: how many matrices, then its own way to step from one
matrix to the next, and last, where the epilogue has matrices, their stride.
"""

import triton
import triton.language as tl


@triton.jit
def in_batch(each, batch, BATCHING: tl.constexpr):
    """Tiles of a whole batch whose matrices have `each`."""
    tiles = each
    if BATCHING != "none":
        tiles = each * batch[0]
    return tiles


@triton.jit
def in_matrix(tile, each, BATCHING: tl.constexpr):
    """Tile number `tile` of a batch whose matrices have `each`: (which matrix, which of its
    tiles)."""
    z = 0
    within = tile
    if BATCHING != "none":
        z = tile // each
        within = tile % each
    return z, within


@triton.jit
def shared_or(z, batch, PLACE: tl.constexpr, BATCHING: tl.constexpr):
    """Which matrix of a descriptor goes with matrix `z` of C: that of the same number, or, where
    all share one, the first; then its step, element PLACE of `batch`, is 0 and not 1."""
    number = z
    if BATCHING != "none":
        number = z * batch[PLACE]
    return number


@triton.jit
def matrix_of(
    pointer, batch, z, PLACE: tl.constexpr, BATCHING: tl.constexpr, ALIGNMENT: tl.constexpr
):
    """Address of matrix `z` of the operand at `pointer`, whose stride is element PLACE of `batch`;
    offsets are 64-bit, since a batch may span more than each of its matrices."""
    at = pointer
    if BATCHING == "strided":
        at = pointer + tl.cast(z, tl.int64) * batch[PLACE]
    elif BATCHING == "pointers":
        addresses = pointer.to(tl.pointer_type(tl.int64), bitcast=True)
        at = tl.multiple_of(tl.load(addresses + z).to(pointer.dtype), ALIGNMENT)
    return at


@triton.constexpr_function
def _is_matrix(takes, j):
    return takes.replace(",", "")[j] == "d"


@triton.constexpr_function
def _has_matrix(takes):
    return "d" in takes


@triton.jit
def extra_of(extra, batch, z, TAKES: tl.constexpr, BATCHING: tl.constexpr):
    """The operands of an epilogue for matrix `z`: its matrices are batches too, its vectors and
    scalars are everyone's."""
    out = extra
    if BATCHING != "none" and _has_matrix(TAKES):
        offset = tl.cast(z, tl.int64) * batch[len(batch) - 1]
        out = ()
        for j in tl.static_range(len(extra) - 1):
            if _is_matrix(TAKES, j):
                out += (extra[j] + offset,)
            else:
                out += (extra[j],)
        out += (extra[len(extra) - 1],)
    return out
