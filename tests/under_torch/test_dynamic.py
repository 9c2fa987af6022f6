"""``torch.compile`` with sizes and options that are symbols: a graph serves all of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright import ops  # noqa: E402
from tilewright.flash_attn import flash_attn_func, flash_attn_varlen_func  # noqa: E402
from tilewright.torch.said import Said, apart, is_number, is_symbol, read  # noqa: E402

LENGTHS = (5, 7, 12, 16)


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()


@pytest.fixture
def counter():
    """A backend that counts the graphs it gets. Its import is slow, so it waits for a test."""
    from torch._dynamo.testing import CompileCounterWithBackend

    return CompileCounterWithBackend("aot_eager")


@pytest.fixture
def sizes_of_data():
    """Sizes that depend on data may be in a graph."""
    options = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}
    with torch._dynamo.config.patch(options):
        yield


def heads(n):
    return [torch.randn(1, n, 2, 16) for _ in range(3)]


def packed(n):
    return [torch.randn(n, 2, 16) for _ in range(3)] + [torch.tensor([0, 3, n], dtype=torch.int32)]


def varlen(q, k, v, cu):
    return flash_attn_varlen_func(q, k, v, cu, cu, q.shape[0], k.shape[0], causal=True)


def scaled(q, k, v):
    return flash_attn_func(q, k, v, softmax_scale=(q.shape[1] + 1) ** -0.5)


def windowed(q, k, v):
    return flash_attn_func(q, k, v, window_size=(q.shape[1] // 2, 1), softcap=q.shape[1] * 1.5)


def same_padding(x, w):
    return tw.conv2d(x, w, padding=1)


def offsets(n):
    return torch.tensor([2, n], dtype=torch.int32)


CASES = {
    "gemm": (tw.gemm, lambda n: [torch.randn(n, 16), torch.randn(16, 8)]),
    "gemm, batched": (
        lambda a, b, bias: tw.gemm(a, b, bias=bias, epilogue="bias+gelu"),
        lambda n: [torch.randn(2, n, 16), torch.randn(16, 8), torch.randn(8)],
    ),
    "gemm, column-major": (
        lambda a, b: tw.gemm(a, b.t()),
        lambda n: [torch.randn(n, 16), torch.randn(8, 16)],
    ),
    "attention": (tw.attention, heads),
    "varlen": (varlen, packed),
    "scaled": (scaled, heads),
    "windowed": (windowed, heads),
    "conv": (same_padding, lambda n: [torch.randn(1, 8, n, n), torch.randn(8, 8, 3, 3)]),
    "causal_conv": (
        lambda x, w: tw.causal_conv1d(x, w, activation="silu"),
        lambda n: [torch.randn(1, 8, n), torch.randn(8, 4)],
    ),
    "grouped_gemm": (
        tw.grouped_gemm,
        lambda n: [torch.randn(n, 16), torch.randn(2, 16, 8), offsets(n)],
    ),
    "grouped_gemm, weights": (
        lambda x, dy, ends: tw.grouped_gemm(x.t(), dy, ends),
        lambda n: [torch.randn(n, 16), torch.randn(n, 8), offsets(n)],
    ),
    "grouped_gemm, columns": (
        lambda w, x, ends: tw.grouped_gemm(w, x.t(), ends),
        lambda n: [torch.randn(2, 8, 16), torch.randn(n, 16), offsets(n)],
    ),
}


@pytest.mark.turns(96)
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_lengths_share_at_most_two_graphs(name, trains, counter):
    function, make = CASES[name]
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for n in LENGTHS:
        given = [x.requires_grad_(trains and x.is_floating_point()) for x in make(n)]
        result = compiled(*given)
        if trains:
            wanted = [x for x in given if x.requires_grad]
            found = torch.autograd.grad(result.sum(), wanted)
        if n == LENGTHS[-1]:
            exact = function(*given)
            assert torch.equal(result, exact)
            if trains:
                for x, y in zip(found, torch.autograd.grad(exact.sum(), wanted), strict=True):
                    assert torch.equal(x, y)
    assert counter.frame_count <= 2


@pytest.mark.turns(48)
@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.usefixtures("sizes_of_data")
def test_rows_that_are_picked_in_the_graph(wants):
    """Their number depends on data, and so does the longest sequence's."""

    def model(x, w, mask):
        at = mask.flatten().nonzero().flatten()
        rows = tw.gemm(x.flatten(0, 1)[at], w)
        q = rows.view(-1, 2, 8)
        lengths = mask.sum(1, dtype=torch.int32)
        cu = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        most = lengths.max().item()
        return flash_attn_varlen_func(q, q, q, cu, cu, most, most)

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (4, 7):
        x, w = torch.randn(2, n, 16), torch.randn(16, 16, requires_grad=wants)
        mask = torch.arange(2 * n).view(2, n) % 3 > 0
        result, exact = compiled(x, w, mask), model(x, w, mask)
        assert torch.equal(result, exact)
        if wants:
            found, right = (torch.autograd.grad(y.sum(), w)[0] for y in (result, exact))
            assert torch.equal(found, right)


