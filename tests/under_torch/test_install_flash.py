"""Torch's flash attention computed here: the contracts of its four operators.

Torch has no kernels of these operators for a CPU, so what is left to torch raises.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch.nn import attention  # noqa: E402

from tilewright import ops  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.torch import install, register_flash_attention, uninstall  # noqa: E402
from tilewright.torch.installing import decisions  # noqa: E402
from tilewright.torch.installing.flash import NAME  # noqa: E402
from tilewright.verdict import Verdict  # noqa: E402

ATEN = torch.ops.aten
OPERATORS = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
    "_flash_attention_forward", "_flash_attention_backward",
)  # fmt: skip
LENGTHS = (3, 0, 7)


def scores(q, k, said):
    """Scaled scores of [heads, rows, dim], -inf where hidden."""
    queries, keys = q.shape[-2], k.shape[-2]
    found = q @ k.transpose(-1, -2) * (said["scale"] or q.shape[-1] ** -0.5)
    places = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    left, right = said.get("window", (None, None))
    assert right is None or not said["causal"], "attention refuses two right bounds"
    right = 0 if said["causal"] else right
    hidden = torch.zeros(queries, keys, dtype=torch.bool)
    hidden |= places > right if right is not None else False
    hidden |= places < -left if left is not None else False
    return found.masked_fill(hidden, -torch.inf)


def sequences(said, *tensors):
    """The heads of each sequence, as views of [heads, rows, dim]."""
    if "q_offsets" in said:
        bounds = said["q_offsets"].tolist()
        for low, high in pairwise(bounds):
            yield [x[low:high].transpose(0, 1) for x in tensors]
        return
    for b in range(tensors[0].shape[0]):
        turned = said.get("layout") != "bhsd"
        yield [x[b].transpose(0, 1) if turned else x[b] for x in tensors]


def forward(q, k, v, said):
    """O and LSE by the definition."""
    o, sums = torch.empty(q.shape, dtype=q.dtype), []
    for one, keys, values, made in sequences(said, q, k, v, o):
        keys, values = (x.repeat_interleave(len(one) // len(x), 0) for x in (keys, values))
        found = scores(one, keys, said)
        made.copy_(found.softmax(-1) @ values)
        sums.append(found.logsumexp(-1))
    return o, torch.cat(sums, -1) if "q_offsets" in said else torch.stack(sums)


def backward(q, k, v, o, lse, do, said):
    """dQ, dK and dV, by the LSE of the forward pass."""
    made = [torch.empty_like(x, dtype=torch.float64) for x in (q, k, v)]
    scale, first = said["scale"] or q.shape[-1] ** -0.5, 0
    for b, (one, k1, v1, o1, do1, dq, dk, dv) in enumerate(sequences(said, q, k, v, o, do, *made)):
        own = lse[:, first : first + one.shape[1]] if "q_offsets" in said else lse[b]
        first += one.shape[1]
        share = len(one) // len(k1)
        keys, values = (x.repeat_interleave(share, 0) for x in (k1, v1))
        p = (scores(one, keys, said) - own[..., None]).exp()
        ds = p * (do1 @ values.transpose(-1, -2) - (do1 * o1).sum(-1, keepdim=True)) * scale
        dq.copy_(ds @ keys)
        dk.copy_((ds.transpose(-1, -2) @ one).unflatten(0, (-1, share)).sum(1))
        dv.copy_((p.transpose(-1, -2) @ do1).unflatten(0, (-1, share)).sum(1))
    return made


class Defined(Dispatcher):
    """Computes attention in float64, by its definition."""

    def __init__(self):
        super().__init__(device="h200_sxm")
        plan = SimpleNamespace(config=SimpleNamespace(name="a kernel"), selector="", reason="")
        self.planner.plan = lambda *_: plan
        self.seen = []

    def run_given(self, op, operands, out, stream, said, named=False):
        self.seen.append(op)
        compute = forward if op == "attention" else backward
        made = compute(*(x.double() for x in operands), said)
        if not isinstance(out, tuple):
            out, made = (out,), made[:1]
        for x, y in zip(out, made, strict=True):
            assert x.shape == y.shape
            x.copy_(y)
        return out


@pytest.fixture
def active(monkeypatch):
    """Ours is torch's flash attention; the dispatcher that computes."""
    made = Defined()
    monkeypatch.setattr(decisions, "default_dispatcher", lambda: made)
    register_flash_attention(_key="CPU")
    attention.activate_flash_attention_impl(NAME)
    yield made
    attention.restore_flash_attention_impl()


