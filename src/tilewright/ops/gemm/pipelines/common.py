"""Answers to a record's questions that several kernels give alike: see `record.Pipeline`."""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.binder import Value
from tilewright.ops.gemm import lowbit, scales
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.problem import GemmProblem

ROW_BYTES = 128
"""Bytes of K in a row of a tile that a 128-byte swizzle spans: a whole line of every L2 here."""


# --- dtypes, blocks and pieces ---------------------------------------------------------------


def operand_dtype(c: GemmConfig) -> str:
    """The dtype of A; ``tf32`` is one of its own."""
    return "tf32" if c.precision == "tf32" else c.dtype_a


def whole_step(c: GemmConfig) -> int:
    """`summed_k` of kernels that sum whole steps of K."""
    return c.tile_k


def never(c: GemmConfig) -> bool:
    return False


def always(c: GemmConfig) -> bool:
    return True


def once(c: GemmConfig) -> int:
    """`meetings` of kernels whose tiles meet whole."""
    return 1


def whole_tiles(c: GemmConfig) -> tuple[int, int, int, int]:
    """`boxes` of kernels that copy whole tiles; store ``split`` copies C in two halves."""
    columns = c.tile_n // epilogues.fold(c.epilogue)
    return c.tile_m, c.tile_n, c.tile_k, columns // 2 if c.store == "split" else columns


# --- shared memory ---------------------------------------------------------------------------


def stage(c: GemmConfig) -> int:
    """Bytes of one stage: a tile of A and a tile of B."""
    a, b = DTYPES[c.dtype_a], DTYPES[c.dtype_b]
    return a.size(c.tile_m * c.tile_k) + b.size(c.tile_n * c.tile_k)


def ring(c: GemmConfig, arch: Arch) -> int:
    """Bytes of all stages, where C takes no shared memory."""
    return stage(c) * c.num_stages


def pipelined_loads(c: GemmConfig, arch: Arch) -> int:
    """Bytes of the buffers that the compiler makes for loads through pointers.

    Where matrix instructions read shared memory on their own (wgmma, tcgen05), every stage's
    buffer is live; elsewhere the stage in use is in registers and one buffer is saved. Elements of
    B that are converted pass through registers, and go back as wide as A's.
    """
    spare = 0 if arch.async_mma else 1
    found = stage(c) * max(1, c.num_stages - spare) + _combining(c, arch)
    if arch.async_mma and lowbit.widens(c):
        a, b = DTYPES[c.dtype_a], DTYPES[c.dtype_b]
        found += a.size(c.tile_n * c.tile_k) - b.size(c.tile_n * c.tile_k)
    return found


def _combining(c: GemmConfig, arch: Arch) -> int:
    """Bytes more for `pre_a` and `pre_b`. On NVIDIA their matrices are pipelined too, and the
    result of a chain goes back through shared memory; on AMD both stay in registers."""
    total = 0
    sides = ((c.pre_a, c.tile_m, c.dtype_a), (c.pre_b, c.tile_n, c.dtype_b))
    for chain, outer, dtype in sides if arch.backend == "cuda" else ():
        matrices = (t for t in epilogues.takes(chain) if t.kind == "d")
        each = sum(DTYPES[epilogues.operand_dtype(t, dtype)].bytes for t in matrices)
        back = DTYPES[dtype].bytes if chain and not arch.async_mma else 0
        total += outer * c.tile_k * (each * max(1, c.num_stages - 1) + back)
    return total


def staged(c: GemmConfig, columns: int) -> int:
    """Bytes in which `columns` columns of a tile of C are staged on their way to memory."""
    found = c.tile_m * columns // epilogues.fold(c.epilogue) * DTYPES[c.dtype_c].bytes
    return found + with_matrix(c, found)


def with_matrix(c: GemmConfig, staging: int) -> int:
    """Bytes more for an epilogue's matrix. It goes through shared memory to the accumulator's
    threads in as many parts as the compiler likes: between a quarter of the staging buffer and
    twice its size (sm_90), usually half."""
    return staging // 2 if epilogues.has_matrix(c.epilogue) else 0


# --- registers -------------------------------------------------------------------------------


def accumulators(c: GemmConfig, arch: Arch) -> int:
    """Registers of a thread for the sums of a tile that all warps share."""
    return with_unscaled(c, c.tile_m * c.tile_n // (c.num_warps * arch.warp_size))


def with_unscaled(c: GemmConfig, sums: int) -> int:
    """`sums`, and with block scales as many products that are not scaled yet."""
    return 2 * sums if scales.count(c) else sums


# --- the compiler's options ------------------------------------------------------------------


def triton_options(c: GemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    found: tuple[tuple[str, Value], ...] = (
        ("num_warps", c.num_warps),
        ("num_stages", c.num_stages),
    )
    return (*found, ("matrix_instr_nonkdim", c.mma[0])) if c.mma != (0, 0, 0) else found


# --- the default space -----------------------------------------------------------------------


def depth(of: GemmConfig | GemmProblem) -> int:
    """The tile_k that is worth having: a whole swizzle's span, or a shorter block of scales."""
    whole = ROW_BYTES // DTYPES[of.dtype_a].bytes
    return min(whole, scales.k_block(of) or whole)


def deep(c: GemmConfig) -> bool:
    """Whether a config is one of the space's own tiles with deep rings or three warp groups."""
    return c.num_stages > 4 or c.num_warps > 8


def usual_work(c: GemmConfig) -> bool:
    """Whether a tile has a usual amount of work for each warp, and the usual depth."""
    return 64 <= c.tile_m * c.tile_n // c.num_warps <= 4096 and c.tile_k == depth(c)


def last_resort(c: GemmConfig) -> bool:
    """Whether a config is there for operands that no other config serves."""
    return c.alignment == 1 or c.index_bits == 64


def worth_through_pointers(c: GemmConfig) -> bool:
    if deep(c):
        return True
    shallow = not last_resort(c) or c.num_stages == 2
    return usual_work(c) and c.scheduler == "tile" and shallow


def worth_through_descriptors(c: GemmConfig) -> bool:
    shared_out = c.scheduler in ("persistent", "stream_k")
    return deep(c) or (usual_work(c) and shared_out and c.num_stages > 2)


def worth_of_few_bits(c: GemmConfig, several_blocks: bool) -> bool:
    """For 4-bit operands and the MX formats: tile_k is as deep as the blocks of scales allow."""
    deepest = 128
    if not several_blocks:
        deepest = min(deepest, scales.k_block(c) or deepest)
    plain = c.num_stages <= 2 and c.scheduler == "tile"
    eight_warps = (c.num_warps == 8) == (c.tile_m == 128)
    return c.tile_k == deepest and eight_warps and (plain or not last_resort(c))
