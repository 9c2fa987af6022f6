"""CK Tile's command lines as problems."""

from __future__ import annotations

import numpy as np
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


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("-mode=1 -s=9,5 -s_k=16,7 -s_qpad=16,8 -s_kpad=32,16",
         "9×16 d128 fp16 total_q 24 total_kv 48 packedq packedkv usedq usedkv"),
        ("-mode=1 -s=9 -s_k=16,7 -s_qpad=12 -s_kpad=-1,-1",
         "9×16 d128 fp16 total_q 24 total_kv 23 packedq packedkv usedq"),
        ("-mode=1 -s=9,5 -s_kpad=10",
         "9×9 d128 fp16 total_q 14 total_kv 20 packedq packedkv usedkv"),
        ("-s=8 -s_k=16 -q_eff_lens=8,3 -kv_eff_lens=16,0", "8×16 d128 fp16 usedq usedkv"),
        ("-s=8 -q_eff_lens= -kv_eff_lens=1,2", "8×8 d128 fp16 usedkv"),
        ("-s=8 -prec=fp8bf16 -qscale=bs", "8×8 d128 e4m3fnuz scale_block 128 bscale"),
        ("-s=8 -prec=fp8bf16 -qscale=5", "8×8 d128 e4m3fnuz hscale"),
    ],
)  # fmt: skip
def test_rows_that_are_not_used_and_other_scales(line, shown):
    assert str(parse(f"-iperm=0 -operm=0 {line}")) == f"attention b2 h8 {shown}"


@pytest.mark.parametrize("iperm", [0, 1])
@pytest.mark.parametrize("mode", [0, 1])
def test_values_by_columns(mode, iperm):
    """[b, heads, dim, rows] if permuted, else [b, dim, heads, rows]."""
    p = parse(f"-mode={mode} -b=3 -h=4 -h_k=2 -s=6 -d=32 -d_v=64 -iperm={iperm} -vlayout=c")
    v = next(one for one in operands(p) if one.name == "v")
    found = dict(zip(v.shape, v.strides, strict=True))
    rows = 18 if mode else 6
    one, two, _ = np.zeros((2, 64, rows) if iperm else (64, 2, rows), np.int8).strides
    assert (found[2], found[64]) == ((one, two) if iperm else (two, one))
    assert found[rows] == 1


def test_other_words_beside():
    assert parse("-b=1 -iperm=0 -operm=0", features="sinks").features == "sinks"
    with pytest.raises(BadArgument, match="heads is said by ck= too"):
        parse("-h=4", heads="4")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-bb=2", r"there is no -bb.*; known: mode, b, h"),
        ("b=2", "'b=2' is not -WORD=VALUE"),
        ("-b=1 -b=2", "-b is given twice"),
        ("-b=two", "ck: -b = 'two' is not a whole number"),
        ("-vlayout=x", "-vlayout=x is not r or c"),
        ("-vlayout=c -page_block_size=16", "-vlayout=c of pages"),
        ("-s_kpad=99", "-s_kpad is of packed rows, with -mode=1; otherwise -s_k are"),
        ("-mode=1 -s=9,5 -s_qpad=16,4", "-s_qpad=16,4 is not at least -s=9,5 for each of 2"),
        ("-mode=1 -s=9 -s_qpad=16,16,16", "is not at least -s=9 for each of 2"),
        ("-mode=1 -b=99999999 -s=9 -s_qpad=8", "is not at least -s=9 for each of 99999999"),
        ("-mode=1 -q_eff_lens=3,4", "-q_eff_lens has 2 lengths; that takes -mode=0"),
        ("-s=8 -kv_eff_lens=3", "-kv_eff_lens has 1 lengths"),
        ("-s=8 -kv_eff_lens=3,9", "-kv_eff_lens = '9' is not a whole number from 0 to 8"),
        ("-cache_batch_idx=1", "pages as long as a sequence"),
        ("-prec=int8", "-prec=int8 is not one of fp16, bf16"),
        ("-mask=g:3,4", "-mask=g:3,4 has no counterpart"),
        ("-mask=x", "-mask=x is not one of 0, t, b"),
        ("-mask=t:3", "is not t:LEFT,RIGHT"),
        ("-bias=z", "-bias=z is not one of n, e"),
        ("-s=1,2", "-s has 2 lengths; that takes -mode=1 and -b=2"),
        ("-qscale=mx", "-qscale=mx has no counterpart here; n, pt, bs"),
        ("-prec=fp8 -qscale=bs", "say -prec=fp8bf16"),
        ("-s_knew=-1", "-s_knew = '-1' is not a whole number"),
    ],
)
def test_what_is_unknown_or_has_no_counterpart_is_refused(line, why):
    with pytest.raises(BadArgument, match=why):
        parse(line)


def test_a_file_of_commands(tmp_path):
    file = tmp_path / "smoke"
    file.write_text(
        "./bin/tile_example_fmha_fwd -b=1 -s=64\ntile_example_fmha_fwd -b=2 -s=8 -lse=1\n"
    )
    found = load_problems([str(file)], arch("gfx942")).problems
    assert found == (parse("-b=1 -s=64"), parse("tile_example_fmha_fwd -b=2 -s=8 -lse=1"))


def test_a_list_of_commands(tmp_path):
    file = tmp_path / "ck.csv"
    file.write_text("ck\n-b=1 -h=2 -s=64 -d=64\n-b=2 -h=4 -h_k=1 -s=1 -s_k=99 -d=64 -mask=b\n")
    found = load_problems([str(file)], arch("gfx942"), "attention").problems
    assert [(p.batch, p.kv_heads, p.kv_len) for p in found] == [(1, 2, 64), (2, 1, 99)]
