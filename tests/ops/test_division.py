"""Division by a multiplier and a shift."""

from __future__ import annotations

import random

from tilewright.ops.division import dividing

MOST = 2**31 - 1


def test_every_quotient_is_right():
    rng = random.Random(1)
    sizes = [*range(1, 130), 2**30 - 1, 2**30, 2**30 + 1, MOST]
    for size in [*sizes, *(rng.randrange(1, 2**31) for _ in range(2000))]:
        multiplier, shift = dividing(size)
        assert -(2**31) <= multiplier < 2**31 and 0 <= shift < 32
        last = MOST // size * size
        for n in {0, size - 1, size, size + 1, last - 1, last, MOST, rng.randrange(2**31)}:
            if 0 <= n <= MOST:
                upper = 2 * n * (multiplier % 2**32) >> 32
                assert upper >> shift == n // size, (n, size)
