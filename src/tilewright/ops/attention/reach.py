"""How far a tile reaches: places within a tile are computed in 32 bits, from an address of 64.

A kernel adds to the address of a tile's first element, for each element, its row times the rows'
stride and its place in the row times the elements' stride. These products must stay below 2^31.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.ops.attention import pipelines
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.operands import scale_shapes, strides_of
from tilewright.ops.attention.problem import AttentionProblem

MOST = 2**31
"""Elements."""


def beyond(name: str, strides: Sequence[int], rows: int, dim: int, heads: int = 1) -> str | None:
    """Why a tile of an operand is too long; None if it is not.

    strides: in elements, of (batch or page, row, head, dim).
    rows, dim, heads: of the tile. Each stride is passed in 32 bits too.
    """
    apart = [abs(s) for s in strides[1:]]
    far = sum((n - 1) * s for n, s in zip((rows, heads, dim), apart, strict=True))
    far = max(far, *apart)
    if far < MOST:
        return None
    return (
        f"a tile of {rows} rows of {name}, which are {strides[1]} elements apart, spans {far} "
        f"elements, which 32-bit places do not reach; pass {name}.contiguous()"
    )


def refused(c: AttentionConfig, p: AttentionProblem) -> str | None:
    """Why an operand's tile is too long for a config; None if none is."""
    plain = pipelines.of(c).in_triton  # in Gluon, rows are counted in 64 bits
    for name in p.once(_lie_apart):
        of_keys = name in ("k", "v")
        dim = p.head_dim if name in ("q", "k") else p.head_dim_v
        if of_keys and "vectorised" in p.words:
            if p.page_size * dim >= MOST:
                return f"a head of a page of {name} has {p.page_size * dim} elements, over {MOST}"
            continue
        rows = c.tile_kv if of_keys else c.tile_q
        if of_keys and p.page_size and (p.page_size % c.tile_kv or "leftpad" in p.words):
            rows = p.page_size
        heads = p.heads if c.pack and not plain and not of_keys else 1
        if (why := beyond(name, strides_of(p, name), rows if plain else 1, dim, heads)) is not None:
            return why
    return p.once(_scales_beyond)


def _lie_apart(p: AttentionProblem) -> tuple[str, ...]:
    """The operands that are not contiguous."""
    pages = {"k", "v"} if "vectorised" in p.words else set()
    return tuple(n for n in ("q", "k", "v", "o") if n in pages or getattr(p, f"{n}_strides"))


def _scales_beyond(p: AttentionProblem) -> str | None:
    for name, shape in scale_shapes(p).items():
        if math.prod(shape) >= MOST:
            return f"{name} has {math.prod(shape)} scales, which 32-bit places do not reach"
    return None
