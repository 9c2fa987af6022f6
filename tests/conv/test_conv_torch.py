"""torch's functions of convolutions: the same results, layouts and gradients as torch's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
import torch.nn.functional as functional  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()


CASES = [
    (1, {}, 1),
    (1, {"stride": 2, "padding": 3, "dilation": 2}, 2),
    (2, {"padding": "same"}, 1),
    (2, {"padding": "same", "dilation": (2, 1)}, 1),
    (2, {"padding": "valid", "stride": (2, 1)}, 4),
    (2, {"stride": 2, "padding": (1, 2)}, 8),
    (3, {"padding": 1, "stride": (1, 2, 1)}, 2),
]


def made(rank, groups, filter=3, wide=False):
    torch.manual_seed(rank)
    c, k = (8, 16) if groups < 8 else (8, 8)
    x = torch.randn(2, c, *(9, 7, 6)[:rank], dtype=torch.float64 if wide else torch.float32)
    w = torch.randn(k, c // groups, *(filter,) * rank, dtype=x.dtype)
    return x, w, torch.randn(k, dtype=x.dtype)


def close(got, wanted):
    assert got.shape == wanted.shape
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.turns(24)
@pytest.mark.parametrize(("rank", "said", "groups"), CASES)
def test_results_and_gradients_are_torchs(rank, said, groups):
    given = made(rank, groups)
    theirs = [x.clone().requires_grad_() for x in given]
    ours = [x.clone().requires_grad_() for x in given]
    name = f"conv{rank}d"
    wanted = getattr(functional, name)(*theirs, groups=groups, **said)
    got = getattr(tw, name)(*ours, groups=groups, **said)
    close(got, wanted)
    arrived = torch.randn_like(wanted)
    wanted.backward(arrived)
    got.backward(arrived)
    for one, other in zip(ours, theirs, strict=True):
        close(one.grad, other.grad)


@pytest.mark.turns(48)
@pytest.mark.parametrize(
    ("rank", "said", "groups"),
    [
        (1, {"stride": 2, "padding": 1, "output_padding": 1}, 1),
        (2, {"stride": (2, 3), "padding": 1, "output_padding": (1, 0)}, 2),
        (2, {"stride": 1, "dilation": 3, "output_padding": 2}, 1),
        (3, {"stride": 2}, 1),
    ],
)
def test_transposed_ones_too(rank, said, groups):
    x, w, _ = made(rank, groups)
    weight = torch.randn(x.shape[1], 6 // groups, *w.shape[2:])
    bias = torch.randn(6)
    theirs = [one.clone().requires_grad_() for one in (x, weight, bias)]
    ours = [one.clone().requires_grad_() for one in (x, weight, bias)]
    name = f"conv_transpose{rank}d"
    wanted = getattr(functional, name)(*theirs, groups=groups, **said)
    got = getattr(tw, name)(*ours, groups=groups, **said)
    close(got, wanted)
    wanted.sin().sum().backward()
    got.sin().sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        close(one.grad, other.grad)


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_second_derivatives_are_torchs(name):
    x, w, bias = made(2, 2)
    said = {"stride": 2, "padding": 1, "groups": 2}
    if name == "conv_transpose2d":
        w, said, bias = w[:8], said | {"output_padding": 1}, bias[: 2 * w.shape[1]]
    found = []
    for module in (functional, tw):
        given = [one.clone().requires_grad_() for one in (x, w, bias)]
        result = getattr(module, name)(*given, **said)
        slopes = torch.autograd.grad(result.square().sum(), given, create_graph=True)
        penalty = result.sum() + sum(one.square().mean() for one in slopes)
        found.append(torch.autograd.grad(penalty, given))
    for got, wanted in zip(*found, strict=True):
        close(got / wanted.norm(), wanted / wanted.norm())


def test_gradients_as_torch_nn_grad_has_them():
    x, w, _ = made(2, 2)
    said = {"stride": 2, "padding": 1, "groups": 2}
    dy = torch.randn_like(functional.conv2d(x, w, **said))
    close(
        tw.conv2d_input(x.shape, w, dy, **said), torch.nn.grad.conv2d_input(x.shape, w, dy, **said)
    )
    close(
        tw.conv2d_weight(x, w.shape, dy, **said),
        torch.nn.grad.conv2d_weight(x, w.shape, dy, **said),
    )


def test_only_the_gradients_that_are_asked_for_are_computed(monkeypatch):
    from tilewright.torch import operators

    ran = []
    launch = operators.launch

    def seen(op, said, tensors, numbers):
        ran.append(dict(said.options).get("direction", "forward"))
        return launch(op, said, tensors, numbers)

    monkeypatch.setattr(operators, "launch", seen)
    x, w, bias = made(2, 1)
    for wants, computed in ((x, "data"), (w, "weights")):
        ran.clear()
        wants.requires_grad_()
        tw.conv2d(x, w, bias).sum().backward()
        assert ran == ["forward", computed]
        wants.requires_grad_(False)


def _norm(x, channels):
    return x * channels["col_scale"][:, None, None] + channels["bias"][:, None, None]


EPILOGUES = {
    "bias+relu": lambda z, e: (z + e["bias"][:, None, None]).relu(),
    "col_scale+bias+silu": lambda z, e: functional.silu(_norm(z, e)),
    "scale+gelu+add": lambda z, e: functional.gelu(z * e["scale"]) + e["add"],
    "clamp": lambda z, e: z.clamp(-1.0, 1.5),
}


@pytest.mark.turns(24)
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("direction", ["forward", "data"])
def test_gradients_of_epilogues(epilogue, direction):
    x, w, _ = made(2, 1)
    said = {"epilogue": epilogue, "direction": direction}
    if direction == "data":
        x, said = torch.randn(2, 16, 5, 4), {**said, "spatial": (7, 6)}
        plain = functional.conv_transpose2d(x, w)
    else:
        plain = functional.conv2d(x, w)
    channels = plain.shape[1]
    known = {
        "bias": torch.randn(channels), "col_scale": torch.rand(channels) + 0.5,
        "scale": torch.rand(1) + 0.5, "add": torch.randn_like(plain),
        "low": torch.tensor([-1.0]), "high": torch.tensor([1.5]),
    }  # fmt: skip
    words = {"clamp": ("low", "high")}
    names = [n for word in epilogue.split("+") for n in words.get(word, (word,)) if n in known]
    ours = [one.clone() for one in (x, w, *(known[name] for name in names))]
    theirs = [one.clone() for one in ours]
    asked = 2 if epilogue == "clamp" else len(ours)
    for one in (*ours[:asked], *theirs[:asked]):
        one.requires_grad_()
    got = tw.conv(*ours[:2], **dict(zip(names, ours[2:], strict=True)), **said)
    conv = functional.conv2d if direction == "forward" else functional.conv_transpose2d
    wanted = EPILOGUES[epilogue](conv(*theirs[:2]), dict(zip(names, theirs[2:], strict=True)))
    close(got, wanted)
    arrived = torch.randn_like(wanted)
    got.backward(arrived)
    wanted.backward(arrived)
    for one, other in zip(ours[:asked], theirs[:asked], strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.grid(2)
@pytest.mark.parametrize("which", ["x", "w", "both", "none"])
def test_layouts_are_torchs(which):
    x, w, _ = made(2, 1)
    if which in ("x", "both"):
        x = x.to(memory_format=torch.channels_last)
    if which in ("w", "both"):
        w = w.to(memory_format=torch.channels_last)
    got = tw.conv2d(x, w, padding=1)
    close(got, functional.conv2d(x, w, padding=1))
    last = got.is_contiguous(memory_format=torch.channels_last)
    assert last == (which != "none") and got.is_contiguous() != last


def test_layouts_where_both_are_true():
    """One channel, an image of one pixel, weights of a depthwise layer: strides say both."""
    w = torch.randn(8, 1, 3, 3)
    assert tw.conv2d(torch.randn(2, 1, 5, 5), w).is_contiguous()
    x = torch.randn(2, 8, 1, 1)
    last = torch.randn(4, 8, 3, 3).to(memory_format=torch.channels_last)
    got = tw.conv2d(x, last, padding=2)
    assert got.shape[-1] == 3 and got.is_contiguous(memory_format=torch.channels_last)


def test_an_input_without_a_batch():
    x, w, bias = made(2, 1)
    close(tw.conv2d(x[0], w, bias), functional.conv2d(x[0], w, bias))
    close(
        torch.from_numpy(tw.conv2d(x[0].numpy(), w.numpy(), bias.numpy())),
        functional.conv2d(x[0], w, bias),
    )


@pytest.mark.turns(32)
def test_a_kept_model_is_one_node_for_each_call():
    x, w, bias = made(2, 1)

    def model(x, w, bias):
        return tw.conv2d(x * 2, w, bias, padding=1) + 1

    kept = torch.compile(model, fullgraph=True, backend="aot_eager")
    close(kept(x, w, bias), functional.conv2d(x * 2, w, bias, padding=1) + 1)
    inputs = [one.clone().requires_grad_() for one in (x, w, bias)]
    kept(*inputs).sum().backward()
    theirs = [one.clone().requires_grad_() for one in (x, w, bias)]
    (functional.conv2d(theirs[0] * 2, *theirs[1:], padding=1) + 1).sum().backward()
    for one, other in zip(inputs, theirs, strict=True):
        close(one.grad, other.grad)


def test_fake_tensors_have_the_results_shape_and_strides():
    with FakeTensorMode():
        x = torch.empty(2, 8, 9, 7).to(memory_format=torch.channels_last)
        y = tw.conv2d(x, torch.empty(16, 8, 3, 3), stride=2)
        assert y.shape == (2, 16, 4, 3) and y.stride() == (192, 1, 48, 16)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda x, w: tw.conv2d(x, w, padding="full"), "neither 'same' nor 'valid'"),
        (lambda x, w: tw.conv2d(x, w, padding="same", stride=2), "strides of 1"),
        (lambda x, w: tw.conv2d(x, w, stride=(1, 2, 3)), "does not have 2 numbers"),
        (lambda x, w: tw.conv2d(x[0, 0], w), "4 dimensions, or 3 without a batch, not 2"),
        (lambda x, w: tw.conv_transpose2d(x, w, output_padding=1), "smaller than the stride"),
        (
            lambda x, w: tw.conv(
                x, w, low=torch.zeros(1).requires_grad_(), high=torch.ones(1), epilogue="clamp"
            ),
            "clamp has no gradient for low",
        ),
    ],
)
def test_what_is_refused(call, why):
    x, w, _ = made(2, 1)
    with pytest.raises(BadArgument, match=why):
        call(x, w)


def test_numpy_arrays_give_numpy_arrays():
    x, w, bias = made(1, 1)
    got = tw.conv1d(x.numpy(), w.numpy(), bias.numpy(), padding="same")
    assert isinstance(got, np.ndarray)
    close(torch.from_numpy(got), functional.conv1d(x, w, bias, padding="same"))


@pytest.mark.turns(8)
def test_numbers_of_other_libraries_are_numbers():
    x, w = torch.randn(1, 2, 6, 6), torch.randn(2, 1, 3, 3)
    wanted = tw.conv2d(x, w, stride=2, padding=(1, 0), groups=2)
    for two in (np.int64(2), np.array(2), torch.tensor(2), [np.int32(2), 2], (torch.tensor(2),)):
        made = tw.conv2d(x, w, stride=two, padding=(np.int64(1), 0), groups=np.int64(2))
        assert torch.equal(made, wanted)
    for wrong in (1.5, None, "2", {}, torch.ones(2)):
        with pytest.raises(BadArgument, match="stride = "):
            tw.conv2d(x, w, stride=wrong, groups=2)
