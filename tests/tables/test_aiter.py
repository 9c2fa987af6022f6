"""aiter's files: every form is read as the problem that it means."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from aiter_cases import CDNA3, CDNA4, MI300X, MI355X, SPLIT, problems, row_scaled, rows
from table_cases import gemm, row

from tilewright import GemmProblem, ops
from tilewright.errors import BadArgument, BadFile
from tilewright.measure.problems import load_problems
from tilewright.tables.aiter import is_aiter, read_aiter, write_aiter
from tilewright.tables.table import Table

BF16 = """\
gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw
gfx942,304,64,256,512,True,torch.bfloat16,torch.float32,False,False,asm,5,13,7.5,_ZN5aiter_a,0.0,1.1,2.2
gfx950,256,64,256,512,False,torch.bfloat16,torch.bfloat16,False,True,hipblaslt,-1,0,8.25,Cijk_b,0.0,1.1,2.2
gfx942,304,8,256,512,False,torch.float8_e4m3fnuz,torch.bfloat16,True,False,asm,1,0,inf,,1.0,0,0
"""
A8W8 = """\
gfx,cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio
gfx942,80,16,128,256,torch.int8,34,0,20.5,a8w8_rowwise_x,1.02,510.5,0.0
gfx950,256,16,128,256,torch.float8_e4m3fn,79,3,7.5,a8w8_rowwise_y,2.7,1366.7,0.13
"""


LAYER = (
    "cu_num,token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,"
    "use_g1u1,doweight_stage1"
)
RESULTS = "block_m,ksplit,us1,kernelName1,err1,us2,kernelName2,err2,us,run_1stage,tflops,bw,_tag"


def layer(
    cu: int = 304, kind: str = "No", dtype: str = "bfloat16", act: str = "Silu", gate: int = 1,
    first: int = 0, weights: str = "",
) -> str:  # fmt: skip
    """A layer of 6 rows, each to 2 of 8 experts, 256 wide outside and 96 inside."""
    return (
        f"{cu},6,256,96,8,2,ActivationType.{act},torch.bfloat16,torch.{dtype},"
        f"torch.{weights or dtype},QuantType.{kind},{gate},{first}"
    )


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def made(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return made


def test_the_bf16_form_is_known_by_its_columns(write: Any) -> None:
    found = read_aiter(write("anything.csv", BF16))
    assert problems(found) == [
        GemmProblem(64, 256, 512, dtype_c="fp32", epilogue="bias"),
        GemmProblem(64, 256, 512, layout="rsr"),
        GemmProblem(8, 256, 512, dtype_a="e4m3fnuz", epilogue="scale"),
    ]
    assert [(str(e.target), e.library, e.kernel, e.us) for e in found] == [
        ("gfx942:304", "asm", "_ZN5aiter_a", 7.5),
        ("gfx950:256", "hipblaslt", "Cijk_b", 8.25),
        ("gfx942:304", "asm", "1", None),  # nothing worked
    ]


def test_a_column_says_the_dtype_where_there_is_one(write: Any) -> None:
    assert problems(read_aiter(write("a8w8_tuned_gemm.csv", A8W8))) == [
        row_scaled(16, 128, 256, "int8"),
        row_scaled(16, 128, 256, "e4m3fn"),
    ]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a8w8_untuned_gemm.csv", row_scaled(16, 128, 256, "int8")),
        ("a8w8_bpreshuffle_untuned_gemm.csv", row_scaled(16, 128, 256, "e4m3fnuz", layout="rsr")),
        (
            "a8w8_bpreshuffle_cktile_tuned_gemm.csv",
            row_scaled(16, 128, 256, "e4m3fnuz", layout="rsr"),
        ),
        (
            "a8w8_blockscale_untuned_gemm_dsv3.csv",
            GemmProblem(
                16, 128, 256, "e4m3fnuz", dtype_c="bf16", scale_a="1x128", scale_b="128x128"
            ),
        ),
        (
            "my_a4w4_blockscale_untuned_gemm.csv",
            GemmProblem(16, 128, 256, "e2m1", scale_a="1x32-e8m0", scale_b="32x1-e8m0"),
        ),
    ],
)
def test_untuned_files_are_known_by_their_names(write: Any, name: str, wanted: Any) -> None:
    path = write(name, "M,N,K\n16,128,256\n")
    (entry,) = read_aiter(path)
    assert entry.problem(CDNA3) == wanted
    assert (entry.target, entry.kernel, entry.us) == (None, "", None)
    assert rows([entry], MI300X, foreign=True) == []


def test_any_form_may_say_the_dtype_of_w(write: Any) -> None:
    path = write("a8w8_blockscale_untuned_gemm.csv", "M,N,K,q_dtype_w\n16,128,256,torch.int8\n")
    (problem,) = problems(read_aiter(path))
    assert (problem.dtype_a, problem.scale_b) == ("int8", "128x128")


def test_batches_have_a_column(write: Any) -> None:
    path = write("bf16_untuned_batched_gemm.csv", "B,M,N,K\n16,128,256,512\n1,8,8,8\n")
    assert problems(read_aiter(path)) == [GemmProblem(128, 256, 512, batch=16), gemm(8, 8, 8)]


BATCHED = """\
gfx,cu_num,B,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio
gfx942,304,16,32,1280,512,28,0,68.5,a8w8_batched_rowwise_x,9.8,246.4,0.0
gfx942,304,1,8,256,512,3,0,9.25,a8w8_batched_rowwise_y,0.2,15.0,0.0
"""


def test_batches_with_scales_share_them_here_and_that_is_said(
    write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = write("gptoss_a8w8_tuned_batched_gemm.csv", BATCHED)
    with caplog.at_level(logging.WARNING, "tilewright"):
        found = read_aiter(path)
    wanted = [row_scaled(32, 1280, 512, "int8", batch=16), row_scaled(8, 256, 512, "int8")]
    assert problems(found) == wanted
    assert wanted[0].extra_shapes == (((32,), "fp32"), ((1280,), "fp32")), "no batch of vectors"
    assert caplog.messages == [
        f"{path}: aiter has scales for each product of a batch; in the problems here all share "
        "one set"
    ]
    assert [r.median_us for r in rows(found, MI300X, foreign=True)] == [68.5, 9.25]


@pytest.mark.parametrize(
    ("titles", "cells", "wanted"),
    [
        (
            "M,N,K,bias,dtype,outdtype,scaleAB",
            "8,16,32,True,torch.bfloat16,torch.bfloat16,False",
            GemmProblem(8, 16, 32, epilogue="bias"),
        ),
        ("M,N,K,bias,dtype", "8,16,32,False,torch.float16", GemmProblem(8, 16, 32, "fp16")),
    ],
)
def test_older_bf16_files_have_fewer_columns(
    write: Any, titles: str, cells: str, wanted: GemmProblem
) -> None:
    path = write("untuned_gemm.csv", f"{titles}\n{cells}\n")
    assert problems(read_aiter(path)) == [wanted]


def test_files_that_aiter_reads_are_read(write: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Spaces, empty columns and lines, titles again in the middle; what is new is said."""
    path = write(
        "bf16_batched.csv",
        "\ufeffM, N ,K,_tag,\n 8,8,8,x,,\n\n,,,\nM,N,K,_tag\n16,8,8,,\n",
    )
    with caplog.at_level(logging.WARNING, "tilewright"):
        found = read_aiter(path, form="bf16")
    assert problems(found) == [gemm(8, 8, 8), gemm(16, 8, 8)]
    assert [entry.where for entry in found] == [f"{path}: line 2", f"{path}: line 6"]
    assert caplog.messages == [f"{path}: not understood and left out: _tag"]


