"""Small problems of the operations on rows."""

CASES = {
    "rms_norm": (
        {"rows": 5, "columns": 200, "has_w": True, "has_residual": True, "dtype": "fp32"},
        {"rows": 9, "columns": 64, "x_stride": 70},
        {"rows": 3, "columns": 96, "quant": "row", "out_dtype": "e4m3fn", "has_smooth": True},
        {"rows": 3, "columns": 256, "quant": "block", "out_dtype": "e5m2", "dtype": "fp16"},
        {"rows": 3, "columns": 40, "quant": "tensor", "out_dtype": "int8", "has_scale": True},
        {"rows": 1, "columns": 17408, "quant": "row", "out_dtype": "int8", "has_w": True},
    ),
    "rms_norm_backward": (
        {"rows": 37, "columns": 200, "has_w": True, "has_residual": True, "has_dtotal": True},
        {"rows": 9, "columns": 17000, "has_w": True, "dtype": "fp32", "w_dtype": "bf16"},
        {"rows": 4, "columns": 64, "dtype": "fp16"},
    ),
    "layer_norm": (
        {"rows": 5, "columns": 200, "has_w": True, "has_b": True, "has_residual": True},
        {"rows": 9, "columns": 64, "x_stride": 70, "dtype": "fp32"},
        {"rows": 3, "columns": 96, "quant": "row", "out_dtype": "int8", "has_smooth": True},
        {"rows": 3, "columns": 256, "quant": "block", "out_dtype": "e4m3fn", "has_b": True},
        {"rows": 3, "columns": 40, "quant": "tensor", "out_dtype": "e5m2", "has_scale": True},
        {"rows": 1, "columns": 17000, "quant": "row", "out_dtype": "int8", "has_residual": True},
    ),
    "layer_norm_backward": (
        {"rows": 37, "columns": 200, "has_w": True, "has_b": True, "has_dtotal": True},
        {"rows": 9, "columns": 17000, "has_w": True, "has_b": True, "dtype": "fp32"},
        {"rows": 4, "columns": 64, "dtype": "fp16", "has_b": True, "has_residual": True},
    ),
}