def tensors(*shapes, dtype=torch.bfloat16):
    made = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=made).to(dtype).requires_grad_() for s in shapes]


def turned(x):
    """[batch, rows, heads, dim], as the usual model makes it, seen as [batch, heads, rows, dim]."""
    return x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()


def dump():
    return [torch._C._dispatch_dump_table(f"aten::{name}") for name in OPERATORS]


def close(mine, its):
    torch.testing.assert_close(mine.double(), its.double(), rtol=2e-2, atol=2e-2)


def test_nothing_changes_until_it_is_activated():
    before = dump()
    register_flash_attention(_key="CPU")
    assert NAME in attention.list_flash_attention_impls() and dump() == before
    attention.activate_flash_attention_impl(NAME)
    assert attention.current_flash_attention_impl() == NAME
    assert all(now != then for now, then in zip(dump(), before, strict=True))
    attention.restore_flash_attention_impl()
    assert attention.current_flash_attention_impl() is None and dump() == before


@pytest.mark.parametrize("first", ["uninstall", "restore"])
def test_installed_and_activated_at_once(cudnn, first):
    """In whichever order they end: what is left falls through to what is left."""
    before = dump()
    q, k, v = (x.detach() for x in tensors(*((1, 2, 4, 16),) * 3))
    ours = install("all", _key="CPU")
    register_flash_attention(_key="CPU")
    attention.activate_flash_attention_impl(NAME)
    ends = [uninstall, attention.restore_flash_attention_impl]
    for end in ends if first == "uninstall" else reversed(ends):
        ATEN._scaled_dot_product_flash_attention(q, k, v)
        with pytest.raises(NotImplementedError, match="torch has no kernel"):
            ATEN._scaled_dot_product_flash_attention(q, k, v, 0.5)
        end()
    assert dump() == before
    assert len(ours.report()["served"]) == (first == "restore")


def test_an_older_torch_is_refused(monkeypatch):
    monkeypatch.delattr(attention, "register_flash_attention_impl")
    with pytest.raises(BadArgument, match=r"torch 2.* takes no other flash attention"):
        register_flash_attention()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lies", ["heads", "rows"])
def test_the_operator_of_scaled_dot_product_attention(active, causal, lies):
    q, k, v = tensors((2, 4, 6, 16), (2, 2, 6, 16), (2, 2, 6, 16))
    if lies == "rows":
        q, k, v = map(turned, (q, k, v))
    made = ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=0.3)
    o, lse, none, other, max_q, max_k, random, unused, debug = made
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.double() for x in (q, k, v)), is_causal=causal, scale=0.3, enable_gqa=True
    )
    close(o, expected)
    assert o.stride() == torch.empty_like(q).stride()
    assert lse.dtype is torch.float32 and lse.shape == (2, 4, 6)
    assert (none, other, max_q, max_k) == (None, None, 6, 6)
    assert random.dtype is unused.dtype is torch.uint64 and debug.numel() == 0
    do = torch.randn_like(o)
    found = torch.autograd.grad(o, (q, k, v), do)
    for mine, its, x in zip(
        found, torch.autograd.grad(expected, (q, k, v), do.double()), (q, k, v), strict=True
    ):
        close(mine, its)
        assert mine.stride() == torch.empty_like(x).stride()
    assert active.seen == ["attention", "attention_backward"]


def test_a_gradient_whose_elements_share_memory(active):
    q, k, v = tensors((1, 2, 4, 16), (1, 2, 4, 16), (1, 2, 4, 16))
    o = ATEN._scaled_dot_product_flash_attention(q, k, v)[0]
    o.sum().backward()
    assert active.seen == ["attention", "attention_backward"]
    close(v.grad.sum(), torch.tensor(float(o.numel())))


def packed(lengths=LENGTHS, heads=2):
    offsets = torch.tensor((0, *lengths)).cumsum(0).int()
    shape = (sum(lengths), heads, 16)
    return *tensors(shape, shape, shape), offsets


def right_of(said):
    return said.get("window", (None, None))[1]


