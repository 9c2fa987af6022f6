"""HSTU's attention of recommenders' sizes."""

from __future__ import annotations

SIZES = {"heads": 4, "head_dim": 128, "head_dim_v": 128, "has_num_targets": True}
WINDOW = {"contextual_seq_len": 21, "max_attn_len": 256, "min_full_attn_seq_len": 100}
APART = dict.fromkeys(("q_row", "k_row", "v_row"), 4096)
"""Between the rows of operands: those of 560000 rows lie beyond 2^31."""
LARGE = (
    {**SIZES, "rows": 124518, "bounds": 513},  # generative-recommenders' benchmark, up to 256 rows
    {**SIZES, **WINDOW, "rows": 60000, "bounds": 65},
    {**SIZES, "rows": 16384, "bounds": 5, "dtype": "fp16"},
    {**SIZES, "rows": 20000, "bounds": 17, "head_dim": 64, "head_dim_v": 64, "max_attn_len": 1000},
    {**SIZES, "rows": 9000, "bounds": 9, "head_dim": 256, "head_dim_v": 256},
    {**SIZES, "rows": 9000, "bounds": 9, "head_dim": 50, "head_dim_v": 25, "dtype": "fp32"},
    {"rows": 8192, "bounds": 3, "heads": 2, "head_dim": 128, "head_dim_v": 128, "causal": False},
    {**SIZES, "rows": 30000, "bounds": 5001},  # more sequences than a workgroup looks at together
    {**SIZES, "rows": 20000, "bounds": 17, "q_row": 1536, "k_row": 1536, "v_row": 1536},
    {"rows": 560000, "bounds": 1001, "heads": 1, "head_dim": 64, "head_dim_v": 64, **APART},
)

CASES = dict.fromkeys(("hstu_attention", "hstu_attention_backward"), LARGE)
