"""Code that Inductor writes: it calls what an operator does, and not the operator."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._inductor.utils import run_and_get_code  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tilewright as tw  # noqa: E402

pytestmark = pytest.mark.turns(8)

X, W = torch.randn(2, 4, 5, 5), torch.randn(4, 4, 3, 3)


def model(x: Any, w: Any) -> Any:
    return torch.relu(tw.conv2d(x, w, padding=1)).sum((2, 3))


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(op))
        return op(*args, **(kwargs or {}))


@pytest.fixture
def compiled():
    """Afresh: code that was written before would be found in torch's caches."""
    torch._dynamo.reset()
    graphs = torch._inductor.config.patch(fx_graph_cache=False)
    with graphs, torch._functorch.config.patch(enable_autograd_cache=False):
        yield torch.compile(model, fullgraph=True)


def test_it_calls_what_an_operator_does(compiled):
    with torch.no_grad():
        found, (code, *_) = run_and_get_code(compiled, X, W)
        torch.testing.assert_close(found, model(X, W))
        assert "= torch.ops.tilewright.called_conv([" in code
        torch.testing.assert_close(compiled(2 * X, W), model(2 * X, W))


def test_a_mode_and_a_profiler_see_the_operator(compiled):
    """Torch leaves a compiled function out under a mode of a program; its own modes may be on."""
    with torch.no_grad():
        compiled(X, W)
        with torch.profiler.profile() as profile:
            compiled(X, W)
        with Seen() as seen:
            torch.ops.tilewright.called_conv([X, W])
    assert "tilewright::conv" in [one.key for one in profile.key_averages()]
    assert seen.names == ["tilewright.conv.default"]


def test_gradients_are_the_same(compiled):
    given = [one.clone().requires_grad_() for one in (X, W)]
    wanted = torch.autograd.grad(model(*given).square().sum(), given)
    found = torch.autograd.grad(compiled(*given).square().sum(), given)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_nodes_that_lie_otherwise_call_the_operator(compiled, monkeypatch):
    from tilewright.torch import direct

    kernel_of = direct._kernel_of
    monkeypatch.setattr(direct, "_kernel_of", lambda outputs: kernel_of([object()]))
    with torch.no_grad():
        _, (code, *_) = run_and_get_code(compiled, X, W)
    assert "torch.ops.tilewright.conv.default([" in code
    assert direct._kernel_of([]) is None


def test_without_inductor_s_interfaces_it_calls_the_operator(compiled, monkeypatch):
    from torch._inductor import graph, lowering

    from tilewright.torch import direct

    assert graph.make_fallback is lowering.make_fallback  # imported before one of them is gone
    overload = torch.ops.tilewright.conv.default
    monkeypatch.delitem(lowering.lowerings, overload, raising=False)
    monkeypatch.setattr(direct, "_waiting", [(overload, "no.such.name")])
    monkeypatch.setattr(lowering, "make_fallback", None)
    direct.tell_inductor()
    assert overload not in lowering.lowerings
    with torch.no_grad():
        _, (code, *_) = run_and_get_code(compiled, X, W)
    assert "torch.ops.tilewright.conv.default([" in code
