"""What a config takes, in numbers: tiles, shared memory, parts of a sum. The rules judge by them;
the kernels' sources, launches and the estimate are made with them."""

from __future__ import annotations

from typing import Protocol

from tilewright.arch.model import Arch
from tilewright.ops.gemm import pipelines, small_m, two_stage
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.problem import GemmProblem

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

VECTOR_DOT_PRODUCTS = 1024
"""Most products of a thread in a step where a dot goes to the vector units and is written out: with
these the compiler took 370 to 520 registers (gfx1250), with twice as many all 1024. Half of them
where 8-bit floats are converted first: with all, 500 bytes spilled."""

INT32_SPAN = 2**31
"""Bytes an operand may span when the kernel counts in 32 bits."""


# --- what a pipeline's record says of a config ------------------------------------------------


def operand_dtype(config: GemmConfig) -> str:
    """The operand dtype of the kernel's matrix instructions, as architectures list it: ``tf32`` is
    one of its own, and so are the MX formats."""
    return pipelines.of(config).operand_dtype(config)


def shared_memory(config: GemmConfig, arch: Arch) -> int:
    """Bytes of shared memory that the kernel takes (the compiler may add a little)."""
    return pipelines.of(config).shared_memory(two_stage.config(config), arch)


def summed_k(config: GemmConfig) -> int:
    """Elements of K whose products are summed before anything else is done with them."""
    return pipelines.of(config).summed_k(config)


def meetings(config: GemmConfig) -> int:
    """Pieces of a tile whose partial sums meet on their own, each with its flags."""
    return pipelines.of(config).meetings(config)


def vector(config: GemmConfig) -> int:
    """Elements of K that a thread multiplies at once on the vector units; 0 on the matrix units."""
    return small_m.vector(config) if pipelines.of(config).has("few_rows") else 0


def k_parts(config: GemmConfig) -> int:
    """Parts of every step's K that the warps share out among themselves."""
    return small_m.k_parts(config) if pipelines.of(config).has("few_rows") else 1


def vector_dot(config: GemmConfig, arch: Arch) -> bool:
    """Whether the kernel's ``tl.dot`` becomes arithmetic on the vector units."""
    return arch.dot == "vector" and pipelines.of(config).has("dot") and not vector(config)


# --- tiles ------------------------------------------------------------------------------------


def tiles(config: GemmConfig, problem: GemmProblem) -> int:
    """Tiles of C, of the whole batch."""
    of_one = -(-problem.m // config.tile_m) * -(-problem.n // config.tile_n)
    return problem.batch * of_one


class Sharing(Protocol):
    """The fields of a config that decide how workgroups share tiles."""

    @property
    def scheduler(self) -> str: ...
    @property
    def reduction(self) -> str: ...


def shared_tiles(config: Sharing, tiles: int, programs: int) -> int:
    """Tiles that stream-K shares out.

    Whole waves go tile by tile; the tiles left over are shared out in equal parts. If there are
    fewer than two workgroups for each of these tiles, parts cross tiles. Few parts of a tile are
    then better than many, unless partial sums are added as they come: the last whole wave is shared
    too (the paper's "two-tile" hybrid), so that no share is under a tile.
    """
    left = tiles % programs
    if programs < 2 * left and left < tiles and config.reduction != "atomic":
        left += programs
    return left


def slots(config: Sharing, tiles: int, programs: int, splits: int) -> int:
    """Number of partial tiles that the workspace has room for.

    splits: parts of a tile; under stream-K, the tiles that are shared.
    """
    if config.reduction == "atomic":
        return splits if config.scheduler == "stream_k" else tiles
    # Under stream-K, a workgroup has up to two partial tiles: at the start and at the end of its
    # share.
    return 2 * programs if config.scheduler == "stream_k" else tiles * splits


def most_parts(config: GemmConfig, problem: GemmProblem) -> int:
    """The most partial sums a tile can be made of: under stream-K, one for each K step."""
    if config.scheduler == "stream_k":
        return -(-problem.k // config.tile_k)
    return config.split_k
