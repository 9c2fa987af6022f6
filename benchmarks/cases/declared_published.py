"""Sizes of the benchmarks of Liger-Kernel and FlashInfer of which times are published: see "Beside
published figures" in docs/operations.md. Those of a kernel alone: no layers with products, and of
top-k no rows longer than `topk` takes."""

from __future__ import annotations

from declared_cases import Fields, published_case

MEGATRON = (1024, 2048, 4096, 8192, 16384)
"""Columns of benchmark_megatron_rms_norm.py and benchmark_layer_norm.py."""
LLAMA = {"q_heads": 32, "k_heads": 8, "head_dim": 128, "half": 64, "cos_dtype": "fp32"}

SIZES: dict[str, list[Fields]] = {
    "rms_norm": [
        *({"rows": 4096, "columns": n, "has_w": True} for n in MEGATRON),
        {"rows": 64, "columns": 8192, "has_w": True},
        *(
            {
                "rows": n, "columns": 4096, "has_w": True, "has_scale": True, "quant": "tensor",
                "out_dtype": "e4m3fn",
            }
            for n in (4096, 16384)
        ),
    ],
    "layer_norm": [
        {"rows": 4096, "columns": n, "dtype": "fp32", "has_w": True, "has_b": True}
        for n in MEGATRON
    ],
    "gated_activation": [
        {"rows": 8192, "columns": n} for n in (1024, 2048, 4096, 8192, 16384, 32768)
    ],
    "cross_entropy": [
        *({"rows": 8192, "classes": n} for n in (32768, 131072)),
        {"rows": 16384, "classes": 32768, "dtype": "fp32", "with_gradient": True},
    ],
    "softmax": [{"rows": 2048, "columns": 4096, "dtype": n} for n in ("fp32", "bf16")],
    "rotary": [
        {
            "tokens": 16384, "q_heads": 32, "k_heads": 8, "head_dim": 256, "half": 128,
            "length": 16384, "cos_dtype": "bf16",
        },
    ],
    "rotary_in_place": [
        {"tokens": 2 * n, "length": 65536, "has_positions": True, **LLAMA} for n in (16384, 65536)
    ],
    "topk": [{"rows": 256, "columns": n, "dtype": "fp32", "k": 256} for n in (1024, 4096)],
}  # fmt: skip

CASES = tuple(published_case(name, sizes) for name, sizes in SIZES.items())
