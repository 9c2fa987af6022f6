"""Which dimensions of a layout kernels have to guard."""

from __future__ import annotations

from functools import lru_cache


def gated(layout: str) -> tuple[bool, bool, bool]:
    """Whether M, N and K are the innermost dimension of some operand.

    A or C column-major gates M, B or C row-major gates N, A row-major or B column-major (or
    shuffled: its blocks follow one another along K) gates K: only there does an unpadded kernel
    need whole tiles.
    """
    a, b, c = tuple(layout)
    return a == "c" or c == "c", b == "r" or c == "r", a == "r" or b in "cs"


@lru_cache(maxsize=256)
def masked(layout: str, pad_m: bool, pad_n: bool, pad_k: bool) -> tuple[bool, bool, bool]:
    """Whether the kernel must guard M, N and K: where a dimension is padded, and where it is not
    gated, since an outer dimension may always be ragged."""
    m, n, k = gated(layout)
    return pad_m or not m, pad_n or not n, pad_k or not k