@pytest.mark.parametrize(
    "said",
    [
        {"is_causal": False},
        {"is_causal": True},
        {"is_causal": False, "window": (2, 1)},
        {"is_causal": True, "window": (2, 1)},
    ],
    ids=["all", "causal", "window", "causal window"],
)
def test_packed_rows(active, said):
    q, k, v, offsets = packed()
    left, right = said.get("window", (-1, -1))
    o, lse, *_ = ATEN._flash_attention_forward(
        q, k, v, offsets, offsets, 7, 7, 0.0, said["is_causal"], False,
        window_size_left=left, window_size_right=right,
    )  # fmt: skip
    assert lse.shape == (2, 10) and lse.dtype is torch.float32
    words = {
        "q_offsets": offsets, "scale": None, "causal": said["is_causal"],
        "window": (said.get("window", (None,))[0], None if said["is_causal"] else right_of(said)),
    }  # fmt: skip
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected, sums = forward(*leaves, words)
    close(o, expected)
    close(lse, sums)
    do = torch.randn_like(o)
    for mine, its in zip(
        torch.autograd.grad(o, (q, k, v), do),
        torch.autograd.grad(expected, leaves, do.double()),
        strict=True,
    ):
        close(mine, its)


def test_rows_of_equal_lengths(active):
    q, k, v = tensors((2, 6, 2, 16), (2, 8, 2, 16), (2, 8, 2, 16))
    o, lse, *_ = ATEN._flash_attention_forward(
        q, k, v, None, None, 6, 8, 0.0, True, False, scale=0.3
    )
    expected, sums = forward(
        *(x.double() for x in (q, k, v)), {"causal": True, "scale": 0.3, "window": (None, None)}
    )
    close(o, expected)
    close(lse, sums)
    assert lse.shape == (2, 2, 6)


DENSE = {
    "dropout": lambda q, k, v: ATEN._scaled_dot_product_flash_attention(q, k, v, 0.5),
    "debug mask": lambda q, k, v: ATEN._scaled_dot_product_flash_attention(
        q, k, v, 0.0, False, True
    ),
    "fp32": lambda q, k, v: ATEN._scaled_dot_product_flash_attention(
        q.float(), k.float(), v.float()
    ),
    "hidden queries": lambda q, k, v: ATEN._scaled_dot_product_flash_attention(
        q, k[:, :, :3], v[:, :, :3], 0.0, True
    ),
    "used lengths": lambda q, k, v: ATEN._flash_attention_forward(
        q, k, v, None, None, 2, 2, 0.0, False, False, seqused_k=torch.ones(1, dtype=torch.int32)
    ),
    "slopes": lambda q, k, v: ATEN._flash_attention_forward(
        q, k, v, None, None, 2, 2, 0.0, False, False, alibi_slopes=torch.ones(4)
    ),
}


@pytest.mark.parametrize("call", DENSE)
def test_what_torch_keeps(active, call):
    q, k, v = tensors((1, 2, 4, 16), (1, 2, 4, 16), (1, 2, 4, 16))
    with torch.no_grad(), pytest.raises(NotImplementedError, match="torch has no kernel"):
        DENSE[call](q, k, v)
    assert not active.seen


def test_installing_asks_flash_attention_too(monkeypatch):
    made = Defined()
    monkeypatch.setattr(decisions, "default_dispatcher", lambda: made)
    q, k, v = tensors((1, 2, 4, 16), (1, 2, 4, 16), (1, 2, 4, 16))
    with install("all", _key="CPU") as found:
        ATEN._scaled_dot_product_flash_attention(q, k, v)[0].float().square().sum().backward()
    uninstall()
    assert [(one["operator"], one["calls"]) for one in found.report()["served"]] == [
        ("_scaled_dot_product_flash_attention", 1),
        ("_scaled_dot_product_flash_attention_backward", 1),
    ]


@pytest.fixture
def cudnn(monkeypatch):
    """Ours is asked for torch's calls of cuDNN's attention; the dispatcher that computes."""
    made = Defined()
    monkeypatch.setattr(decisions, "default_dispatcher", lambda: made)
    monkeypatch.setattr(made.planner, "ahead", made.planner.plan)
    monkeypatch.setattr(made.planner, "knows", lambda *_: True)
    yield made
    uninstall()


