"""How far results may be from the reference, beside what a right computation is off by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tilewright import arrays, verify
from tilewright.ops.attention import AttentionProblem

ROWS = 1024
HEAVY = range(190, ROWS, 200)
"""Queries that a few keys before them fit well."""


def computed(p: AttentionProblem, inputs: Mapping[str, Any]) -> Any:
    """O of one causal head with a sink, in fp32, its weights rounded to the dtype of V as kernels
    round them: beside the row's largest score or, if that is larger, the sink."""
    q, k, v = (np.asarray(inputs[name], np.float32)[0, :, 0] for name in "qkv")
    sink = np.float32(inputs["sinks"][0])
    s = np.where(np.tri(p.q_len, dtype=bool), q @ k.T * np.float32(inputs["scale"]), -np.inf)
    most = np.maximum(s.max(-1, keepdims=True), sink)
    weights = np.exp(s - most)
    total = weights.sum(-1, keepdims=True) + np.exp(sink - most)
    return (arrays.rounded(weights, p.dtype).astype(np.float32) @ v / total)[None, :, None]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("seed", range(4))
def test_a_row_of_few_heavy_weights_is_right_among_rows_that_a_sink_takes(dtype, seed):
    """Their rms is tens of times that of the others, and so are their errors."""
    p = AttentionProblem(1, 1, ROWS, ROWS, 64, right=0, dtype=dtype, others="sinks")
    operands = verify.operands_of(p, seed)
    inputs, o = operands.inputs, operands.outputs["o"]
    for i in HEAVY:
        fits = np.asarray(inputs["q"][:, i], np.float32) * np.linspace(0.97, 1.03, 8)[:, None, None]
        inputs["k"][0, i - 8 : i] = fits.reshape(8, 1, -1)
    inputs["sinks"][...] += np.float32(2)
    wanted = verify.reference(p, inputs)
    o[...] = computed(p, inputs)
    check = verify.compare_all(p, None, {"o": o}, wanted)
    assert check.ok, check
    rows = np.sqrt((wanted["o"][0, :, 0] ** 2).mean(-1))
    assert rows[[*HEAVY]].min() > 30 * np.median(rows)
    few = int(np.argsort(rows)[ROWS // 4])
    o[0, few] *= 1.2
    check = verify.compare_all(p, None, {"o": o}, wanted)
    assert not check.ok, "a light row that is off by a fifth is lost among heavy ones"
