"""Calls that are repeated without their Python code: each launches what it would launch the long
way, whatever was called before, on a stand-in for a GPU."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import unbuilt  # noqa: E402
from unbuilt import Shown  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright import ready  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
)
from tilewright.serving import (  # noqa: E402
    Capacity,
    LatentAttention,
    PagedAttention,
    RaggedAttention,
)

B, HEADS, KV_HEADS, DIM, PAGE, ROWS = 2, 4, 2, 16, 8, 24


@pytest.fixture
def driver(monkeypatch):
    return unbuilt.install(monkeypatch, torch)


def repeats(driver: Any) -> int:
    return len(driver.dispatcher._launches.recipes)


def randn(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.zeros(*shape, dtype=dtype)


def ints(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


def misaligned(x: Any) -> Any:
    return torch.zeros(x.numel() + 4, dtype=x.dtype)[4:].view(x.shape)  # by 8 bytes


def spread(x: Any) -> Any:
    return torch.zeros(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype)[..., : x.shape[-1]]


CHANGES = (lambda x: x, lambda x: x, lambda x: x.clone(), misaligned, spread, lambda x: x.half())


def usual() -> dict[str, Any]:
    """Arguments of attention of whole sequences."""
    q, k, v = randn(B, 3, HEADS, DIM), randn(B, ROWS, KV_HEADS, DIM), randn(B, ROWS, KV_HEADS, DIM)
    return {"q": q, "k": k, "v": v}


def dense(rng: random.Random) -> dict[str, Any]:
    """The same, some of them changed."""
    q, k, v = usual().values()
    if rng.random() < 0.3:
        change = rng.choice(CHANGES)
        q, k, v = change(q), change(k), change(v)
    if rng.random() < 0.2:
        k, v = spread(k), misaligned(v)
    if rng.random() < 0.1:
        v = k
    if rng.random() < 0.1:
        k = k[:, :, :, ::2].contiguous()  # of another size than q's
    if rng.random() < 0.1:
        q = q.transpose(-1, -2).contiguous().transpose(-1, -2)  # rows are not contiguous
    return {"q": q, "k": k, "v": v}


def attention(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    given = dense(rng)
    said = rng.choice(({}, {}, {"mask": "causal"}, {"lse": True}, {"scale": 0.5}, {"scale": 0.25},
                       {"scale": 0.5, "window": (3, 0)}, {"scale": "no"}))  # fmt: skip
    if rng.random() < 0.3:
        given["used"] = ints(*rng.sample(range(1, ROWS), B))
    if rng.random() < 0.2:
        given["out"] = torch.empty_like(given["q"])

    def call(q, k, v, used=None, out=None):
        if "lse" in said and out is not None:
            out = out, torch.empty(B, HEADS, 3)
        return tw.attention(q, k, v, kv_used=used, out=out, **said)

    return call, given


def operator(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    given = dense(rng)
    kinds: list[tuple[dict[str, Any], list[float]]] = [
        ({}, []), ({"scalars": ["scale"]}, [0.5]), ({"scalars": ["scale"]}, [0.25]),
        ({"options": {"lse": True}}, []),
        ({"options": {"mask": "causal"}, "scalars": ["scale"]}, [0.5]),
    ]  # fmt: skip
    said, scalars = rng.choice(kinds)
    if rng.random() < 0.3:
        given["used"], said = ints(3, 5), said | {"named": ["kv_used"]}
    text = json.dumps(said) if said else ""

    def call(**tensors):
        made = torch.ops.tilewright.attention([*tensors.values()], text, scalars or None)
        return tuple(made)

    return call, given


def flash(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    said = rng.choice(({}, {}, {"causal": True}, {"softmax_scale": 0.5}, {"softmax_scale": 1.0},
                       {"softmax_scale": True}, {"window_size": [3, 0]}, {"window_size": (3, 0)},
                       {"window_size": None}, {"softcap": 20}, {"softcap": 20.0},
                       {"return_attn_probs": True}, {"dropout_p": None}, {"sm_margin": 3},
                       {"deterministic": True}))  # fmt: skip
    given = dense(rng)
    if rng.random() < 0.3:
        given["alibi_slopes"] = torch.zeros(HEADS)
    if rng.random() < 0.3:
        given["learnable_sink"] = randn(HEADS, dtype=rng.choice((torch.float32, torch.bfloat16)))
    return lambda **tensors: flash_attn_func(**tensors, **said), given


def varlen(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    starts = ints(0, rng.randint(1, ROWS), ROWS)
    given = {"q": randn(ROWS, HEADS, DIM), "k": randn(ROWS, KV_HEADS, DIM),
             "v": randn(ROWS, KV_HEADS, DIM), "cu_seqlens_q": starts,
             "cu_seqlens_k": starts if rng.random() < 0.5 else starts.clone()}  # fmt: skip
    if rng.random() < 0.4:
        given |= {"k": randn(12, PAGE, KV_HEADS, DIM), "v": randn(12, PAGE, KV_HEADS, DIM)}
        table = torch.zeros(B, 3, dtype=torch.int32)
        given[rng.choice(("block_table", "page_table"))] = rng.choice((table, table.T[:B, :B]))
        if rng.random() < 0.7:
            given["seqused_k"] = ints(3, 5)
    longest = rng.choice((ROWS, ROWS, 32))
    causal = rng.random() < 0.5

    def call(q, k, v, cu_seqlens_q, cu_seqlens_k, **others):
        return flash_attn_varlen_func(
            q, k, v, cu_seqlens_q, cu_seqlens_k, longest, longest, causal=causal, **others
        )

    return call, given


def cached(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    given = dense(rng)
    given = {"q": given["q"], "k_cache": given["k"], "v_cache": given["v"]}
    said: dict[str, Any] = rng.choice(({}, {"causal": True}, {"return_softmax_lse": True}))
    if rng.random() < 0.2:
        given["k_cache"] = given["k_cache"].transpose(-1, -2).contiguous().transpose(-1, -2)
    if rng.random() < 0.8:
        given["cache_seqlens"] = rng.choice((ints(3, 5), ints(4, 9), 7))
    if rng.random() < 0.3:
        new = randn(B, 1, KV_HEADS, DIM, dtype=given["k_cache"].dtype)
        given |= {"k": new, "v": rng.choice((new.clone(), new.clone(), None))}
    if rng.random() < 0.3:
        given["cache_batch_idx"] = ints(1, 0)
    elif rng.random() < 0.4:
        given |= {
            "k_cache": randn(12, PAGE, KV_HEADS, DIM),
            "v_cache": randn(12, PAGE, KV_HEADS, DIM),
        }
        given["block_table"] = torch.zeros(B, 3, dtype=torch.int32)
        if rng.random() < 0.1:
            given["page_table"] = given["block_table"].clone()
    if rng.random() < 0.1:
        said = said | {"num_splits": 2}
    return lambda **tensors: flash_attn_with_kvcache(**tensors, **said), given


SHAPE = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "page_size": PAGE}


def paged(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    plan = PagedAttention("cpu", capacity=rng.choice((None, Capacity(B, ROWS, 6, 5, 8))))
    starts = rng.choice((None, ints(0, 3, 8), ints(0, 1, 6)))
    words = rng.choice(({}, {}, {"causal": True}, {"sm_scale": 0.5}, {"sm_scale": 0.25}))
    if rng.random() < 0.9:
        plan.plan(starts, ints(0, 2, 5), ints(7, 3, 1, 0, 9), ints(1, 8), **SHAPE, **words)
    rows = B if starts is None else 8
    given = {"q": randn(rng.choice((rows, rows, 6, 2, 4)), HEADS, DIM)}
    whole = randn(12, 2, PAGE, KV_HEADS, DIM)
    given |= {"cache": whole} if rng.random() < 0.5 else {"k": whole[:, 0], "v": whole[:, 1]}
    if rng.random() < 0.2:
        given["q"] = rng.choice(CHANGES)(given["q"])
    if rng.random() < 0.1:
        given["q"] = given["q"][:, :2]
    if rng.random() < 0.3:
        given["out"] = torch.empty(given["q"].shape, dtype=given["q"].dtype)
    if rng.random() < 0.2:
        given["sinks"] = torch.zeros(HEADS)
    lse = rng.random() < 0.3

    def call(q, cache=None, k=None, v=None, **others):
        return plan.run(q, (k, v) if cache is None else cache, return_lse=lse, **others)

    given |= {f"plan {name}": x for name, x in plan._lengths.items()}
    return lambda **tensors: call(
        **{name: x for name, x in tensors.items() if not name.startswith("plan ")}
    ), given


def ragged(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    plan, keys = RaggedAttention("cpu"), rng.choice((13, 14))
    plan.plan(ints(0, 3, 13), ints(0, 9, keys), HEADS, KV_HEADS, DIM, causal=True)
    given = {
        "q": randn(13, HEADS, DIM),
        "k": randn(13, KV_HEADS, DIM),
        "v": randn(14, KV_HEADS, DIM),
    }
    if rng.random() < 0.6:
        given["k"] = randn(14, KV_HEADS, DIM)
    lengths = plan._lengths

    def call(q, k, v, **_):
        return plan.run(q, k, v)

    return call, given | {f"plan {name}": x for name, x in lengths.items()}


def latent(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    plan = LatentAttention("cpu")
    plan.plan(None, ints(0, 2, 3), ints(4, 2, 0), ints(9, 8), HEADS, 32, 16, PAGE, True, 0.1)
    given = {"q": randn(B, HEADS, 48), "cache": randn(5, PAGE, 48)}
    apart = rng.random() < 0.4

    def call(q, cache, **_):
        if apart:
            return plan.run(q[..., :32], q[..., 32:], cache[..., :32], cache[..., 32:])
        return plan.run(q, None, cache, None)

    return call, given | {f"plan {name}": x for name, x in plan._lengths.items()}


@pytest.mark.parametrize("masked", [False, True])
def test_torch_s_functions_do_not_go_the_long_way_again(driver, monkeypatch, masked):
    x, w, b = randn(8, 16), randn(16, 16), randn(16)
    q = randn(2, 5, 4, 16).transpose(1, 2)
    mask = randn(5, 5) if masked else None

    def calls():
        return (
            tt.mm(x, w),
            tt.linear(x, w, b, "gelu"),
            tt.addmm(b, x, w),
            tt.baddbmm(w[None, :8], x[None], w[None]),
            tt.matmul(x, w[0]),
            tt.scaled_dot_product_attention(q, q, q, mask, scale=0.5),
        )

    for _ in range(3):
        first = calls()

    def refused(*_):
        raise AssertionError("a call went the long way")

    monkeypatch.setattr(Dispatcher, "run_given", refused)
    for one, other in zip(calls(), first, strict=True):
        assert (one.shape, one.stride()) == (other.shape, other.stride())


class Attending(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)


class LayerNorm2d(torch.nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (torch.nn.Linear(16, 16) for _ in range(3))
        self.act_fn = torch.nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU()), (8, 16)),
        (torch.nn.LayerNorm(16), (2, 4, 16)),
        (torch.nn.LayerNorm(16, elementwise_affine=False), (8, 16)),
        (torch.nn.RMSNorm(16), (2, 3, 4, 16)),
        (LayerNorm2d(16), (2, 16, 4, 4)),
        (Gated(), (2, 4, 16)),
        (torch.nn.Conv2d(8, 8, 3, padding=1), (2, 8, 6, 6)),
        (torch.nn.ConvTranspose2d(8, 8, 3, bias=False), (2, 8, 6, 6)),
        (Attending(), (1, 2, 8, 16)),
    ],
)
def test_ported_layers_do_not_go_the_long_way_again(driver, monkeypatch, model, shape):
    model, x = copy.deepcopy(model).bfloat16(), randn(*shape)
    tt.port(model)
    for _ in range(3):
        model(x)
        with torch.no_grad():
            first = model(x)

    def refused(*_):
        raise AssertionError("a call went the long way")

    monkeypatch.setattr(Dispatcher, "run_given", refused)
    with torch.no_grad():
        assert model(x).stride() == first.stride()
    assert model(x).requires_grad == any(True for _ in model.parameters())


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "kind", [attention, operator, flash, varlen, cached, paged, ragged, latent]
)
def test_what_is_launched_does_not_depend_on_what_was_launched_before(driver, kind):
    rng, shown, most = random.Random(kind.__name__), Shown(driver), 0
    for _ in range(100):
        call, given = kind(rng)
        kept = driver.dispatcher._launches
        driver.dispatcher.forget_launches()
        alone = shown(call, given)
        driver.dispatcher._launches = kept
        for _ in range(3):
            assert shown(call, given) == alone
        most = max(most, repeats(driver))
    assert most  # or nothing would have been tried


def test_a_gradient_is_recorded_though_the_call_is_known(driver):
    given = usual()
    q, k, v = (x.clone() for x in given.values())
    calls = (tw.attention, flash_attn_func)
    for _ in range(3):
        assert not any(call(q, k, v).requires_grad for call in calls)
    assert repeats(driver) == 2
    k.requires_grad_()
    for call in calls:
        assert call(q, k, v).requires_grad
        with torch.no_grad():
            assert not call(q, k, v).requires_grad


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("function", ["gemm", "linear"])
def test_what_an_activation_reads_is_kept_though_the_call_is_known(
    driver, monkeypatch, function, activation
):
    x, w, b = randn(8, 16), randn(32, 16).requires_grad_(), randn(32).requires_grad_()

    def call(activation=activation):
        if function == "linear":
            return tt.linear(x, w, b, activation or None)
        return tw.gemm(x, w.t(), bias=b, epilogue=f"bias+{activation}".rstrip("+"))

    def passes():
        begin = len(driver.launches)
        found = call()
        ((behind, _),) = found.grad_fn.next_functions
        found.sum().backward()
        launches.append(len(driver.launches) - begin)
        return found.grad_fn.name(), type(behind).__name__, found.shape, found.stride()

    begin, launches = len(driver.launches), []
    call("").sum().backward()
    without = len(driver.launches) - begin

    first = [passes() for _ in range(3)]
    name = "SiluBackward0" if activation == "silu" else "GeluBackward0"
    assert first == [(name, "_RecordedBackward", (8, 32), (32, 1))] * 3
    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "run_given", lambda *_: pytest.fail("went the long way"))
        assert passes() == first[0]
    assert set(launches) == {without}
    with torch.no_grad():
        assert call().grad_fn is None


def test_a_mode_sees_a_call_though_it_is_known(driver):
    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    given, seen = usual(), []
    for _ in range(3):
        flash_attn_func(**given)
    with Seen():
        flash_attn_func(**given)
    assert seen == ["tilewright.attention.default"]


def test_a_written_cache_that_is_an_operand_too_is_refused_though_the_call_is_known(driver):
    q, cache, new = (
        randn(B, 1, HEADS, DIM),
        randn(B, ROWS, KV_HEADS, DIM),
        randn(B, 1, KV_HEADS, DIM),
    )

    def call(k, v):
        return flash_attn_with_kvcache(q, k, v, new, new, cache_seqlens=ints(3, 5))

    for _ in range(3):
        call(cache, cache.clone())
    with pytest.raises(BadArgument, match="shares memory"):
        call(cache, cache)


def test_a_capture_counts_repeated_calls(driver, tmp_path):
    given = usual()
    with tw.capture(tmp_path / "a.jsonl"):
        for _ in range(5):
            tw.attention(*given.values())
            flash_attn_func(**given)
    assert [*tw.capturing.load(tmp_path / "a.jsonl").values()] == [10]


def test_launches_that_are_dropped_are_not_kept_by_their_repetitions(driver, monkeypatch):
    monkeypatch.setattr(ready, "KEPT", 4)
    for n in range(8, 18):
        k = randn(B, n, KV_HEADS, DIM)
        for _ in range(3):
            flash_attn_func(randn(B, 1, HEADS, DIM), k, k.clone())
    launches = driver.dispatcher._launches
    assert len(launches.ready) <= 4 and len(launches.recipes) <= 4


def test_a_launch_is_kept_for_the_plans_that_say_the_same(driver):
    q, cache = randn(B, HEADS, DIM), randn(12, 2, PAGE, KV_HEADS, DIM)
    for last in range(1, 5):
        plan = PagedAttention("cpu", capacity=Capacity(B, ROWS, pages=5))
        plan.plan(None, ints(0, 2, 5), ints(7, 3, 1, 0, 9), ints(last, 8), **SHAPE)
        plan.run(q, cache)
    assert repeats(driver) == 1


def test_each_plan_has_its_own_launches_and_checks(driver):
    shown, rows = Shown(driver), {6: ints(0, 1, 6), 8: ints(0, 3, 8)}
    given = {"q": randn(6, HEADS, DIM), "cache": randn(12, 2, PAGE, KV_HEADS, DIM)}
    seen = []
    for said in ({}, {"causal": True}, {"logits_soft_cap": 5.0}, {"window_left": 2}, {}):
        for count, starts in rows.items():
            plan = PagedAttention("cpu")
            plan.plan(starts, ints(0, 2, 5), ints(7, 3, 1, 0, 9), ints(1, 8), **SHAPE, **said)
            run = lambda q, cache, plan=plan: plan.run(q, cache)  # noqa: E731
            if count == 8:
                assert "q has 6 rows, but the plan has 8" in shown(run, given)[1]
            else:
                seen += [shown(run, given) for _ in range(3)]
    assert len({str(one) for one in seen}) == 4 and str(seen[0]) == str(seen[-1])
