"""Bank conflicts of LDS: hardware's own counts, known patterns, and an independent count."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilewright.emulate import banks

MEASURED = {
    4: {4: 0, 8: 128, 16: 384, 32: 896, 64: 1920, 128: 3968, 256: 3968, 512: 3968},
    8: {8: 0, 16: 256, 32: 768, 64: 1792, 128: 3840, 256: 3840, 512: 3840},
    16: {16: 0, 32: 512, 64: 1536, 128: 3584, 256: 3584, 512: 3584},
}
"""Conflicts that an MI300X counted (SQ_LDS_BANK_CONFLICT) in 64 reads of so many bytes a lane, by
the stride in bytes between lanes: nod-ai/amd-shark-ai, docs/empirical-lds/cdna3info.md."""


def conflicts(generation, size, offsets, *, lanes=64, write=False, mask=None):
    phases = banks.phases(generation, lanes, size, write)
    on = np.ones((1, lanes), bool) if mask is None else np.array([mask])
    taken, least = banks.clocks(phases, np.array([offsets], np.int64), on, size)
    return int(taken[0] - least[0])


def strided(stride, lanes=64):
    return [lane * stride for lane in range(lanes)]


@pytest.mark.parametrize("size", MEASURED)
def test_the_conflicts_of_strides_are_those_that_an_mi300x_counted(size) -> None:
    found = {stride: 64 * conflicts("cdna3", size, strided(stride)) for stride in MEASURED[size]}
    assert found == MEASURED[size]


def test_lanes_that_read_one_word_share_it() -> None:
    for size in (1, 2, 4, 16):
        assert conflicts("cdna3", size, [0] * 64) == 0
    assert conflicts("cdna3", 2, strided(2)) == 0
    assert conflicts("cdna3", 4, [lane // 32 * 4096 for lane in range(64)]) == 0


def test_lanes_that_do_not_read_conflict_with_none() -> None:
    every = strided(128)
    assert conflicts("cdna3", 4, every, mask=[lane in (0, 1) for lane in range(64)]) == 1
    assert conflicts("cdna3", 4, every, mask=[lane in (0, 40) for lane in range(64)]) == 0
    assert conflicts("cdna3", 4, every, mask=[False] * 64) == 0


def test_rows_of_128_bytes_conflict_for_reads_of_16_unless_their_columns_are_shuffled() -> None:
    """16 rows of 64 fp16, a lane for each row and 16-byte column, as an MFMA's operand: a phase
    reads two columns of four rows."""
    rows = [(lane % 16) * 128 + (lane // 16) * 16 for lane in range(64)]
    shuffled = [(lane % 16) * 128 + ((lane // 16) ^ (lane % 8)) * 16 for lane in range(64)]
    assert conflicts("cdna3", 16, rows) == 8 * 3
    assert conflicts("cdna3", 16, shuffled) == 0


def test_which_lanes_go_together() -> None:
    # Two lanes that want different words of one bank conflict if they are of one phase.
    def meet(generation, size, one, other, *, lanes=64, write=False):
        offsets = [0] * lanes
        offsets[other] = 4096
        mask = [lane in (one, other) for lane in range(lanes)]
        return conflicts(generation, size, offsets, lanes=lanes, write=write, mask=mask) == 1

    assert meet("cdna3", 16, 0, 20) and not meet("cdna3", 16, 0, 4)
    assert meet("cdna3", 16, 32, 52) and not meet("cdna3", 16, 0, 32)
    assert meet("cdna3", 16, 0, 4, write=True) and not meet("cdna3", 16, 0, 20, write=True)
    assert meet("cdna4", 16, 0, 12) and meet("cdna4", 16, 0, 24) and not meet("cdna4", 16, 0, 4)
    assert meet("cdna4", 8, 0, 31) and not meet("cdna4", 8, 0, 32)
    assert meet("cdna4", 8, 0, 15, write=True) and not meet("cdna4", 8, 0, 16, write=True)
    assert meet("rdna3", 16, 0, 20, lanes=32) and not meet("rdna3", 16, 0, 4, lanes=32)
    assert meet("rdna4", 16, 0, 7, lanes=32) and not meet("rdna4", 16, 0, 20, lanes=32)


def test_three_words_go_as_four() -> None:
    for write in (False, True):
        found, wide = (banks.phases("cdna3", 64, size, write).lanes for size in (12, 16))
        assert (found == wide).all()


def test_gfx950_reads_wide_words_from_64_banks_and_all_else_from_32() -> None:
    two = [True, True, *[False] * 62]
    offsets = [0, 128, *[0] * 62]  # one bank of 32, two of 64
    assert conflicts("cdna4", 8, offsets, mask=two) == 0
    assert conflicts("cdna4", 16, offsets, mask=two) == 0
    assert conflicts("cdna3", 16, offsets, mask=two) == 1
    assert conflicts("cdna4", 4, offsets, mask=two) == 1
    assert conflicts("cdna4", 16, offsets, mask=two, write=True) == 1


@pytest.mark.parametrize("generation", ["cdna2", "cdna3", "cdna4", "rdna3", "rdna4", "gfx1250"])
def test_random_accesses_against_a_count_lane_by_lane(generation) -> None:
    draw = random.Random(generation)
    lanes = 64 if generation.startswith("cdna") else 32
    for _ in range(40):
        size, write = draw.choice((1, 2, 4, 8, 16)), draw.random() < 0.5
        step = max(4, size)
        offsets = [draw.randrange(256) * step for _ in range(lanes)]
        mask = [draw.random() < 0.8 for _ in range(lanes)]
        phases = banks.phases(generation, lanes, size, write)
        assert sorted(phases.lanes.ravel().tolist()) == list(range(lanes))
        expected = 0
        for group in phases.lanes.tolist():
            wanted: dict[int, set[int]] = {}
            for lane in group:
                for word in range(-(-size // 4)) if mask[lane] else ():
                    place = offsets[lane] // 4 + word
                    wanted.setdefault(place % phases.banks, set()).add(place)
            expected += max(map(len, wanted.values()), default=1) - 1
        found = conflicts(generation, size, offsets, lanes=lanes, write=write, mask=mask)
        assert found == expected


def test_waves_are_counted_apart() -> None:
    phases = banks.phases("cdna3", 64, 4, False)
    offsets = np.array([strided(4), strided(128), [0] * 64], np.int64)
    taken, least = banks.clocks(phases, offsets, np.ones((3, 64), bool), 4)
    assert taken.tolist() == [2, 64, 2] and least.tolist() == [2, 2, 2]
