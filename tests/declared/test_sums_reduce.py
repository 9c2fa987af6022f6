"""`tilewright.reduce` against torch: axes, layouts, NaN, places, gradients, and what is refused."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import selection
import tilewright as tw
from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.compile import build
from tilewright.declared.sums import _tiles
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


@pytest.mark.grid(2)
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), (1, 3), (0, 2, 3), (0, 1, 3)])
@pytest.mark.parametrize("lies", ["first", "last"])
def test_any_axes_in_any_layout(dim, lies):
    x = drawn(2, 3, 4, 5)
    x = x.contiguous(memory_format=torch.channels_last) if lies == "last" else x
    total, most = tw.reduce(x, "sum+max", dim)
    axes = tuple(range(4)) if dim is None else dim
    torch.testing.assert_close(total, x.sum(axes))
    torch.testing.assert_close(most, x.amax(axes))


@pytest.mark.parametrize("dim", [None, 1, (0, 2)])
def test_reduced_axes_may_stay(dim):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(tw.reduce(x, "max", dim, keepdim=True), x.max(dim, keepdims=True))


def test_results_come_in_the_order_in_which_they_are_asked_for():
    x = drawn(3, 40)
    low, place, length = tw.reduce(x, "min+argmin+norm", 1)
    assert torch.equal(low, x.amin(1)) and torch.equal(place, x.argmin(1))
    torch.testing.assert_close(length, x.norm(dim=1))


def test_an_array_may_have_other_strides():
    x = drawn(6, 50)
    for view in (x[:, :33], x[:, ::2], x.t(), x[:, None].expand(6, 3, 50)):
        torch.testing.assert_close(tw.reduce(view, "mean", 0), view.mean(0))
    assert tw.reduce(x.t(), "argmax") == x.t().argmax()
    assert np.array_equal(tw.reduce(x.numpy()[::-1], "argmax", 0), x.numpy()[::-1].argmax(0))


def test_axes_that_are_reduced_may_lie_scattered():
    x = drawn(2, 3, 2, 2, 2, 3)
    torch.testing.assert_close(tw.reduce(x, "sum", (0, 2, 4)), x.sum((0, 2, 4)))


def test_nan_is_the_largest_and_the_smallest_at_its_first_place():
    x = drawn(4, 90)
    x[1, 70] = x[1, 30] = float("nan")
    x[2, :] = -float("inf")
    x[3, :] = float("inf")
    made = tw.reduce(x, "max+min+absmax+argmax+argmin", 1)
    wanted = (x.amax(1), x.amin(1), x.abs().amax(1), x.argmax(1), x.argmin(1))
    for one, other in zip(made, wanted, strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    assert made[3].tolist()[1:] == [30, 0, 0]


@pytest.mark.turns(12)
def test_of_equal_elements_the_first_counts_also_in_parts():
    x = torch.zeros(1, 60000)
    x[0, [100, 100 + 4096, 59990]] = 1.0
    assert tw.reduce(x, "argmax").item() == 100
    assert tw.reduce(-x, "argmin").item() == 100
    split = Dispatcher(device="h200_sxm").select(
        ops.family("reduction").problem_type(
            outer=1, far=1, middle=1, near=60000, inner=1, argmax=True, dtype="fp32"
        )
    )
    assert split.config.SPLIT > 1


@pytest.mark.turns(8)
@pytest.mark.parametrize("op", ["sum", "argmax"])
@pytest.mark.parametrize(
    "shape", [(13, 63, 1), (1, 4099, 1), (70, 6, 1), (1, 9, 262), (1, 12, 264)], ids=str
)
def test_every_tile_is_right(shape, op):
    """Of the tiles that a problem is served with, the narrowest and the widest either way, and the
    most parts."""
    this, family = arch("sm_90"), ops.family("reduction")
    outer, near, inner = shape
    problem = family.problem_type(
        outer=outer, far=2, middle=1, near=near, inner=inner, dtype="fp16", **{op: True}
    )
    served = family.default_space(problem, this).expand(this).configs
    served = [c for c in served if family.supports(c, problem, this)]
    ends = [
        end(served, key=lambda c, axis=axis: getattr(c, axis))
        for axis in ("KEPT", "BLOCK", "SPLIT", "ONCE")
        for end in (min, max)
    ]
    dispatcher = Dispatcher(device="h200_sxm")
    for config in selection.some([*dict.fromkeys(ends)], 4):
        result = verify.verify(dispatcher, problem, config.name)
        assert result.ok, (config.name, result)


def chosen(**fields):
    sizes = {"far": 1, "middle": 1, "inner": 1, "sum": True}
    problem = ops.family("reduction").problem_type(**sizes | fields)
    return Dispatcher(device="h200_sxm").select(problem).config


@given(
    outer=st.integers(1, 5000),
    near=st.integers(1, 3_000_000),
    inner=st.sampled_from([1, 2, 7, 250, 264726]),
)
@settings(max_examples=40, deadline=None)
def test_a_tile_is_chosen_that_fills_the_gpu_if_anything_can(outer, near, inner):
    problem = ops.family("reduction").problem_type(
        outer=outer, far=1, middle=1, near=near, inner=inner, sum=True
    )
    config = Dispatcher(device="h200_sxm").select(problem).config
    workgroups = _tiles.tiles(problem, config) * config.SPLIT
    # 16 MB take as long as a second kernel: whatever is larger has a workgroup for each SM.
    assert workgroups >= 132 or problem.min_bytes < 16e6
    assert _tiles.each(config) <= _tiles.LANE_ELEMENTS


@pytest.mark.parametrize(("inner", "most"), [(264726, 2), (264728, 8), (264720, 16)])
def test_elements_that_lie_apart_are_read_wide(inner, most):
    """As many neighbours at once as begin at such an address in every row, and by no lane twice: so
    nothing moves between lanes."""
    config = chosen(outer=9, near=35, inner=inner, dtype="fp16")
    assert config.alignment == most
    assert min(8, most) <= config.KEPT // 32 and config.SPLIT == 1


@pytest.mark.turns(8)
@pytest.mark.parametrize("inner", [264727, 264726, 264728])
def test_what_a_lane_loads_at_once(inner, store):
    """As machine code has it: 2 bytes, 4, 16."""
    config = chosen(outer=9, near=35, inner=inner, dtype="fp16")
    report = build([(config, "sm_90")], store=store, workers=1)
    report.raise_if_failed()
    text = store.read(report.kernels[0], "ptx").decode()
    found = {*re.findall(r"ld\.global\.((?:v\d\.)?b\d+)", text)}
    assert found == {{264727: "b16", 264726: "b32", 264728: "v4.b32"}[inner]}


@pytest.mark.turns(8)
def test_what_one_tile_has_is_added_up_once(store):
    """An addition for each element of a lane and for each step between lanes, and no more; few
    enough registers for 16 workgroups of 128 lanes on an SM."""
    config = chosen(outer=4096, near=4096)
    assert config.ONCE and config.KEPT * config.BLOCK == 4096
    report = build([(config, "sm_90")], store=store, workers=1)
    report.raise_if_failed()
    text = store.read(report.kernels[0], "ptx").decode()
    each = 4096 // (32 * config.num_warps)
    steps = 5 + 1 + config.num_warps.bit_length() - 1  # one lane adds the warps' sums
    assert text.count("add.f32") <= each + steps
    assert report.kernels[0].resources.registers <= 32


def test_many_elements_of_few_results_are_split():
    assert chosen(outer=1, near=2**26).SPLIT >= 512
    assert chosen(outer=1, near=200704, inner=256).SPLIT >= 128
    assert chosen(outer=4096, near=4096).SPLIT == 1
    assert chosen(outer=1, near=1000).SPLIT == 1
    assert not chosen(outer=4096, near=4097).ONCE and chosen(outer=4096, near=7).ONCE


def test_whole_numbers_are_summed_exactly():
    x = torch.tensor([[2**30, 2**30, 2**30, 1], [-5, 7, 2, 3]], dtype=torch.int32)
    for name in ("sum", "prod"):
        made = tw.reduce(x, name, 1)
        assert made.dtype == torch.int64 and torch.equal(made, getattr(x, name)(1))
    assert tw.reduce(x, "max", 1).dtype == torch.int32
    assert tw.reduce(x > 0, "sum").item() == 7
    assert torch.equal(tw.reduce(x, "mean", 1, dtype=torch.float32), x.float().mean(1))


@pytest.mark.parametrize("dim", [None, 1, (0, 2)])
def test_gradients(dim):
    axes = (0, 1, 2) if dim is None else dim
    x, other = (drawn(3, 4, 6).requires_grad_() for _ in range(2))
    results = tw.reduce(x, "sum+mean+norm+max+min", dim)
    norm = torch.linalg.vector_norm(other, dim=axes)
    theirs = (other.sum(axes), other.mean(axes), norm, other.amax(axes), other.amin(axes))
    for made in (results, theirs):
        sum(one.sin().sum() * (i + 1) for i, one in enumerate(made)).backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_the_gradient_of_a_norm_of_zeros_is_zero():
    x = torch.zeros(2, 8, requires_grad=True)
    tw.reduce(x, "norm", 1).sum().backward()
    assert torch.equal(x.grad, torch.zeros(2, 8))


def test_gradients_that_there_are_not_say_so():
    x = drawn(2, 8).requires_grad_()
    with pytest.raises(BadArgument, match="no gradient of prod"):
        tw.reduce(x, "prod", 1).sum().backward()
    view = x.reshape(2, 1, 1, 8, 1)
    with pytest.raises(BadArgument, match="ask for argmax too"):
        tw.reduction(view, max=True).sum().backward()


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"ops": "sum+maximum"}, "'maximum' of ops"),
        ({"ops": "sum+sum"}, "named twice"),
        ({"ops": 3}, "is no text"),
        ({"dim": 2}, "dim = 2 is not a whole number"),
        ({"dim": (0, -2)}, "names an axis twice"),
        ({"dtype": "int64"}, "out_dtype = int64 for elements of fp32"),
    ],
)
def test_what_means_nothing_is_refused(stated, says):
    with pytest.raises(BadArgument, match=says):
        tw.reduce(drawn(2, 8), **stated)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0,), (2, 0, 4), (0, 0)])
@pytest.mark.parametrize("dim", [None, -1, 0])
@pytest.mark.parametrize("keepdim", [False, True])
def test_results_over_no_elements_are_torchs(shape, dim, keepdim):
    x = torch.zeros(shape, requires_grad=True)
    axes = range(len(shape)) if dim is None else [dim]
    if all(shape[axis] for axis in axes):
        return
    found = tw.reduce(x.detach(), "prod+sum+mean+norm", dim, keepdim)
    of = {"dim": tuple(axes), "keepdim": keepdim}
    product = torch.ones(found[0].shape)
    wanted = (product, x.sum(**of), x.mean(**of), torch.linalg.vector_norm(x, **of))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.detach(), equal_nan=True)
        assert one.is_contiguous()
    recorded = tw.reduce(x, "sum", dim, keepdim)
    (slope,) = torch.autograd.grad(recorded.sum(), x)
    assert slope.shape == x.shape


def test_no_elements_have_types_too():
    whole = torch.zeros(0, 4, dtype=torch.int32)
    assert torch.equal(tw.reduce(whole, "sum", 0), torch.zeros(4, dtype=torch.int64))
    assert tw.reduce(whole, "prod", dtype="int32").dtype == torch.int32
    half = tw.reduce(torch.zeros(0, dtype=torch.float16), "mean")
    assert half.isnan() and half.dtype == torch.float16
    array = tw.reduce(np.zeros((2, 0), np.float32), "prod", 1, dtype="fp16")
    assert array.dtype == np.float16 and array.tolist() == [1, 1]
    with pytest.raises(BadArgument, match="out_dtype = int64 for elements of fp32"):
        tw.reduce(torch.zeros(0), "sum", dtype="int64")


@pytest.mark.parametrize("name", ["max", "min", "absmax", "argmax", "argmin"])
def test_there_must_be_elements(name):
    with pytest.raises(BadArgument, match=rf"^{name} of no elements is nothing: x of shape"):
        tw.reduce(torch.zeros(3, 0), f"sum+{name}", 1)


def test_what_has_no_result_is_refused():
    with pytest.raises(BadArgument, match="no elements to reduce"):
        tw.reduction(torch.zeros(1, 1, 1, 0, 1), sum=True)
    with pytest.raises(BadArgument, match="want a floating out_dtype"):
        tw.reduce(torch.ones(3, dtype=torch.int64), "mean")
    with pytest.raises(BadArgument, match="no result is asked for"):
        tw.reduction(torch.zeros(1, 1, 1, 8, 1))
    assert tw.reduce(torch.zeros(0, 3), "sum", 1).shape == (0,)


def test_the_largest_absolute_value_of_a_types_least_is_the_types_largest():
    x = np.array([[-128, 5, 112], [3, -7, 2]], np.int8)
    assert tw.reduce(x, "absmax", 1).tolist() == [127, 7]
    assert tw.reduce(x.astype(np.float32), "absmax", 1).tolist() == [128.0, 7.0]
