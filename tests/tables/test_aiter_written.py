"""Our rows as aiter's files: written in its columns, and read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiter_cases import CDNA3, CDNA4, HOPPER, MI300X, SPLIT, row_scaled, rows
from hypothesis import given
from hypothesis import strategies as st
from table_cases import H200, gemm, row

from tilewright import GemmProblem, ops
from tilewright.arch import device
from tilewright.ops.gemm.formats.aiter import FORMS, Form
from tilewright.tables.aiter import Entry, read_aiter, write_aiter

BLOCKS = "a8w8_blockscale"
WRITTEN = {
    "bf16": [
        gemm(64), gemm(64, epilogue="bias"), gemm(64, dtype_c="fp32"), gemm(64, layout="rsr"),
        gemm(1, 128, 64, dtype_a="fp16", epilogue="scale+bias"),
        gemm(64, dtype_a="e4m3fn", epilogue="scale"),
    ],
    "bf16_batched": [gemm(64), gemm(64, batch=16)],
    "a8w8": [row_scaled(16, 128, 256, d) for d in ("int8", "e4m3fn", "e5m2")],
    "a8w8_batched": [row_scaled(16, 128, 256, "int8", batch=b) for b in (1, 16)],
    "a8w8_bpreshuffle": [row_scaled(16, 128, 256, d, layout="rsr") for d in ("int8", "e4m3fn")],
    BLOCKS: [
        GemmProblem(16, 128, 256, "e4m3fn", scale_a="1x128", scale_b="128x128"),
    ],
    "a4w4_blockscale": [
        GemmProblem(16, 128, 256, "e2m1", scale_a="1x32-e8m0", scale_b="32x1-e8m0"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("form", "on"),
    # An operator that says fp8 means another type on gfx942.
    [(form, on) for form in WRITTEN for on in (H200, MI300X) if (form, on) != (BLOCKS, MI300X)],
    ids=lambda v: getattr(v, "arch", v),
)
def test_our_rows_come_back(tmp_path: Path, form: str, on: Any) -> None:
    stated = [row(p, SPLIT, us=1 / (i + 3), on=on) for i, p in enumerate(WRITTEN[form])]
    written = write_aiter(stated, form)
    assert written.left == () and written.count == len(stated)
    path = tmp_path / f"{form}.csv"
    path.write_text(written.text)
    entries = read_aiter(path, form=form)
    assert all(entry.ours for entry in entries)
    back = rows(entries, on)
    known = {"ties": (), "error": None, "measured_at": "", "versions": (), "timed": "aiter"}
    assert back == [
        replace(r, interval_us=(r.median_us, r.median_us), **known) for r in stated
    ]  # fmt: skip
    assert write_aiter([replace(r, error=0.0) for r in back], form).text == written.text
    assert rows(entries, device("h100_pcie")) == [], "another count of compute units"


COLUMNS = {
    "bf16": "M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,"
    "libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw",
    "bf16_batched": "B,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
    "a8w8": "M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
    "a8w8_batched": "B,M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
    "a8w8_bpreshuffle": "M,N,K,q_dtype_w,"
    "libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
    "a8w8_blockscale": "M,N,K,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
    "a8w8_blockscale_bpreshuffle": "M,N,K,"
    "libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
    "a4w4_blockscale": "M,N,K,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
    "a8w8_blockscale_batched": "b,m,n,k,libtype,kernelId,splitK,us,kernelName,tflops,bw,errRatio",
    "a8w8_asm": "M,N,K,bias,outdtype,splitK,us",
}  # fmt: skip
"""Behind gfx and cu_num, in aiter/configs as of August 2026."""


def test_files_have_aiters_columns_in_aiters_order() -> None:
    assert {name: write_aiter([], name).text for name in FORMS} == {
        name: f"gfx,cu_num,{columns}\n" for name, columns in COLUMNS.items()
    }


NO_PROBLEM = ("a8w8_blockscale_bpreshuffle", "a8w8_blockscale_batched")
STATED = [form for name, form in FORMS.items() if name not in NO_PROBLEM]
SIZES = st.integers(1, 512).map(lambda size: str(64 * size))
DRAWN: dict[str, st.SearchStrategy[str]] = {
    "B": st.integers(1, 64).map(str),
    "M": st.integers(1, 10_000).map(str),
    "N": SIZES,
    "K": SIZES,
    "q_dtype_w": st.sampled_from(["torch.int8", "torch.float8_e4m3fn", "torch.float8_e4m3fnuz"]),
    "dtype": st.sampled_from(["torch.bfloat16", "torch.float16"]),
    "outdtype": st.just("torch.float32"),
    **dict.fromkeys(("bias", "scaleAB", "bpreshuffle"), st.sampled_from(["True", "False"])),
}


@given(st.data(), st.sampled_from(STATED), st.sampled_from([CDNA3, CDNA4, HOPPER]))
def test_any_line_reads_as_a_problem_that_is_written_as_that_line(
    data: st.DataObject, form: Form, this: Any
) -> None:
    cells = data.draw(st.fixed_dictionaries({column: DRAWN[column] for column in form.key}))
    problem = Entry(
        "a line", "gemm", tuple(form.words(cells).items()), otherwise=(("dtype", form.dtype),)
    ).problem(this)
    assert form.cells(problem) == cells


def test_what_stands_in_the_columns() -> None:
    text = write_aiter([row(WRITTEN["a8w8"][0], SPLIT, us=2.0)], "a8w8").text
    assert text == (
        "gfx,cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio\n"
        f"sm_90,132,16,128,256,torch.int8,-1,4,2.0,{SPLIT},0.52,20.77,0.0\n"
    )
    unverified = write_aiter([row(gemm(64), SPLIT, error=None)], "bf16").text.splitlines()[1]
    assert unverified.split(",")[15] == ""


def test_what_a_form_cannot_say_is_handed_back_with_the_reason() -> None:
    grouped = ops.family("grouped_gemm").problem_type("contiguous", 2, 64, 64, 64)
    kept = row(gemm(64), SPLIT)
    wrong = [
        row(gemm(64, epilogue="gelu"), SPLIT),
        row(gemm(64, layout="rrr"), SPLIT),
        row(gemm(64, lda=1024), SPLIT),
        row(gemm(64, alignment=2), SPLIT),
        row(grouped, SPLIT),
        row(gemm(64), "gemm_of_another_time"),
    ]
    written = write_aiter([*wrong, kept], "bf16")
    assert written.count == 1 and [r for r, _ in written.left] == wrong
    whys = [why for _, why in written.left]
    assert all("form bf16 cannot say gemm" in why for why in whys[:4])
    assert "no grouped_gemm" in whys[4] and "is not the name" in whys[5]


@pytest.mark.parametrize(
    "more",
    [
        {"dtype": "e4m3fn"},  # the operator takes int8, and no column says otherwise
        {"batch": 4, "stride_b": 0},  # one W for all
        {"batch": 4, "epilogue": "row_scale+col_scale+bias"},
    ],
)
def test_what_a_batch_with_scales_cannot_say(more: dict[str, Any]) -> None:
    problem = row_scaled(16, 128, 256, **{"dtype": "int8", "batch": 4, **more})
    (left,) = write_aiter([row(problem, SPLIT)], "a8w8_batched").left
    assert left[1].startswith("a file of form a8w8_batched cannot say gemm")
