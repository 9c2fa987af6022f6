"""Where cuDNN's first engine answers attention that nobody tuned for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.arch import device
from tilewright.ops.attention import FAMILY, AttentionProblem
from tilewright.ops.attention.engine_record import MANY
from tilewright.ops.library import CUDNN

H200 = device("h200_sxm")
TWO = {"q_len": 256, "kv_len": 256}
P = AttentionProblem(MANY * H200.compute_units // 16, 16, 128, 128, 64)  # just as many tiles


@pytest.mark.parametrize(
    "fields",
    [{}, {"right": 0}, {"kv_heads": 4}, TWO, TWO | {"head_dim": 128, "head_dim_v": 128}],
    ids=str,
)
def test_it_is_ahead_for_short_sequences_in_large_batches(fields):
    said = FAMILY.library_faster(replace(P, **fields), H200)
    assert said and said.rule == CUDNN and "measured problems: head dim" in said.reason


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"batch": P.batch - 1}, "under 12 tiles"),
        ({"q_len": 384, "kv_len": 384}, "over 256 rows"),
        ({"head_dim": 128, "head_dim_v": 128}, "head dim 128, 128 rows"),
        ({"q_len": 192, "kv_len": 192}, "no such attention"),
        ({"q_len": 128, "kv_len": 256}, "no such attention"),
        ({"head_dim": 80, "head_dim_v": 80}, "no such attention"),
        ({"dtype": "fp16", "dtype_kv": "", "dtype_o": ""}, "no such attention"),
        ({"others": "lse"}, "no such attention"),
        ({"layout": "bhsd"}, "no such attention"),
        ({"softcap": 8.0}, "no such attention"),
    ],
    ids=str,
)
def test_elsewhere_the_estimate_answers(fields, why):
    said = FAMILY.library_faster(replace(P, **fields), H200)
    assert not said and why in said.reason


def test_nothing_is_known_of_other_architectures():
    assert "nothing on sm_100" in FAMILY.library_faster(P, device("b200")).reason
