"""Where cuDNN's first engine is faster than the estimate's choice, as a record says.

The record is `benchmarks/results/attention_whole_h200.json`: bf16 problems whose rows are multiples
of 128, up to 640, in batches, drawn by chance (`benchmarks/cases/attention_unseen.py`), on an H200,
each with the times of the kernel that the estimate chose and of cuDNN's first engine, in replayed
graphs. `benchmarks/attention_counted.py` counts `RECORD` from one draw, and says what it makes of
another.

A class is counted where the engine was faster for all of its problems. Left are one and two tiles
of rows in batches that keep the compute units busy for long.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch.model import Device
from tilewright.ops.attention import library
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.library import CUDNN
from tilewright.ops.library_record import Recorded
from tilewright.ops.library_record import faster as recorded_faster
from tilewright.verdict import Verdict, no

TILE = 128
"""Rows of a tile."""
FEW = 2
"""Most tiles of a sequence that are counted."""
MANY = 12
"""Tiles for each compute unit that are many."""
DIMS = (64, 128)


@dataclass(frozen=True, slots=True)
class Class:
    """Problems that are alike.

    dim: elements of a row.
    tiles: of a sequence; 0 for more than `FEW`.
    many: see `MANY`.
    """

    dim: int
    tiles: int
    many: bool

    def __str__(self) -> str:
        rows = f"{self.tiles * TILE} rows" if self.tiles else f"over {FEW * TILE} rows"
        each = f"{MANY} and more" if self.many else f"under {MANY}"
        return f"head dim {self.dim}, {rows}, {each} tiles of {TILE} rows for each compute unit"


def class_of(p: AttentionProblem, units: int) -> Class | None:
    """The class of a problem on a GPU of so many compute units; None if none was drawn that is like
    it."""
    if p.right not in (None, 0) or p.q_len % TILE or p.head_dim not in DIMS:
        return None
    plain = AttentionProblem(
        p.batch, p.heads, p.q_len, p.q_len, p.head_dim, kv_heads=p.kv_heads, right=p.right
    )
    if p != plain:
        return None
    each = p.q_len // TILE
    many = p.batch * p.heads * each >= MANY * units
    return Class(p.head_dim, each if each <= FEW else 0, many)


RECORD = (
    Recorded(Class(128, 2, True), 2, 0.801),
    Recorded(Class(64, 1, True), 3, 0.816),
    Recorded(Class(64, 2, True), 2, 0.827),
)


def faster(p: AttentionProblem, device: Device) -> Verdict:
    """Whether cuDNN's first engine should take less time than the estimate's choice; a yes has the
    library as its rule. The reason of either answer is a sentence."""
    if device.arch != "sm_90":
        return no("record", f"nothing on {device.arch} was timed beside the library")
    here = class_of(p, device.compute_units)
    if here is None:
        return no("record", "no such attention was timed beside the library")
    if objection := library.refused(p):
        return no(*objection)
    return recorded_faster(RECORD, here, CUDNN)
