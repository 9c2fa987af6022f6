"""Small problems of HSTU's attention: every mask, head dims that fill no block, rows apart."""

ALL = {"contextual_seq_len": 5, "max_attn_len": 24, "min_full_attn_seq_len": 18}
SIZES = {"rows": 300, "heads": 2, "head_dim": 64, "head_dim_v": 64, "bounds": 4}

CASES = {
    name: (
        {**SIZES, **ALL, "has_num_targets": True},
        {**SIZES, "head_dim": 25, "head_dim_v": 80, "dtype": "fp32"},
        {**SIZES, "bounds": 6, "dtype": "fp16", "has_num_targets": True, "max_attn_len": 40},
        {**SIZES, "heads": 1, "bounds": 3, "contextual_seq_len": 70, "q_row": 400, "v_row": 72},
        {**SIZES, "rows": 100, "bounds": 2, "causal": False},
    )
    for name in ("hstu_attention", "hstu_attention_backward")
}
