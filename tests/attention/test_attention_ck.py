"""CK Tile's command lines as problems."""

from __future__ import annotations

import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument
from tilewright.measure.problems import load_problems
from tilewright.ops.attention.operands import operands


def parse(line: str, on: str = "gfx942", **beside: str):
    return ops.family("attention").parse_problem({"ck": line, **beside}, arch(on))


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("-b=1 -d=64", "b1 h8 3328×3328 d64 fp16 layout bhsd"),
        ("-b=2 -h=4 -h_k=2 -s=259 -s_k=128 -iperm=0 -operm=0 -prec=bf16",
         "b2 h4:2 259×128 d128 bf16"),
        ("-s=8 -d=24 -d_v=32 -iperm=0 -operm=0", "b2 h8 8×8 d24x32 fp16"),
        ("-s=8 -iperm=0 -operm=0 -mask=t", "b2 h8 8×8 d128 fp16 causal_top_left"),
        ("-s=8 -iperm=0 -operm=0 -mask=2", "b2 h8 8×8 d128 fp16 causal"),
        ("-s=8 -iperm=0 -operm=0 -mask=b:-1,0", "b2 h8 8×8 d128 fp16 causal"),
        ("-s=8 -iperm=0 -operm=0 -mask=t:-1,-1", "b2 h8 8×8 d128 fp16"),
        ("-s=8 -iperm=0 -operm=0 -mask=t:128,30",
         "b2 h8 8×8 d128 fp16 window 128,30 corner top_left"),
        ("-s=8 -iperm=0 -operm=0 -mask=b:4,35", "b2 h8 8×8 d128 fp16 window 4,35"),
        ("-s=8 -iperm=0 -operm=0 -mask=b:4,-1", "b2 h8 8×8 d128 fp16 window 4,none"),
        ("-s=8 -iperm=0 -operm=0 -mask=b:4,0,2", "b2 h8 8×8 d128 fp16 window 4,0 first 2"),
        ("-s=8 -iperm=0 -operm=0 -mask=xt:-1", "b2 h8 8×8 d128 fp16 causal_top_left"),
        ("-s=8 -iperm=0 -operm=0 -mask=xb:5", "b2 h8 8×8 d128 fp16 window 2,2"),
        ("-s=8 -iperm=0 -operm=0 -bias=e", "b2 h8 8×8 d128 fp16 bias 1x1"),
        ("-s=8 -iperm=0 -operm=0 -bias=e:2", "b2 h8 8×8 d128 fp16 bias 2x8"),
        ("-s=8 -iperm=0 -operm=0 -bias=a:1", "b2 h8 8×8 d128 fp16 slopes_batched alibi"),
        ("-s=8 -iperm=0 -operm=0 -p_drop=0.2 -lse=1 -logits_soft_cap=30 -init_sink=1",
         "b2 h8 8×8 d128 fp16 softcap 30 dropout 0.19921875 lse sinks"),
        ("-s=1 -s_k=64 -page_block_size=16 -s_knew=1 -rotary_dim=32 -rotary_interleaved=0 -iperm=0"
         " -operm=0", "b2 h8 1×64 d128 fp16 rotary_dim 32 page_size 16 new_kv 1 rotary half"),
        ("-s=8 -iperm=0 -operm=0 -prec=fp8", "b2 h8 8×8 d128 e4m3fnuz→e4m3fnuz tscale oscale"),
        ("-s=8 -iperm=0 -operm=0 -prec=fp8bf16 -qscale=pt", "b2 h8 8×8 d128 e4m3fnuz tscale"),
        ("-mode=1 -b=2 -s=9,5 -s_k=16,7 -iperm=0 -operm=0",
         "b2 h8 9×16 d128 fp16 total_q 14 total_kv 23 packedq packedkv"),
    ],
)  # fmt: skip
def test_the_problem_of_a_command(line, shown):
    assert str(parse(line)) == f"attention {shown}"


def test_words_about_the_run_say_nothing_of_the_problem():
    how = "-v=1 -kname=1 -seed=3 -num_splits=8 -scale_s=0.5 -warmup=0 -repeat=1 -drop_seed=2"
    assert parse(f"-b=1 {how}") == parse("-b=1")


@pytest.mark.parametrize(("iperm", "operm"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("mode", [0, 1])
def test_where_arrays_lie(mode, iperm, operm):
    """b·h·s·d if permuted, else b·s·h·d; of packed rows, b is 1."""
    p = parse(f"-mode={mode} -b=2 -h=4 -h_k=2 -s=6 -d=32 -d_v=64 -iperm={iperm} -operm={operm}")
    by_name = {one.name: one for one in operands(p)}
    for name, heads, dim, by_heads in (
        ("q", 4, 32, iperm), ("k", 2, 32, iperm), ("v", 2, 64, iperm), ("o", 4, 64, operm),
    ):  # fmt: skip
        one = by_name[name]
        rows = 12 if mode else 6
        step = {rows: dim if by_heads else heads * dim, heads: rows * dim if by_heads else dim}
        found = dict(zip(one.shape, one.strides, strict=True))
        assert {size: found[size] for size in step} == step, name


def test_other_words_beside():
    assert parse("-b=1 -iperm=0 -operm=0", features="sinks").features == "sinks"
    with pytest.raises(BadArgument, match="heads is said by ck='-h=4' too"):
        parse("-h=4", heads="4")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-bb=2", r"there is no -bb.*; known: mode, b, h"),
        ("b=2", "'b=2' is not -WORD=VALUE"),
        ("-b=1 -b=2", "-b is given twice"),
        ("-b=two", "ck: -b = 'two' is not a whole number"),
        ("-vlayout=c", "-vlayout=c has no counterpart"),
        ("-s_kpad=99", "-s_kpad=99 has no counterpart"),
        ("-cache_batch_idx=1", "has no counterpart"),
        ("-prec=int8", "-prec=int8 is not one of fp16, bf16"),
        ("-mask=g:3,4", "-mask=g:3,4 has no counterpart"),
        ("-mask=x", "-mask=x is not one of 0, t, b"),
        ("-mask=t:3", "is not t:LEFT,RIGHT"),
        ("-bias=z", "-bias=z is not one of n, e"),
        ("-s=1,2", "-s has 2 lengths; that takes -mode=1 and -b=2"),
        ("-qscale=bs", "other scales have no counterpart"),
        ("-s_knew=-1", "-s_knew = '-1' is not a whole number"),
    ],
)
def test_what_is_unknown_or_has_no_counterpart_is_refused(line, why):
    with pytest.raises(BadArgument, match=why):
        parse(line)


def test_a_list_of_commands(tmp_path):
    file = tmp_path / "ck.csv"
    file.write_text("ck\n-b=1 -h=2 -s=64 -d=64\n-b=2 -h=4 -h_k=1 -s=1 -s_k=99 -d=64 -mask=b\n")
    found = load_problems([str(file)], arch("gfx942"), "attention").problems
    assert [(p.batch, p.kv_heads, p.kv_len) for p in found] == [(1, 2, 64), (2, 1, 99)]
