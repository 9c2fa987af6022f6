"""Softmax and its logarithm beside torch's: gradients, special values, refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.compile import build
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument

torch = pytest.importorskip("torch")

NAMES = ("softmax", "log_softmax")
INF = float("inf")


def of_torch(name, x, scale=1.0):
    return getattr(torch, name)(x.double() * scale, -1)


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [1.0, -0.7, 0.0])
def test_gradients_are_torchs(name, scale):
    x = torch.randn(2, 3, 40, requires_grad=True)
    dy = torch.randn(2, 3, 40)
    y = getattr(tw, name)(x, scale=scale)
    y.backward(dy)
    wanted = x.detach().requires_grad_()
    of_torch(name, wanted, scale).backward(dy.double())
    torch.testing.assert_close(y, of_torch(name, x, scale).float())
    torch.testing.assert_close(x.grad, wanted.grad)
    assert y.shape == x.grad.shape == (2, 3, 40)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_have_the_operands_type(name):
    x = torch.randn(4, 40, dtype=torch.bfloat16, requires_grad=True)
    y = getattr(tw, name)(x, out_dtype="fp32")
    y.square().sum().backward()
    wanted = x.detach().float().requires_grad_()
    of_torch(name, wanted).square().sum().backward()
    assert y.dtype == torch.float32 and x.grad.dtype == torch.bfloat16
    torch.testing.assert_close(x.grad.float(), wanted.grad, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("columns", [24, pytest.param(16900, marks=pytest.mark.turns(4))])
def test_infinities_are_as_in_torch(name, columns):
    x = torch.randn(6, columns)
    x[0, 3:] = -INF
    x[1] = -INF
    x[2, 5] = INF
    x[3, 5] = float("nan")
    x[4, 2] = 3e38
    x[5, :-1] = -INF
    y = getattr(tw, name)(x)
    torch.testing.assert_close(y, of_torch(name, x).float(), equal_nan=True)
    assert y[1].isnan().all() and not y[0].isnan().any()


def test_rows_may_be_apart():
    x = torch.randn(3, 64)[:, :40]
    torch.testing.assert_close(tw.softmax(x), x.softmax(-1))
    with pytest.raises(BadArgument, match="pass a contiguous copy"):
        tw.softmax(torch.randn(40, 3).T)


def test_the_same_call_gives_the_same_bits():
    x = np.random.default_rng(0).standard_normal((3, 200), np.float32)
    assert tw.softmax(x).tobytes() == tw.softmax(x).tobytes()


@pytest.mark.parametrize("name", [*NAMES, "softmax_backward", "log_softmax_backward"])
def test_other_types_are_refused(name):
    with pytest.raises(BadArgument, match="out_dtype = int8; it takes fp32, bf16, fp16"):
        ops.family(name).problem_type(rows=1, columns=8, out_dtype="int8")
    with pytest.raises(BadArgument, match="dtype = e5m2; it takes"):
        ops.family(name).problem_type(rows=1, columns=8, dtype="e5m2", out_dtype="fp32")


@pytest.mark.parametrize("name", [*NAMES, "softmax_backward", "log_softmax_backward"])
def test_few_long_rows_are_shared(name):
    """By so many workgroups that each SM has two; of many rows each has its own."""
    family, dispatcher = ops.family(name), Dispatcher(device="h200_sxm")
    few = family.problem_type(rows=3, columns=20000)
    config = dispatcher.select(few).config
    assert config.SPLIT == 2
    assert dispatcher.select(few).launch.steps[1].grid == (6, 1, 1)
    for one in (config, replace(config, SPLIT=1)):
        assert verify.verify(dispatcher, few, one.name, seed=1).ok
    for rows, parts in ((1, 16), (64, 4), (132, 1)):
        problem = family.problem_type(rows=rows, columns=128256)
        assert parts == dispatcher.select(problem).config.SPLIT


@pytest.mark.turns(10)
@pytest.mark.parametrize(("device", "target"), [("h200_sxm", "sm_90"), ("mi300x", "gfx942")])
@pytest.mark.parametrize(
    "name", [*NAMES, "softmax_backward", "log_softmax_backward", "cross_entropy"]
)
def test_kernels_that_share_rows_are_built(name, device, target, store):
    size = "classes" if name == "cross_entropy" else "columns"
    problem = ops.family(name).problem_type(**{"rows": 3, size: 16640})
    config = Dispatcher(device=device).select(problem).config
    assert config.SPLIT == 2
    build([(config, target)], store=store, workers=1).raise_if_failed()


def test_a_share_of_nothing_but_infinities_adds_nothing():
    x = torch.full((2, 20000), -INF)
    x[0, -1] = -1000.0
    found = tw.softmax(x)
    assert found[0, -1] == 1 and found[0].sum() == 1 and found[1].isnan().all()


def test_long_rows_are_read_in_large_pieces():
    dispatcher = Dispatcher(device="h200_sxm")
    softmax = ops.family("softmax").problem_type
    held, long = (dispatcher.select(softmax(rows=4096, columns=n)).config for n in (16384, 16400))
    assert (held.BLOCK, held.HELD) == (16384, True)
    assert (long.BLOCK, long.HELD, long.num_warps) == (16384, False, 32)
    problem, this = softmax(rows=4096, columns=128256), arch("sm_90")
    family = ops.family("softmax")
    every = family.default_space(problem, this).expand(this).configs
    served = {(c.BLOCK, c.num_warps) for c in every if family.supports(c, problem, this)}
    assert served == {(16384, 16), (16384, 32), (8192, 8), (8192, 16)}
