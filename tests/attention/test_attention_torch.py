"""Attention under torch.compile, torch.export and fake tensors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from attention_cases import drawn  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch  # noqa: E402
from tilewright import arrays, calls, ops, verify  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.flash_attn import flash_attn_func, flash_attn_with_kvcache  # noqa: E402
from tilewright.serving import LatentAttention, PagedAttention  # noqa: E402

B, HEADS, KV_HEADS, DIM = 2, 4, 2, 16
ATTENTION = torch.ops.tilewright.attention


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()


class Graphs:
    """A backend that keeps the names of our operators in the graphs that it is given."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def __call__(self, module, inputs):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def keep(traced, inputs):
            nodes = [node for node in traced.graph.nodes if node.op == "call_function"]
            ours = [x for node in nodes for x in (node.target, *node.args)]
            self.seen.append([str(x) for x in ours if "tilewright." in str(x)])
            return make_boxed_func(traced.forward)

        return aot_autograd(fw_compiler=keep)(module, inputs)


def qkv(n_q=20, n_kv=30):
    return torch.randn(B, n_q, HEADS, DIM), *torch.randn(2, B, n_kv, KV_HEADS, DIM)


def test_a_call_is_one_node():
    def model(q, k, v, slopes):
        o, lse = tw.attention(
            q * 2, k, v, mask="causal", slopes=slopes, softcap=5.0, scale=0.3, lse=True
        )
        return o + lse.transpose(1, 2)[..., None]

    graphs, given = Graphs(), (*qkv(), torch.rand(HEADS))
    assert torch.equal(torch.compile(model, fullgraph=True, backend=graphs)(*given), model(*given))
    assert graphs.seen == [["tilewright.attention.default"]]


@pytest.mark.turns(32)
def test_lengths_may_change_without_another_graph():
    def model(q, k, v):
        return flash_attn_func(q, k, v, causal=True, window_size=(5, 0))

    model(*qkv())  # the first call outside of a graph looks for torch
    graphs = Graphs()
    compiled = torch.compile(model, fullgraph=True, backend=graphs, dynamic=True)
    for n_q, n_kv in ((20, 30), (24, 40), (33, 50)):
        given = qkv(n_q, n_kv)
        assert torch.equal(compiled(*given), model(*given))
    assert graphs.seen == [["tilewright.attention.default"]]


@pytest.mark.parametrize("seed", range(12))
def test_outputs_are_as_the_problem_has_them(seed):
    """Those that are made without stating a problem, so that sizes may be symbols."""
    p = drawn(seed)
    made = verify.operands_of(p, 0)
    inputs, keywords = calls.positional(p, made.inputs)
    said = calls.spoken("attention", keywords, 0)
    views = [tuple(map(arrays.view, xs)) for xs in (inputs, said.named.values())]
    call = ops.nouns.Call(views[0], dict(zip(said.named, views[1], strict=True)), None,
                          dict(said.options))  # fmt: skip
    family = ops.family("attention")
    stated = family.problem_of(call)
    assert family.outputs(call) == tuple(o for o in family.operands(stated) if o.role == "out")


@pytest.mark.turns(12)
def test_a_compiled_call_has_fresh_dropout_from_torchs_seed():
    given, compiled = qkv(), torch.compile(flash_attn_func, fullgraph=True, backend="aot_eager")
    torch.manual_seed(1)
    first, second = compiled(*given, 0.2), compiled(*given, 0.2)
    torch.manual_seed(1)
    assert torch.equal(flash_attn_func(*given, 0.2), first) and not torch.equal(first, second)


def decode(q, k_cache, v_cache, new, used):
    return flash_attn_with_kvcache(q, k_cache, v_cache, new, new, cache_seqlens=used, causal=True)


USED = torch.tensor([5, 40], dtype=torch.int32)


def _caches():
    """Keys and values as views of one tensor."""
    caches = torch.randn(2, B, 64, KV_HEADS, DIM)
    decode(*_step()[:1], *caches.clone(), _step()[1], USED)  # looks for torch, and builds
    return caches


@pytest.mark.turns(24)
@pytest.mark.parametrize("apart", [True, False], ids=["two tensors", "views of one"])
def test_a_step_that_appends_to_the_cache_is_compiled(apart):
    graphs, plain = Graphs(), _caches()
    caches = [x.clone() for x in plain] if apart else plain.clone()
    compiled = torch.compile(decode, fullgraph=True, backend=graphs)
    for step in range(2):
        q, new = _step()
        got = compiled(q, *caches, new, USED + step)
        assert torch.equal(got, decode(q, *plain, new, USED + step))
        assert all(map(torch.equal, caches, plain))
    names = ["attention.outputs", "changed.default", "attention.update", "changed.default"]
    assert graphs.seen == [[f"tilewright.{name}" for name in names]]


