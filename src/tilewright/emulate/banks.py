"""Bank conflicts of shared memory (LDS).

LDS is made of banks of four bytes, which answer one address a clock each. A wave's access is served
in phases: groups of lanes whose words go to the banks together. A phase takes one clock, and one
more for each further word that its busiest bank has to give; lanes of a phase that want the same
word share it. So the clocks beyond one for each phase are the conflicts, as hardware's counter
SQ_LDS_BANK_CONFLICT has them.

Sources. Banks, and the lanes of each phase of reads: the LDS measurements of AMD's kernel
optimisation guide (nod-ai/amd-shark-ai, docs/empirical-lds: MI350X, MI300X, RX 9070 XT, W7900).
Reads of gfx950 have 64 banks for 64 and 128 bits a lane only; its other accesses act as on gfx942:
rocRoller's model of the banks (ROCm/rocm-libraries, LDSBankModel.cpp). Writes of 128 bits: the page
on bank conflicts of CK Tile's documentation. Taken over without a measurement: gfx90a's from
gfx942, and gfx1250's, whose phases are taken to be lanes in order with 64 banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.listing.target import Generation

Addresses = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

BANK_BYTES = 4
"""What a bank gives a clock."""

_SWIZZLED = ((0, 5), (1, 4), (2, 7), (3, 6))
"""Fours of lanes that a phase of a 128-bit read takes together, of each half of a wave of 64."""

_WIDE = ((0, 3, 5, 6), (1, 2, 4, 7))
"""The phases on gfx950, which have twice the banks."""


@dataclass(frozen=True, slots=True)
class Phases:
    """How the lanes of a wave reach the banks in one kind of access.

    banks: how many there are.
    lanes: (phases, lanes of a phase), which lanes go together.
    """

    banks: int
    lanes: npt.NDArray[np.intp]


@cache
def phases(generation: Generation, lanes: int, size: int, write: bool) -> Phases:
    """The phases of an access of `size` bytes a lane (1 to 16), of a wave of `lanes`."""
    words = max(1, -(-size // BANK_BYTES))
    words = 4 if words == 3 else words  # measured for powers of two; three go as four
    banks = 32
    if generation == "gfx1250" or (generation == "cdna4" and not write and words > 1):
        banks = 64
    together = min(lanes, banks // words)
    order: npt.NDArray[Any] = np.arange(lanes).reshape(-1, together)
    if words == 4 and not write and generation not in ("rdna4", "gfx1250"):
        fours = _WIDE if banks == 64 else _SWIZZLED
        order = _of_fours(fours, lanes)
    return Phases(banks, order)


def _of_fours(groups: Sequence[Sequence[int]], lanes: int) -> npt.NDArray[np.intp]:
    """Phases made of runs of four lanes, the same in each half (32 lanes) of a wave."""
    one = np.array([[4 * four + i for four in group for i in range(4)] for group in groups])
    return np.concatenate([one + half for half in range(0, lanes, 32)])


def clocks(
    found: Phases, addresses: Addresses, mask: Mask, size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Clocks that each wave's access takes of the banks, and the fewest that it could: one for each
    phase with an active lane.

    addresses: (waves, lanes), of the first byte in the workgroup's LDS. mask: which lanes access.
    size: bytes a lane.
    """
    waves = addresses.shape[0]
    count, together = found.lanes.shape
    words = max(1, -(-size // BANK_BYTES))
    rows = waves * count
    first = (addresses // BANK_BYTES)[:, found.lanes].reshape(rows, together, 1)
    word = (first + np.arange(words)).reshape(rows, -1)
    on = np.repeat(mask[:, found.lanes].reshape(rows, together), words, axis=1)
    busiest = np.zeros(rows, np.int64)
    if on.any():
        row = np.broadcast_to(np.arange(rows)[:, None], word.shape)[on]
        span = int(word[on].max()) + 1
        distinct = np.unique(row * span + word[on])
        row, word = distinct // span, distinct % span
        load = np.bincount(row * found.banks + word % found.banks, minlength=rows * found.banks)
        busiest = load.reshape(rows, found.banks).max(1)
    taken = busiest.reshape(waves, count)
    return taken.sum(1), (taken > 0).sum(1)
