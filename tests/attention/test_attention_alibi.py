"""ALiBi's distances by either corner, against a loop over queries and keys: forward, the reference,
and every gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import verify
from tilewright.ops.attention import AttentionProblem


def distance(i, j, n_q, n_kv, corner):
    """Of the places of a query and a key: the last query is in the place of the last key, or the
    first in that of the first."""
    place = i + n_kv - n_q if corner == "bottom_right" else i
    return abs(place - j)


def plain(q, k, v, slopes, corner, bounds):
    """O in float64, and nothing but loops for scores. bounds: keys seen beside a query's place."""
    (n_q, heads), n_kv = q.shape[1:3], k.shape[1]
    rows = []
    for h in range(heads):
        for i in range(n_q):
            place = i + n_kv - n_q if corner == "bottom_right" else i
            seen = [j for j in range(n_kv) if -bounds[0] <= j - place <= bounds[1]]
            if not seen:
                rows.append(v[0, 0, h] * 0)
                continue
            scores = [
                q[0, i, h] @ k[0, j, h] / 4 - slopes[h] * distance(i, j, n_q, n_kv, corner)
                for j in seen
            ]
            rows.append(torch.softmax(torch.stack(scores), 0) @ v[0, seen, h])
    return torch.stack(rows).reshape(heads, n_q, -1).transpose(0, 1)[None]


@pytest.mark.grid(2)
@pytest.mark.parametrize("corner", ["bottom_right", "top_left"])
@pytest.mark.parametrize("sizes", [(3, 9), (7, 4)], ids=str)
@pytest.mark.parametrize("bounds", [(100, 100), (100, 0), (2, 1)], ids=str)
def test_distances_are_of_places(corner, sizes, bounds):
    made = torch.Generator().manual_seed(1)
    q = torch.randn(1, sizes[0], 2, 16, generator=made)
    k, v = (torch.randn(1, sizes[1], 2, 16, generator=made) for _ in range(2))
    slopes = torch.tensor([0.5, -0.125])
    ours = [x.clone().requires_grad_() for x in (q, k, v, slopes)]
    wide = [x.double().requires_grad_() for x in (q, k, v, slopes)]
    window = tuple(None if n == 100 else n for n in bounds)
    o = tw.attention(*ours[:3], slopes=ours[3], corner=corner, window=window)
    wanted = plain(*wide, corner, bounds)
    do = torch.randn(o.shape, generator=made)
    o.backward(do)
    wanted.backward(do.double())
    torch.testing.assert_close(o.double(), wanted, rtol=1e-5, atol=1e-5)
    for found, right in zip(ours, wide, strict=True):
        torch.testing.assert_close(found.grad.double(), right.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("corner", ["bottom_right", "top_left"])
def test_the_reference_has_the_same_distances(corner):
    p = AttentionProblem(1, 2, 3, 9, 16, dtype="fp32", corner=corner, others="alibi")
    inputs = {**verify.operands_of(p, 1).inputs, "scale": 0.25}
    wide = (torch.from_numpy(np.asarray(inputs[n], np.float64)) for n in ("q", "k", "v", "slopes"))
    wanted = plain(*wide, corner, (100, 100))
    np.testing.assert_allclose(verify.reference(p, inputs)["o"], wanted, rtol=1e-9, atol=1e-9)
