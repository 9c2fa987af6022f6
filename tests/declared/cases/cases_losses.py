"""Small problems of softmax and of losses."""

CASES = {
    "softmax": (
        {"rows": 5, "columns": 200, "dtype": "fp32"},
        {"rows": 9, "columns": 64, "x_stride": 70, "out_dtype": "fp32"},
        {"rows": 2, "columns": 16400},
        {"rows": 1, "columns": 17000, "dtype": "fp16", "alignment": 1},
    ),
    "softmax_backward": (
        {"rows": 5, "columns": 200, "dtype": "fp32"},
        {"rows": 1, "columns": 17000, "out_dtype": "fp32"},
    ),
    "log_softmax": (
        {"rows": 5, "columns": 200},
        {"rows": 2, "columns": 17000, "dtype": "fp32"},
    ),
    "log_softmax_backward": (
        {"rows": 5, "columns": 200},
        {"rows": 1, "columns": 17000, "dtype": "fp16"},
    ),
    "cross_entropy": (
        {"rows": 9, "classes": 200, "with_gradient": True, "with_lse": True},
        {"rows": 9, "classes": 50, "logits_stride": 56, "dtype": "fp32"},
        {"rows": 3, "classes": 200, "has_weight": True, "with_gradient": True, "dtype": "fp16"},
        {"rows": 2, "classes": 17000, "with_gradient": True, "with_lse": True},
        {"rows": 2, "classes": 17001, "dtype": "fp32", "has_weight": True},
        {"rows": 9, "classes": 200, "target_dtype": "int32", "has_weight": True, "with_lse": True},
    ),
    "cross_entropy_backward": (
        {"rows": 9, "classes": 200},
        {"rows": 9, "classes": 50, "logits_stride": 56, "dtype": "fp32", "has_weight": True},
        {"rows": 2, "classes": 17001, "dtype": "fp16"},
        {"rows": 9, "classes": 200, "target_dtype": "int32"},
    ),
}
