"""Softmax and cross-entropy over models' vocabularies."""

from __future__ import annotations

CASES = {
    "softmax": (
        {"rows": 100001, "columns": 128},
        {"rows": 16384, "columns": 4096},
        {"rows": 1000, "columns": 16384, "dtype": "fp32"},
        {"rows": 64, "columns": 128256},
        {"rows": 33, "columns": 50257, "dtype": "fp16"},
    ),
    "softmax_backward": (
        {"rows": 16384, "columns": 4096},
        {"rows": 64, "columns": 128256, "dtype": "fp32"},
        {"rows": 33, "columns": 50257},
    ),
    "log_softmax": (
        {"rows": 4097, "columns": 1000, "out_dtype": "fp32"},
        {"rows": 512, "columns": 151936},
        {"rows": 33, "columns": 50257},
    ),
    "log_softmax_backward": (
        {"rows": 4097, "columns": 1000, "out_dtype": "fp32"},
        {"rows": 512, "columns": 151936},
        {"rows": 33, "columns": 50257},
    ),
    "cross_entropy": (
        {"rows": 1, "classes": 128256},
        {"rows": 2048, "classes": 128256, "with_gradient": True, "with_lse": True},
        {"rows": 1000, "classes": 151936, "logits_stride": 152064},
        {"rows": 512, "classes": 262144, "dtype": "fp32", "with_gradient": True},
        {"rows": 999, "classes": 50257, "with_gradient": True},
        {"rows": 16384, "classes": 8192, "with_gradient": True},
        {"rows": 5000, "classes": 1000, "has_weight": True, "with_gradient": True},
        {"rows": 3, "classes": 1000, "logits_stride": 1 << 30},
    ),
    "cross_entropy_backward": (
        {"rows": 2048, "classes": 128256},
        {"rows": 1000, "classes": 151936, "logits_stride": 152064},
        {"rows": 999, "classes": 50257, "dtype": "fp16"},
        {"rows": 5000, "classes": 1000, "has_weight": True},
    ),
}
