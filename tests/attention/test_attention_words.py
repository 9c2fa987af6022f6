"""Problems in words: read, written, and shown."""

from __future__ import annotations

import pytest
from attention_problems import problems
from hypothesis import given

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.features import FEATURES
from tilewright.ops.attention.stated import FLAGS, words_of

SM_90 = arch("sm_90")


def parse(text: str, on: str = "sm_90") -> AttentionProblem:
    words = dict(word.split("=", 1) for word in text.split())
    return ops.family("attention").parse_problem(words, arch(on))


SIZES = "batch=4 heads=32 q_len=4096 kv_len=4096 head_dim=128"


@pytest.mark.parametrize(
    ("said", "fields", "shown"),
    [
        ("", {}, "b4 h32 4096×4096 d128 bf16"),
        ("kv_heads=8 mask=causal", {"kv_heads": 8, "right": 0},
         "b4 h32:8 4096×4096 d128 bf16 causal"),
        ("mask=causal_bottom_right", {"right": 0}, "b4 h32 4096×4096 d128 bf16 causal"),
        ("mask=causal_top_left", {"right": 0, "corner": "top_left"},
         "b4 h32 4096×4096 d128 bf16 causal_top_left"),
        ("window=1023,0", {"left": 1023, "right": 0}, "b4 h32 4096×4096 d128 bf16 window 1023,0"),
        ("window=1023,none mask=causal first=4", {"left": 1023, "right": 0, "first": 4},
         "b4 h32 4096×4096 d128 bf16 window 1023,0 first 4"),
        ("window=none,7 corner=top_left", {"right": 7, "corner": "top_left"},
         "b4 h32 4096×4096 d128 bf16 window none,7 corner top_left"),
        ("softcap=30 lse=true sinks=true", {"softcap": 30.0, "others": "lse+sinks"},
         "b4 h32 4096×4096 d128 bf16 softcap 30 lse sinks"),
        ("features=lse+alibi", {"others": "lse+alibi"}, "b4 h32 4096×4096 d128 bf16 lse alibi"),
        ("bias=1x32 dropout=0.25", {"bias_shape": (1, 32), "dropout": 0.25},
         "b4 h32 4096×4096 d128 bf16 bias 1x32 dropout 0.25"),
        ("packed=true", {"total_q": 16384, "total_kv": 16384, "others": "packedq+packedkv"},
         "b4 h32 4096×4096 d128 bf16 packedq packedkv"),
        ("page_size=16", {"pages": 1024, "page_size": 16, "page_entries": 256,
                          "others": "usedkv+pagetable"}, "b4 h32 4096×4096 d128 bf16 page_size 16"),
        ("page_size=16 pagelist=true", {"pages": 1024, "page_size": 16, "page_entries": 1024,
                                        "others": "usedkv+pagelist"},
         "b4 h32 4096×4096 d128 bf16 page_size 16 pagelist"),
        ("new_kv=1 rotary=half rotary_dim=64",
         {"new_kv": 1, "others": "usedkv+rotaryh", "rotary_dim": 64, "rotary_len": 4096},
         "b4 h32 4096×4096 d128 bf16 rotary_dim 64 new_kv 1 rotary half"),
        ("head_dim_v=64 dtype=fp8 tscale=true", {"head_dim_v": 64, "dtype": "e4m3fn",
                                                 "dtype_o": "bf16", "others": "tscale"},
         "b4 h32 4096×4096 d128x64 e4m3fn tscale"),
        ("layout=bhsd dtype_kv=fp8 dtype_o=fp32",
         {"layout": "bhsd", "kv_layout": "bhsd", "dtype_kv": "e4m3fn", "dtype_o": "fp32"},
         "b4 h32 4096×4096 d128 bf16/e4m3fn→fp32 layout bhsd"),
    ],
)  # fmt: skip
def test_what_words_mean(said, fields, shown):
    found = parse(f"{SIZES} {said}")
    assert found == AttentionProblem(4, 32, 4096, 4096, 128, **fields)
    assert str(found) == f"attention {shown}"


def test_fp8_is_the_architectures():
    assert parse(f"{SIZES} dtype=fp8", "gfx942").dtype == "e4m3fnuz"


def test_latent_attention_has_one_head_of_keys():
    found = parse("batch=2 heads=16 q_len=1 kv_len=64 head_dim=576 head_dim_v=512 latent=true")
    assert (found.kv_heads, found.group) == (1, 16)


def test_rows_that_are_no_multiple_of_16_bytes_are_less_aligned():
    """As the arrays of such a problem would be."""
    assert [parse(f"batch=1 heads=2 q_len=8 kv_len=8 head_dim={d}").alignment
            for d in (64, 60, 59)] == [16, 8, 2]  # fmt: skip


def test_strides_decide_the_alignment_where_they_are_stated():
    """Those between rows, heads and sequences: elements of a row stand one behind another."""
    rows = "batch=1 heads=2 q_len=8 kv_len=8 head_dim=64"
    found = [
        parse(f"{rows} q_strides=4096,{row},{head},{inner}").alignment
        for row, head, inner in (
            (128, 64, 1),
            (132, 64, 1),
            (130, 64, 1),
            (128, 65, 1),
            (256, 128, 2),
        )
    ]
    assert found == [16, 8, 4, 2, 1]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("batchs=1", r"no 'batchs' \(did you mean 'batch'"),
        ("mask=casual", "mask = 'casual' is not one of none, causal, causal_bottom_right"),
        ("mask=causal_top_left corner=bottom_right", "contradict each other"),
        ("window=5", "window = '5' is not LEFT,RIGHT"),
        ("window=a,0", "window = 'a' is not a whole number"),
        ("bias=32", "bias = '32' is not BATCHxHEADS"),
        ("blocks=heads block_size=16", "blocks = 'heads' is not BATCHxHEADS, as in 1x32"),
        ("bias=3x32", "bias_shape = .* must be 1 or 4 sequences"),
        ("lse=1", "lse = '1' is not true or false"),
        ("rotary=full", "rotary = 'full' is not one of interleaved, half"),
        ("rotary=half", "rotaryh needs append"),
        ("softcap=high", "softcap = 'high' is not a number"),
        ("features=softcap", "'softcap' has a word of its own"),
        ("features=lse+lse", "must be written as 'lse'"),
        ("dropout=0.3", "not a multiple of 1/256"),
    ],
)
def test_what_is_refused(said, why):
    with pytest.raises(BadArgument, match=why):
        parse(f"{SIZES} {said}")


def test_sizes_are_needed():
    with pytest.raises(BadArgument, match=r"needs batch, q_len, head_dim \(as in batch=4\)"):
        parse("heads=4 kv_len=8")
    with pytest.raises(BadArgument, match=r"needs kv_len \(as in kv_len=4096\)"):
        parse("batch=1 heads=4 q_len=8 head_dim=64")


def test_every_feature_has_a_word():
    fields = {
        "softcap": "softcap",
        "bias": "bias",
        "bias32": "bias_dtype",
        "biasbool": "bias_dtype",
        "dropout": "dropout",
        "blocks": "blocks_shape",
        "append": "new_kv",
    }
    by_field = {*fields, "rotaryi", "rotaryh"}
    assert {*FLAGS} | by_field == {*FEATURES} and not by_field.intersection(FLAGS)


@given(problems())
def test_words_written_and_read_are_the_problem(problem):
    assert ops.family("attention").parse_problem(words_of(problem), SM_90) == problem
