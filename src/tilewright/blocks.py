"""Blocks of a matrix that share one scale, and their notation: ``"1x128"``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from tilewright.errors import BadArgument, shown

DTYPE = "fp32"
"""The dtype of scales if the block does not name another."""

SCALE_DTYPES = ("fp32", "fp16", "bf16", "e8m0")
"""The dtypes of scales; e8m0 is a power of two in a byte, as in the MX formats."""


@dataclass(frozen=True, slots=True)
class Block:
    """The elements that share one scale, `rows` × `columns` of a matrix, and the scale's dtype."""

    rows: int
    columns: int
    dtype: str = DTYPE

    def shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Shape of the scales of a rows × columns matrix."""
        return -(-rows // self.rows), -(-columns // self.columns)


_BLOCK = re.compile(r"([1-9]\d{0,9})x([1-9]\d{0,9})(?:-(\w+))?", re.ASCII)


@lru_cache(maxsize=256)
def parse(word: str) -> Block | None:
    """The block that `word` describes, None for ``""``. Raises `BadArgument`."""
    if word == "":
        return None
    match = _BLOCK.fullmatch(word) if isinstance(word, str) else None
    if match is None:
        raise BadArgument(f"{shown(word)} is not a block of scales; a block is 1x128 or 1x128-bf16")
    rows, columns, named = int(match[1]), int(match[2]), match[3]
    if named == DTYPE:
        raise BadArgument(f"block '{word}': {DTYPE} is the default; write {rows}x{columns}")
    if named is not None and named not in SCALE_DTYPES:
        listed = ", ".join(SCALE_DTYPES)
        raise BadArgument(f"block '{word}': scales are {listed}, not {named}")
    for size in (rows, columns):
        if size & (size - 1):
            raise BadArgument(f"block '{word}': {size} is not a power of two")
    return Block(rows, columns, named or DTYPE)
