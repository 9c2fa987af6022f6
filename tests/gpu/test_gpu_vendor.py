"""The vendor's calls compute their problems, and torch takes what `vendor` says that it takes."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from gpu_arch import ARCH

from tilewright import GemmProblem, ops, verify
from tilewright.measure.contenders import results
from tilewright.measure.vendor import vendor_bind
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.conv import ConvProblem

pytestmark = pytest.mark.gpu

BLOCKS = {"dtype_a": "e4m3fn", "dtype_c": "bf16", "scale_a": "1x128", "scale_b": "128x128"}
FP8 = {"dtype_a": "e4m3fn", "dtype_c": "bf16"}
ROWS = {**FP8, "epilogue": "row_scale+col_scale"}
PROBLEMS = [
    GemmProblem(1, 64, 7168),
    GemmProblem(300, 520, 264, "fp16", layout="crr"),
    GemmProblem(64, 96, 128, batch=3, batching="strided"),
    GemmProblem(17, 264, 512, "int8"),
    *(GemmProblem(m, 2112, 7168, **fields)
      for m in (1, 64, 300) for fields in (FP8, {**FP8, "epilogue": "scale"}, ROWS)),
]  # fmt: skip
BLOCK_SCALED = [
    GemmProblem(m, n, k, **BLOCKS, strides_sa=strides)
    for m, n, k in ((4, 16, 512), (64, 2112, 7168), (300, 4096, 1536))
    for strides in ((), (1, m))
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_vendors_call_is_right(problem):
    compute(problem)


@pytest.mark.skipif(ARCH != "sm_90", reason="torch has block scales of 128 for sm_90 only")
@pytest.mark.parametrize("problem", BLOCK_SCALED, ids=lambda p: f"{p} {p.strides_sa}")
def test_the_vendors_call_is_right_with_block_scales(problem):
    compute(problem)


ANSWERED = [
    *PROBLEMS[:3],
    AttentionProblem(2, 4, 130, 200, 64, right=0),
    *(
        ConvProblem(2, 32, 32, groups=groups, spatial=(19, 20), filter=(3, 3), stride=(2, 2),
                    pad=(1, 1), dilation=(1, 1), direction=direction)
        for groups in (1, 2, 32)
        for direction in ("forward", "data", "weights")
    ),
]  # fmt: skip


@pytest.mark.parametrize("problem", ANSWERED, ids=str)
def test_what_answers_while_a_kernel_is_built_is_right(problem):
    (bind, *_) = ops.family(problem.family).stand_in(problem).values()
    compute(problem, bind)


def compute(problem: Any, bind: Any = None) -> None:
    operands = verify.operands_of(problem, 0, "cuda:0")
    bind = bind or vendor_bind(problem)[1]
    returned = bind(operands.inputs, operands.outputs)()
    written = results(problem, operands, returned)
    wanted = verify.reference(problem, operands.inputs)
    check = verify.compare_all(problem, None, written, wanted)
    assert check.ok, check
