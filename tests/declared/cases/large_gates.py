"""Gated activations and rotary embeddings of models' sizes."""

from __future__ import annotations

LLAMA = {"q_heads": 32, "k_heads": 8, "head_dim": 128, "length": 8192, "half": 64}
DEEPSEEK = {"q_heads": 128, "k_heads": 1, "head_dim": 64, "length": 8192, "half": 32}

CASES = {
    "gated_activation": (
        {"rows": 4096, "columns": 14336},
        {"rows": 1, "columns": 28672, "gate": "gelu_tanh"},
        {"rows": 1000, "columns": 2880, "interleaved": True},
        {"rows": 777, "columns": 1411, "has_up": True, "gate": "gelu"},
        {"rows": 2048, "columns": 768, "quant": "row", "out_dtype": "e4m3fn"},
        {"rows": 512, "columns": 25600, "quant": "row", "out_dtype": "int8"},
        {"rows": 4096, "columns": 2048, "quant": "block", "out_dtype": "e4m3fn"},
    ),
    "gated_activation_backward": (
        {"rows": 4096, "columns": 14336},
        {"rows": 100, "columns": 2880, "interleaved": True},
        {"rows": 99, "columns": 18432, "has_up": True, "gate": "gelu"},
    ),
    "rotary": (
        {"tokens": 4096, **LLAMA, "has_positions": True, "cos_dtype": "fp32"},
        {"tokens": 4096, **LLAMA, "length": 1024, "inverse": True},
        {
            "tokens": 333,
            **DEEPSEEK,
            "q_stride": 24576,
            "q_head_stride": 192,
            "form": "interleaved",
            "has_positions": True,
        },
        {"tokens": 100, "q_heads": 32, "k_heads": 32, "head_dim": 80, "length": 100, "half": 16},
    ),
    "rotary_in_place": (
        {"tokens": 1, **LLAMA, "has_positions": True, "position_dtype": "int32"},
        {"tokens": 4096, **LLAMA, "q_stride": 6144, "k_stride": 6144, "has_positions": True},
    ),
    "rotary_paged": (
        {
            "tokens": 1000,
            **LLAMA,
            "has_positions": True,
            "pages": 100,
            "page_size": 16,
            "q_stride": 6144,
            "k_stride": 6144,
            "v_stride": 6144,
        },
        {
            "tokens": 64,
            **LLAMA,
            "has_positions": True,
            "pages": 4,
            "page_size": 64,
            "cache_dtype": "e4m3fn",
            "has_k_scale": True,
            "has_v_scale": True,
        },
    ),
}
