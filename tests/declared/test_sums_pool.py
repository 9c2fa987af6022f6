"""Pooling against torch: windows in one to three dimensions, layouts, NaN, places, gradients, and
what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
from tilewright import ops
from tilewright.errors import BadArgument

WINDOWS = (
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "ceil_mode": True},
    {"kernel_size": 3, "stride": 3, "padding": 1, "ceil_mode": True},
)


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def last(x):
    """The same with channels last in memory."""
    order = (0, *range(2, x.ndim), 1)
    back = (0, x.ndim - 1, *range(1, x.ndim - 1))
    return x.permute(order).contiguous().permute(back)


@pytest.mark.grid(2)
@pytest.mark.parametrize("words", WINDOWS, ids=str)
@pytest.mark.parametrize("sizes", [(9,), (5, 8), (3, 5, 4)])
def test_windows_in_one_to_three_dimensions(sizes, words):
    x, name = drawn(2, 3, *sizes), f"pool{len(sizes)}d"
    for view in (x, last(x)):
        made = getattr(tw, f"max_{name}")(view, **words)
        assert torch.equal(made, getattr(F, f"max_{name}")(x, **words))
        mean = getattr(tw, f"avg_{name}")(view, **words, count_include_pad=len(sizes) == 2)
        wanted = getattr(F, f"avg_{name}")(x, **words, count_include_pad=len(sizes) == 2)
        torch.testing.assert_close(mean, wanted)


def test_channels_last_stay_last_and_a_batch_may_be_left_out():
    x = last(drawn(2, 3, 6, 6))
    made = tw.max_pool2d(x, 2)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(tw.max_pool2d(x[0], 2), made[0])
    assert np.array_equal(
        tw.max_pool2d(x.numpy()[..., ::2], (2, 1)), F.max_pool2d(x[..., ::2], (2, 1))
    )


def test_places_and_nan_are_torchs():
    x = drawn(1, 2, 6, 6)
    x[0, 0, 2, 2] = x[0, 0, 3, 1] = float("nan")
    x[0, 1, :3] = -float("inf")
    x[0, 1, 3:, 3:] = 5.0
    words = {"kernel_size": 3, "stride": 2, "padding": 1, "return_indices": True}
    for made, wanted in zip(tw.max_pool2d(x, **words), F.max_pool2d(x, **words), strict=True):
        assert torch.equal(made.nan_to_num(9.0), wanted.nan_to_num(9.0))
    dilated = {"kernel_size": 2, "stride": 1, "dilation": 3, "return_indices": True}
    assert torch.equal(tw.max_pool2d(x, **dilated)[1], F.max_pool2d(x, **dilated)[1])


@pytest.mark.grid(2)
@pytest.mark.parametrize("words", (*WINDOWS, {"kernel_size": (2, 3), "stride": 1}), ids=str)
@pytest.mark.parametrize("lies", ["first", "last"])
def test_gradients(words, lies):
    x = drawn(2, 3, 7, 6)
    x = last(x) if lies == "last" else x
    for name, more in (("max_pool2d", {}), ("avg_pool2d", {"count_include_pad": False})):
        ours, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
        made = getattr(tw, name)(ours, **words, **more)
        wanted = getattr(F, name)(theirs, **words, **more)
        weight = drawn(*made.shape)
        (made * weight).sum().backward()
        (wanted * weight).sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_gradients_of_dilated_windows():
    ours, theirs = (drawn(1, 2, 9, 9).requires_grad_() for _ in range(2))
    for f, x in ((tw.max_pool2d, ours), (F.max_pool2d, theirs)):
        f(x, 3, stride=2, padding=1, dilation=2).sin().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_divisor_may_be_stated():
    x = drawn(1, 2, 4, 4)
    wanted = F.avg_pool2d(x, 2, divisor_override=3)
    torch.testing.assert_close(tw.avg_pool2d(x, 2, divisor_override=3), wanted)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"kernel_size": 0}, "kernel_size = 0 is not a whole number"),
        ({"kernel_size": (2, 2, 2)}, "does not have 2 numbers"),
        ({"kernel_size": 2, "padding": 2}, "more than half of a window of 2"),
        ({"kernel_size": 9}, "a window of 9 is larger than height 6"),
        ({"kernel_size": 2, "stride": -1}, "stride = -1 is not a whole number"),
    ],
)
def test_windows_that_mean_nothing_are_refused(stated, says):
    with pytest.raises(BadArgument, match=says):
        tw.max_pool2d(drawn(1, 1, 6, 6), **stated)


def test_what_kernels_cannot_count_is_refused():
    problem = ops.family("pool").problem_type
    wide = {"depth": 1, "height": 1024, "width": 1024}
    problem(images=64 * 64, channels=1, **wide)  # 2^32 pixels are 2^22 lines
    problem(images=1024, channels=64, **wide)
    for sizes in ({"images": 2048, "channels": 2}, {"images": 2**21, "channels": 1}):
        with pytest.raises(BadArgument, match="too many to count in 32 bits"):
            problem(**sizes, **wide)
    with pytest.raises(BadArgument, match="elements for each result; at most"):
        ops.family("reduction").problem_type(
            outer=1, far=2, middle=1, near=2**30, inner=1, sum=True
        )


def test_what_an_operation_does_not_compute_is_refused():
    x = torch.zeros(1, 1, 4, 4, 3)
    for stated, says in (
        ({"mode": "average", "index": True}, "an average has no place"),
        ({"divisor": 3}, "belong to averages"),
        ({"over_w": 4, "stride_w": 2, "kernel_w": 2}, "begins behind 4 elements"),
        ({"mode": "median"}, "no mode = '?median"),
    ):
        with pytest.raises(BadArgument, match=says):
            tw.pool(x, **stated)
    sizes = {"images": 1, "depth": 1, "height": 4, "width": 4, "channels": 3}
    for stated, says in (
        ({}, "mode = 'max' needs index="),
        ({"mode": "average", "has_index": True}, "mode = 'average' takes no index="),
    ):
        with pytest.raises(BadArgument, match=says):
            ops.family("pool_backward").problem_type(**sizes, **stated)
    with pytest.raises(BadArgument, match="ask for index=True"):
        tw.pool(x.requires_grad_(), kernel_w=2)
    with pytest.raises(BadArgument, match="3 dimensions, or 2 without"):
        tw.max_pool1d(x, 2)


@pytest.mark.turns(48)
def test_torch_compile_follows_the_functions():
    def f(x):
        mean, most = tw.reduce(x, "mean+max", (0, 2, 3))
        pooled = tw.max_pool2d(x, 3, stride=2, padding=1, ceil_mode=True)
        return mean.sum() + most.sin().sum() + pooled.sum() + tw.avg_pool2d(x, 2).sum()

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for x in (drawn(2, 3, 6, 6), last(drawn(4, 5, 8, 8))):  # then for sizes that are symbols
        ours, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
        for g, one in ((compiled, ours), (f, theirs)):
            g(one).backward()
        torch.testing.assert_close(ours.grad, theirs.grad)
