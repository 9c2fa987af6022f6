"""Lengths and offsets on the device that lie: nothing outside of the operands is touched, and the
gradients are the reference's where offsets do not fall."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from backward_cases import drawn
from lying import lying

from simulate import simulated_run, worst_error
from tilewright import Dispatcher, arrays, ops, verify
from tilewright.arch import arch, device
from tilewright.ops.attention.reference import reference
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.verify import Operands

FAMILY, H200, SM_90 = ops.family("attention_backward"), device("h200"), arch("sm_90")
LENGTHS = frozenset({"packedq", "packedkv", "usedq", "usedkv"})


def lied(p, seed, *, wild=False):
    """Operands whose lengths lie, with O and LSE of the forward pass over these lengths."""
    made = lying(p, seed, wild=wild)
    wide = {n: arrays.to_float64(x) if isinstance(x, np.ndarray) else x for n, x in made.items()}
    wrote = reference(p.forward, wide)
    for name in ("o", "lse"):
        made[name][...] = np.where(np.isnan(wrote[name]), 0.0, wrote[name]).astype(made[name].dtype)
    return made


def interpreted(dispatcher, p, inputs):
    """The gradients, in the interpreter, which refuses an access outside of an operand."""
    made = Operands(dict(inputs), verify.operands_of(p, 0).outputs)
    verify.run(dispatcher, p, made)
    return made.written(p)


def cases(count):
    some = (drawn(seed, most=40) for seed in range(200))
    some = (replace(p, accumulate=False) for p in some if p.batch > 1 and p.words & LENGTHS)
    return [p for p, _ in zip(some, range(count), strict=False)]


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def owned(p, inputs):
    """Lies that leave room for all rows: a sequence that `max_q` or `max_kv` cuts leaves rows that
    nobody's gradient is written to."""
    for name, most in (("q_offsets", p.q_len), ("kv_offsets", p.kv_len)):
        if name in inputs:
            total = p.total_q if name == "q_offsets" else p.total_kv
            clamped = np.clip(inputs[name].astype(np.int64), 0, total)
            if (np.diff(clamped) > most).any():
                return False
    return True


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize("number", range(8))
def test_the_portable_kernels_stay_within_the_operands(dispatcher, number):
    p = cases(8)[number]
    seed = next(s for s in range(number, 200) if owned(p, lying(p, s)))
    inputs = lied(p, seed)
    wanted = verify.reference(p, inputs)
    written = interpreted(dispatcher, p, inputs)
    config = dispatcher.select(p).config
    found = verify.compare_all(p, config, written, wanted)
    assert found.ok, (config.name, str(p), str(found))


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize("number", range(4))
def test_offsets_in_no_order_lead_nowhere_else(dispatcher, number):
    p = cases(8)[number]
    interpreted(dispatcher, p, lied(p, number, wild=True))


SIMULATED = AttentionBackwardProblem(
    3, 2, 130, 150, 64, right=0, total_q=200, total_kv=220, others="packedq+packedkv+usedkv"
)


def gluon(pipeline, ordered):
    p = SIMULATED if pipeline == "gluon_ws" else replace(SIMULATED, head_dim=192, head_dim_v=128)
    configs = [c for s in FAMILY.tuning_spaces(p, SM_90) for c in s.expand(SM_90).configs]
    return p, next(c for c in configs if (c.pipeline, c.ordered) == (pipeline, ordered))


@pytest.mark.grid(2)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("pipeline", ["gluon_ws", "gluon_lean", "gluon_roles"])
def test_the_kernels_in_gluon_stay_within_the_operands(pipeline, ordered):
    p, config = gluon(pipeline, ordered)
    seed = next(s for s in range(200) if owned(p, lying(p, s)))
    assert worst_error(config, p, H200, seed, lied(p, seed)) <= 1.0
    if pipeline == "gluon_ws":
        inputs = {n: np.asarray(x) for n, x in lied(p, 5, wild=True).items()}
        simulated_run(config, p, H200, inputs, 5)  # which raises `Fault` outside of an operand
