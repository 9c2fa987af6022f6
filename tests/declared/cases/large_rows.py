"""Operations on rows of models' sizes."""

from __future__ import annotations

CASES = {
    "rms_norm": (
        {"rows": 1, "columns": 7168, "has_w": True, "has_residual": True},
        {"rows": 4097, "columns": 4096, "has_w": True, "has_residual": True},
        {"rows": 32768, "columns": 5120, "has_w": True, "w_dtype": "fp32"},
        {"rows": 1000, "columns": 18432, "has_w": True, "quant": "row", "out_dtype": "int8"},
        {"rows": 4096, "columns": 7168, "has_w": True, "quant": "block", "out_dtype": "e4m3fn"},
        {"rows": 8192, "columns": 2048, "quant": "row", "out_dtype": "e4m3fn", "has_smooth": True},
        {"rows": 100000, "columns": 128, "has_w": True, "x_stride": 384},
        {"rows": 2000, "columns": 1024, "x_stride": 1_200_000},  # offsets beyond 2^31
    ),
    "rms_norm_backward": (
        {"rows": 4096, "columns": 4096, "has_w": True, "has_residual": True, "has_dtotal": True},
        {"rows": 16384, "columns": 7168, "has_w": True, "dtype": "fp32", "dy_dtype": "fp32"},
        {"rows": 1000, "columns": 18432, "has_w": True},
        {"rows": 100001, "columns": 128, "has_w": True},
    ),
    "layer_norm": (
        {"rows": 16, "columns": 12288, "has_w": True, "has_b": True, "has_residual": True},
        {"rows": 4097, "columns": 8192, "has_w": True, "has_b": True},
        {"rows": 1000, "columns": 18432, "has_w": True, "quant": "row", "out_dtype": "e4m3fn"},
        {"rows": 50000, "columns": 1024, "has_w": True, "has_b": True, "dtype": "fp32"},
    ),
    "layer_norm_backward": (
        {"rows": 4096, "columns": 4096, "has_w": True, "has_b": True, "has_dtotal": True},
        {"rows": 1000, "columns": 18432, "has_w": True, "has_b": True},
        {"rows": 50000, "columns": 1024, "has_w": True, "has_b": True, "dtype": "fp16"},
    ),
    "quantise_rows": (
        {"rows": 32768, "columns": 7168, "out_dtype": "e4m3fn"},
        {"rows": 4096, "columns": 8192, "quant": "block", "out_dtype": "e4m3fn"},
        {"rows": 4096, "columns": 18432, "has_smooth": True},
    ),
    "quantise_expert_rows": (
        {"tokens": 4096, "columns": 7168, "experts": 256, "slots": 8},
        {"tokens": 1, "columns": 4096, "experts": 8, "slots": 2, "slots_first": True},
    ),
}
