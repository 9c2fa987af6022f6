"""Operations that move, cast and combine elements on a real GPU: calls against torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402

pytestmark = pytest.mark.gpu


def test_functions_are_torchs():
    x = torch.randn(8, 64, 56, 56, device="cuda:0", dtype=torch.bfloat16, requires_grad=True)
    y = tw.permute(x, (0, 2, 3, 1))
    assert torch.equal(y, x.permute(0, 2, 3, 1)) and y.is_contiguous()
    y.backward(torch.ones_like(y))
    assert torch.equal(x.grad, torch.ones_like(x))
    assert torch.equal(tw.cast(x, torch.float32), x.float())

    a, b = (torch.randn(64, 1, 1, device="cuda:0", dtype=torch.bfloat16) for _ in range(2))
    y = tw.elementwise(x, a, b, chain="mul+add+relu", out_dtype="fp32")
    wanted = torch.relu(x.float() * a.float() + b.float())
    torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)

    rows = tw.image_to_column(x.permute(0, 2, 3, 1), 3, pad=1)
    found = torch.nn.functional.unfold(x, 3, padding=1).reshape(8, 64, 9, -1)
    assert torch.equal(rows, found.permute(0, 3, 2, 1).reshape(rows.shape))


@pytest.mark.parametrize(
    ("chain", "more", "computes"),
    [
        ("sub+div+tanh", (0.5, 3), lambda x: ((x - 0.5) / 3).tanh()),
        ("abs+sqrt+neg+exp", (), lambda x: (-x.abs().sqrt()).exp()),
        ("sigmoid+log+pow", (3,), lambda x: x.sigmoid().log().pow(3)),
        ("exp+rsqrt", (), lambda x: x.exp().rsqrt()),
    ],
)
def test_words_of_chains_are_torchs(chain, more, computes):
    x = torch.randn(1000, 70, device="cuda:0", requires_grad=True)
    found, wanted = tw.elementwise(x, *more, chain=chain), computes(x)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    arriving = torch.randn_like(wanted)
    slopes = [torch.autograd.grad(one, x, arriving)[0] for one in (found, wanted)]
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


def test_the_second_time_is_the_same():
    rows = torch.randn(64 * 56 * 56, 9 * 64, device="cuda:0", dtype=torch.bfloat16)
    one, other = (tw.column_to_image(rows, (56, 56), 3, pad=1) for _ in range(2))
    assert torch.equal(one, other)