@pytest.mark.turns(48)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_reads_a_cache_around_an_append_reads_it_in_its_order(backend):
    def model(q, k_cache, v_cache, new, used):
        before = k_cache.sum(), v_cache.sum()
        out = decode(q, k_cache, v_cache, new, used)
        between = k_cache.sum(), v_cache.sum()
        v_cache.mul_(2)
        return out, *before, *between, *decode(out, k_cache, v_cache, 2 * new, used + 1)

    # Not views of one tensor: torch 2.11 copies what `mul_` changes of these from a wrong place.
    plain = [*_caches().clone()]
    caches, (q, new) = [x.clone() for x in plain], _step()
    got = torch.compile(model, fullgraph=True, backend=backend)(q, *caches, new, USED)
    for ours, eager in zip((*got, *caches), (*model(q, *plain, new, USED), *plain), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-3)  # sums in another order


@pytest.mark.turns(32)
@pytest.mark.parametrize("apart", [True, False], ids=["two tensors", "views of one"])
def test_inductor_copies_no_cache(apart, tmp_path, monkeypatch):
    """Nor reads it from a wrong place: torch 2.11 did, of views of one tensor."""
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    plain = _caches()
    caches, (q, new) = [x.clone() for x in plain] if apart else plain.clone(), _step()
    compiled = torch.compile(decode, fullgraph=True)
    got, (code,) = run_and_get_code(compiled, q, *caches, new, USED)
    assert torch.equal(got, decode(q, *plain, new, USED))
    assert all(map(torch.equal, caches, plain))
    assert "attention.update" in code and "clone" not in code and "copy_" not in code


def _step():
    return torch.randn(B, 1, HEADS, DIM), torch.randn(B, 1, KV_HEADS, DIM)


def test_a_planned_run_is_compiled():
    a, page = PagedAttention("cpu"), 8
    lengths = [torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 5], [7, 3, 1, 0, 9], [1, 8])]
    a.plan(None, *lengths, HEADS, KV_HEADS, DIM, page)
    q, cache = torch.randn(B, HEADS, DIM), torch.randn(12, 2, page, KV_HEADS, DIM)
    graphs = Graphs()
    compiled = torch.compile(a.run, fullgraph=True, backend=graphs)
    assert torch.equal(compiled(q, cache), a.run(q, cache))
    assert graphs.seen == [["tilewright.attention.default"]]


@pytest.mark.turns(8)
def test_a_planned_run_of_latent_attention_is_compiled():
    a = LatentAttention("cpu")
    starts, indices, used = (
        torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 3], [4, 2, 0], [9, 8])
    )
    a.plan(None, starts, indices, used, HEADS, 32, 16, 8, True, 0.1)
    q, cache = torch.randn(B, HEADS, 48), torch.randn(5, 8, 48)
    compiled = torch.compile(a.run, fullgraph=True, backend="aot_eager")
    o = a.run(q, None, cache, None)
    assert torch.equal(compiled(q, None, cache, None), o)
    assert torch.equal(compiled(q[..., :32], q[..., 32:], cache, None), o)
    with pytest.raises(Exception, match="or the array and None"):
        compiled(q, None, cache[..., :32], cache[..., 32:])


@pytest.mark.turns(8)
@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_the_call(strict):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return tw.attention(q, k, v, mask="causal")

    given = qkv()
    sizes = {name: {1: torch.export.Dim.DYNAMIC} for name in "qkv"}
    exported = torch.export.export(Model(), given, strict=strict, dynamic_shapes=sizes)
    assert [n.target for n in exported.graph.nodes].count(ATTENTION.default) == 1
    other = qkv(16, 25)
    assert torch.equal(exported.module()(*other), Model()(*other))


def test_fake_tensors_have_the_outputs_shapes():
    with FakeTensorMode():
        q, k, v = qkv()
        o, lse = tw.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), lse=True)
        assert (o.shape, o.dtype) == (q.shape, torch.bfloat16)
        assert (lse.shape, lse.dtype) == ((B, HEADS, 20), torch.float32)
        with pytest.raises(BadArgument, match="k is"):
            tw.attention(q, k[..., :8], v)


@pytest.mark.turns(24)
def test_gradients_in_a_graph_are_those_outside_of_it():
    given = [x.requires_grad_() for x in qkv()]
    compiled = torch.compile(flash_attn_func, fullgraph=True, backend="aot_eager")
    found, wanted = (
        torch.autograd.grad(call(*given, causal=True).square().sum(), given)
        for call in (compiled, flash_attn_func)
    )
    assert all(map(torch.equal, found, wanted))


def test_what_has_no_gradients_is_refused_in_a_graph():
    q, k, v = qkv()
    pages, used = torch.zeros(B, 2, dtype=torch.int32), torch.ones(B, dtype=torch.int32)

    def model(q):
        return tw.attention(q, k, v, page_table=pages, kv_used=used)

    with pytest.raises(Exception, match="in pages have no gradients"):
        torch.compile(model, fullgraph=True, backend="aot_eager")(q.requires_grad_())
