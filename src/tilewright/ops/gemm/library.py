"""Pipeline ``vendor``: algorithms of the vendor's library, NVIDIA's cuBLASLt or AMD's hipBLASLt,
beside the kernels that are built here.

A `VendorConfig` says one algorithm. The library is asked for those that it would take for a problem
(`query`); each becomes a config (`config_of`), which is verified, timed, written into tables and
launched like any kernel. Nothing is built for it: its launch is one step that the library computes.

Both libraries multiply column-major matrices. A row-major matrix is the transpose of a column-major
one. A row-major C is the transpose of a product Bᵀ·Aᵀ, so the library's first matrix is B there and
its bias has a value for each column of C; for a column-major C its first matrix is A.

Timed through this binding: the products that convolutions are
(benchmarks/results/conv_tuned_h200.json).

No AMD GPU ran hipBLASLt here. The real library was asked, what it launches was looked at, and its
code was executed in emulation (benchmarks/results/hipblaslt_offers.json, hipblaslt_emulated.json).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.epilogues import chain_names
from tilewright.ops.estimate import Estimate
from tilewright.ops.gemm import scales, support
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.library_config import (
    MIB,
    VENDOR,
    WORKSPACES,
    VendorConfig,
    vendor_config,
)
from tilewright.ops.gemm.library_kinds import RECORDS, VendorLibrary
from tilewright.ops.gemm.operands import SCALES
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.vendor import BLOCK_ROWS_MULTIPLE, BLOCKS
from tilewright.ops.library import Found, Matmul, Matrix, kind
from tilewright.ops.nouns import Launch, Pointer, Step, Temporary
from tilewright.ops.physics import at_best
from tilewright.verdict import YES, Verdict, no

_FP8 = ("e4m3fn", "e4m3fnuz")

_COLUMN_MULTIPLE = 4
"""A column of the scales of B's blocks is padded to a multiple of so many."""

_BATCHINGS = ("none", "strided")

Described = VendorConfig | GemmProblem
"""Both have the words that the rules of the signature read."""


def _library(c: Described, arch: Arch, of: VendorLibrary) -> str | None:
    if not of.serves(arch.backend):
        return f"{of.title} is {of.owner}'s, and {arch.name} is not"
    return None


def _dtype(c: Described, arch: Arch, of: VendorLibrary) -> str | None:
    if c.dtype_a != c.dtype_b or c.dtype_c not in of.types.get(c.dtype_a, ()):
        return f"{c.dtype_a} times {c.dtype_b} into {c.dtype_c} is not asked of the library"
    for dtype in (c.dtype_a, *(("tf32",) if c.precision == "tf32" else ())):
        support = arch.dtypes.get(dtype)
        if support is None or support.support != "native":
            return f"{arch.name} has no instruction for {dtype}"
    return None


def _layout(c: Described, arch: Arch, of: VendorLibrary) -> str | None:
    if c.layout[1] == "s":
        return "the library reads no shuffled B"
    if DTYPES[c.dtype_a].bits == 8 and c.layout not in of.layouts_8_bit:
        return f"layout {c.layout}: the library's 8-bit operands lie as rcr has them"
    return None


def _operands(c: Described, arch: Arch, of: VendorLibrary) -> str | None:
    if c.pre_a or c.pre_b:
        return "the library multiplies operands as they are; pre_a and pre_b need a kernel"
    blocks = (c.scale_a, c.scale_b)
    if any(blocks) and not (c.dtype_a in of.blocks and blocks == BLOCKS):
        return (
            f"blocks of scales {c.scale_a or 'none'} and {c.scale_b or 'none'} are not asked of it"
        )
    if c.batching not in _BATCHINGS:
        return f"batching {c.batching} is not asked of the library, which walks one stride"
    return None


