"""Dropout's random bytes: counter-based, so that they depend on nothing but place and seed.

Byte r of (sequence b, head h, query i, key j) is from Philox-4x32-10 (Salmon et al., "Parallel
random numbers: as easy as 1, 2, 3", 2011) with the seed as key and the counter (j // 16, i,
b · heads + h, offset's low 32 bits): byte j % 16 of its 16 bytes, the lowest first. So one call
serves 16 keys, and a backward pass finds the same bytes from any tile that begins at a multiple of
16 keys.
"""

import triton
import triton.language as tl


@triton.jit
def random_bytes(j0, i, line, seed, offset, TILE_Q: tl.constexpr, TILE_KV: tl.constexpr):
    """[TILE_Q, TILE_KV] bytes as int32, of keys `j0`, a multiple of 16, and on.

    i, line: of each row the query, and b · heads + h; [TILE_Q]."""
    block = (j0 // 16 + tl.arange(0, TILE_KV // 16))[None, :]
    zero = tl.zeros((TILE_Q, TILE_KV // 16), tl.int32)
    w0, w1, w2, w3 = tl.philox(
        seed, zero + block, zero + i[:, None], zero + line[:, None], zero + offset.to(tl.int32)
    )
    # [.., low bit of the word's number, high bit] becomes [.., high, low], which is the number.
    words = tl.join(tl.join(w0, w1), tl.join(w2, w3))
    words = tl.permute(words, (0, 1, 3, 2)).reshape(TILE_Q, TILE_KV // 4)
    shifts = (8 * tl.arange(0, 4)).to(tl.uint32)
    taken = (words[:, :, None] >> shifts[None, None, :]) & 255
    return taken.to(tl.int32).reshape(TILE_Q, TILE_KV)
