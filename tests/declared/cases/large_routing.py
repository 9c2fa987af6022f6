"""Experts of tokens, of models' sizes."""

from __future__ import annotations

V3 = {"scoring": "sigmoid", "renormalize": True, "n_group": 8, "topk_group": 4, "has_bias": True}
CASES = {
    "topk": (
        {"rows": 100001, "columns": 64, "k": 1},
        {"rows": 4097, "columns": 1000, "k": 32, "dtype": "fp16"},
        {"rows": 513, "columns": 8192, "k": 20, "dtype": "fp32", "index_dtype": "int64"},
    ),
    "topk_routing": (
        {"rows": 16385, "experts": 256, "k": 8, **V3},
        {"rows": 777, "experts": 160, "k": 6, "n_group": 8, "topk_group": 3, "group_score": "max"},
        {"rows": 777, "experts": 512, "k": 32, "scoring": "sigmoid", "has_bias": True},
    ),
    "sorted_routing": (
        {"rows": 16, "experts": 512, "k": 8, "scoring": "sigmoid", "has_bias": True},
        {"rows": 64, "experts": 128, "k": 2, "renormalize": True},
    ),
    "topk_routing_backward": (
        {"rows": 16385, "experts": 384, "k": 8, "dtype": "fp32"},
        {"rows": 777, "experts": 512, "k": 32, "scoring": "softmax_of_chosen"},
    ),
    "sort_by_expert": (
        {"tokens": 16383, "k": 8, "experts": 256, "block": 128, "id_dtype": "int64"},
        {"tokens": 100000, "k": 10, "experts": 1024, "block": 1, "id_dtype": "int32"},
        {
            "tokens": 5000,
            "k": 8,
            "experts": 32,
            "block": 16,
            "id_dtype": "int32",
            "has_expert_map": True,
            "global_experts": 256,
            "has_weights": True,
        },
    ),
    "take_rows": (
        {"tokens": 16385, "per_row": 8, "slots": 131080, "width": 7168},
        {"tokens": 777, "slots": 5000, "width": 2880, "dtype": "fp32"},
    ),
    "sum_of_experts_backward": (
        {"tokens": 16385, "k": 8, "slots": 131000, "width": 7168, "has_weights": True},
        {"tokens": 777, "k": 6, "slots": 5000, "width": 2880, "dtype": "fp32"},
    ),
    "sum_of_experts": (
        {"tokens": 16385, "k": 8, "slots": 131000, "width": 7168, "has_weights": True},
        {"tokens": 777, "k": 6, "slots": 5000, "width": 2880, "dtype": "fp32", "has_shared": True},
    ),
}
