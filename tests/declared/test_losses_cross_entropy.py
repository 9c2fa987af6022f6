"""Cross-entropy beside torch's: gradients, ignored rows, smoothing, weights, odd targets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops, verify
from tilewright.errors import BadArgument

torch = pytest.importorskip("torch")
F = torch.nn.functional

INF, NAN = float("inf"), float("nan")
LONG = pytest.param(16900, marks=pytest.mark.turns(4))


def drawn(*shape, dtype=torch.float32, ignored=-100):
    """Logits, and targets of which some are ignored."""
    logits = (torch.randn(shape) * 2).to(dtype)
    target = torch.randint(0, shape[-1], shape[:-1])
    target.view(-1)[::3] = ignored
    return logits, target


def of_torch(logits, target, lse_square_scale=0.0, **more):
    """Losses of rows [rows, classes] in float64."""
    wide = logits.double()
    if more.get("weight") is not None:
        more["weight"] = more["weight"].double()
    loss = F.cross_entropy(wide, target, reduction="none", **more)
    read = target != more.get("ignore_index", -100)
    return loss + torch.where(read, lse_square_scale * wide.logsumexp(-1) ** 2, 0.0)


FORMS = [
    {},
    {"label_smoothing": 0.1, "lse_square_scale": 1e-2},
    {"label_smoothing": 0.2, "weight": torch.rand(40) + 0.5, "ignore_index": 3},
    {"weight": torch.rand(40)},
]


@pytest.mark.grid(3)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: "-".join(form) or "plain")
@pytest.mark.parametrize("with_gradient", [False, True])
def test_losses_and_gradients_are_torchs(form, with_gradient):
    logits, target = drawn(2, 7, 40, ignored=form.get("ignore_index", -100))
    logits.requires_grad_()
    arriving = torch.randn(2, 7)
    made = tw.cross_entropy(logits, target, factor=0.5, with_gradient=with_gradient, **form)
    loss = made[0] if with_gradient else made
    loss.backward(arriving)
    wanted = logits.detach().view(14, 40).double().requires_grad_()
    rows = 0.5 * of_torch(wanted, target.view(14), **form)
    rows.backward(arriving.view(14).double())
    torch.testing.assert_close(loss.view(14), rows.float(), rtol=1e-5, atol=1e-5)
    found = wanted.grad.float().view(2, 7, 40)
    torch.testing.assert_close(logits.grad, found, rtol=1e-5, atol=1e-6)
    assert not logits.grad.view(14, 40)[::3].any() and not loss.view(14)[::3].any()
    if with_gradient:
        assert not made[1].requires_grad
        torch.testing.assert_close(made[1] * arriving[..., None], found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("with_gradient", [False, True])
def test_few_long_rows_are_shared_or_not(with_gradient):
    problem = ops.family("cross_entropy").problem_type(
        rows=2, classes=16900, has_weight=True, with_gradient=with_gradient
    )
    dispatcher = tw.Dispatcher(device="h200_sxm")
    config = dispatcher.select(problem).config
    assert config.SPLIT == 2
    for one in (config, replace(config, SPLIT=1)):
        found = verify.verify(dispatcher, problem, one.name, seed=1)
        assert found.ok, found


@pytest.mark.parametrize("classes", [40, LONG])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_gradients_have_the_type_of_the_logits(classes, with_gradient):
    logits, target = drawn(3, classes, dtype=torch.bfloat16)
    logits.requires_grad_()
    made = tw.cross_entropy(
        logits, target, label_smoothing=0.1, with_lse=True, with_gradient=with_gradient
    )
    made[0].sum().backward()
    wanted = logits.detach().double().requires_grad_()
    rows = of_torch(wanted, target, label_smoothing=0.1)
    rows.sum().backward()
    assert logits.grad.dtype == torch.bfloat16 and len(made) == 2 + with_gradient
    torch.testing.assert_close(made[0], rows.float())
    torch.testing.assert_close(logits.grad.double(), wanted.grad, rtol=8e-3, atol=1e-7)
    lse = torch.where(target == -100, 0.0, logits.double().logsumexp(-1))
    torch.testing.assert_close(made[1].double(), lse, rtol=1e-5, atol=1e-5)


def test_a_recorded_call_returns_what_another_does():
    logits, target = drawn(3, 40)
    plain = tw.cross_entropy(logits, target)
    assert isinstance(plain, torch.Tensor) and plain.shape == (3,)
    recorded = tw.cross_entropy(logits.requires_grad_(), target)
    assert isinstance(recorded, torch.Tensor) and torch.equal(plain, recorded)


@pytest.mark.grid(2)
@pytest.mark.parametrize("classes", [40, LONG])
@pytest.mark.parametrize("odd", [-1, 1 << 40, -(1 << 40), "classes"])
def test_a_target_that_is_no_class_gives_nan_in_its_row(classes, odd):
    logits, target = drawn(4, classes)
    target[1] = classes if odd == "classes" else odd
    loss, dlogits = tw.cross_entropy(logits, target, with_gradient=True)
    (again,) = torch.autograd.grad(
        tw.cross_entropy(logits.requires_grad_(), target).sum(), (logits,)
    )
    for found in (loss, dlogits, again):
        assert found[1].isnan().all() and not found[[0, 2, 3]].isnan().any()


@pytest.mark.parametrize("classes", [40, LONG])
def test_special_logits_are_as_in_torch(classes):
    logits, target = drawn(7, classes)
    target[:] = 2
    logits[0, 5:] = -INF  # masked classes
    logits[1, 2] = -INF  # the target itself
    logits[2] = -INF
    logits[3, 5] = NAN
    logits[4, 5] = INF
    logits[5], target[5] = NAN, -100  # ignored: nothing of it counts
    logits[6] *= 1e36
    loss, dlogits = tw.cross_entropy(logits, target, with_gradient=True)
    wanted = logits.clone().requires_grad_()
    rows = F.cross_entropy(wanted, target, reduction="none")
    torch.testing.assert_close(loss, rows.detach(), equal_nan=True)
    rows.sum().backward()
    arriving = torch.ones(7)
    arriving[5] = INF
    (again,) = torch.autograd.grad(tw.cross_entropy(wanted, target), wanted, arriving)
    assert not dlogits[5].any() and not again[5].any()
    finite = [0, 1, 6]
    torch.testing.assert_close(dlogits[finite], wanted.grad[finite])
    assert dlogits[2:5].isnan().any(1).all()


def test_small_losses_keep_their_digits():
    logits = torch.zeros(1, 8)
    logits[0, 3] = 300.0
    logits[0, 4] = 290.0
    loss = tw.cross_entropy(logits, torch.tensor([3]))
    torch.testing.assert_close(
        loss, torch.log1p(torch.exp(torch.tensor([-10.0]))), rtol=1e-2, atol=0
    )


@pytest.mark.grid(2)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weight", [None, torch.rand(40)], ids=["plain", "weighted"])
def test_torchs_function_reduces_as_torch_does(reduction, weight):
    logits, target = drawn(6, 40)
    more = {"weight": weight, "label_smoothing": 0.1, "reduction": reduction}
    found = tw.cross_entropy_loss(logits.requires_grad_(), target, **more)
    wanted = F.cross_entropy(logits, target, **more)
    torch.testing.assert_close(found, wanted)
    dlogits = [torch.autograd.grad(one.sum(), logits)[0] for one in (found, wanted)]
    torch.testing.assert_close(*dlogits)


@pytest.mark.parametrize("weight", [None, torch.rand(40)], ids=["plain", "weighted"])
def test_targets_of_32_bits_are_as_those_of_64(weight):
    logits, target = drawn(6, 40)
    target[1] = 40  # no class
    made = []
    for one in (target, target.int()):
        x = logits.clone().requires_grad_()
        loss = tw.cross_entropy(x, one, weight=weight, label_smoothing=0.1)
        mean = tw.cross_entropy_loss(x[2:], one[2:], weight=weight)
        made.append((loss, mean, *torch.autograd.grad(loss.sum() + mean, x)))
    for one, other in zip(*made, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    loss = tw.cross_entropy(logits, target.int(), ignore_index=1 << 40)  # no number of 32 bits
    assert loss.isnan().tolist() == [True, True, False, True, False, False]


def test_torchs_function_takes_numpys_arrays():
    logits, target = (one.numpy() for one in drawn(6, 40))
    found = tw.cross_entropy_loss(logits, target)
    wanted = F.cross_entropy(torch.tensor(logits), torch.tensor(target))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_odd_calls_are_refused():
    logits, target = drawn(3, 40)
    with pytest.raises(BadArgument, match="targets are int8; they may be int64 and int32"):
        tw.cross_entropy(logits, target.char())
    with pytest.raises(BadArgument, match="target of cross_entropy has shape"):
        tw.cross_entropy(logits, target[:2])
    of_images = (torch.zeros(2, 40, 3), torch.zeros(2, 3, dtype=torch.int64))  # classes are last
    with pytest.raises(BadArgument, match=r"shape \(2, 3\); it is \[\*rows\], where rows is 80"):
        tw.cross_entropy_loss(*of_images)
    with pytest.raises(BadArgument, match="reduction = 'max'; there are mean, sum, none"):
        tw.cross_entropy_loss(logits, target, reduction="max")
    for function in (tw.cross_entropy_loss, tw.cross_entropy):
        for far in (2.0, -0.1, NAN, 2, "1"):
            with pytest.raises(BadArgument, match=r"label_smoothing = .* is not a number from 0"):
                function(logits, target, label_smoothing=far)
        assert function(logits, target, label_smoothing=1).isfinite().all()
    with pytest.raises(BadArgument, match="dtype = int8; it takes fp32, bf16, fp16"):
        ops.family("cross_entropy").problem_type(rows=1, classes=8, dtype="int8")
    with pytest.raises(BadArgument, match="no gradient of weight"):
        tw.cross_entropy(logits, target, weight=torch.ones(40, requires_grad=True))


def test_the_same_call_gives_the_same_bits():
    logits, target = drawn(5, 300)
    first, second = (
        tw.cross_entropy(logits, target, with_gradient=True, label_smoothing=0.1) for _ in range(2)
    )
    assert all(map(torch.equal, first, second))
