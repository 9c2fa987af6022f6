"""Windows of images as rows, and rows summed back into images."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional as F

import tilewright as tw
from tilewright import ops, verify
from tilewright.compile import build
from tilewright.declared.shape import col2im
from tilewright.declared.shape._problems import back, both, windows
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument

SAID = {"stride": (2, 1), "pad": (1, 0), "dilation": (1, 2)}


def unfolded(x):
    """Windows of 3 × 2 by torch, whose columns are ordered [channel, tap]."""
    found = F.unfold(x, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
    n, c = x.shape[:2]
    return found.reshape(n, c, 6, -1).permute(0, 3, 2, 1).reshape(-1, 6 * c)


def test_windows_and_their_gradients_are_torchs():
    x = torch.randn(2, 3, 9, 8, requires_grad=True)
    rows, wanted = tw.image_to_column(x.permute(0, 2, 3, 1), (3, 2), **SAID), unfolded(x)
    assert torch.equal(rows, wanted)
    arriving = torch.randn_like(rows)
    found, right = (torch.autograd.grad(one, x, arriving)[0] for one in (rows, wanted))
    torch.testing.assert_close(found, right)

    columns = arriving.clone().requires_grad_()
    images = tw.column_to_image(columns, (9, 8), (3, 2), **SAID)
    torch.testing.assert_close(images.permute(0, 3, 1, 2), right)
    arriving = torch.randn_like(images)
    images.backward(arriving)
    assert torch.equal(columns.grad, unfolded(arriving.permute(0, 3, 1, 2)))


@pytest.mark.parametrize(
    ("filter", "stride", "dilation", "steps"),
    [(4, 4, 1, 1), (5, 2, 1, 3), (2, 3, 1, 1), (3, 2, 2, 3), (3, 1, 1, 3)],
)
def test_a_pixel_walks_over_its_own_taps(filter, stride, dilation, steps):
    n, size = 2, 13
    count = (size + 2 - dilation * (filter - 1) - 1) // stride + 1
    columns = torch.randn(n, count * count, filter * filter, 3)
    said = {"stride": stride, "dilation": dilation}
    found = tw.column_to_image(
        columns.reshape(n * count * count, -1), (size, size), filter, pad=1, **said
    )
    wide = columns.permute(0, 3, 2, 1).reshape(n, -1, count * count)
    wanted = F.fold(wide, (size, size), filter, padding=1, **said)
    torch.testing.assert_close(found.permute(0, 3, 1, 2), wanted)
    problem = ops.family("col2im").problem_type(
        n=n, out_h=count, out_w=count, columns=3 * filter**2, height=size, width=size, pad_h=1,
        pad_w=1, filter_h=filter, filter_w=filter, stride_h=stride, stride_w=stride,
        dilation_h=dilation, dilation_w=dilation, out_d=1,
    )  # fmt: skip
    assert col2im.steps("h")(problem, None) == steps


@pytest.mark.turns(8)
@pytest.mark.parametrize(("rank", "groups"), [(1, 2), (2, 2), (3, 1)])
def test_a_convolution_is_a_product_of_windows(rank, groups):
    x = torch.randn(2, *(5, 6, 7)[:rank], 4)
    w = torch.randn(6, *(2,) * rank, 4 // groups)
    rows = tw.image_to_column(x, 2, pad=1, pad_after=0, groups=groups)
    each = rows.shape[1] // groups
    parts = [
        columns @ filters.reshape(len(filters), each).T
        for columns, filters in zip(rows.split(each, 1), w.chunk(groups), strict=True)
    ]
    wide = F.pad(x.movedim(-1, 1), (1, 0) * rank)
    conv = getattr(F, f"conv{rank}d")(wide, w.movedim(-1, 1), groups=groups).movedim(1, -1)
    torch.testing.assert_close(torch.cat(parts, 1), conv.reshape(-1, 6))


@pytest.mark.turns(16)
@pytest.mark.parametrize(
    ("channels", "more", "reads", "writes"),
    [
        (32, {}, "v4.b32", "v4.b32"),  # 8 elements of 2 bytes
        (8, {}, "v4.b32", "v4.b32"),
        (12, {}, "v2.b32", "v2.b32"),
        (6, {}, "b32", "b32"),
        (5, {}, "b16", "b16"),
        (24, {"groups": 6}, "v2.b32", "v4.b32"),  # groups of 4, and 216 columns
        (24, {"x_w": 27}, "b16", "v4.b32"),  # pixels apart
    ],
)
def test_what_a_lane_moves_at_once(channels, more, reads, writes, store):
    """As machine code has it, of windows and of images that they are summed to."""
    stated = windows(2, 9, channels, 3, **both("pad", 1), **both("after", 1), **more)
    problems = {"im2col": (stated, reads, writes)}
    if "x_w" not in more:
        problems["col2im"] = (back(stated), reads, reads)
    for name, (fields, *wanted) in problems.items():
        config = (
            Dispatcher(device="h200_sxm").select(ops.family(name).problem_type(**fields)).config
        )
        report = build([(config, "sm_90")], store=store, workers=1)
        report.raise_if_failed()
        text = store.read(report.kernels[0], "ptx").decode()
        found = [{*re.findall(rf"{how}\.global\.((?:v\d\.)?b\d+)", text)} for how in ("ld", "st")]
        assert found == [{wanted[0]}, {wanted[1]}]


@pytest.mark.parametrize(
    ("channels", "more", "lines"),
    [
        (3, {}, True),  # 27 columns, and 9 · 8 rows in 8 images
        (3, {"dilation_h": 2, "dilation_d": 3}, True),
        (3, {"n": 1, "height": 3, "filter_h": 2}, False),  # 24 rows of 18 columns
        (3, {"dilation_w": 2}, False),
        (3, {"x_w": 4, "x_h": 32, "x_d": 288, "x_n": 288}, False),  # pixels apart
        (6, {"groups": 2, "filter_h": 1, "filter_w": 1}, False),
        (1, {"filter_h": 1}, False),  # 3 columns
    ],
)
def test_odd_columns_are_written_in_vectors_over_the_ends_of_rows(channels, more, lines, store):
    around = {**both("pad", 1), **both("after", 1)}
    stated = {**windows(8, 9, channels, 3), "width": 8, **around, **more}
    problem = ops.family("im2col").problem_type(**stated)
    dispatcher = Dispatcher(device="h200_sxm")
    config = dispatcher.select(problem).config
    assert (config.READS == 0) == lines
    result = verify.verify(dispatcher, problem)
    assert result.ok, result
    if lines:
        report = build([(config, "sm_90")], store=store, workers=1)
        report.raise_if_failed()
        text = store.read(report.kernels[0], "ptx").decode()
        assert {*re.findall(r"st\.global\.(v\d\.b\d+)", text)} == {"v4.b32"}


@pytest.mark.parametrize(
    ("more", "dims", "near"),
    [
        ({}, 2, True),
        ({"height": 1, "filter_h": 1}, 1, True),
        ({"height": 1, "filter_h": 1, "pad_h": 1}, 2, True),
        ({"after_d": 1}, 3, True),
        ({"depth": 2}, 3, True),
        ({"n": 1 << 16, "height": 64, "width": 64}, 2, False),  # 2³⁷ elements
    ],
)
def test_what_is_worked_out_of_a_window(more, dims, near):
    """Only the dimensions that images have, in 32 bits where these hold all places."""
    problem = ops.family("im2col").problem_type(**{**windows(2, 9, 8, 3), **more})
    config = Dispatcher(device="h200_sxm").select(problem).config
    assert dims == config.DIMS and near == config.NEAR


def test_the_fewest_zeros_behind_give_the_windows_back():
    family = ops.family("col2im")
    problem = family.problem_type(
        n=1, out_d=1, out_h=3, out_w=2, columns=24, height=7, width=9, filter_h=3, filter_w=2,
        stride_h=3, stride_w=4, pad_h=1,
    )  # fmt: skip
    (one,) = family.declared.gradients(problem)
    assert one.options == {"after_d": 0, "after_h": 1, "after_w": 0}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda x: tw.image_to_column(x[0, 0], 3), "images have 3 to 5 dimensions, not 2"),
        (lambda x: tw.image_to_column(x, (3,)), "filter = .* is no whole number, nor 2 of them"),
        (lambda x: tw.image_to_column(x, 7), "reaches over 7 pixels, of 5 with 0 and 0 zeros"),
        (lambda x: tw.image_to_column(x, 3, stride=0), "has a 0"),
        (lambda x: tw.image_to_column(x, 3, groups=2), "3 channels are not in 2 groups"),
        (lambda x: tw.column_to_image(x[0, 0], (5, 5), 3), "4 rows are not of images with"),
        (lambda x: tw.column_to_image(x, (5, 5), 3), r"takes \[rows, columns\]"),
    ],
)
def test_what_is_refused(call, says):
    with pytest.raises(BadArgument, match=says):
        call(torch.zeros(1, 5, 4, 3))


def test_other_numbers_of_windows_are_refused():
    problem = ops.family("col2im").problem_type
    said = {"n": 1, "out_d": 1, "out_h": 3, "out_w": 3, "columns": 18, "filter_h": 3, "filter_w": 3}
    with pytest.raises(BadArgument, match=r"images of \(1, 7, 5\) pixels have .* not \(1, 3, 3\)"):
        problem(**said, height=7, width=5)
    with pytest.raises(BadArgument, match="19 columns of 9 taps"):
        problem(**{**said, "columns": 19}, height=5, width=5)
    with pytest.raises(BadArgument, match="sums of int32"):
        problem(**said, height=5, width=5, dtype="int32")
