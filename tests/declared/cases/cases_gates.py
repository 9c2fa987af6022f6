"""Small problems of gated activations and rotations."""

CASES = {
    "gated_activation": (
        {"rows": 5, "columns": 200},
        {"rows": 3, "columns": 1100, "has_up": True, "gate": "gelu", "up_stride": 1111},
        {"rows": 3, "columns": 72, "interleaved": True, "gate": "gelu_tanh", "dtype": "fp32"},
        {"rows": 7, "columns": 70, "gate": "sigmoid", "quant": "row", "out_dtype": "int8"},
        {"rows": 1, "columns": 16400, "gate": "sigmoid", "quant": "row", "out_dtype": "e4m3fn"},
        {"rows": 2, "columns": 640, "quant": "block", "out_dtype": "e5m2", "interleaved": True},
        {"rows": 2, "columns": 48, "gate": "relu", "quant": "tensor", "out_dtype": "int8",
         "has_scale": True, "x_stride": 112},
    ),
    "gated_activation_backward": (
        {"rows": 5, "columns": 200, "gate": "gelu"},
        {"rows": 3, "columns": 1100, "has_up": True, "x_stride": 1120, "dtype": "fp32"},
        {"rows": 3, "columns": 72, "interleaved": True, "gate": "gelu_tanh"},
        {"rows": 4, "columns": 33, "gate": "sigmoid", "dtype": "fp16", "out_dtype": "fp32"},
        {"rows": 4, "columns": 33, "gate": "relu", "interleaved": True},
    ),
    "rotary": (
        {"tokens": 5, "q_heads": 6, "k_heads": 2, "head_dim": 80, "length": 9, "half": 32,
         "has_positions": True, "cos_dtype": "fp32"},
        {"tokens": 3, "q_heads": 3, "k_heads": 1, "head_dim": 24, "length": 3, "half": 12,
         "form": "interleaved", "inverse": True, "dtype": "fp32"},
        {"tokens": 6, "q_heads": 9, "k_heads": 0, "head_dim": 16, "length": 3, "half": 5,
         "dtype": "fp16", "cos_stride": 20},
    ),
    "rotary_in_place": (
        {"tokens": 5, "q_heads": 9, "k_heads": 2, "head_dim": 96, "length": 9, "half": 32,
         "has_positions": True, "position_dtype": "int32", "form": "interleaved"},
        {"tokens": 3, "q_heads": 2, "k_heads": 1, "head_dim": 20, "length": 8, "half": 10,
         "q_stride": 90, "q_head_stride": 22, "k_stride": 101, "dtype": "fp32"},
    ),
    "rotary_paged": (
        {"tokens": 6, "q_heads": 5, "k_heads": 2, "head_dim": 40, "length": 9, "half": 16,
         "has_positions": True, "pages": 3, "page_size": 4, "q_stride": 400, "k_stride": 400,
         "v_stride": 400},
        {"tokens": 7, "q_heads": 3, "k_heads": 3, "head_dim": 12, "length": 7, "half": 6,
         "form": "interleaved", "pages": 2, "page_size": 3, "dtype": "fp32",
         "cache_dtype": "fp32", "slot_stride": 12, "cache_head_stride": 36, "page_stride": 120},
        {"tokens": 3, "q_heads": 2, "k_heads": 1, "head_dim": 32, "length": 3, "half": 16,
         "pages": 2, "page_size": 2, "cache_dtype": "e4m3fn", "has_k_scale": True,
         "has_v_scale": True, "form": "interleaved"},
        {"tokens": 2, "q_heads": 1, "k_heads": 1, "head_dim": 16, "length": 2, "half": 8,
         "pages": 1, "page_size": 2, "cache_dtype": "int8", "dtype": "fp16", "has_v_scale": True},
    ),
}  # fmt: skip
