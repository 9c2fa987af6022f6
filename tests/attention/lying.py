"""Operands of attention and its gradients whose lengths, offsets and pages say what is not so.

A `Machine` that checks bounds (the interpreter, the simulation, an emulated GPU) then shows that
nothing outside of the operands is touched; the reference says what comes out.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tilewright import verify
from tilewright.ops.attention.rows import WHOLE

LARGEST = 2**31 - 1
FAR = (-(2**31), -1, LARGEST, 10**9)
"""Numbers that are no length, offset or page of a small operand."""


def lying(p: Any, seed: int, *, wild: bool = False) -> dict[str, Any]:
    """Inputs for problem `p`; every row of every operand may be read, so none is NaN.

    wild: offsets are in no order, so that sequences share rows, and results are anybody's. Else the
        reference knows every result.
    """
    rng = random.Random(seed)
    made = dict(verify.operands_of(p, seed).inputs)
    numbers = np.random.default_rng(seed)
    for name, x in made.items():
        if isinstance(x, np.ndarray) and name not in WHOLE and x.dtype != np.uint8:
            values = x.astype(np.float64)
            fresh = numbers.standard_normal(x.shape)
            made[name][...] = np.where(np.isnan(values), fresh, values).astype(x.dtype)
    totals = {"q_offsets": p.total_q, "kv_offsets": p.total_kv, "page_starts": p.page_entries}
    for name, total in totals.items():
        if name in made:
            made[name][...] = _offsets(made[name], total, rng, wild)
    most = {"q_used": p.q_len, "kv_used": p.kv_len, "left_pad": p.kv_len}
    for name, length in most.items():
        if name in made:
            made[name][...] = [_often(x, (*FAR, length + 1, length), rng) for x in made[name]]
    for name in ("page_table", "page_list"):
        if name in made:
            flat = made[name].reshape(-1)
            flat[...] = [_often(x, (*FAR, p.pages), rng) for x in flat]
    return made


def _often(said: Any, others: tuple[int, ...], rng: random.Random) -> int:
    return rng.choice(others) if rng.random() < 0.5 else int(said)


def _offsets(said: Any, total: int, rng: random.Random, wild: bool) -> list[int]:
    """Offsets that are in order, of which the outermost lie outside; or any numbers."""
    count = len(said)
    if wild:
        return [rng.choice((*FAR, rng.randint(0, total), total + 1)) for _ in range(count)]
    before, behind = (-(2**31), -1, 0), (total, total + 1, LARGEST)
    found = sorted(int(x) for x in said)
    found[0] = rng.choice(before)
    for n in range(count - 1, 0, -1):
        if n < count - 1 and rng.random() < 0.6:
            break
        found[n] = rng.choice(behind)
    return sorted(found)
