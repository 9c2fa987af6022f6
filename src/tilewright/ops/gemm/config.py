"""`GemmConfig`: one GEMM kernel, and its name.

The name says every field. The store, the registry, the tables, log lines and reports all use it:

    gemm_rcr_bf16_bf16_bf16_fp32_128x256x64_w8_s3_tma_persistent_g8_split_padmnk_al16
         |   A    B    C    acc  tile       |  |  |   |          |  |     |      bytes of alignment
         layout                     warps --+  |  |   |          |  |     +- padded dimensions
                                     stages ---+  |   |          |  +- store
                                        pipeline -+   +-scheduler+- tiles grouped along M

A scheduler that shares tiles is followed by how: ``split_k4_linear``, ``stream_k_tree``. Other
fields follow only where they differ from the default, in this order:

    tf32                      precision
    mma32x32x8                the matrix instruction; without it, the compiler's choice
    i64                       64-bit indices
    swapab                    the kernel computes the transpose
    pdl-wait, pdl-ahead       programmatic dependent launch
    batch-strided             batching
    prea-add-row.scale        operations on A before the product (``add+row_scale``); ``preb-`` on B
    sa1x128, sb128x128        blocks of A's and B's scales
    epi-bias-gelu             the epilogue, always last (``bias+gelu``)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.ops.gemm import scales

SCHEDULERS = ("tile", "persistent", "split_k", "stream_k")
SHARING = ("split_k", "stream_k")
"""Schedulers under which several workgroups sum parts of one tile's K."""

REDUCTIONS = ("none", "atomic", "linear", "tree", "two_stage", "cluster")
STORES = ("direct", "split")
ALIGNMENTS = (1, 2, 4, 8, 16)
INDEX_BITS = (32, 64)
DEPENDENT_LAUNCHES = ("none", "wait", "ahead")
"""Whether a kernel may start before the kernel before it has ended (programmatic dependent launch),
and what it does before it waits for that."""

