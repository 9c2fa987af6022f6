"""Where the vendor's library is faster than the estimate's choice, as a record says.

The record is `benchmarks/results/shipped_h200.json`: bf16 and fp16 products of models on an H200,
each with the time of the best kernel that a tuning found and that of `torch.mm`, which takes the
first algorithm that cuBLASLt offers. Where the estimate chooses that best kernel, or one that could
not be told from it, the untuned choice's time is known; elsewhere that choice is slower still.
`benchmarks/untuned.py` counts `RECORD` from it and says what comes of the rule.

The library wins where the product is a few waves of 128×128 tiles: it has tiles with any edge in
steps of 8, whose loads clusters share. The best kernels of the record do not show how far that
goes, since the estimate does not find them for products between, for whose M nothing was fitted
(`benchmarks/gemm_unseen.py`, by single calls). For 65 to 2048 rows the library answers up to 8
waves: of 4 to 8 the best kernels of 74 products come to 1.01 of it, the choices for 28 products
between to 0.94. For more rows up to 16, but not with sums of up to 1024: of 4 to 16 waves the
choices for 40 products come to 0.955 of it on an H100, those for 29 to 0.96 on an H200.

Where rows of A or B begin inside a sector of memory, kernels here take in tiles at 0.6 of the usual
rate, and the library is ahead from 17 rows on. `ASKEW` is counted by `benchmarks/gemm_askew.py`
from products between those of models, each with the best of up to 15 kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.rates import SECTOR_BYTES
from tilewright.verdict import Verdict, no


@dataclass(frozen=True, slots=True)
class Recorded:
    """Products whose untuned choice is behind the library's first algorithm.

    least_m, most_m: rows of A. least_k: length of the sum. most_waves: of `TILE`×`TILE` tiles.
    products: how many of them the record has.
    share: the library's time over that of the best kernel here, their geometric mean.
    """

    least_m: int
    most_m: int
    least_k: int
    most_waves: int
    products: int
    share: float

    def __contains__(self, problem: GemmProblem) -> bool:
        return self.least_m <= problem.m <= self.most_m and problem.k >= self.least_k


EVERY = 1 << 62
TILE = 128

RECORD = (
    Recorded(65, 512, 1, 8, 372, 0.984),
    Recorded(513, 2048, 1, 8, 219, 0.991),
    Recorded(2049, EVERY, 1025, 16, 133, 0.997),
)

ASKEW = (
    Recorded(17, 64, 1, EVERY, 16, 0.989),
    Recorded(65, 512, 1, EVERY, 20, 0.797),
    Recorded(513, 2048, 1, EVERY, 10, 0.828),
    Recorded(2049, EVERY, 1, EVERY, 14, 0.824),
)
"""The same where rows of A or B are no multiples of `SECTOR_BYTES` apart."""

AHEAD = (("gluon_ws", 64, 256),)
"""Pipeline, rows and columns of whole tiles that win among such products too: by 28 % in the record
(7 products of 65 to 512 rows; one of 513 to 2048 loses 1 %). 64×128 tiles win by 3 % in the record
(24 products), but have 0.99 of the library's speed on 19 products without a row, so it answers."""


def faster(problem: GemmProblem, device: Device, ours: GemmConfig | None = None) -> Verdict:
    """Whether the library's first algorithm should take less time than `ours`, the estimate's
    choice; of None, than some choices. The reason of either answer is a sentence."""
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
    if ours is not None and not aside and _ahead(ours):
        return no("record", f"where {ours.tile_m}×{ours.tile_n} tiles are chosen, these are ahead")
    few = f"at most {known.most_waves} waves of {TILE}×{TILE} tiles"
    return Verdict(
        True,
        "record",
        f"it took {known.share:.3f} of the time of the best kernel here, the mean of "
        f"{known.products} measured products of {_rows(known)} and "
        f"{'rows in memory that begin inside a sector' if aside else few}",
    )


def askew(p: GemmProblem) -> bool:
    """Whether rows of A or B, or columns where these are contiguous, begin inside a sector."""
    return any(DTYPES[p.dtype_a].size(ld) % SECTOR_BYTES for ld in (p.lda, p.ldb))


def _ahead(ours: GemmConfig) -> bool:
    whole = ours.scheduler == "persistent" and not ours.swap_ab
    return whole and (ours.pipeline, ours.tile_m, ours.tile_n) in AHEAD


def _rows(known: Recorded) -> str:
    if known.most_m < EVERY:
        return f"{known.least_m} to {known.most_m} rows"
    sums = f", K of {known.least_k} and more" if known.least_k > 1 else ""
    return f"over {known.least_m - 1} rows{sums}"
