"""Which matrices of a batch a workgroup's tile belongs to; shared by every GEMM kernel.

The tiles of all matrices are numbered as one sequence, matrix by matrix. So every scheduler (see
`schedule`) treats a batch as one large matrix, and matrices with few tiles still fill the GPU.

    none      one matrix each of A, B and C
    strided   matrix z of an operand is z strides after its first; a stride of 0 shares one matrix
    pointers  the operands are arrays of addresses; element z is the address of matrix z
    nested    matrix z is z // inner outer strides and z % inner strides after the first
    summed    A and B are strided, and C is one: the sum of all products. K then has two levels, the
              matrix and the place within it, and each matrix is walked in whole steps

A kernel gets the batch as a tuple, `batch`: the number of matrices, then the kernel's own way to
step from one matrix to the next, and last, if the epilogue has matrices, their stride. Nested
batches insert before that stride the size of an inner batch and the outer strides of A, B, C and
the epilogue's matrices.

In the compiled code loads stay as wide as without a batch, with pointers too. On AMD, strided
operands keep buffer loads, to which the compiler adds the batch's offset in 32 bits (so a rule
counts whole batches). Operands by pointers use global loads.

What limits batches of small matrices: writing C where K is short, reading where it is long. On an
H200 the best kernels have 0.995 to 1.073 of the speed of torch.bmm and torch.mm. Measurements, and
what was tried: docs/notes/gemm-batching.md.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def of_c(batching):
    """The batching of C."""
    return "none" if batching == "summed" else batching


@triton.constexpr_function
def several(batching):
    """Whether C has several matrices."""
    return batching not in ("none", "summed")


@triton.jit
def in_batch(each, batch, BATCHING: tl.constexpr):
    """Tiles of a whole batch; each matrix has `each` tiles."""
    tiles = each
    if several(BATCHING):
        tiles = each * batch[0]
    return tiles


@triton.jit
def in_matrix(tile, each, BATCHING: tl.constexpr):
    """For tile number `tile` of a batch whose matrices have `each` tiles: (the matrix, the tile
    within it)."""
    z = 0
    within = tile
    if several(BATCHING):
        z = tile // each
        within = tile % each
    return z, within


@triton.jit
def shared_or(z, batch, PLACE: tl.constexpr, BATCHING: tl.constexpr):
    """The number of the descriptor's matrix that goes with matrix `z` of C: `z`, or the first if
    all share one. The step, element PLACE of `batch`, is then 0 instead of 1."""
    number = z
    if BATCHING != "none":
        number = z * batch[PLACE]
    return number


@triton.jit
def summed_k(k, batch, TILE_K: tl.constexpr, BATCHING: tl.constexpr):
    """Elements of K that a tile sums: of a summed batch those of all matrices, each with as many
    as its steps have."""
    all_k = k
    if BATCHING == "summed":
        all_k = batch[0] * tl.cdiv(k, TILE_K) * TILE_K
    return all_k


@triton.jit
def in_sum(k0, k, TILE_K: tl.constexpr):
    """For element `k0` of `summed_k`, a multiple of TILE_K: (the matrix, the element of its K)."""
    each = tl.cdiv(k, TILE_K) * TILE_K
    return k0 // each, tl.multiple_of(k0 % each, TILE_K)


@triton.jit
def step_of(k0, z, k, batch, TILE_K: tl.constexpr, BATCHING: tl.constexpr):
    """For the step of C's matrix `z` that begins with element `k0` of `summed_k`: the numbers of
    A's and of B's matrix among their descriptors', and the element of their K."""
    number = z
    at = k0
    if BATCHING == "summed":
        number, at = in_sum(k0, k, TILE_K)
    return shared_or(number, batch, 1, BATCHING), shared_or(number, batch, 2, BATCHING), at


@triton.jit
def _nested(z, batch, stride, PLACE: tl.constexpr):
    """Elements from the first matrix to matrix `z` of a nested batch. Inner matrices have stride
    `stride`; the outer stride is that of operand PLACE (A, B, C, D: 1 to 4)."""
    outer = tl.cast(z // batch[4], tl.int64)
    inner = tl.cast(z % batch[4], tl.int64)
    return outer * batch[4 + PLACE] + inner * stride


@triton.jit
def matrix_of(
    pointer, batch, z, PLACE: tl.constexpr, BATCHING: tl.constexpr, ALIGNMENT: tl.constexpr
):
    """Address of matrix `z` of the operand at `pointer`; its stride is element PLACE of `batch`.
    Offsets are 64-bit, since a batch may span more than each of its matrices."""
    at = pointer
    if BATCHING == "strided" or (BATCHING == "summed" and PLACE != 3):
        at = pointer + tl.cast(z, tl.int64) * batch[PLACE]
    elif BATCHING == "nested":
        at = pointer + _nested(z, batch, batch[PLACE], PLACE)
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
    """The operands of an epilogue for matrix `z`: its matrices are batches too, and all share its
    vectors and scalars."""
    out = extra
    if several(BATCHING) and _has_matrix(TAKES):
        stride = batch[len(batch) - 1]
        if BATCHING == "nested":
            offset = _nested(z, batch, stride, 4)
        else:
            offset = tl.cast(z, tl.int64) * stride
        out = ()
        for j in tl.static_range(len(extra) - 1):
            if _is_matrix(TAKES, j):
                out += (extra[j] + offset,)
            else:
                out += (extra[j],)
        out += (extra[len(extra) - 1],)
    return out
