"""Reductions and pooling of models' sizes, and some whose offsets reach 2^31."""

from __future__ import annotations

ROWS = {"far": 1, "middle": 1, "inner": 1}
ALL = dict.fromkeys(("sum", "mean", "norm", "max", "min", "absmax", "argmax", "argmin"), True)
WIDE = {"depth": 1, "height": 224, "width": 224}
CASES = {
    "reduction": (
        {**ROWS, "outer": 4097, "near": 4096, **ALL},
        {**ROWS, "outer": 1, "near": 5000, "inner": 4096, **ALL},
        {**ROWS, "outer": 1, "near": 2**24 + 16, **ALL, "dtype": "fp32"},
        {**ROWS, "outer": 3, "near": 1000003, "dtype": "fp16", **ALL},
        {**ROWS, "outer": 1, "far": 64, "middle": 256, "near": 3136, **ALL},
        {**ROWS, "outer": 256, "near": 128256, "argmax": True, "max": True},
        {**ROWS, "outer": 100, "near": 9999, "sum": True, "dtype": "int32", "out_dtype": "int64"},
        {**ROWS, "outer": 140000, "near": 16384, "sum": True},  # offsets beyond 2^31
    ),
    "reduction_backward": (
        {**ROWS, "outer": 1, "near": 5000, "inner": 4096, "has_d_max": True, "has_max_at": True},
    ),
    "pool": (
        {**WIDE, "images": 700, "channels": 64, "kernel_w": 2, "stride_w": 2, "stride_h": 2},
        {**WIDE, "images": 1000, "channels": 1, "kernel_h": 5, "pad_h": 2, "index": True},
    ),
}
