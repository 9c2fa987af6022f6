"""What is asked of torch's attention, with a stand-in that computes what its documentation says."""

from __future__ import annotations

import pytest

from tilewright import ops, verify
from tilewright.measure.contenders import results
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.vendor import CUDNN, FLASH

torch = pytest.importorskip("torch")
from torch_stand_ins import array, cudnn, flash, tensor  # noqa: E402

FAMILY = ops.family("attention")


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


@pytest.mark.grid(5)
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
        {"others": "alibi"},
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
