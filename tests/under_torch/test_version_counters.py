"""Writes count in torch's version counters: a graph that saved a tensor before refuses it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
import tilewright.torch  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402

X, W = torch.randn(16, 16), torch.randn(16, 16)


def by_function(out):
    tw.gemm(X, W, out=out)


def by_dispatcher(out):
    Dispatcher().run("gemm", X, W, out=out)


def by_operator(out):
    torch.ops.tilewright.gemm.out([X, W], out=[out])


def without_gradients(out):
    with torch.no_grad():
        tw.gemm(X, W, out=out)


def in_a_view(out):
    tw.gemm(X, W, out=out.view(1, 16, 16)[0])


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "write", [by_function, by_dispatcher, by_operator, without_gradients, in_a_view]
)
def test_a_tensor_that_a_graph_saved_may_not_be_written(write):
    a, out = torch.ones(16, 16, requires_grad=True), torch.ones(16, 16)
    y = (a * out).sum()
    write(out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def appended(cache, q, new):
    used = torch.tensor([3], dtype=torch.int32)
    tw.flash_attn.flash_attn_with_kvcache(q, *cache, new, new, cache_seqlens=used)


def updated(cache, q, new):
    tw.causal_conv1d_update(torch.randn(1, 4), cache[0], torch.randn(4, 3))


def by_update(cache, q, new):
    """The operator that stands in a graph for a call that writes in place."""
    from tilewright.torch.operators import in_place
    from tilewright.torch.said import Said

    states, weights = cache[0], torch.randn(4, 3)
    said = Said(options=(("direction", "update"),), written=(1,))
    in_place("causal_conv", [torch.randn(1, 4, 1), states, weights], said.text, None, (1,), None)


@pytest.mark.grid(1)
@pytest.mark.parametrize("write", [appended, updated, by_update])
def test_a_state_that_a_graph_saved_may_not_be_written(write):
    shape = (1, 8, 2, 16) if write is appended else (1, 4, 2)
    cache = torch.randn(shape), torch.randn(shape)
    a = torch.ones(shape, requires_grad=True)
    y = (a * cache[0]).sum()
    write(cache, torch.randn(1, 1, 2, 16), torch.randn(1, 1, 2, 16))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_what_is_not_written_keeps_its_version():
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    tw.gemm(x, w)
    tw.gemm(x, w, out=torch.empty(16, 16))
    assert x._version == w._version == 0


def test_inference_tensors_have_no_version():
    with torch.inference_mode():
        out = torch.empty(16, 16)
        tw.gemm(X, W, out=out)
    assert torch.allclose(out, X @ W, atol=1e-4)


def test_an_output_that_wants_a_gradient_is_refused():
    out = torch.zeros(16, 16, requires_grad=True)
    for write in (by_function, by_dispatcher, by_operator, lambda out: by_function(out * 1)):
        with pytest.raises(BadArgument, match="out= requires a gradient"):
            write(out)
    compiled = torch.compile(by_function, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="records no gradients with out="):
        compiled(out)
    without_gradients(out)
    assert torch.allclose(out, X @ W, atol=1e-4)
