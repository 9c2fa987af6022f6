"""What a config takes, in numbers: tiles, guarded edges, shared memory. The rules judge by them,
the kernels' sources and the estimate are made with them."""

from __future__ import annotations

from functools import lru_cache

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.device import widths
from tilewright.ops.gemm import epilogues, lowbit, scales
from tilewright.ops.gemm.config import POINTERS, SPECIALISED, GemmConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.small_m import vector

MAX_TILE = 256
"""Largest tile edge: a tensor map's box has at most 256 elements a side."""

MOST_SCALED_K = 512
"""Largest tile_k of `gluon_scaled`, whose steps may hold several blocks of scales."""

LEAST_8_BIT_K = 32
"""Matrix instructions take 32 8-bit elements along K; with fewer the compiler stops or leaves the
matrix units."""

MAX_STAGES = 16
OVERHEAD_REGISTERS = 26
"""Registers a matrix kernel needs beside its accumulators; the assembler asked for 154 where
128 held accumulators (sm_90, 256×256 over 16 warps)."""

MAX_FLAGS = 16384
"""Flags of a kernel that shares tiles: one for each part of a tile, or more (`meetings`)."""

MAX_TILES = 2**31 - 2**20
"""Tiles a launch can have: their numbers are 32-bit, and one step of a persistent workgroup past
the last must still count."""

WARPGROUP = 4
"""Warps that issue one wgmma together."""

WARPGROUP_ROWS = 64
"""Rows of C that one wgmma computes."""

ODD_ROWS = 192
"""The one number of rows of a tile that is no power of two: three warp groups' of `gluon_ws`."""

ODD_COLUMNS = (96, 160, 192)
"""The columns that are none: those of the `SPECIALISED`, in two accumulators (`widths.wide`)."""


def odd_edges(pipeline: str, axis: str) -> tuple[int, ...]:
    """Edges of a tile along ``m``, ``n`` or ``k`` that a pipeline has and that are no powers of
    two."""
    if axis == "m" and pipeline == "gluon_ws":
        return (ODD_ROWS,)
    return ODD_COLUMNS if axis == "n" and pipeline in SPECIALISED else ()


PART_COLUMNS = 128
"""Columns of C that `gluon_scaled` computes with one wgmma, or fewer if its tile has fewer."""

SPECIALISATION_BYTES = 512
"""Shared memory Gluon kernels for sm_90 take beside their tiles: two barriers a stage, and what the
compiler hands to the warps."""

VECTOR_DOT_PRODUCTS = 1024
"""Most products of a thread in a step where a dot goes to the vector units and is written out: with
these the compiler took 370 to 520 registers (gfx1250), with twice as many all 1024. Half of them
where 8-bit floats are converted first: with all, 500 bytes spilled."""

BATCHED = ("basic", "tma", "tma_ws", *SPECIALISED)
"""Pipelines that walk the matrices of a batch."""

SCALED = ("basic", "tma", "tma_ws", *lowbit.PIPELINES)
"""Pipelines that apply block scales, beside `gluon_scaled`, which does nothing else."""

INT32_SPAN = 2**31
"""Bytes an operand may span when the kernel counts in 32 bits."""


def operand_dtype(config: GemmConfig) -> str:
    """The operand dtype as architectures list it: ``tf32`` is one of its own, and so are the MX
    formats where their instructions are used; pipeline weights multiplies what it unpacked."""
    if config.pipeline == "mx" and config.dtype_a in lowbit.MX_FORMATS:
        return "mxfp4" if config.dtype_a == config.dtype_b == "e2m1" else "mxfp8"
    if config.pipeline == "weights":
        return lowbit.multiplied_as(config)
    return "tf32" if config.precision == "tf32" else config.dtype_a


def vector_dot(config: GemmConfig, arch: Arch) -> bool:
    """Whether the kernel's ``tl.dot`` becomes arithmetic on the vector units."""
    return (
        arch.dot == "vector" and config.pipeline not in ("gluon_cdna", "mx") and not vector(config)
    )


def gated(layout: str) -> tuple[bool, bool, bool]:
    """Whether M, N and K are the innermost dimension of some operand.

    A or C column-major gates M, B or C row-major gates N, A row-major or B column-major (or
    shuffled: its blocks follow one another along K) gates K: only there does an unpadded kernel
    need whole tiles.
    """
    a, b, c = tuple(layout)
    return a == "c" or c == "c", b == "r" or c == "r", a == "r" or b in "cs"


@lru_cache(maxsize=256)
def masked(layout: str, pad_m: bool, pad_n: bool, pad_k: bool) -> tuple[bool, bool, bool]:
    """Whether the kernel must guard M, N and K: where padded, and where not gated, since an
    outer dimension may always be ragged."""
    m, n, k = gated(layout)
    return pad_m or not m, pad_n or not n, pad_k or not k


def piece(config: GemmConfig) -> int:
    """Columns of the sums that the `SPECIALISED` stage and store at a time."""
    return widths.piece(widths.wide(config.tile_n), config.store == "split")


