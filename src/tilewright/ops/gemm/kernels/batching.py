"""Which matrices of a batch a workgroup's tile belongs to; shared by every GEMM kernel.

The tiles of all matrices are numbered as one sequence, matrix by matrix. So every scheduler (see
`schedule`) treats a batch as one large matrix, and matrices with few tiles still fill the GPU.

    none      one matrix each of A, B and C
    strided   matrix z of an operand is z strides after its first; a stride of 0 shares one matrix
    pointers  the operands are arrays of addresses; element z is the address of matrix z
    nested    matrix z is z // inner outer strides and z % inner strides after the first

A kernel gets the batch as a tuple, `batch`: the number of matrices, then the kernel's own way to
step from one matrix to the next, and last, if the epilogue has matrices, their stride. Nested
batches insert before that stride the size of an inner batch and the outer strides of A, B, C and
the epilogue's matrices.

Seen in the compiled code: loads stay as wide as without a batch, with pointers too. On AMD, strided
operands keep buffer loads, to which the compiler adds the batch's offset in 32 bits (so a rule
counts whole batches). Operands by pointers use global loads.

Measured on an H200, bf16: the best kernel of a declared space against the better of torch.bmm and,
if B is shared, torch.mm on the folded batch, in one interleaved run
(f1dfe4c6:benchmarks/gemm_batched.py). "fill" is the time of writing zeros over C:

                                  µs   ratio  fill
    32×[512,64]·[64,512]        11.1   1.040   9.2  128x128x64, 4 warps, 4 stages, tma, persistent
    128×[1024,128]·[128,1024]   97.0   1.002  83.0  128x128x64, 4 warps, 4 stages, gluon_ws
    64×[1,128]·[128,4096]       26.6   1.073   4.7  16x128x128, 3 stages, tma, tile
    16×[2048,64]·[64,2048]      43.1   1.032  43.3  128x128x64, 8 warps, 4 stages, gluon_ws, split
    8×[4096,128]·[128,4096]     89.6   1.039  83.0  128x256x64, 8 warps, 4 stages, gluon_ws, split
    256×[128,128]·[128,128]     12.5   1.015   6.5  128x64x64, 4 warps, 2 stages, tma, tile
    128×[1024,1024]·[1024,128]  90.8   1.051  14.3  64x128x128, 4 warps, 4 stages, tma, persistent
    16×[2048,2048]·[2048,64]    45.6   1.034   5.3  128x64x128, 4 warps, 4 stages, tma, persistent
    64×[1,4096]·[4096,128]      28.1   0.995   4.2  64x64x128, 8 warps, 4 stages, tma, persistent
    32×[1024,1024]²            104.4   0.997  23.8  128x256x64, 8 warps, 4 stages, gluon_ws, split
    32×[512,1024]·B            52.5   1.007  14.5  folded: 128x256x64, 8 warps, 4 stages, tma
    64×[16,1024]·B             18.1   1.004   6.5  folded: 128x256x64, 8 warps, 3 stages, tma

What limits it. Scores of attention (the first rows, with K of 64 and 128) are bound by writing C:
at 16×2048² a kernel takes as long as filling C does. The products with long K and few columns read
at 3.1 to 3.7 TB/s, those of one row at 2.4 to 2.5. 32×1024³ has the limit of every large bf16
product (see `gluon_ws`).

Failures. A shared B without folding: 64×[16,1024]·B took 56.3 µs in an earlier run, three times as
long, since every 16 rows read all of B again (torch.bmm: 63.2). Walking C by rows instead of groups
of rows, so that neighbouring workgroups write neighbouring columns: within noise. K split in two or
four for one row and K = 4096: not among the six fastest.
"""

import triton
import triton.language as tl


@triton.jit
def in_batch(each, batch, BATCHING: tl.constexpr):
    """Tiles of a whole batch; each matrix has `each` tiles."""
    tiles = each
    if BATCHING != "none":
        tiles = each * batch[0]
    return tiles


@triton.jit
def in_matrix(tile, each, BATCHING: tl.constexpr):
    """For tile number `tile` of a batch whose matrices have `each` tiles: (the matrix, the tile
    within it)."""
    z = 0
    within = tile
    if BATCHING != "none":
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
    if BATCHING == "strided":
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
    if BATCHING != "none" and _has_matrix(TAKES):
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