def _epilogue(c: Described, arch: Arch, of: VendorLibrary) -> str | None:
    if c.epilogue and c.scale_a:
        return f"with blocks of scales the library is asked for no epilogue as {c.epilogue}"
    known = of.fp8_chains if c.dtype_a in _FP8 else of.chains
    for operation in c.epilogue.split("+"):
        if operation in of.refused:
            return of.refused[operation]
    if c.epilogue not in known:
        listed = ", ".join(filter(None, known))
        return f"epilogue {c.epilogue} is not the library's; for {c.dtype_a} it has {listed}"
    if known[c.epilogue] == "scales" and c.batching != "none":
        return f"scales of each of a batch (batching {c.batching}) are not asked of the library"
    if "bias" in c.epilogue and c.layout[2] == "c":
        return "the library adds a bias along the other dimension of a column-major C"
    return None


def _rounded(c: VendorConfig) -> str | None:
    if c.algorithm.rounds and c.dtype_c != c.dtype_acc:
        return f"rounds each part of a sum to {c.dtype_c}; sums are in {c.dtype_acc}"
    return None


LEGALITY: tuple[tuple[str, Callable[[Described, Arch, VendorLibrary], str | None]], ...] = (
    ("library", _library),
    ("dtype", _dtype),
    ("layout", _layout),
    ("operands", _operands),
    ("epilogue", _epilogue),
)
"""The rules on what a library is asked for: of a problem before it is asked, and of a config."""


def _judged(c: Described, arch: Arch, library: str) -> Verdict:
    for name, rule in LEGALITY:
        if reason := rule(c, arch, RECORDS[kind(library)]):
            return no(name, reason)
    return YES


def judge(config: VendorConfig, arch: Arch) -> Verdict:
    """Whether `config` may be used on `arch`."""
    if reason := _rounded(config):
        return no("reduction", reason)
    return _judged(config, arch, config.library)


def _extent(p: GemmProblem, library: str) -> str | None:
    if 0 in (p.m, p.n, p.k, p.batch):
        return f"{p.m}×{p.n}×{p.k} is empty, which is left to kernels of ours"
    if DTYPES[p.dtype_a].bits != 8:
        return None
    of = RECORDS[kind(library)]
    multiple = of.multiple_8_bit
    if p.n % multiple or p.k % multiple:
        return f"n = {p.n} and k = {p.k} must be multiples of {multiple} for 8-bit operands"
    if p.alignment < multiple:
        return f"8-bit operands aligned to {p.alignment} bytes, under {multiple}"
    return _scales_lie(p) if of.blocks and (p.scale_a, p.scale_b) == BLOCKS else None


