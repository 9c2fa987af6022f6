"""Tilewright's words beside CK Tile's, for the help and the docs."""

from __future__ import annotations

WORDS: tuple[tuple[str, str, str], ...] = (
    ("tile_m/n/k", "tile", "block tile computed by one workgroup (CTA)"),
    ("num_warps", "wave", "warps (waves) in a workgroup"),
    ("mma", "warp tile", "matrix-instruction shape"),
    ("num_stages", "pipeline depth", "stages of the software pipeline"),
    ("pipeline", "pipeline", "how operands reach the matrix units"),
    ("scheduler", "persistent, stream-K", "how output tiles map to workgroups"),
    ("reduction", "reduction strategy", "how partial sums of a shared tile meet"),
    ("epilogue", "epilogue, elementwise", "what becomes of the accumulator"),
    ("pre_a/b", "multi-ABD", "what A and B go through before the product"),
    ("layout rcr", "layout rcr", "row or column major A, B, C; s: B shuffled"),
    ("fp8, bf8", "fp8, bf8", "e4m3, e5m2: OCP or FNUZ, by architecture"),
)
"""(the word here, CK Tile's, its meaning)."""


def as_text() -> str:
    """The words as lines for a terminal of 80 columns."""
    rows = [("here", "CK Tile", "meaning"), *WORDS]
    return "\n".join(f"{here:<11}{theirs:<22}{meaning}" for here, theirs, meaning in rows)