@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_of_cudnn(cudnn, causal):
    q, k, v = tensors((2, 4, 6, 16), (2, 2, 6, 16), (2, 2, 6, 16))
    with install("all", _key="CPU"):
        made = ATEN._scaled_dot_product_cudnn_attention(
            q, k, v, None, True, 0.0, causal, False, scale=0.3
        )
        o, lse, none, other, max_q, max_k, *_, debug = made
        do = torch.randn_like(o)
        found = torch.autograd.grad(o, (q, k, v), do)
    leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected, sums = forward(*leaves, {"causal": causal, "scale": 0.3, "layout": "bhsd"})
    close(o, expected)
    assert o.stride() == torch.empty_like(q).stride()
    assert lse.shape == (2, 4, 6, 1)
    close(lse, sums[..., None])
    assert (none, other, max_q, max_k, debug) == (None, None, 6, 6, None)
    for mine, its in zip(found, torch.autograd.grad(expected, leaves, do.double()), strict=True):
        close(mine, its)
    assert cudnn.seen == ["attention", "attention_backward"]


def test_sums_that_nobody_reads_are_not_computed(cudnn):
    q, k, v = (x.detach() for x in tensors(*((1, 2, 4, 16),) * 3))
    with install("all", _key="CPU") as found:
        lse = ATEN._scaled_dot_product_cudnn_attention(q, k, v, None, False)[1]
    assert lse.shape == (1, 2, 4, 1)
    (one,) = found.report()["served"]
    assert "lse" not in one["problem"]


CUDNN = {
    "a bias": lambda q, k, v: (q, k, v, torch.zeros(4, 4, dtype=q.dtype), True),
    "dropout": lambda q, k, v: (q, k, v, None, True, 0.5),
    "a mask that is not square": lambda q, k, v: (q[:, :, :3], k, v, None, True, 0.0, True),
}


@pytest.mark.parametrize("what", CUDNN)
def test_what_cudnn_keeps(cudnn, what):
    q, k, v = (x.detach() for x in tensors(*((1, 2, 4, 16),) * 3))
    with install("all", _key="CPU"), pytest.raises(NotImplementedError, match="no kernel"):
        ATEN._scaled_dot_product_cudnn_attention(*CUDNN[what](q, k, v))
    assert not cudnn.seen


@pytest.mark.parametrize("rule", ["cudnn", "other"])
def test_a_record_keeps_calls_for_cudnn(cudnn, monkeypatch, rule):
    """Whatever a row says: it may be older. Torch's flash attention is no rival of the record's."""
    record = Verdict(True, rule, "it is short")
    monkeypatch.setattr(type(ops.family("attention")), "library_faster", lambda *_: record)
    q, k, v = (x.detach() for x in tensors(*((1, 2, 4, 16),) * 3))
    with install(_key="CPU") as found:
        ATEN._scaled_dot_product_flash_attention(q, k, v)
        try:
            ATEN._scaled_dot_product_cudnn_attention(q, k, v, None, True)
        except NotImplementedError:
            assert rule == "cudnn"
    kept = [one["reason"] for one in found.report()["torch"]]
    assert kept == (["the library is ahead: it is short"] if rule == "cudnn" else [])


@pytest.mark.turns(32)
def test_kernels_keep_to_the_contracts():
    """In the interpreter."""
    register_flash_attention(_key="CPU")
    attention.activate_flash_attention_impl(NAME)
    try:
        q, k, v = tensors((2, 4, 24, 16), (2, 2, 24, 16), (2, 2, 24, 16), dtype=torch.float16)
        made = ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=0.3)
        leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
        words = {"causal": True, "scale": 0.3, "layout": "bhsd"}
        expected, sums = forward(*leaves, words)
        close(made[0], expected)
        close(made[1], sums)
        do = torch.randn_like(made[0])
        for mine, its in zip(
            torch.autograd.grad(made[0], (q, k, v), do),
            torch.autograd.grad(expected, leaves, do.double()),
            strict=True,
        ):
            close(mine, its)
        q, k, v, offsets = packed(heads=1)
        o, lse, *_ = ATEN._flash_attention_forward(
            q, k, v, offsets, offsets, 7, 7, 0.0, True, False
        )
        leaves = [x.detach().double().requires_grad_() for x in (q, k, v)]
        expected, sums = forward(*leaves, {"q_offsets": offsets, "causal": True, "scale": None})
        close(o, expected)
        close(lse, sums)
        do = torch.randn_like(o)
        for mine, its in zip(
            torch.autograd.grad(o, (q, k, v), do),
            torch.autograd.grad(expected, leaves, do.double()),
            strict=True,
        ):
            close(mine, its)
    finally:
        attention.restore_flash_attention_impl()