def _scales_lie(p: GemmProblem) -> str | None:
    """Why the library cannot read the blocks' scales where they lie: it reads them by columns, as
    torch has them."""
    if p.m % BLOCK_ROWS_MULTIPLE:
        return f"m = {p.m} must be a multiple of {BLOCK_ROWS_MULTIPLE} where blocks have scales"
    rows = scales.of(p)[1].shape[0]
    column = -(-rows // _COLUMN_MULTIPLE) * _COLUMN_MULTIPLE
    for name, have, want in (
        ("strides_sa", p.strides_sa, (1, p.m)),
        ("strides_sb", p.strides_sb, (1, column)),
    ):
        if have != want:
            return f"{name} = {have}: the library reads scales at strides of {want}"
    return None


def supports(config: VendorConfig, problem: GemmProblem, arch: Arch) -> Verdict:
    """Whether `config` on `arch` may compute `problem`. The library has the last word when the
    launch is prepared."""
    if reason := support.signature(config, problem):
        return no("signature", reason)
    if problem.alignment < config.alignment:
        return no(
            "vector_width",
            f"addresses and rows are aligned to {problem.alignment} bytes, under "
            f"{config.alignment}",
        )
    if reason := _extent(problem, config.library):
        return no("extent", reason)
    return judge(config, arch)


def repeats(config: VendorConfig) -> Verdict:
    """Whether two runs give the same bits."""
    why = config.algorithm.varies
    return no("reduction", why) if why else YES


def invariant(config: VendorConfig) -> Verdict:
    """Whether rows have the same bits for every M: not known of any."""
    return no("library", "the library does not say that its sums are the same for every M")


# --- the library's words -----------------------------------------------------------------------


def query(problem: GemmProblem, arch: Arch, library: str) -> Matmul | Verdict:
    """What to ask the library for, or why it is not asked."""
    if kind(library) not in RECORDS:
        return no("family", f"{library} computes no single products")
    verdict = _judged(problem, arch, library)
    if not verdict:
        return verdict
    if reason := _extent(problem, library):
        return no("extent", reason)
    return matmul(problem, library)


def matmul(p: GemmProblem, library: str) -> Matmul:
    """The product as the library has it."""
    a = Matrix(p.dtype_a, p.inner[0], p.outer[0], p.lda, p.stride_a if p.batch > 1 else 0)
    b = Matrix(p.dtype_b, p.inner[1], p.outer[1], p.ldb, p.stride_b if p.batch > 1 else 0)
    c = Matrix(p.dtype_c, p.inner[2], p.outer[2], p.ldc, p.stride_c if p.batch > 1 else 0)
    row_a, row_b, row_c = (letter == "r" for letter in p.layout)
    # What lies in memory by columns is the transpose of a matrix by rows.
    of, first, second, transposed = RECORDS[kind(library)], a, b, (row_a, row_b)
    if row_c:
        first, second, transposed = b, a, (not row_b, not row_a)
    return Matmul(
        library,
        first,
        second,
        c,
        transposed,
        p.batch,
        p.precision,
        "blocks" if p.scale_a else {**of.chains, **of.fp8_chains}[p.epilogue],
        p.alignment,
        workspace=WORKSPACES[-1] * MIB,
    )


def config_of(problem: GemmProblem, library: str, found: Found) -> VendorConfig:
    """The config of an algorithm that the library offers for `problem`. Raises `BadArgument` for
    one that no name can say."""
    p = problem
    return vendor_config(
        library,
        layout=p.layout,
        dtype_a=p.dtype_a,
        dtype_b=p.dtype_b,
        dtype_c=p.dtype_c,
        dtype_acc=p.dtype_acc,
        precision=p.precision,
        algorithm=found.algorithm,
        workspace=next((mib for mib in WORKSPACES if found.workspace <= mib * MIB), -1),
        alignment=p.alignment,
        epilogue=p.epilogue,
        batching=p.batching,
        scale_a=p.scale_a,
        scale_b=p.scale_b,
    )


WORKSPACE = "workspace"
"""The temporary that an algorithm may use."""


def launch(config: VendorConfig, problem: GemmProblem, device: Device) -> Launch:
    """The launch of `config` for `problem`."""
    room = config.workspace * MIB
    asked = matmul(problem, config.library)
    asked = replace(asked, algorithm=config.algorithm, workspace=room, alignment=config.alignment)
    matrices = ("B", "A", "C") if config.layout[2] == "r" else ("A", "B", "C")
    beside = SCALES if config.scale_a else chain_names(config.epilogue)
    names = (*matrices, *((WORKSPACE,) if room else ()), *beside)
    step = Step((1, 1, 1), tuple(map(Pointer, names)), theirs=asked)
    return Launch((step,), (Temporary(WORKSPACE, (room,), "int8"),) if room else ())


def sums(config: VendorConfig, problem: GemmProblem) -> tuple[str, int, int]:
    """See `kinds.Kind`."""
    rounded = "tf32" if config.precision == "tf32" else problem.dtype_a
    return rounded, config.algorithm.summed, 0


def interpreted(config: VendorConfig) -> GemmConfig:
    """The kernel that Triton's interpreter runs in place of the library."""
    return GemmConfig(
        config.layout, config.dtype_a, config.dtype_b, config.dtype_c, config.dtype_acc,
        config.precision, 64, 64, 32, 4, 2, "basic", "tile", 1, "none", 8, "direct",
        True, True, True, 1, (0, 0, 0), 32, config.epilogue, config.batching, config.scale_a,
        config.scale_b,
    )  # fmt: skip


def estimate(config: VendorConfig, problem: GemmProblem, device: Device) -> Estimate:
    """The least time that anything could take there: nothing is known of the library's kernels."""
    return at_best(problem, device, f"{VENDOR}'s library, at best")
