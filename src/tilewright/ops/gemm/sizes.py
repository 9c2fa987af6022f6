"""What a config takes, in numbers: tiles, shared memory, parts of a sum. The rules judge by them;
the kernels' sources, launches and the estimate are made with them."""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.ops.gemm import pipelines, small_m, two_stage
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.problem import GemmProblem

OVERHEAD_REGISTERS = 26
"""Registers a matrix kernel needs beside its accumulators; the assembler asked for 154 where
128 held accumulators (sm_90, 256×256 over 16 warps)."""

MAX_TILES = 2**31 - 2**20
"""Tiles a launch can have: their numbers are 32-bit, and one step of a persistent workgroup past
the last must still count."""


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
    return problem.matrices_of_c * of_one


def steps(config: GemmConfig, problem: GemmProblem) -> int:
    """Steps of a tile along K, through all matrices of a sum."""
    return problem.addends * -(-problem.k // config.tile_k)


def most_parts(config: GemmConfig, problem: GemmProblem) -> int:
    """The most partial sums a tile can be made of: under stream-K, one for each K step."""
    if config.scheduler == "stream_k":
        return steps(config, problem)
    return config.split_k
