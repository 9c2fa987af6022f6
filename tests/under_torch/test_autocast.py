"""``torch.autocast``: our operations convert what torch's own products convert, eager, compiled and
by operator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch  # noqa: E402
from tilewright import ops  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.flash_attn import flash_attn_func  # noqa: E402

BF16 = torch.bfloat16


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()


def on(enabled=True, dtype=BF16):
    return torch.autocast("cpu", dtype, enabled=enabled)


def randn(*shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()


def attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def biased(q, k, v, bias):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2)


def causal_conv(x, w):
    return functional.conv1d(x, w[:, None], padding=2, groups=4)[..., : x.shape[-1]]


HEADS = ((1, 4, 2, 16),) * 3
CASES = {
    "gemm": (tw.gemm, torch.matmul, ((16, 8), (8, 16))),
    "linear": (
        lambda x, w, bias: tw.gemm(x, w.T, bias, epilogue="bias"),
        functional.linear, ((16, 8), (16, 8), (16,)),
    ),
    "scaled": (
        lambda x, w, s, b: tw.gemm(x, w, col_scale=s, bias=b, epilogue="col_scale+bias"),
        lambda x, w, s, b: (x @ w * s + b).bfloat16(), ((16, 8), (8, 16), (16,), (16,)),
    ),
    "conv2d": (
        lambda x, w, b: tw.conv2d(x, w, b, padding=1),
        lambda x, w, b: functional.conv2d(x, w, b, padding=1), ((1, 8, 4, 4), (8, 8, 3, 3), (8,)),
    ),
    "conv_transpose1d": (
        tw.conv_transpose1d, functional.conv_transpose1d, ((1, 8, 4), (8, 8, 3)),
    ),
    "attention": (tw.attention, attention, HEADS),
    "flash_attn_func": (flash_attn_func, attention, HEADS),
    "biased": (
        lambda q, k, v, bias: tw.attention(q, k, v, bias=bias), biased, (*HEADS, (1, 2, 4, 4)),
    ),
    "causal_conv1d": (tw.causal_conv1d, causal_conv, ((1, 4, 8), (4, 3))),
}  # fmt: skip
"""The function, torch's own, and the operands' shapes."""


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", CASES)
def test_operands_are_converted_as_torchs_are(name):
    run, torchs, shapes = CASES[name]
    found = []
    for call in (run, torchs):
        given = [randn(*shape) for shape in shapes]
        with on():
            result = call(*given)
            with on(enabled=False):
                assert call(*(x.detach() for x in given)).dtype == (
                    torch.bfloat16 if call is torchs and name == "scaled" else torch.float32
                )
        result.float().square().sum().backward()
        found.append((result, *(x.grad for x in given)))
    assert found[0][0].dtype == found[1][0].dtype == BF16
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        one, other = one.double(), other.double()
        assert (one - other).norm() <= 0.03 * other.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_activation_and_a_weight_of_another_dtype(dtype):
    x, w = randn(16, 8, dtype=BF16), randn(8, 16)
    with pytest.raises(BadArgument):
        tw.gemm(x, w)
    with on(dtype=dtype):
        result = tw.gemm(x, w)
    result.sum().backward()
    assert (result.dtype, x.grad.dtype, w.grad.dtype) == (dtype, BF16, torch.float32)


@pytest.mark.turns(16)
def test_compiled_and_by_operator():
    x, w = randn(16, 8), randn(8, 16)

    def model(x, w):
        with torch.autocast("cpu", BF16):
            half = tw.gemm(x, w)
            with torch.autocast("cpu", enabled=False):
                return half, tw.gemm(x, w)

    wanted = model(x, w)
    for got in (
        torch.compile(model, fullgraph=True, backend="aot_eager")(x, w),
        (on()(torch.ops.tilewright.gemm.default)([x, w])[0], torch.ops.tilewright.gemm([x, w])[0]),
    ):
        assert [one.dtype for one in got] == [BF16, torch.float32]
        assert all(map(torch.equal, got, wanted))
        grads = torch.autograd.grad(got[0].float().square().sum(), (x, w))
        exact = torch.autograd.grad(wanted[0].float().square().sum(), (x, w), retain_graph=True)
        assert all(map(torch.equal, grads, exact))
    with on():
        outside = torch.compile(tw.gemm, fullgraph=True, backend="aot_eager")(x, w)
    assert torch.equal(outside, wanted[0])


def test_what_autocast_leaves_alone():
    x, w, out = randn(16, 8).detach(), randn(8, 16).detach(), torch.empty(16, 16)
    with on():
        tw.gemm(x, w, out=out)
        assert torch.equal(out, on(enabled=False)(tw.gemm)(x, w))
        torch.ops.tilewright.gemm.out([x, w], out=[out])
        for y in (torch.ones(16, 8).numpy(), torch.ones(16, 8, dtype=torch.int8)):
            assert str(tw.gemm(y, y.T).dtype) in ("float32", "torch.int32")
        with pytest.raises(BadArgument, match=r"fp64|float64"):
            tw.gemm(x.double(), w.double())
    with torch.autocast("cuda", BF16) if torch.cuda.is_available() else on(enabled=False):
        assert tw.gemm(x, w).dtype == torch.float32


def test_a_backward_pass_under_autocast_is_that_of_the_call():
    x, w = randn(16, 8), randn(8, 16)
    exact = torch.autograd.grad(tw.gemm(x, w).sum(), (x, w))
    result = tw.gemm(x, w).sum()
    with on():
        found = torch.autograd.grad(result, (x, w))
    assert all(map(torch.equal, found, exact))


def test_which_operands_are_converted_is_said_by_the_family():
    gemm, grouped, attention, causal, update = (
        ops.family(name).lowered(*call)
        for name, *call in (
            ("gemm", 4, ("bias",), {"epilogue": "col_scale+add+bias"}),
            ("grouped_gemm", 3, ("row_scale", "bias"), {"epilogue": "row_scale+bias"}),
            ("attention", 3, ("kv_used", "bias", "slopes"), {}),
            ("causal_conv", 2, ("seq_idx", "bias"), {}),
            ("causal_conv", 3, (), {"direction": "update"}),
        )
    )
    assert (gemm, grouped) == ((0, 1, 3, 4), (0, 1, 4))
    assert (attention, causal, update) == ((0, 1, 2, 4), (0, 1, 3), ())
    assert ops.family("attention").lowered(3, ("page_table",), {}) == ()
    assert ops.family("attention_backward").lowered(6, (), {}) == ()
