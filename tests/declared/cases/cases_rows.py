"""Small problems of the operations on rows."""

CASES = {
    "rms_norm": (
        {"rows": 5, "columns": 200, "has_w": True, "has_residual": True, "dtype": "fp32"},
        {"rows": 9, "columns": 64, "x_stride": 70, "statistics": True},
        {"rows": 3, "columns": 96, "quant": "row", "out_dtype": "e4m3fn", "has_smooth": True},
        {"rows": 3, "columns": 256, "quant": "block", "out_dtype": "e5m2", "dtype": "fp16"},
        {"rows": 3, "columns": 40, "quant": "tensor", "out_dtype": "int8", "has_scale": True},
        {"rows": 1, "columns": 17408, "quant": "row", "out_dtype": "int8", "has_w": True},
        {"rows": 2, "columns": 12001, "has_residual": True, "has_smooth": True, "statistics": True},
    ),
    "rms_norm_backward": (
        {"rows": 37, "columns": 200, "has_w": True, "has_residual": True, "has_dtotal": True},
        {"rows": 9, "columns": 17000, "has_w": True, "dtype": "fp32", "w_dtype": "bf16"},
        {"rows": 4, "columns": 64, "dtype": "fp16"},
        {"rows": 64, "columns": 1, "dtype": "fp32", "has_w": True},
    ),
    "layer_norm": (
        {"rows": 5, "columns": 200, "has_w": True, "has_b": True, "has_residual": True},
        {"rows": 9, "columns": 64, "x_stride": 70, "dtype": "fp32", "statistics": True},
        {"rows": 3, "columns": 96, "quant": "row", "out_dtype": "int8", "has_smooth": True},
        {"rows": 3, "columns": 256, "quant": "block", "out_dtype": "e4m3fn", "has_b": True},
        {"rows": 3, "columns": 40, "quant": "tensor", "out_dtype": "e5m2", "has_scale": True},
        {"rows": 2, "columns": 8640, "has_w": True, "has_b": True, "dtype": "fp16"},
        {"rows": 2, "columns": 8201, "has_w": True, "has_residual": True, "statistics": True},
        {
            "rows": 1,
            "columns": 17000,
            "quant": "row",
            "out_dtype": "int8",
            "has_residual": True,
            "statistics": True,
        },
    ),
    "layer_norm_backward": (
        {"rows": 37, "columns": 200, "has_w": True, "has_b": True, "has_dtotal": True},
        {"rows": 9, "columns": 17000, "has_w": True, "has_b": True, "dtype": "fp32"},
        {"rows": 4, "columns": 64, "dtype": "fp16", "has_b": True, "has_residual": True},
        {"rows": 64, "columns": 2, "dtype": "fp32", "has_w": True, "has_b": True},
    ),
    "quantise_rows": (
        {"rows": 5, "columns": 200, "has_smooth": True, "dtype": "fp16"},
        {"rows": 3, "columns": 256, "quant": "block", "out_dtype": "e5m2", "x_stride": 272},
        {"rows": 3, "columns": 40, "quant": "tensor", "has_scale": True, "dtype": "fp32"},
        {"rows": 1, "columns": 17000, "has_smooth": True},
        {"rows": 1, "columns": 17024, "quant": "block", "out_dtype": "e4m3fn"},
    ),
    "quantise_expert_rows": (
        {"tokens": 5, "columns": 200, "experts": 7, "slots": 3},
        {
            "tokens": 5,
            "columns": 256,
            "experts": 7,
            "slots": 2,
            "quant": "block",
            "slots_first": True,
            "dtype": "fp32",
        },
        {
            "tokens": 2,
            "columns": 17000,
            "experts": 3,
            "slots": 2,
            "slots_first": True,
            "out_dtype": "e4m3fn",
        },
    ),
}
