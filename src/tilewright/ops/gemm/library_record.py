"""Where the vendor's library is faster than the estimate's choice, as a record says.

The record is of 1,200 bf16 products between those of models, on H100s and H200s: the estimate's
choice against `torch.mm`, which takes the first algorithm that cuBLASLt offers, by single calls
(`benchmarks/gemm_unseen.py`). `benchmarks/untuned.py` counts `RECORD` from it, and says what comes
of the rule for products of models, whose best kernels are known from tuning. These are as fast as
the library (1.01 for 65 to 2048 rows, `benchmarks/gemm_bound.py`), but the estimate often chooses
another.

The library wins where the product is a few waves of 128×128 tiles: it has tiles with any edge in
steps of 8, whose loads clusters share. With long sums it answers up to 40 waves: of 8 to 40 the
choices for 73 products came to 0.965 of it, in replayed graphs to 0.986; of more waves those for 23
to 1.002 and 1.007. With sums of up to 1024 it answers for 65 to 2048 rows up to 8 waves (of more,
9 choices came to 1.009), for more rows up to 4: 15 choices came to 0.939 there, 16 of 4 to 16 waves
to 1.045. Whole tiles of 64×256 win by 22 % where they are the best kernel of models' products (7 of
65 to 512 rows), but had 0.984 of the library's speed where they were chosen for 20 others: it
answers.

Where rows of A or B begin inside a sector of memory, kernels here take in tiles at 0.6 of the usual
rate, and the library is ahead from 17 rows on. `ASKEW` is counted by `benchmarks/gemm_askew.py`
from products between those of models, each with the best of up to 15 kernels. Of fewer rows it is
ahead where B is wide: the choices for 30 products of the record came to 0.970 of it (0.951 in
graphs, the least 0.668), those for 29 of fewer columns to 1.039, for one row to 1.069.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.rates import SECTOR_BYTES
from tilewright.verdict import Verdict, no


@dataclass(frozen=True, slots=True)
class Recorded:
    """Products whose untuned choice is behind the library's first algorithm.

    least_m, most_m: rows of A. least_n: columns of B. least_k: length of the sum.
    most_waves: of `TILE`×`TILE` tiles.
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

    def __contains__(self, problem: GemmProblem) -> bool:
        long, wide = problem.k >= self.least_k, problem.n >= self.least_n
        return self.least_m <= problem.m <= self.most_m and long and wide


EVERY = 1 << 62
TILE = 128

RECORD = (
    Recorded(65, EVERY, 1025, 40, 437, 0.950),
    Recorded(65, 2048, 1, 8, 53, 0.982),
    Recorded(2049, EVERY, 129, 4, 4, 0.910),
)

ASKEW = (
    Recorded(2, 16, 1, EVERY, 30, 0.970, least_n=8192),
    Recorded(17, 64, 1, EVERY, 16, 0.989),
    Recorded(65, 512, 1, EVERY, 20, 0.797),
    Recorded(513, 2048, 1, EVERY, 10, 0.828),
    Recorded(2049, EVERY, 1, EVERY, 14, 0.824),
)
"""The same where rows of A or B are no multiples of `SECTOR_BYTES` apart; from 17 rows on with the
best kernels."""


def faster(problem: GemmProblem, device: Device) -> Verdict:
    """Whether the library's first algorithm should take less time than the estimate's choice. The
    reason of either answer is a sentence."""
    p = problem
    if device.arch != "sm_90":
        return no("record", f"nothing on {device.arch} was timed beside the library")
    plain = p.dtype_a == p.dtype_b == p.dtype_c and p.dtype_a in ("bf16", "fp16")
    words = (p.epilogue, p.pre_a, p.pre_b, p.scale_a, p.scale_b)
    if not plain or p.layout != "rcr" or p.batching != "none" or any(words) or p.alignment < 16:
        return no("record", "only plain bf16 and fp16 products of layout rcr were timed beside it")
    if p.constant_b:
        return no("record", "in a chain with a constant B, kernels here begin before the one ahead")
    aside = askew(p)
    known = next((one for one in (ASKEW if aside else RECORD) if p in one), None)
    tiles = -(-p.m // TILE) * -(-p.n // TILE)
    if known is None or tiles > known.most_waves * device.compute_units:
        return no("record", "the record does not have it ahead for such sizes")
    few = f"at most {known.most_waves} waves of {TILE}×{TILE} tiles"
    return Verdict(
        True,
        "record",
        f"it took {known.share:.3f} of the time of kernels here, the mean of "
        f"{known.products} measured products of {_rows(known)} and "
        f"{'rows in memory that begin inside a sector' if aside else few}",
    )


def askew(p: GemmProblem) -> bool:
    """Whether rows of A or B, or columns where these are contiguous, begin inside a sector."""
    return any(DTYPES[p.dtype_a].size(ld) % SECTOR_BYTES for ld in (p.lda, p.ldb))


def _rows(known: Recorded) -> str:
    over = f"over {known.least_m - 1} rows"
    rows = f"{known.least_m} to {known.most_m} rows" if known.most_m < EVERY else over
    least = {"N": known.least_n, "K": known.least_k}
    return ", ".join([rows, *(f"{axis} of {n} and more" for axis, n in least.items() if n > 1)])
