"""Where the vendor's library for GEMMs is faster than the estimate's choice for convolutions that
are products of matrices (`by_gemm`), as a record says.

The record is `benchmarks/results/conv_tuned_h200.json`: layers of models on an H200, each with the
times of the kernel that the estimate chose and of the first algorithm that cuBLASLt offered.
`benchmarks/conv_tuned.py` counts `RECORD` from it.

The library wins most where rows lie badly: its kernels read rows that are aligned to fewer than 16
bytes in vectors, and rows that begin inside a sector of memory without the copy engine.

The record's arrays have channels innermost. For others it says nothing: the estimate chooses
kernels there that it does not have (`askew`, products between layout steps). Nor does it for up to
`engine_record.FEW` channels or filters: for most such layers the estimate chooses another kernel
now than the one that was timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv.engine_record import FEW, class_of
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.library import CUBLASLT
from tilewright.verdict import Verdict, no

SECTOR, VECTOR = 32, 16
"""Bytes."""

Lying = Literal["narrow", "askew", "even"]
"""How the rows of a product's matrices lie. narrow: one's are aligned to less than a `VECTOR`.
askew: not all are multiples of a `SECTOR` long. even: all are."""

_SAID: dict[Lying, str] = {
    "narrow": f"rows aligned to fewer than {VECTOR} bytes",
    "askew": f"rows that are no multiples of {SECTOR} bytes",
    "even": f"rows of multiples of {SECTOR} bytes",
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """Products for which the estimate's choice is behind the library's first algorithm.

    least_k: length of the sum.
    products: how many of them the record has.
    share: the library's time over that of the estimate's choice, their geometric mean.
    """

    direction: str
    lying: Lying
    least_k: int
    products: int
    share: float

    def holds(self, direction: str, of: GemmProblem) -> bool:
        """Whether a product, the gradient or result of a convolution, is one of these."""
        return direction == self.direction and lying(of) == self.lying and of.k >= self.least_k


LONG = 1025
"""The least sum of products over which only long sums are recorded."""

RECORD = (
    Recorded("forward", "narrow", 1, 37, 0.855),
    Recorded("forward", "askew", 1, 65, 0.771),
    Recorded("forward", "even", 1, 203, 0.946),
    Recorded("data", "narrow", 1, 71, 0.76),
    Recorded("data", "askew", 1, 82, 0.828),
    Recorded("data", "even", LONG, 64, 0.918),
    Recorded("weights", "narrow", 1, 71, 0.68),
    Recorded("weights", "askew", LONG, 56, 0.859),
    Recorded("weights", "even", LONG, 323, 0.872),
)


def lying(of: GemmProblem) -> Lying:
    """How the rows of its matrices lie."""
    if of.alignment < VECTOR:
        return "narrow"
    sizes = (DTYPES[dtype].bytes for dtype in (of.dtype_a, of.dtype_b, of.dtype_c))
    rows = zip((of.lda, of.ldb, of.ldc), sizes, strict=True)
    return "askew" if any(ld * size % SECTOR for ld, size in rows) else "even"


def timed(p: ConvProblem) -> bool:
    """Whether the record says anything of problems such as `p`."""
    return class_of(p).channels == "last" and min(p.c, p.k) > FEW


def faster(p: ConvProblem, of: GemmProblem, device: Device) -> Verdict:
    """Whether the library's first algorithm should take less time than the estimate's choice. The
    reason of either answer is a sentence.

    of: the product that `p` is.
    """
    if device.arch != "sm_90":
        return no("record", f"nothing on {device.arch} was timed beside the library")
    if p.dtype not in ("bf16", "fp16") or p.epilogue or of.batching != "none":
        return no("record", "only single bf16 and fp16 products without an epilogue were timed")
    if not timed(p):
        return no(
            "record", f"only layers of more than {FEW} channels, which are innermost, were timed"
        )
    known = next((one for one in RECORD if one.holds(p.direction, of)), None)
    if known is None:
        return no("record", "the record does not have the library ahead for such products")
    sums = f" and sums of {known.least_k} and more" if known.least_k > 1 else ""
    return Verdict(
        True,
        CUBLASLT,
        f"it took {known.share:.3f} of the time of the estimate's choice, the mean of "
        f"{known.products} measured products of {_SAID[known.lying]}{sums}",
    )
