"""Problems as benchdnn's driver matmul writes them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument
from tilewright.ops.gemm import GemmProblem


def parse(line: str, **words: str) -> GemmProblem:
    return ops.family("gemm").parse_problem({"onednn": line, **words}, arch("sm_90"))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("30x40:40x50", GemmProblem(30, 50, 40, "fp32", layout="rrr")),
        ("--matmul --dt=bf16 --wtag=ba 30x40:40x50:30x50n\"a*3\"", GemmProblem(30, 50, 40)),
        ("--dt=bf16:bf16:f32 --stag=any --wtag=any --dtag=any 30x40:40x50_nfirst",
         GemmProblem(30, 50, 40, dtype_c="fp32")),
        ("--dt=f16 --stag=ba --dtag=ba --runtime_dims_masks=3:3 30x40:40x50",
         GemmProblem(30, 50, 40, "fp16", layout="crc")),
        ("--dt=f16 --strides=64x1:1x48:70x1 30x40:40x50",
         GemmProblem(30, 50, 40, "fp16", layout="rcr", lda=64, ldb=48, ldc=70)),
        ("--dt=f16:s4:f16 30x40:40x50 ".replace("f16 30", "f16 --wtag=any 30"),
         GemmProblem(30, 50, 40, "fp16", "int4", layout="rcr")),
        ("--dt=f8_e4m3:f8_e4m3:bf16 --wtag=ba --attr-scales=src:per_ocic:f32:1x128"
         "+wei:per_ocic:f32:128x128 30x256:256x50",
         GemmProblem(30, 50, 256, "e4m3fn", scale_a="1x128", scale_b="128x128")),
        ("--dt=bf16 --wtag=ba --attr-scales=wei:per_oc+src:common:2 --bia-dt=f32 --bia_mask=2 "
         "--attr-post-ops=gelu_tanh+mul:f32:common+mul:f32:1 30x40:40x50",
         GemmProblem(30, 50, 40, epilogue="col_scale+scale+bias+gelu_tanh+scale+row_scale")),
        ("--dt=f32 --attr-fpmath=tf32 --attr-post-ops=sum --strides=::64x1 30x40:40x50",
         GemmProblem(30, 50, 40, "fp32", layout="rrr", ldc=64, ldd=64, epilogue="add",
                     precision="tf32")),
        ("--dt=f8_e4m3:f8_e4m3:bf16 --wtag=acb --attr-scales=src:per_tensor:f32:1x128+"
         "wei:per_tensor:f32:128x1 1x30x256:1x256x50",
         GemmProblem(30, 50, 256, "e4m3fn", scale_a="1x128", scale_b="128x1")),
        # A bias of mask 0 has one value, and so has a column of one row … of one column.
        ("--dt=bf16 --wtag=ba --bia-dt=bf16 --bia_mask=0 30x40:40x1",
         GemmProblem(30, 1, 40, layout="rrr", epilogue="bias")),
    ],
)  # fmt: skip
def test_lines(line, problem):
    assert parse(line) == problem


def addresses(strides: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """Where each element lies."""
    return sum(np.indices(shape)[at] * stride for at, stride in enumerate(strides))


def operand_addresses(problem: GemmProblem, at: int, shape: tuple[int, ...]) -> np.ndarray:
    """The same of A, B or C as a problem says it, as [batch, rows, columns]."""
    ld = (problem.lda, problem.ldb, problem.ldc)[at]
    each = (ld, 1) if problem.layout[at] == "r" else (1, ld)
    inner = problem.batch_inner or problem.batch
    outer = problem.outer_strides[at] if problem.batching == "nested" else 0
    steps = (outer, problem.batch_strides[at], *each)
    return addresses(steps, (problem.batch // inner, inner, *shape)).reshape(-1, *shape)


@pytest.mark.parametrize(
    ("tags", "orders", "a", "b"),
    [
        ("", ("abc",) * 3, (6, 3, 4), (6, 4, 5)),
        ("--stag=acb --wtag=cab --dtag=bac", ("acb", "cab", "bac"), (6, 3, 4), (6, 4, 5)),
        ("", ("abcd",) * 3, (2, 6, 3, 4), (2, 6, 4, 5)),
        ("", ("abcd",) * 3, (2, 6, 3, 4), (1, 1, 4, 5)),
        ("", ("abcd",) * 3, (2, 6, 3, 4), (2, 1, 4, 5)),
        ("--stag=acbd --wtag=adbc --dtag=acbd", ("acbd", "adbc", "acbd"), (2, 6, 3, 4),
         (2, 6, 4, 5)),
        ("", ("abcde",) * 3, (2, 6, 7, 3, 4), (2, 6, 7, 4, 5)),
        ("", ("abcde",) * 3, (2, 1, 7, 3, 4), (2, 1, 7, 4, 5)),
    ],
)  # fmt: skip
def test_batches(tags, orders, a, b):
    c = (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])
    problem = parse(f"{tags} {'x'.join(map(str, a))}:{'x'.join(map(str, b))}")
    for at, (shape, order) in enumerate(zip((a, b, c), orders, strict=True)):
        axes = ["abcde".index(one) for one in order]
        laid = np.arange(np.prod(shape)).reshape([shape[axis] for axis in axes])
        theirs = np.broadcast_to(laid.transpose(np.argsort(axes)), (*c[:-2], *shape[-2:]))
        ours = operand_addresses(problem, at, shape[-2:])
        assert (ours == theirs.reshape(ours.shape)).all()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("30x40", "'30x40' is not of the form MxK:KxN"),
        (f"{'2x' * 12}2:{'2x' * 12}2", "of 13 dimensions, over 12"),
        ("30x40:41x50", "sizes of source and weights do not agree"),
        ("2x30x40:3x40x50", "sizes of the batch differ"),
        ("30x40:40x50:30x51", "the destination is 30x50"),
        ("--dt=u8:s8:f32 30x40:40x50", "'u8' is no dtype of operands here"),
        ("--dt=f32:f16 30x40:40x50", "is not one dtype, or three"),
        ("--dt=f32:bf16:f32 30x40:40x50", "A is fp32 but B is bf16"),
        ("--conv mb1ic8ih5kh3oc8", "--conv is another operation than matmul"),
        ("--grouped=0:2:10+20 30x40:2x40x50", "--grouped states a problem of grouped_gemm"),
        ("--strides=2x3:: 30x40:40x50", "neither row- nor column-major"),
        ("--stag=AB16b16a 30x40:40x50", "layouts in blocks have no counterpart"),
        ("--attr-scales=wei:per_ocic:f32:64x1 2x30x64:2x64x50", "have no batches"),
        ("--attr-scales=wei:per_ocic:f32:1x64x1 30x64:64x50", "is ROWSxCOLUMNS, not '1x64x1'"),
        ("--attr-scales=dst:mx:e8m0:1x32 30x64:64x64", "'mx' is no mask with a counterpart"),
        ("--attr-dropout=0.5 30x64:64x64", "dropout has no counterpart"),
        ("--bia-dt=f32 --bia_mask=1 30x64:64x64", "an operand of mask 1 has no counterpart"),
        ("--stag=acbde --wtag=bacde --dtag=cabde 2x3x4x5x6:2x3x4x6x7", "3 dimensions of the batch"),
        ("--attr-post-ops=add:f32:3 --dtag=ba 30x64:64x64", "row-major, and the result is not"),
    ],
)
def test_what_is_refused(line, why):
    with pytest.raises(BadArgument, match=why):
        parse(line)
    with pytest.raises(BadArgument, match="m is said by onednn= too"):
        parse("30x40:40x50", m="3")
