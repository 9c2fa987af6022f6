"""JAX's calls beside ours, in small, on a CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from cases import under_jax


@pytest.mark.turns(32)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (under_jax.product, (16, 32, 32)),
        (under_jax.attention, (2, 16)),
        (under_jax.convolution, (1, 4, 16)),
    ],
)
def test_both_sides_agree(make, size, gradients, monkeypatch):
    monkeypatch.setattr(under_jax, "HEADS", 4)
    monkeypatch.setattr(under_jax, "KEYS", 2)
    monkeypatch.setattr(under_jax, "DIM", 16)
    steps = under_jax.steps(make(*size), gradients)
    assert set(steps) == {"ours", "vendor"}
    results = [step() for step in steps.values()]
    assert len(results[0]) == len(results[1])


def test_a_wrong_result_is_refused():
    import jax.numpy as jnp

    pair = under_jax.Pair(lambda x: 1.1 * x, jnp.asarray, ((8, 8),))
    with pytest.raises(AssertionError, match="ours"):
        under_jax.steps(pair, False)
