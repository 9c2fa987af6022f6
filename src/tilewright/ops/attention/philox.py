"""The random bytes of dropout, as kernels make them: Philox-4x32-10 (Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", SC 2011).

A counter gives 16 bytes, for 16 neighbouring keys of a row:

    key      seed's low word, seed's high word
    counter  key j // 16, row i, plane (sequence * heads + head), offset

The byte of key j is byte j % 4, the low end first, of word (j % 16) // 4.
"""

from __future__ import annotations

from typing import Any

from tilewright import arrays

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def philox(counter: tuple[Any, Any, Any, Any], seed: int) -> tuple[Any, Any, Any, Any]:
    """The four words of a counter of four words: arrays in int64 of values below 2³², of shapes
    that broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _WORD, seed >> 32 & _WORD
    for _ in range(_ROUNDS):
        # A product of two words wraps as a signed number and has the right bits all the same.
        one, two = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = two >> 32 & _WORD ^ c1 ^ k0, one >> 32 & _WORD ^ c3 ^ k1
        c1, c3 = two & _WORD, one & _WORD
        k0, k1 = k0 + _WEYL[0] & _WORD, k1 + _WEYL[1] & _WORD
    return c0, c1, c2, c3


def random_bytes(rows: Any, keys: int, plane: int, seed: int, offset: int) -> Any:
    """The bytes of `rows` (an int64 array) and of keys 0 to `keys`: int64 [rows, keys], in the
    library of `rows`."""
    if arrays.is_torch(rows):
        import torch

        xp: Any = torch
        blocks: Any = torch.arange(-(-keys // 16), device=rows.device)
    else:
        import numpy as np

        xp, blocks = np, np.arange(-(-keys // 16), dtype=np.int64)
    zero = 0 * (rows[:, None] + blocks[None, :])
    counter = (blocks[None, :] + zero, rows[:, None] + zero, plane + zero, (offset & _WORD) + zero)
    words = xp.stack(philox(counter, seed), -1)
    each = xp.stack([words >> shift & 0xFF for shift in (0, 8, 16, 24)], -1)
    return each.reshape(len(rows), -1)[:, :keys]
