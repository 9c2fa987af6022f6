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
}  # fmt: skip
