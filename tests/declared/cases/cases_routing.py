"""Small problems of the operations that send tokens to experts."""

V3 = {"scoring": "sigmoid", "renormalize": True, "n_group": 8, "topk_group": 4}

CASES = {
    "topk": (
        {"rows": 5, "columns": 40, "k": 3},
        {"rows": 2, "columns": 1000, "k": 5, "dtype": "fp32", "index_dtype": "int64"},
        {"rows": 9, "columns": 100, "k": 37, "dtype": "fp16"},
    ),
    "topk_routing": (
        {"rows": 5, "experts": 64, "k": 6, **V3, "has_bias": True, "dtype": "fp32"},
        {"rows": 9, "experts": 8, "k": 2, "renormalize": True},
        {"rows": 5, "experts": 20, "k": 5, "logits_stride": 32, "dtype": "fp16"},
        {"rows": 5, "experts": 32, "k": 4, "scoring": "softmax_of_chosen", "dtype": "fp32"},
        {"rows": 5, "experts": 60, "k": 3, "n_group": 5, "topk_group": 2, "group_score": "max"},
        {"rows": 5, "experts": 18, "k": 3, "n_group": 3, "topk_group": 2, "has_bias": True},
    ),
    "sorted_routing": (
        {"rows": 3, "experts": 64, "k": 6, **V3, "has_bias": True, "dtype": "fp32"},
        {"rows": 16, "experts": 32, "k": 8, "renormalize": True},
        {"rows": 1, "experts": 8, "k": 2},
        {"rows": 5, "experts": 20, "k": 5, "logits_stride": 32, "dtype": "fp16"},
        {"rows": 32, "experts": 130, "k": 4, "scoring": "softmax_of_chosen", "dtype": "fp32"},
        {"rows": 5, "experts": 18, "k": 3, "n_group": 3, "topk_group": 2, "has_bias": True},
    ),
    "topk_routing_backward": (
        {"rows": 5, "experts": 20, "k": 4, "renormalize": True},
        {"rows": 5, "experts": 16, "k": 2, "dtype": "fp32"},
        {"rows": 5, "experts": 32, "k": 4, "scoring": "softmax_of_chosen", "dtype": "fp16"},
        {"rows": 5, "experts": 40, "k": 4, "scoring": "sigmoid", "renormalize": True},
        {"rows": 5, "experts": 40, "k": 1, "scoring": "sigmoid", "dtype": "fp32"},
    ),
    "sort_by_expert": (
        {"tokens": 20, "k": 4, "experts": 12, "block": 4, "id_dtype": "int32"},
        {"tokens": 3, "k": 2, "experts": 20, "block": 16, "id_dtype": "int64"},
        {
            "tokens": 150,
            "k": 4,
            "experts": 10,
            "block": 8,
            "id_dtype": "int32",
            "has_expert_map": True,
            "global_experts": 30,
            "has_weights": True,
        },
        {"tokens": 700, "k": 3, "experts": 20, "id_dtype": "int32", "has_weights": True},
        {"tokens": 30, "k": 4, "experts": 5, "capacity": 7, "block": 4, "id_dtype": "int32"},
        {"tokens": 900, "k": 3, "experts": 9, "capacity": 250, "id_dtype": "int32"},
    ),
    "sum_of_experts_backward": (
        {"tokens": 9, "k": 4, "slots": 36, "width": 256, "has_weights": True},
        {"tokens": 5, "k": 10, "slots": 40, "width": 90, "has_weights": True},
        {"tokens": 3, "k": 1, "slots": 7, "width": 600, "dtype": "fp32"},
        {
            "tokens": 4,
            "k": 3,
            "slots": 14,
            "width": 40,
            "rows_stride": 48,
            "dtype": "fp16",
            "out_dtype": "fp32",
            "weight_dtype": "fp16",
            "has_weights": True,
        },
    ),
    "sum_of_experts": (
        {"tokens": 9, "k": 4, "slots": 36, "width": 256, "has_weights": True},
        {"tokens": 5, "k": 10, "slots": 40, "width": 90, "has_weights": True, "has_shared": True},
        {"tokens": 3, "k": 1, "slots": 7, "width": 600, "dtype": "fp32"},
        {
            "tokens": 4,
            "k": 3,
            "slots": 12,
            "width": 40,
            "rows_stride": 48,
            "dtype": "fp16",
            "out_dtype": "fp32",
            "weight_dtype": "fp16",
            "has_weights": True,
        },
    ),
    "take_rows": (
        {"tokens": 9, "per_row": 4, "slots": 36, "width": 256},
        {"tokens": 5, "slots": 11, "width": 90, "x_stride": 96, "dtype": "fp32"},
        {"tokens": 3, "per_row": 2, "slots": 7, "width": 300, "dtype": "e4m3fn"},
    ),
}
