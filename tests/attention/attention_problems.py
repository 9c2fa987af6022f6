"""Attention problems of all kinds, for property tests."""

from __future__ import annotations

from hypothesis import assume
from hypothesis import strategies as st

from tilewright.errors import BadArgument
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.features import FEATURES
from tilewright.ops.attention.stated import FLAGS

COUNTS = st.integers(0, 70)


@st.composite
def problems(draw: st.DrawFn) -> AttentionProblem:
    batch, kv_heads = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 4))
    words = draw(st.sets(st.sampled_from(FLAGS), max_size=4))
    dtype = draw(st.sampled_from(("bf16", "fp16", "fp32", "e4m3fn")))
    said = {
        "batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": draw(COUNTS),
        "kv_len": draw(COUNTS), "head_dim": draw(st.sampled_from((32, 40, 59, 128))),
        "head_dim_v": draw(st.sampled_from((0, 32, 59))), "dtype": dtype,
    }  # fmt: skip
    some = {
        "left": st.integers(-3, 9), "right": st.integers(-3, 9), "first": st.integers(0, 3),
        "corner": st.sampled_from(("top_left", "bottom_right")), "softcap": st.floats(0.125, 99),
        "bias_shape": st.sampled_from(((1, 1), (batch, heads), (1, heads))),
        "blocks_shape": st.sampled_from(((1, 1), (batch, heads), (1, heads))),
        "slopes_batched": st.booleans(), "dropout": st.integers(1, 200).map(lambda n: n / 256),
        "dtype_o": st.sampled_from(("bf16", "fp32")), "dtype_kv": st.just("e5m2"),
        "page_size": st.sampled_from((1, 16)), "pages": COUNTS, "page_entries": COUNTS,
        "total_q": COUNTS, "total_kv": COUNTS, "new_kv": COUNTS, "alignment": st.just(4),
        "layout": st.just("bhsd"), "kv_layout": st.sampled_from(("bshd", "bhsd")),
        "q_strides": st.just((9999, 64, 32, 1)), "deterministic": st.just(True),
        "batch_invariant": st.just(True),
    }  # fmt: skip
    for name in draw(st.sets(st.sampled_from(sorted(some)), max_size=5)):
        said[name] = draw(some[name])
    if "blocks_shape" in said:
        said["block_size"] = draw(st.sampled_from((16, 48, 128)))
        said["density"] = draw(st.sampled_from((0.0, 0.25, 1.0)))
    if "page_size" in said:
        words |= {draw(st.sampled_from(("pagetable", "pagelist"))), "usedkv"}
    if "new_kv" in said:
        words |= {"usedkv"}
    try:
        return AttentionProblem(**said, others="+".join(w for w in FEATURES if w in words))
    except BadArgument:
        assume(False)
        raise