def shared_memory(config: GemmConfig, arch: Arch) -> int:
    """Bytes of shared memory the pipeline's buffers take (the compiler may add a little).

    Where matrix instructions read shared memory on their own (wgmma, tcgen05), every stage's
    buffer is live; elsewhere the stage in use sits in registers and one buffer is saved.
    """
    a, b = DTYPES[config.dtype_a], DTYPES[config.dtype_b]
    c = DTYPES[config.dtype_c].bytes
    stage = a.size(config.tile_m * config.tile_k) + b.size(config.tile_n * config.tile_k)
    if config.pipeline == "gluon_cdna" and arch.cdna and arch.cdna.direct_to_shared:
        return stage * config.num_stages + (4 if config.scheduler == "split_k" else 0)  # a flag
    if config.pipeline in ("gluon_cdna", "small_m_tma", "gluon_weights"):
        return stage * config.num_stages
    if vector(config):  # only loads that run ahead pass through shared memory
        return stage * (config.num_stages - 1)
    if config.pipeline in POINTERS:
        spare = 0 if arch.async_mma else 1
        return stage * max(1, config.num_stages - spare) + _combining(config, arch)
    columns = config.tile_n // (2 if config.store == "split" else 1)
    if config.pipeline in SPECIALISED:
        columns = 2 * piece(config)
    staging = config.tile_m * columns // epilogues.fold(config.epilogue) * c
    if config.pipeline == "gluon_scaled":  # of C, a part for each warp group; and the scales
        parts = config.num_warps // WARPGROUP * min(config.tile_n, PART_COLUMNS)
        staging = WARPGROUP_ROWS * parts * c // (2 if config.store == "split" else 1)
        rows = config.tile_m if config.scale_a else 0
        rows += WARPGROUP_ROWS * -(-config.tile_n // PART_COLUMNS) if config.scale_b else 0
        stage += rows * 4 * (config.tile_k // summed_k(config))
    if epilogues.has_matrix(config.epilogue):
        # Through shared memory to the accumulator's threads, in as many parts as the compiler
        # likes: between a quarter of it and twice its size (sm_90), usually half.
        staging += staging // 2
    if config.pipeline == "gluon_pingpong":
        staging *= 2  # each group has its own tile
    if config.pipeline in (*SPECIALISED, "gluon_scaled"):
        return stage * config.num_stages + staging + SPECIALISATION_BYTES
    if config.scheduler in ("tile", "split_k"):  # the operand buffers are free when C is staged
        return max(stage * config.num_stages, staging)
    return stage * config.num_stages + staging


def summed_k(config: GemmConfig) -> int:
    """Elements of K whose products are summed before anything else is done with them: a step, or
    under `gluon_scaled`, whose steps may hold several, a block of scales."""
    if config.pipeline != "gluon_scaled":
        return config.tile_k
    return min(config.tile_k, scales.k_block(config) or config.tile_k)


def _combining(config: GemmConfig, arch: Arch) -> int:
    """Bytes more for `pre_a` and `pre_b`: on NVIDIA their matrices are pipelined too, and what
    comes out of a chain goes back through shared memory; on AMD both stay in registers."""
    total = 0
    sides = (
        (config.pre_a, config.tile_m, config.dtype_a), (config.pre_b, config.tile_n, config.dtype_b)
    )  # fmt: skip
    for chain, outer, dtype in sides if arch.backend == "cuda" else ():
        matrices = (t for t in epilogues.takes(chain) if t.kind == "d")
        each = sum(DTYPES[epilogues.operand_dtype(t, dtype)].bytes for t in matrices)
        back = DTYPES[dtype].bytes if chain and not arch.async_mma else 0
        total += outer * config.tile_k * (each * max(1, config.num_stages - 1) + back)
    return total


def tiles(config: GemmConfig, problem: GemmProblem) -> int:
    """Tiles of C, of the whole batch."""
    of_one = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
    return problem.batch * of_one


def shared_tiles(config: GemmConfig, tiles: int, programs: int) -> int:
    """Tiles that stream-K shares out. Whole waves go tile by tile; what is left over is shared out
    in equal parts. Where there are not two workgroups for each tile of that, parts cross tiles; few
    parts of a tile are then better than many, unless they are added up as they come: the last whole
    wave is shared too (the paper's "two-tile" hybrid), so that no share is under a tile."""
    left = tiles % programs
    if programs < 2 * left and left < tiles and config.reduction != "atomic":
        left += programs
    return left


def partial_dtype(config: GemmConfig) -> str:
    """The dtype of the partial sums that workgroups exchange. Block scales are floats, and so are
    the sums that they multiply."""
    return "int32" if config.dtype_acc == "int32" and not scales.count(config) else "fp32"


def meetings(config: GemmConfig) -> int:
    """Pieces of a tile whose sums are put together on their own, each with its flags: under
    `gluon_ws` each warp group's rows, under `gluon_scaled` each part."""
    if config.pipeline == "gluon_ws":
        return config.num_warps // WARPGROUP
    if config.pipeline == "gluon_scaled":
        return config.tile_m * config.tile_n // (WARPGROUP_ROWS * min(config.tile_n, PART_COLUMNS))
    return 1


def most_parts(config: GemmConfig, problem: GemmProblem) -> int:
    """The most partial sums a tile can be made of: under stream-K, one for each K step."""
    if config.scheduler == "stream_k":
        return -(-problem.k // config.tile_k)
    return config.split_k