MAX_TILE = 256
"""Largest tile edge: a tensor map's box has at most 256 elements a side."""


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """How to compute a GEMM. The signature is the fields up to `precision` and from `epilogue` on
    (without `swap_ab` and `dependent_launch`); the others are the algorithm.

    layout, dtype_a/b/c/acc, precision, epilogue, batching, scale_a, scale_b, pre_a, pre_b: as in
    `GemmProblem`.
    tile_m, tile_n, tile_k: the tile that one workgroup computes, in elements.
    num_warps: warps (waves) in a workgroup. Kernels in Gluon for sm_90 count the warps that
    multiply.
    num_stages: depth of the software pipeline.
    pipeline: the kernel. Each has a record in `pipelines`, in a file whose first lines describe it.
    scheduler: ``tile`` (one workgroup for each tile), ``persistent`` (one workgroup for each
    compute unit, which walks tiles), ``split_k`` (`split_k` workgroups for each tile) or
    ``stream_k`` (equal shares of all K steps); see ops/device/schedule.py.
    split_k: parts of K under that scheduler, else 1.
    reduction: how the parts of a tile meet under ``split_k`` and ``stream_k``: ``atomic``, or
    ``linear`` and ``tree``, which repeat bit for bit (see ops/device/reduce.py); or, under
    ``split_k`` alone, ``two_stage``: a second kernel adds them up (see `two_stage`), and
    ``cluster``: workgroups exchange them through shared memory (see `clusters`). Else ``none``.
    group_m: rows of tiles that are walked together, to reuse L2.
    store: ``direct``, or ``split``: C leaves in two halves.
    pad_m, pad_n, pad_k: whether that dimension may be other than a multiple of its tile, where it
    is the innermost dimension of an operand.
    alignment: bytes that base addresses and leading dimensions are multiples of, and innermost
    extents too for kernels that use pointers.
    mma: the matrix instruction (m, n, k), or (0, 0, 0) for the compiler's choice.
    index_bits: 32 when every operand spans under 2 GiB.
    swap_ab: whether the kernel computes the transpose of C, with B's columns as rows (see `swap`);
    tile_m and tile_n stay those of C.
    dependent_launch: ``none``; ``wait``: the kernel may start before the kernel before it on its
    stream has ended, sets itself up, and waits for that before it touches any array; ``ahead``: it
    also loads the first tiles of B before it waits, so the problem must say `constant_b`.

    `names.check` says whether a config can be named; `rules.judge` says whether it is legal on an
    architecture.
    """

    family: ClassVar[str] = "gemm"

    layout: str
    dtype_a: str
    dtype_b: str
    dtype_c: str
    dtype_acc: str
    precision: str
    tile_m: int
    tile_n: int
    tile_k: int
    num_warps: int
    num_stages: int
    pipeline: str
    scheduler: str
    split_k: int
    reduction: str
    group_m: int
    store: str
    pad_m: bool
    pad_n: bool
    pad_k: bool
    alignment: int
    mma: tuple[int, int, int]
    index_bits: int
    epilogue: str = ""
    batching: str = "none"
    scale_a: str = ""
    scale_b: str = ""
    pre_a: str = ""
    pre_b: str = ""
    swap_ab: bool = False
    dependent_launch: str = "none"

    @property
    def two_stage(self) -> bool:
        """Whether a second kernel adds up the parts of a sum."""
        return self.reduction == "two_stage"

    @property
    def clustered(self) -> bool:
        """Whether the workgroups that share a tile are a cluster."""
        return self.reduction == "cluster"

    @property
    def shares(self) -> bool:
        """Whether several workgroups sum parts of one tile's K."""
        return self.scheduler in SHARING

    @property
    def parts_meet(self) -> bool:
        """Whether workgroups add up the parts of a tile among themselves, through memory."""
        return self.shares and not (self.two_stage or self.clustered)

    @property
    def dtype_partials(self) -> str:
        """The dtype of the partial sums that workgroups exchange. Block scales are floats, and so
        are the sums that they multiply."""
        return "int32" if self.dtype_acc == "int32" and not scales.count(self) else "fp32"

    @property
    def _sharing(self) -> str:
        """How workgroups share a tile, in the name: ``4_linear`` behind ``split_k``."""
        if self.scheduler == "split_k":
            return f"{self.split_k}_{self.reduction}"
        return f"_{self.reduction}" if self.scheduler == "stream_k" else ""

    @property
    def name(self) -> str:
        """The kernel's name; `names.parse` is its exact inverse."""
        pads = "".join(
            d for d, on in zip("mnk", (self.pad_m, self.pad_n, self.pad_k), strict=True) if on
        )
        name = (
            f"gemm_{self.layout}_{self.dtype_a}_{self.dtype_b}_{self.dtype_c}_{self.dtype_acc}"
            f"_{self.tile_m}x{self.tile_n}x{self.tile_k}_w{self.num_warps}_s{self.num_stages}"
            f"_{self.pipeline}_{self.scheduler}{self._sharing}_g{self.group_m}_{self.store}"
            f"_pad{pads or '0'}_al{self.alignment}"
        )
        if self.precision != "ieee":
            name += f"_{self.precision}"
        if self.mma != (0, 0, 0):
            name += "_mma{}x{}x{}".format(*self.mma)
        if self.index_bits != 32:
            name += f"_i{self.index_bits}"
        if self.swap_ab:
            name += "_swapab"
        if self.dependent_launch != "none":
            name += f"_pdl-{self.dependent_launch}"
        if self.batching != "none":
            name += f"_batch-{self.batching}"
        for side, chain in (("a", self.pre_a), ("b", self.pre_b)):
            if chain:  # a dot for an underscore, which would be where the next part begins
                name += f"_pre{side}-" + chain.replace("+", "-").replace("_", ".")
        name += scales.names(self)
        if self.epilogue:
            name += "_epi-" + self.epilogue.replace("+", "-")
        return name
