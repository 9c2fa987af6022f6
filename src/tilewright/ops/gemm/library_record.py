"""Where the vendor's library is faster than the estimate's choice, as a record says.

`benchmarks/untuned.py` counts `RECORD` and `ASKEW` from 1,560 bf16 products between those of
models, on H100s and H200s: the estimate's choice against `torch.mm`, which takes the first
algorithm that cuBLASLt offers. The library wins where the product is a few waves of 128×128 tiles:
it has tiles with any edge in steps of 8, whose loads clusters share. It wins where rows of A or B
begin inside a sector of memory, since kernels here take in such tiles at 0.6 of the usual rate. And
it wins with few columns and very long sums, which it cuts into more parts than 8.

All these are products of layout rcr. `RRR`, `RRR_ASKEW` and `CRR_ASKEW` are counted from products
of the gradients of layers that were drawn likewise, in the first class of `RECORD` and of all
sizes. In layout crr the estimate's choice is ahead elsewhere.

For fp8, each class of `FP8_ROWS` and `FP8_BLOCKS` is counted from the best kernels of tuned tables
(`benchmarks/shipped.py`): where these are behind `torch._scaled_mm`, so is the estimate's choice.
`FP8_ROWS_ASKEW` is counted from the choices for sizes that no table has.

The counts of each class: docs/notes/gemm-library_record.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.vendor import BLOCKS
from tilewright.ops.library import CUBLASLT
from tilewright.verdict import Verdict, no

EVERY = 1 << 62


@dataclass(frozen=True, slots=True)
class Recorded:
    """Products whose untuned choice is behind the library's first algorithm.

    least_m, most_m: rows of A. least_n, most_n: columns of B. least_k, most_k: length of the sum.
    most_waves: of `TILE`×`TILE` tiles. over_waves: there are more than these.
    products: how many of them the record has.
    share: the library's time over that of kernels here, their geometric mean.
    """

    least_m: int
    most_m: int
    least_k: int
    most_waves: int
    products: int
    share: float
    least_n: int = 1
    most_n: int = EVERY
    most_k: int = EVERY
    over_waves: float = 0

    def holds(self, p: GemmProblem, waves: float) -> bool:
        """Whether a product of so many waves is one of these."""
        sized = self.least_m <= p.m <= self.most_m and self.least_n <= p.n <= self.most_n
        long = self.least_k <= p.k <= self.most_k
        return sized and long and self.over_waves < waves <= self.most_waves


TILE = 128

RECORD = (
    Recorded(65, EVERY, 1025, 40, 545, 0.946),
    Recorded(65, 2048, 1, 8, 69, 0.980),
    Recorded(2049, EVERY, 129, 4, 5, 0.905),
    Recorded(33, 64, 12289, EVERY, 13, 0.874, most_n=1152),
)

ASKEW = (
    Recorded(2, 16, 1, EVERY, 37, 0.970, least_n=8192),
    Recorded(17, 64, 1, EVERY, 16, 0.989),
    Recorded(65, 512, 1, EVERY, 20, 0.797),
    Recorded(513, 2048, 1, EVERY, 10, 0.828),
    Recorded(2049, EVERY, 1, EVERY, 14, 0.824),
)
"""Products whose rows of A or B are no multiples of `SECTOR_BYTES` apart; from 17 rows on with the
best kernels."""

RRR = (Recorded(65, EVERY, 1025, 40, 16, 0.949),)
"""Products of layout rrr: with weights as torch has them, the gradient of a layer's input."""

RRR_ASKEW = (Recorded(65, EVERY, 1, EVERY, 6, 0.831),)
CRR_ASKEW = (Recorded(65, EVERY, 1, EVERY, 6, 0.794),)
"""Those of layouts rrr, and crr (the gradient of weights), whose rows, or columns where these are
contiguous, are no multiples of `SECTOR_BYTES` apart in A or B."""

PLAIN = {"rcr": (ASKEW, RECORD), "rrr": (RRR_ASKEW, RRR), "crr": (CRR_ASKEW, ())}
"""Classes of plain bf16 and fp16 products by layout: where rows begin inside a sector, and else."""

RESULT_ASKEW = (Recorded(513, EVERY, 1, EVERY, 6, 0.826, least_n=25000, most_k=512),)
"""Products whose rows of C alone are no such multiples; `untuned.py` counts it too."""

FP8_ROWS = (Recorded(65, EVERY, 1025, EVERY, 146, 0.982, over_waves=8),)
"""e4m3fn with a scale for each row of A and column of B, bf16 results: with the best kernels."""

