"""Lengths, offsets and pages on the device that lie: nothing outside of the operands is touched,
and what comes out is what the reference says."""

from __future__ import annotations

import numpy as np
import pytest
from attention_cases import drawn, ways
from lying import lying
from parity_cases import toys

from simulate import worst_error
from tilewright import Dispatcher, verify
from tilewright.arch import arch, device
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.features import FEATURES
from tilewright.registry import Registry
from tilewright.verify import Operands

HERE, H200 = arch("sm_90"), device("h200")
LENGTHS = frozenset(
    {"packedq", "packedkv", "usedq", "usedkv", "leftpad", "pagetable", "pagelist", "append"}
)


def _spread(each: int, most: int) -> list[AttentionProblem]:
    """Problems that have each feature of `LENGTHS`, at least `each` of them."""
    pool = [p for p in (drawn(seed, most) for seed in range(400)) if p.words & LENGTHS]
    chosen = []
    for word in FEATURES:
        if word in LENGTHS:
            chosen += [p for p in pool if word in p.words and p.batch > 1][:each]
    return list(dict.fromkeys(chosen))


DRAWN = _spread(2, 24)


def interpreted(p, config, inputs):
    """What a kernel writes, in the interpreter, which refuses an access outside of an operand."""
    on = Dispatcher(Registry("lying").register_all([config]), device="h200")
    made = verify.operands_of(p, 0)
    operands = Operands({n: np.copy(x) if isinstance(x, np.ndarray) else x
                         for n, x in inputs.items()}, made.outputs)  # fmt: skip
    verify.run(on, p, operands, config.name)
    return operands.written(p)


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize("number", range(len(DRAWN)))
def test_the_portable_kernels_stay_within_the_operands(number):
    p = DRAWN[number]
    configs = ways(p, HERE)
    inputs = lying(p, number)
    wanted = verify.reference(p, inputs)
    config = configs[number % len(configs)]
    written = interpreted(p, config, inputs)
    found = verify.compare_all(p, config, written, wanted)
    assert found.ok, (config.name, str(p), str(found))


@pytest.mark.parametrize("number", range(0, len(DRAWN), 3))
def test_offsets_in_no_order_lead_nowhere_else(number):
    p = DRAWN[number]
    interpreted(p, ways(p, HERE)[0], lying(p, number, wild=True))


SIMULATED = {"gluon_ws": 3, "gluon_decode": 5, "gluon_latent": 3}


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name in SIMULATED for place in range(SIMULATED[name])]
)
def test_the_kernels_in_gluon_stay_within_the_operands(name, place):
    cases = toys(name, "sm_90", 3e3)
    with_lengths = [case for case in cases if case[1].words & LENGTHS and case[1].batch > 1]
    config, p, seed = with_lengths[place]
    assert worst_error(config, p, H200, seed, lying(p, seed)) <= 1.0, f"{config.name} on {p}"


@pytest.mark.turns(48)
def test_machine_code_of_an_amd_gpu_stays_within_the_operands(store):
    """The emulated GPU reports every access outside of them."""
    p = AttentionProblem(
        3, 2, 1, 24, 16, pages=5, page_size=8, page_entries=3, new_kv=1, dtype="fp16",
        others="usedkv+pagetable",
    )  # fmt: skip
    emulated = Dispatcher(device="emulated:mi300x", store=store)
    inputs = lying(p, 2)
    wanted = verify.reference(p, inputs)
    operands = Operands(inputs, verify.operands_of(p, 0).outputs)
    verify.run(emulated, p, operands)
    config = emulated.select(p).config
    assert verify.compare_all(p, config, operands.written(p), wanted).ok
