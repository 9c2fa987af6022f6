"""Grouped problems as benchdnn's driver matmul writes them."""

from __future__ import annotations

import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument
from tilewright.measure.problems import load_problems
from tilewright.ops.grouped_gemm import GroupedGemmProblem


def parse(line: str) -> GroupedGemmProblem:
    return ops.family("grouped_gemm").parse_problem({"onednn": line}, arch("sm_90"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--matmul --grouped=0:4:8+0+16+8 --dt=bf16 --wtag=acb 32x64:4x64x128",
         GroupedGemmProblem("contiguous", 4, 32, 128, 64)),
        ("--grouped=0:2:8+8:8 --bia-dt=f32 --bia_mask=2 --attr-post-ops=relu --stag=ab --dtag=ab "
         "16x64:2x64x32nmoe",
         GroupedGemmProblem("contiguous", 2, 16, 32, 64, dtype_a="fp32", layout="rrr",
                            epilogue="bias+relu")),
        ("--grouped=1:2:16+48 --dt=bf16:bf16:f32 32x64:64x128",
         GroupedGemmProblem("list", sizes=((32, 128, 16), (32, 128, 48)), dtype_c="fp32",
                            layout="rrr")),
    ],
)  # fmt: skip
def test_lines(line, problem):
    assert parse(line) == problem


def test_a_file_of_both_kinds(tmp_path):
    file = tmp_path / "shapes"
    file.write_text("--matmul --dt=bf16 3x4:4x5\n--grouped=0:2:1+2,0:2:2+1 3x4:2x4x5\n")
    found = load_problems([file], arch("sm_90"))
    assert [problem.family for problem in found.problems] == ["gemm", "grouped_gemm"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--matmul 3x4:4x5", "--grouped='' is not DIM:GROUPS:SIZE"),
        ("--grouped=2:1:3 3x4:1x4x5", "--grouped = '2' is not a whole number from 0 to 1"),
        ("--grouped=0:3:1+2 3x4:3x4x5", "has 2 sizes for 3 groups"),
        ("--grouped=0:2:1+3 3x4:2x4x5", "does not agree with 2 groups of 4"),
        ("--grouped=0:2:1+2 3x4:4x5", "does not agree with 2 groups"),
        ("--grouped=0:2:1+2 3x4", "is not of the form MxK:GxKxN"),
        ("--grouped=0:2:1+2 --wtag=bac 3x4:2x4x5", "weights abc or acb, not ':bac:'"),
        ("--grouped=0:2:1+2 --attr-scales=src:common:2 3x4:2x4x5", "scales and operands of groups"),
        ("--grouped=0:2:1+2 --dt=f16:s8:f16 3x4:2x4x5", "fp16 with int8"),
    ],
)
def test_what_is_refused(line, why):
    with pytest.raises(BadArgument, match=why):
        parse(line)
