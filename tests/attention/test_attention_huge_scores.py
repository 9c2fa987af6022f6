"""Biases, slopes and sinks up to the largest numbers of fp32: additive masks are often made of the
least number, and no product with it may overflow."""

from __future__ import annotations

import numpy as np
import pytest
from attention_cases import ways

from tilewright import ops
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.ops.attention import AttentionProblem

FAMILY, SM_90 = ops.family("attention"), arch("sm_90")
LEAST = float(np.finfo(np.float32).min)
BF16_LEAST = -3.3895313892515355e38
SIZES = {"batch": 1, "heads": 2, "q_len": 5, "kv_len": 40, "head_dim": 16, "dtype": "fp32"}


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher()


def drawn(seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, n, 2, 16)).astype(np.float32) for n in (5, 40, 40)]


def plain(q, k, v, bias, sinks=None):
    """O and LSE. Scores are fp32's, where a large bias drowns the product; the rest is float64."""
    s = np.einsum("bihd,bjhd->bhij", q, k).astype(np.float32) * np.float32(0.25) + bias
    s = s.astype(np.float64)[0]
    if sinks is not None:
        s = np.concatenate([s, np.broadcast_to(sinks[:, None, None], (2, 5, 1))], -1)
    most = np.maximum(s.max(-1, keepdims=True), np.finfo(np.float64).min)
    p = np.exp(s - most)
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (most + np.log(total))[..., 0]
    p = (p / np.where(total > 0, total, 1.0))[..., :40]
    return np.einsum("hij,jhd->ihd", p, v[0].astype(np.float64)), np.where(
        total[..., 0] > 0, lse, -np.inf
    )


def check(dispatcher, p, operands, options, wanted):
    for config in ways(p, SM_90):
        o = np.full((1, 5, 2, 16), np.nan, np.float32)
        lse = np.full((1, 2, 5), np.nan, np.float32)
        dispatcher.run_named(config.name, *operands, out=(o, lse), lse=True, **options)
        np.testing.assert_allclose(o[0], wanted[0], atol=3e-6, err_msg=config.name)
        np.testing.assert_allclose(lse[0], wanted[1], rtol=3e-6, err_msg=config.name)


def of_keys(*values):
    """A bias that is the same for all queries: one value after another, for the keys in turn."""
    bias = np.empty((1, 1, 5, 40), np.float32)
    bias[...] = np.resize(np.asarray(values, np.float32), 40)
    return bias


BIASES = {
    "least": of_keys(LEAST),
    "least_of_bf16": of_keys(BF16_LEAST),
    "least_and_usual": of_keys(LEAST, 0.5, LEAST, -1.0),
    "largest": of_keys(-LEAST),
    "beyond_what_base_2_holds": of_keys(2.4e38),
    "order_beyond_it": of_keys(-2.4e38, LEAST, -3e38),
    "both_ends": of_keys(LEAST, -LEAST),
    "infinite_or_least": of_keys(-np.inf, LEAST, -np.inf),
    "infinite": of_keys(-np.inf),
    "a_billion": of_keys(-1e9),
}


SINKS = [
    (case, sink) for case in ("least", "least_and_usual", "infinite") for sink in (0.5, LEAST, 3e38)
]


@pytest.mark.grid(2)
@pytest.mark.parametrize(("case", "sink"), [*((case, None) for case in BIASES), *SINKS])
def test_a_bias_of_any_size(dispatcher, case, sink):
    others = "lse" if sink is None else "lse+sinks"
    p = AttentionProblem(**SIZES, bias_shape=(1, 1), others=others)
    operands, bias = drawn(), BIASES[case]
    sinks = None if sink is None else np.asarray([sink, 0.25], np.float32)
    options = {"bias": bias} if sink is None else {"bias": bias, "sinks": sinks}
    check(dispatcher, p, operands, options, plain(*operands, bias, sinks))


@pytest.mark.parametrize("slope", [3e38, -3e38])
def test_slopes_of_any_size(dispatcher, slope):
    p = AttentionProblem(**SIZES, others="lse+alibi")
    q, k, v = drawn()
    slopes = np.asarray([slope, 0.125], np.float32)
    far = np.abs(np.arange(5)[:, None] + 35 - np.arange(40)).astype(np.float64)
    for config in ways(p, SM_90):
        o = np.full((1, 5, 2, 16), np.nan, np.float32)
        dispatcher.run_named(config.name, q, k, v, out=(o, np.empty((1, 2, 5), np.float32)),
                             lse=True, slopes=slopes)  # fmt: skip
        # One key is the nearest to each query, and one the farthest.
        only = far.argmin(1) if slope > 0 else far.argmax(1)
        np.testing.assert_allclose(o[0, :, 0], v[0, only, 0], atol=1e-6, err_msg=config.name)
        assert np.isfinite(o).all()