def test_lines_of_architectures_that_are_not_known_here_are_problems_all_the_same(
    write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = write("a8w8_tuned_gemm.csv", A8W8.replace("gfx950", "gfx1350"))
    with caplog.at_level(logging.WARNING, "tilewright"):
        found = read_aiter(path)
    assert len(load_problems([path], CDNA3).problems) == len(found) == 2
    assert rows(found, MI355X, foreign=True) == []
    assert "the architecture of 1 lines (gfx1350); they are problems" in caplog.messages[0]


def old(*units: int) -> str:
    lines = "".join(f"{u},16,128,256,34,0,20.5,a8w8_x,1.0,5.0,0.0\n" for u in units)
    return f"cu_num,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio\n{lines}"


def test_without_gfx_the_target_is_inferred_with_one_warning_or_asked_for(
    write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = write("a8w8_tuned_gemm.csv", old(80, 304, 80, 256))
    with caplog.at_level(logging.WARNING, "tilewright"):
        found = read_aiter(path)
    assert [str(entry.target) for entry in found] == [
        "gfx942:80", "gfx942:304", "gfx942:80", "gfx950:256",
    ]  # fmt: skip
    assert caplog.messages == [
        f"{path} has no column gfx; by its counts of compute units it was taken for "
        "gfx942:80, gfx942:304, gfx950:256"
    ]
    caplog.clear()
    assert {str(e.target) for e in read_aiter(write("a8w8_tuned_gemm.csv", old(96)), gfx="gfx1100")}
    assert not caplog.messages, "it was asked for"
    with pytest.raises(BadFile, match="line 2: there is no gfx, and cu_num 96 does not tell"):
        read_aiter(path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("shapes.csv", "M,N,K\n8,8,8\n", "say the form, one of bf16, bf16_batched, a8w8"),
        ("tuned_fmoe.csv", "M,N,K\n8,8,8\n", "say the form"),
        ("bf16_untuned_batched_gemm.csv", "M,N,K\n8,8,8\n", "has a column B"),
        ("a8w8_untuned_gemm.csv", "M,N,K,bias\n8,8,8,True\n", "form a8w8 has no column bias"),
        ("a8w8_untuned_gemm.csv", "M,N,K\n8,8,8\n8,-8,8\n", "line 3: N = '-8' is not a whole"),
        ("a8w8_untuned_gemm.csv", "M,N,K\n8,8\n", "line 2: 2 cells under 3 titles"),
        ("a8w8_untuned_gemm.csv", "M,N,N\n8,8,8\n", "line 1: every column"),
        ("a8w8_untuned_gemm.csv", "\n\n", "is empty"),
        ("a8w8_untuned_gemm.csv", f"M,N,K\n8,8,{'8' * 200_000}\n", "line 2: field larger"),
        ("a8w8_untuned_gemm.csv", f"M,N,K\n8,8,{'8' * 5_000}\n", "line 2: K = '888"),
        ("f.csv", f"{LAYER}\n{layer()[:-1]}maybe\n", "line 2: doweight_stage1 = 'maybe' is"),
        ("f.csv", f"{LAYER}\n{layer().replace(',6,', ',six,')}\n", "line 2: token = 'six' is n"),
        ("kernels.csv", "knl_name,co_name,tile_m\nx,y,64\n", "lists aiter's assembly kernels"),
        ("gdn.csv", "gfx,cu_num,H,Hg,V\n", "gated delta rules, a linear attention"),
        ("a8w8_tuned_gemm.csv", A8W8.replace("torch.int8", "torch.int9"), "line 2: dtype 'torch.i"),
        ("a8w8_tuned_gemm.csv", A8W8.replace("20.5", "fast"), "line 2: us = 'fast' is not"),
        ("x.csv", BF16.replace("True,False,asm", "maybe,False,asm"), "line 4: scaleAB = 'maybe'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(write: Any, name: str, text: str, said: str) -> None:
    path = write(name, text)
    with pytest.raises(BadFile, match=said) as caught:
        read_aiter(path)
    assert str(path) in str(caught.value)


def grouped(n: int, k: int, dtype: str, epilogue: str, **more: str) -> Any:
    said = {"n": n, "k": k, "dtype_a": dtype, "dtype_c": "bf16", "epilogue": epilogue, **more}
    return ops.family("grouped_gemm").problem_type("contiguous", groups=8, m=12, **said)


FP8 = "float8_e4m3fnuz"
MX = {"scale_a": "1x32-e8m0", "scale_b": "32x1-e8m0"}


@pytest.mark.parametrize(
    ("line", "first", "second"),
    [
        (layer(), ("bf16", "swiglu"), ("bf16", "row_scale")),
        (layer(first=1), ("bf16", "row_scale+swiglu"), ("bf16", "")),
        (layer(gate=0, act="Gelu"), ("bf16", "gelu"), ("bf16", "row_scale")),
        (layer(act="Gelu"), ("bf16", "geglu"), ("bf16", "row_scale")),
        (
            layer(act="Swiglu"),
            ("bf16", "clamped_swiglu_plus"),
            ("bf16", "row_scale"),
        ),
        (
            layer(kind="per_Token", dtype=FP8),
            ("e4m3fnuz", "row_scale+col_scale+swiglu"),
            ("e4m3fnuz", "row_scale+col_scale"),
        ),
        (
            layer(kind="per_Tensor", dtype="int8", first=1),
            ("int8", "row_scale+col_scale+swiglu"),
            ("int8", "col_scale"),
        ),
    ],
)
def test_a_fused_layer_is_two_grouped_products(
    write: Any, line: str, first: tuple[str, str], second: tuple[str, str]
) -> None:
    path = write("untuned_fmoe.csv", f"{LAYER}\n{line}\n")
    width = 96 if ",0,0" in line else 192
    wanted = [grouped(width, 256, *first), grouped(256, 96, *second)]
    assert problems(read_aiter(path)) == wanted
    assert list(load_problems([path], CDNA3).problems) == wanted


@pytest.mark.parametrize(
    ("line", "dtype", "more"),
    [
        (
            layer(kind="per_1x128", dtype=FP8),
            "e4m3fnuz",
            {"scale_a": "1x128", "scale_b": "128x128"},
        ),
        (layer(kind="per_1x32", dtype="float8_e4m3fn"), "e4m3fn", MX),
        (
            layer(kind="per_1x32", dtype="float8_e4m3fn", weights="float4_e2m1fn_x2"),
            "e4m3fn",
            {**MX, "dtype_b": "e2m1"},
        ),
        (layer(kind="per_1x32", dtype="float4_e2m1fn_x2"), "e2m1", MX),
        (
            layer(kind="per_1x128", weights="float8_e4m3fn"),
            "bf16",
            {"dtype_b": "e4m3fn", "scale_b": "128x128"},
        ),
        (
            layer(kind="per_1x32", weights="float4_e2m1fn_x2"),
            "bf16",
            {"dtype_b": "e2m1", "scale_b": "32x1-e8m0"},
        ),
    ],
)
def test_scales_of_blocks_are_those_of_both_products(
    write: Any, line: str, dtype: str, more: dict[str, str]
) -> None:
    path = write("untuned_fmoe.csv", f"{LAYER}\n{line}\n")
    stages = ((192, 256, "swiglu"), (256, 96, "row_scale"))
    wanted = [grouped(n, k, dtype, chain, **more) for n, k, chain in stages]
    assert problems(read_aiter(path)) == wanted


def test_the_stages_of_a_layer_have_times_of_their_own(
    write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    text = (
        f"{LAYER},{RESULTS}\n"
        f"{layer()},32,0,17.5,moe_one,0.0%,14.25,moe_two,0.0%,31.75,0,5.2,26.4,\n"
        f"{layer(first=1)},32,0,40.5,fmoe_all,0.0%,0,,0.0%,40.5,1,5.2,26.4\n"  # and no remark
    )
    with caplog.at_level(logging.WARNING, "tilewright"):
        entries = read_aiter(write("tuned_fmoe.csv", text))
    assert [(e.kernel, e.us) for e in entries] == [
        ("moe_one", 17.5), ("moe_two", 14.25), ("fmoe_all", None), ("", None)
    ]  # fmt: skip
    assert [r.kernel for r in rows(entries, MI300X, foreign=True)] == [
        "aiter.moe_one", "aiter.moe_two"
    ]  # fmt: skip
    assert rows(entries, MI300X) == [] and rows(entries, MI355X, foreign=True) == []
    assert "1 lines: aiter's stages also gather rows" in caplog.text


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (layer(kind="per_128x128", dtype=FP8), "left out: scales 128x128 of torch.float8_e4m3fnuz"),
        (layer(dtype=FP8, weights="int4"), "torch.float8_e4m3fnuz by torch.int4 to torch.bfloat16"),
        (layer().replace(",8,2,", ",8,-1,"), "topk -1: the line is for any number of experts"),
        (
            layer(dtype="float8_e4m3fn", weights="int8"),
            "torch.float8_e4m3fn by torch.int8 to torch.bfloat16",
        ),
    ],
)
def test_layers_that_no_grouped_product_is_are_counted_with_the_reason(
    write: Any, caplog: pytest.LogCaptureFixture, line: str, why: str
) -> None:
    path = write("untuned_fmoe.csv", f"{LAYER}\n{line}\n{layer()}\n{line}\n")
    with caplog.at_level(logging.WARNING, "tilewright"):
        assert len(read_aiter(path)) == 2
    said, _inferred = caplog.messages
    assert said.startswith(f"{path}: 2 lines: left out: ") and why in said


def test_a_gate_that_no_operation_is_leaves_the_product_alone(
    write: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = write("untuned_fmoe.csv", f"{LAYER}\n{layer(act='Situv2', first=1)}\n")
    with caplog.at_level(logging.WARNING, "tilewright"):
        first, _ = problems(read_aiter(path))
    assert first == grouped(192, 256, "bf16", "row_scale")
    assert "1 lines: activation Situv2 of a gate has no operation here" in caplog.text


def test_batches_with_block_scales_say_that_there_are_none_here(write: Any) -> None:
    path = write("x.csv", "gfx,b,m,n,k,libtype,us,kernelName\ngfx950,2,1,1024,512,opus,7.5,bmm\n")
    assert is_aiter(["gfx", "b", "m", "n", "k"])
    (entry,) = read_aiter(path)
    assert (entry.us, entry.kernel) == (7.5, "bmm")
    with pytest.raises(BadFile, match="line 2: operands with block scales have no batches"):
        entry.problem(CDNA4)


def test_the_oldest_int8_table_is_read_and_not_written(write: Any) -> None:
    text = "M,N,K,bias,outdtype,splitK,us\n8,256,512,True,torch.bfloat16,0,9.5\n"
    (entry,) = read_aiter(write("asm_a8w8_gemm.csv", text))
    chain = "row_scale+col_scale+bias"
    assert entry.problem(CDNA3) == row_scaled(8, 256, 512, "int8", layout="rsr", epilogue=chain)
    assert entry.us == 9.5 and rows([entry], MI300X, foreign=True) == [], "of an unknown GPU"
    (left,) = write_aiter([row(entry.problem(CDNA3), SPLIT)], "a8w8_asm").left
    assert left[1] == "a file of form a8w8_asm names no kernels"


def test_a_problem_that_is_none_here_says_why(write: Any) -> None:
    path = write("a8w8_blockscale_bpreshuffle_untuned_gemm.csv", "M,N,K\n16,128,256\n")
    with pytest.raises(BadFile, match="line 2: layout rsr, a shuffled B, with block scales"):
        read_aiter(path)[0].problem(CDNA3)
    # Of the same columns, and with W as it lies: what kernels here read.
    (plain,) = problems(read_aiter(path, form="a8w8_blockscale"))
    assert (plain.layout, plain.scale_b) == ("rcr", "128x128")
    with pytest.raises(BadArgument, match="'bf8' is no form of aiter's files; there are bf16"):
        read_aiter(path, form="bf8")


def test_aiters_own_kernels_are_times_to_compare_with(write: Any) -> None:
    entries = read_aiter(write("x.csv", BF16))
    assert rows(entries, MI300X) == [] and not any(entry.ours for entry in entries)
    (found,) = rows(entries, MI300X, foreign=True)
    assert (found.kernel, found.median_us, found.device) == ("aiter.asm._ZN5aiter_a", 7.5, MI300X)
    assert [r.kernel for r in rows(entries, MI355X, foreign=True)] == ["aiter.hipblaslt.Cijk_b"]
    assert len(Table.of(rows(entries, MI300X, foreign=True))) == 1


def test_they_are_problems_to_tune(write: Any) -> None:
    path = write("bf16_tuned_gemm.csv", BF16)
    assert load_problems([path], CDNA3).problems == tuple(problems(read_aiter(path)))
    plain = write("a8w8_untuned_gemm.csv", "M,N,K\n16,128,256\n")
    (found,) = load_problems([plain], CDNA3, words={"dtype": "fp8", "layout": "rcr"}).problems
    assert found == row_scaled(16, 128, 256, "e4m3fnuz"), "no column says the dtype"
    assert is_aiter(["M", " N", "K", "B"]) and not is_aiter(["m", "n", "k"])
