"""Gradients under biases up to the largest numbers of fp32, against torch's softmax."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilewright as tw

LEAST = float(torch.finfo(torch.float32).min)
ROWS = {
    "least": [LEAST],
    "beyond_what_base_2_holds": [-2.4e38],
    "largest": [-LEAST],
    "a_billion": [-1e9],
    "ten_thousand": [-1e4],
    "two_sizes": [LEAST, -3e38, LEAST],
    "half_infinite": [-np.inf, LEAST],
    "usual_beside": [LEAST, 0.5],
}


def rows_of(case):
    """A bias whose first query is usual, and whose others are of the case."""
    bias = torch.empty(1, 2, 5, 24)
    bias[...] = torch.from_numpy(np.resize(np.asarray(ROWS[case], np.float32), 24))
    bias[:, :, 0] = torch.linspace(-1.0, 1.0, 24)
    return bias


def leaves(*tensors):
    return [x.clone().requires_grad_() for x in tensors]


SINKS = (("least", LEAST), ("usual_beside", LEAST))


@pytest.mark.grid(2)
@pytest.mark.parametrize(("case", "sink"), [*((case, None) for case in ROWS), *SINKS])
def test_gradients_are_torch_s(case, sink):
    made = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, n, 2, 16, generator=made) for n in (5, 24, 24))
    do = torch.randn(1, 5, 2, 16, generator=made)
    given = [q, k, v, rows_of(case)]
    sinks = [] if sink is None else [torch.tensor([sink, 0.5])]
    ours, plain = leaves(*given, *sinks), leaves(*given, *sinks)
    options = {"sinks": ours[4]} if sinks else {}
    o = tw.attention(*ours[:3], bias=ours[3], **options)
    o.backward(do)

    s = torch.einsum("bihd,bjhd->bhij", plain[0], plain[1]) * 0.25 + plain[3]
    if sinks:
        s = torch.cat([s, plain[4][None, :, None, None].expand(1, 2, 5, 1)], -1)
    wanted = torch.einsum("bhij,bjhd->bihd", torch.softmax(s, -1)[..., :24], plain[2])
    wanted.backward(do)
    # Near 10⁴ scores of fp32 have steps of a thousandth.
    atol = 3e-3 if case == "ten_thousand" else 3e-4
    torch.testing.assert_close(o, wanted, rtol=0, atol=atol)
    for found, right in zip(ours, plain, strict=True):
        torch.testing.assert_close(found.grad, right.grad, rtol=1e-3, atol=atol)