FP8_ROWS_ASKEW = (Recorded(65, EVERY, 1, EVERY, 9, 0.91, most_k=2048),)
"""`FP8_ROWS` where rows of A or B are no multiples of `DEVICE.SECTOR_BYTES` apart."""

FP8_BLOCKS = (
    Recorded(65, EVERY, 1, 1, 44, 0.897, over_waves=0.5),
    Recorded(65, EVERY, 4097, EVERY, 134, 0.976, over_waves=2),
)
"""e4m3fn with a scale for 1×128 of A and 128×128 of B, bf16 results: with the best kernels."""


def faster(problem: GemmProblem, device: Device) -> Verdict:
    """Whether the library's first algorithm should take less time than the estimate's choice. The
    reason of either answer is a sentence."""
    if device.arch != "sm_90":
        return no("record", f"nothing on {device.arch} was timed beside the library")
    if not classes(problem):
        return no(
            "record",
            "only plain bf16 and fp16 products of layouts rcr, rrr and crr, and fp8 ones as torch "
            "has them, were timed beside it",
        )
    if problem.constant_b:
        return no("record", "in a chain with a constant B, kernels here begin before the one ahead")
    known = class_of(problem, device)
    if known is None:
        return no("record", "the record does not have it ahead for such sizes")
    said = f"{known.products} measured products of {_sizes(known)}"
    if known in (*ASKEW, *RRR_ASKEW, *CRR_ASKEW, *RESULT_ASKEW, *FP8_ROWS_ASKEW):
        said += " and rows in memory that begin inside a sector"
    elif known.over_waves or known.most_waves < EVERY:
        said += f" and {_waves(known)} waves of {TILE}×{TILE} tiles"
    return Verdict(
        True, CUBLASLT, f"it took {known.share:.3f} of the time of kernels here, the mean of {said}"
    )


def class_of(p: GemmProblem, device: Device) -> Recorded | None:
    """The class that a product is in on a device."""
    tiles = -(-p.m // TILE) * -(-p.n // TILE)
    return next((one for one in classes(p) if one.holds(p, tiles / device.compute_units)), None)


def classes(p: GemmProblem) -> tuple[Recorded, ...]:
    """The classes of products of such a form, whatever their sizes; () if none were timed."""
    if p.layout not in PLAIN or p.batching != "none" or p.alignment < 16 or p.pre_a or p.pre_b:
        return ()
    dtypes, scales = (p.dtype_a, p.dtype_b, p.dtype_c), (p.epilogue, p.scale_a, p.scale_b)
    if dtypes in (("bf16",) * 3, ("fp16",) * 3) and not any(scales):
        known = PLAIN[p.layout][0 if askew(p) else 1]
        return (*RESULT_ASKEW, *known) if known is RECORD and result_askew(p) else known
    if dtypes != ("e4m3fn", "e4m3fn", "bf16") or p.layout != "rcr":
        return ()
    if scales == ("row_scale+col_scale", "", ""):
        return (*FP8_ROWS_ASKEW, *FP8_ROWS) if askew(p) else FP8_ROWS
    return FP8_BLOCKS if scales == ("", *BLOCKS) else ()


def askew(p: GemmProblem) -> bool:
    """Whether rows of A or B, or columns where these are contiguous, begin inside a sector."""
    return any(DTYPES[p.dtype_a].size(ld) % DEVICE.SECTOR_BYTES for ld in (p.lda, p.ldb))


def result_askew(p: GemmProblem) -> bool:
    """Whether rows of C begin inside a sector, and those of A and B do not."""
    return DTYPES[p.dtype_c].size(p.ldc) % DEVICE.SECTOR_BYTES > 0 and not askew(p)


def _waves(known: Recorded) -> str:
    """A class's waves in words."""
    over = f"more than {known.over_waves:g}" if known.over_waves else ""
    most = f"at most {known.most_waves}" if known.most_waves < EVERY else ""
    return " and ".join(filter(None, (over, most)))


def _sizes(known: Recorded) -> str:
    """A class's sizes in words."""
    said = []
    for axis, least, most in (
        ("M", known.least_m, known.most_m),
        ("N", known.least_n, known.most_n),
        ("K", known.least_k, known.most_k),
    ):
        if most < EVERY:
            said.append(f"{axis} of {least} to {most}")
        elif least > 1:
            said.append(f"{axis} of {least} and more")
    return ", ".join(said)
