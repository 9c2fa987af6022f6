"""What is asked of torch's attention, with a stand-in that computes what its documentation says."""

from __future__ import annotations

import pytest

from tilewright import ops, verify
from tilewright.measure.contenders import results
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.vendor import CUDNN, FLASH

torch = pytest.importorskip("torch")
FAMILY = ops.family("attention")


def attend(q, k, v, scale, left, right, slopes=None, bias=None):
    """[rows, heads, dim] of one sequence, bounds from the bottom right; O and LSE [heads, rows]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    s = q @ k.transpose(1, 2) * scale
    at = torch.arange(s.shape[1])[:, None] + s.shape[2] - s.shape[1]
    keys = torch.arange(s.shape[2])[None, :]
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * (at - keys).abs()
    s = s if bias is None else s + bias.double()
    seen = torch.ones_like(s[0], dtype=torch.bool)
    seen = seen & (keys <= at + right) if right is not None else seen
    seen = seen & (keys >= at - left) if left is not None else seen
    s = s.masked_fill(~seen, -torch.inf)
    lse = s.logsumexp(-1)
    weights = (s - torch.where(lse.isfinite(), lse, 0.0)[..., None]).exp()
    return (weights @ v).transpose(0, 1), lse


def flash(q, k, v, q_at, k_at, max_q, max_k, dropout, causal, debug, *, scale, **options):
    slopes, used = options["alibi_slopes"], options["seqused_k"]
    left, right = options["window_size_left"], 0 if causal else options["window_size_right"]
    if q_at is None:
        assert used is None and q.dim() == 4
        pairs = [(q[b], k[b], v[b]) for b in range(len(q))]
    else:
        pairs = []
        for b in range(len(q_at) - 1):
            end = k_at[b + 1] if used is None else k_at[b] + used[b]
            pairs.append((q[q_at[b] : q_at[b + 1]], k[k_at[b] : end], v[k_at[b] : end]))
    found = []
    for b, pair in enumerate(pairs):
        own = slopes[b] if slopes is not None and slopes.dim() == 2 else slopes
        found.append(attend(*pair, scale, left, right, own))
    outs = [o.to(q.dtype) for o, _ in found]
    o = torch.stack(outs) if q_at is None else torch.cat(outs)
    lse = torch.stack([log for _, log in found]).float() if q_at is None else None
    return o, lse, None, None, None


def cudnn(q, k, v, bias, with_lse, dropout, causal, *, scale):
    found = [
        attend(*(x[b].transpose(0, 1) for x in (q, k, v)), scale, None, 0 if causal else None,
               bias=None if bias is None else bias[b])
        for b in range(len(q))
    ]  # fmt: skip
    o = torch.stack([o.to(q.dtype).transpose(0, 1) for o, _ in found])
    lse = torch.stack([log for _, log in found]).float()[..., None] if with_lse else None
    return (o, lse, None, None, None)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash)
    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention", cudnn)


def problem(**fields) -> AttentionProblem:
    sizes = {"batch": 3, "heads": 4, "q_len": 24, "kv_len": 40, "head_dim": 16, "kv_heads": 2}
    return AttentionProblem(**(sizes | fields))


SAME = {"q_len": 40}
PACKED = {"total_q": 50, "total_kv": 70, "others": "packedq+packedkv"}
BOTH, CUDNN_ALONE, FLASH_ALONE = (CUDNN, FLASH), (CUDNN,), (FLASH,)


@pytest.mark.parametrize(
    ("fields", "calls"),
    [
        ({}, BOTH),
        ({"layout": "bhsd"}, BOTH),
        ({"kv_layout": "bhsd", "dtype": "fp16"}, BOTH),
        ({"right": 0, **SAME, "corner": "top_left", "others": "lse"}, BOTH),
        ({"right": 0}, FLASH_ALONE),
        ({"left": 7, "right": 0}, FLASH_ALONE),
        ({"left": 7}, FLASH_ALONE),
        ({"left": 3, "right": 5, **SAME}, FLASH_ALONE),
        ({"others": "alibi", "right": 0}, FLASH_ALONE),
        ({"others": "alibi", "slopes_batched": True}, FLASH_ALONE),
        ({"head_dim_v": 8}, CUDNN_ALONE),
        ({"bias_shape": (1, 4), "others": "lse"}, CUDNN_ALONE),
        ({"q_strides": (960, 40, 16, 1)}, BOTH),
        ({**PACKED}, FLASH_ALONE),
        ({**PACKED, "right": 0}, FLASH_ALONE),
        ({**PACKED, "others": "packedq+packedkv+usedkv", "left": 5}, FLASH_ALONE),
        ({"others": "usedkv", "right": 0, "kv_layout": "bhsd"}, FLASH_ALONE),
    ],
    ids=str,
)
def test_torch_is_asked_for_the_problem(fields, calls):
    p = problem(**fields)
    found = FAMILY.vendor(p)
    assert tuple(found) == calls
    operands = verify.operands_of(p, 1)
    wanted = verify.reference(p, operands.inputs)
    tensors = verify.Operands(*(
        {n: x if isinstance(x, int | float) else tensor(x) for n, x in each.items()}
        for each in (operands.inputs, operands.outputs)
    ))  # fmt: skip
    for bind in found.values():
        returned = bind(tensors.inputs, tensors.outputs)()
        written = {n: array(x) for n, x in results(p, tensors, returned).items()}
        check = verify.compare_all(p, None, written, wanted)
        assert check.ok, check


def tensor(x):
    kind = str(x.dtype)
    if kind == "bfloat16":
        return torch.from_numpy(x.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(x)


def array(x):
    import ml_dtypes

    if x.dtype is torch.bfloat16:
        return x.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "fp32"},
        {"dtype_o": "fp32"},
        {"dtype": "e4m3fn"},
        {"dtype_kv": "e4m3fn"},
        {"head_dim": 20},
        {"head_dim": 264},
        {"dropout": 0.25},
        {"softcap": 30.0},
        {"others": "sinks"},
        {"right": 0, "corner": "top_left"},
        {"right": -1},
        {"left": 3, "first": 2},
        {"left": 3, "others": "lse"},
        {"right": 0, "others": "lse"},
        {"others": "usedq"},
        {"kv_len": 0},
        {**PACKED, "others": "lse+packedq+packedkv"},
        {"pages": 9, "page_size": 16, "page_entries": 3, "others": "usedkv+pagetable"},
    ],
    ids=str,
)
def test_what_torch_does_not_compute_is_not_asked_of_it(fields):
    assert FAMILY.vendor(problem(**fields)) == {}
