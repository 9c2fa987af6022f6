"""What is asked of torch's backward passes: its arguments fit torch's schema, and a stand-in that
computes what its documentation says gives the gradients."""

from __future__ import annotations

import pytest

from tilewright import ops, verify
from tilewright.measure.contenders import results
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.attention_backward.vendor import CUDNN, FLASH

torch = pytest.importorskip("torch")
import torch_stand_ins as stand_ins  # noqa: E402

FAMILY = ops.family("attention_backward")
REAL = {name: getattr(torch.ops.aten, name.removeprefix("aten.")) for name in (CUDNN, FLASH)}


def fits(name, *args, **options):
    """The CPU has no such kernel, which torch says once it has read the arguments."""
    with pytest.raises(NotImplementedError):
        REAL[name](*args, **options)


def differentiate(run, q, k, v, do):
    given = [x.detach().double().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        o = run(*given)
    found = torch.autograd.grad(o, given, torch.nan_to_num(do.double()))
    return tuple(g.to(q.dtype) for g in found)


def flash_backward(do, q, k, v, o, lse, q_at, k_at, max_q, max_k, dropout, causal, *rest, **said):
    fits(FLASH, do, q, k, v, o, lse, q_at, k_at, max_q, max_k, dropout, causal, *rest, **said)
    assert lse is LSE and rest == (STATE, None) and dropout == 0.0 and do.stride() == o.stride()
    options = {"seqused_k": None, **said}

    def run(q, k, v):
        return stand_ins.flash(q, k, v, q_at, k_at, max_q, max_k, 0.0, causal, False, **options)[0]

    if q_at is not None:  # rows of no sequence may hold anything
        do = do[: q_at[-1]]
    found = differentiate(run, q, k, v, do)
    for x, end in zip(found, (q_at, k_at, k_at), strict=True):
        if end is not None:
            x[end[-1] :] = torch.nan
    return found


LSE, STATE, SEED, OFFSET = (torch.full((1,), float(n)) for n in range(4))


def flash_forward(*args, **options):
    o, *_ = stand_ins.flash(*args, seqused_k=None, **options)
    return o, LSE, STATE, None, None


def cudnn_forward(q, k, v, bias, with_lse, dropout, causal, *, scale):
    assert with_lse and dropout == 0.0
    o, *_ = stand_ins.cudnn(q, k, v, bias, True, dropout, causal, scale=scale)
    strided = torch.empty(o.transpose(1, 2).shape, dtype=o.dtype).transpose(1, 2).copy_(o)
    return strided, LSE, None, None, q.shape[2], k.shape[2], SEED, OFFSET, None


def cudnn_backward(do, q, k, v, o, lse, *rest, scale):
    fits(CUDNN, do, q, k, v, o, lse, *rest, scale=scale)
    seed, offset, bias, q_at, k_at, max_q, max_k, dropout, causal = rest
    assert lse is LSE and (seed, offset) == (SEED, OFFSET) and do.stride() == o.stride()
    assert (q_at, k_at, max_q, max_k, dropout) == (None, None, q.shape[2], k.shape[2], 0.0)

    def run(q, k, v):
        return stand_ins.cudnn(q, k, v, bias, True, 0.0, causal, scale=scale)[0]

    return differentiate(run, q, k, v, do)


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """torch's calls, counted."""
    made = []

    def counted(name, run):
        def call(*args, **options):
            made.append(name)
            return run(*args, **options)

        monkeypatch.setattr(torch.ops.aten, name, call)

    counted("_flash_attention_forward", flash_forward)
    counted("_flash_attention_backward", flash_backward)
    counted("_scaled_dot_product_cudnn_attention", cudnn_forward)
    counted("_scaled_dot_product_cudnn_attention_backward", cudnn_backward)
    return made


def problem(**fields) -> AttentionBackwardProblem:
    sizes = {"batch": 3, "heads": 4, "q_len": 24, "kv_len": 40, "head_dim": 16, "kv_heads": 2}
    return AttentionBackwardProblem(**(sizes | fields))


SAME = {"q_len": 40}
PACKED = {"total_q": 80, "total_kv": 130, "others": "packedq+packedkv"}
BOTH, CUDNN_ALONE, FLASH_ALONE = (CUDNN, FLASH), (CUDNN,), (FLASH,)


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, BOTH),
        ({"layout": "bhsd"}, BOTH),
        ({"kv_layout": "bhsd", "dtype": "fp16", "grads": "dk+dv"}, BOTH),
        ({"right": 0, **SAME, "grads": "dq"}, BOTH),
        ({"right": 0}, FLASH_ALONE),
        ({"left": 7, "right": 0}, FLASH_ALONE),
        ({"left": 3, "right": 5, **SAME}, FLASH_ALONE),
        ({"head_dim_v": 8}, CUDNN_ALONE),
        ({"bias_shape": (1, 4)}, CUDNN_ALONE),
        ({"do_strides": (1600, 64, 16, 1)}, BOTH),
        ({**PACKED}, FLASH_ALONE),
        ({**PACKED, "right": 0, "grads": "dq+dk"}, FLASH_ALONE),
    ],
    ids=str,
)
def test_torch_is_asked_for_the_gradients(calls, fields, wanted):
    p = problem(**fields)
    found = FAMILY.vendor(p)
    assert tuple(found) == wanted
    operands = verify.operands_of(p, 1)
    reference = verify.reference(p, operands.inputs)
    tensors = verify.Operands(*(
        {n: x if isinstance(x, int | float) else stand_ins.tensor(x) for n, x in each.items()}
        for each in (operands.inputs, operands.outputs)
    ))  # fmt: skip
    for bind in found.values():
        calls.clear()
        call = bind(tensors.inputs, tensors.outputs)
        assert len(calls) == 1  # the forward pass, which is not timed
        returned = [call(), call()][1]
        assert len(calls) == 3
        written = {n: stand_ins.array(x) for n, x in results(p, tensors, returned).items()}
        check = verify.compare_all(p, None, written, reference)
        assert check.ok, check


@pytest.mark.parametrize(
    "fields",
    [
        {"dtype": "fp32"},
        {"dtype_o": "fp32"},
        {"head_dim": 20},
        {"head_dim": 264},
        {"dropout": 0.25},
        {"softcap": 30.0},
        {"others": "sinks"},
        {"others": "alibi"},
        {"bias_shape": (1, 4), "grads": "dq+dbias"},
        {"dlse": True},
        {"accumulate": True},
        {"right": 0, "corner": "top_left"},
        {"others": "usedkv"},
        {"kv_len": 0},
        {**PACKED, "others": "packedq+packedkv+usedkv"},
    ],
    ids=str,
)
def test_what_torch_does_not_compute_is_not_asked_of_it(fields):
    assert FAMILY.vendor(problem(**fields)) == {}