@pytest.mark.turns(24)
def test_options_that_the_caller_passes_as_numbers():
    """An integer may stay a symbol; torch itself compiles anew for another float."""

    def model(q, k, v, left, cap):
        return flash_attn_func(q, k, v, window_size=(left, 0), softcap=cap)

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    q, k, v = heads(12)
    for left, cap in ((2, 5.0), (3, 5.0), (4, 7.0)):
        assert torch.equal(compiled(q, k, v, left, cap), model(q, k, v, left, cap))


@pytest.mark.turns(24)
def test_an_option_that_decides_the_output():
    def model(x, w, padding):
        return tw.conv2d(x, w, padding=padding)

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    x, w = torch.randn(1, 8, 6, 6), torch.randn(8, 8, 3, 3)
    for padding in (1, 2, 3):
        assert torch.equal(compiled(x, w, padding), model(x, w, padding))


@pytest.mark.turns(24)
@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_serves_other_lengths(strict):
    class Model(torch.nn.Module):
        def forward(self, q, k, v, cu):
            most, scale = q.shape[0], (q.shape[0] + 1) ** -0.5
            return flash_attn_varlen_func(q, k, v, cu, cu, most, most, softmax_scale=scale)

    n = torch.export.Dim("n", min=3, max=64)
    sizes = ({0: n}, {0: n}, {0: n}, None)
    program = torch.export.export(Model(), tuple(packed(8)), dynamic_shapes=sizes, strict=strict)
    given = packed(13)
    assert torch.equal(program.module()(*given), Model()(*given))


def test_numbers_where_arrays_are_and_arrays_where_numbers_are():
    a, b = torch.randn(4, 16), torch.randn(16, 8)

    def model(a, b):
        return tw.gemm(a, b, epilogue="scale", scale=2.0)

    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, b), model(a, b))
    for wrong, why in (
        (lambda a, b: tw.gemm(a, b, precision=a), "precision of gemm is an option"),
        (lambda a, b: tw.attention(a, a, a, scale=b), "scale of attention is a number"),
    ):
        with pytest.raises(Exception, match=why):
            torch.compile(wrong, fullgraph=True, backend="aot_eager")(a, b)


def test_an_operation_of_the_users_own(monkeypatch, counter):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "custom"))
    monkeypatch.setattr(ops, "_registered", dict(ops._registered))
    monkeypatch.setenv(ops.MODULES_VARIABLE, "")
    sys.modules.pop("custom_kernels", None)
    importlib.import_module("custom_kernels")
    compiled = torch.compile(tw.custom_total, fullgraph=True, dynamic=True, backend=counter)
    for n in LENGTHS:
        x = torch.ones(n)
        assert compiled(x).tolist() == [n]
    assert counter.frame_count <= 2


def test_numbers_apart_from_the_options_come_back_to_their_places():
    options = {"mask": "causal", "padding": ((1, 2), (3, None)), "softcap": 2.5, "lse": True}
    left, paths, numbers = apart(options, is_number)
    assert numbers == [1, 2, 3, 2.5]
    said = Said(("bias",), ("scale",), left, paths)
    assert read(said.text) == said
    whole, scalars = said.whole([0.5, *numbers])
    assert dict(whole.options) == options and scalars == [0.5] and not whole.numbers
    assert said.settled([0.5, *numbers]) == (whole, [0.5])
    assert apart(options, is_symbol)[1:] == ((), [])
    with pytest.raises(tw.errors.BadArgument, match=r"told of 5 numbers .* and was given 2"):
        said.whole([0.5, 1])
