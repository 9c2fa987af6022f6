"""Softmax and cross-entropy on a real GPU: calls and gradients against torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("columns", [4096, 128256])
def test_gradients_are_torchs(name, columns):
    x = torch.randn(2, 33, columns, device="cuda").requires_grad_()
    dy = torch.randn_like(x)
    y = getattr(tw, name)(x, scale=0.7)
    wide = x.detach().double().requires_grad_()
    wanted = getattr(torch, name)(wide * 0.7, -1)
    torch.testing.assert_close(y, wanted.float())
    (dx,) = torch.autograd.grad(y, x, dy)
    (right,) = torch.autograd.grad(wanted, wide, dy.double())
    torch.testing.assert_close(dx, right.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", ["plain", "smoothed", "weighted"])
@pytest.mark.parametrize("with_gradient", [False, True])
@pytest.mark.parametrize("classes", [1000, 50257, 128256])
def test_losses_and_their_gradients_are_torchs(form, with_gradient, classes):
    logits = (2 * torch.randn(65, classes, device="cuda")).requires_grad_()
    target = torch.randint(0, classes, (65,), device="cuda")
    target[::5] = -100
    more = {} if form == "plain" else {"label_smoothing": 0.1}
    weight = torch.rand(classes, device="cuda") + 0.5 if form == "weighted" else None
    named = {} if weight is None else {"weight": weight}
    arriving = torch.randn(65, device="cuda")
    made = tw.cross_entropy(logits, target, with_gradient=with_gradient, **more, **named)
    loss = made[0] if with_gradient else made
    wide = logits.detach().double().requires_grad_()
    wanted = torch.nn.functional.cross_entropy(
        wide, target, None if weight is None else weight.double(), reduction="none", **more
    )
    torch.testing.assert_close(loss, wanted.float(), rtol=1e-5, atol=1e-4)
    (dlogits,) = torch.autograd.grad(loss, logits, arriving)
    (right,) = torch.autograd.grad(wanted, wide, arriving.double())
    torch.testing.assert_close(dlogits, right.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("classes", [1000, 128256])
def test_targets_that_are_no_class_read_nothing(classes):
    logits = torch.randn(6, classes, device="cuda").requires_grad_()
    target = torch.tensor([1, -1, classes, 1 << 60, -(1 << 60), -100], device="cuda")
    loss, dlogits = tw.cross_entropy(logits, target, with_gradient=True)
    (again,) = torch.autograd.grad(tw.cross_entropy(logits, target).sum(), logits)
    torch.cuda.synchronize()
    for found in (loss, dlogits, again):
        assert found[1:5].isnan().all() and not found[[0, 5]].isnan().any()
    assert loss[5] == 0 and not dlogits[5].any() and not again[5].any()


@pytest.mark.parametrize("classes", [1000, 50257])
def test_targets_of_32_bits_are_as_those_of_64(classes):
    logits = torch.randn(67, classes, device="cuda").requires_grad_()
    target = torch.randint(0, classes, (67,), device="cuda")
    target[::3], target[1] = -100, classes
    losses = [tw.cross_entropy(logits, one, label_smoothing=0.1) for one in (target, target.int())]
    slopes = [torch.autograd.grad(one.sum(), logits)[0] for one in losses]
    for one, other in (losses, slopes):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    far = tw.cross_entropy(logits, target.int(), ignore_index=1 << 40)  # no number of 32 bits
    torch.cuda.synchronize()
    assert torch.equal(far.isnan(), (target < 0) | (target >= classes))


def test_elements_lie_beyond_two_to_the_31():
    rows, classes = 8200, 262144  # 4.3 GB of bf16
    logits = torch.zeros(rows, classes, device="cuda", dtype=torch.bfloat16)
    logits[-2:] = torch.randn(2, classes, device="cuda")
    target = torch.full((rows,), 5, device="cuda")
    last = logits[-2:].double().requires_grad_()
    wanted = torch.nn.functional.cross_entropy(last, target[-2:], reduction="none")
    (right,) = torch.autograd.grad(wanted.sum(), last)
    torch.testing.assert_close(
        tw.softmax(logits)[-2:].double(), last.softmax(-1).detach(), rtol=1e-2, atol=0
    )
    loss, dlogits = tw.cross_entropy(logits, target, with_gradient=True)
    torch.testing.assert_close(loss[-2:].double(), wanted.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dlogits[-2:].double(), right, rtol=1e-2, atol=0)
    del dlogits
    (again,) = torch.autograd.grad(tw.cross_entropy(logits.requires_grad_(), target).sum(), logits)
    torch.testing.assert_close(again[-2:].double(), right, rtol=1e-2, atol=0)


def test_they_repeat_bit_for_bit():
    logits = torch.randn(700, 50257, device="cuda", dtype=torch.bfloat16)
    target = torch.randint(0, 50257, (700,), device="cuda")
    runs = [tw.cross_entropy(logits, target, with_gradient=True) for _ in range(3)]
    for one in runs[1:]:
        assert all(map(torch.equal, runs[0], one))


def test_a_compiled_call_is_recorded():
    logits = torch.randn(64, 1000, device="cuda").requires_grad_()
    target = torch.randint(0, 1000, (64,), device="cuda")
    compiled = torch.compile(lambda x, t: tw.cross_entropy(x, t).mean(), fullgraph=True)
    (dlogits,) = torch.autograd.grad(compiled(logits, target), logits)
    (right,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, target), logits)
    torch.testing.assert_close(dlogits, right, rtol=1e-4, atol=1e-7)
