"""Declared operations on rows, on a real GPU: the small problems of the pages' tests, and those of
models' sizes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright import ops, verify  # noqa: E402

pytestmark = pytest.mark.gpu

LARGE = {
    "rms_norm": (
        {"rows": 1, "columns": 7168, "has_w": True, "has_residual": True},
        {"rows": 4097, "columns": 4096, "has_w": True, "has_residual": True},
        {"rows": 32768, "columns": 5120, "has_w": True, "w_dtype": "fp32"},
        {"rows": 1000, "columns": 18432, "has_w": True, "quant": "row", "out_dtype": "int8"},
        {"rows": 4096, "columns": 7168, "has_w": True, "quant": "block", "out_dtype": "e4m3fn"},
        {"rows": 8192, "columns": 2048, "quant": "row", "out_dtype": "e4m3fn", "has_smooth": True},
        {"rows": 100000, "columns": 128, "has_w": True, "x_stride": 384},
        {"rows": 2000, "columns": 1024, "x_stride": 1_200_000},  # offsets beyond 2^31
    ),
    "rms_norm_backward": (
        {"rows": 4096, "columns": 4096, "has_w": True, "has_residual": True, "has_dtotal": True},
        {"rows": 16384, "columns": 7168, "has_w": True, "dtype": "fp32", "dy_dtype": "fp32"},
        {"rows": 1000, "columns": 18432, "has_w": True},
        {"rows": 100001, "columns": 128, "has_w": True},
    ),
    "layer_norm": (
        {"rows": 16, "columns": 12288, "has_w": True, "has_b": True, "has_residual": True},
        {"rows": 4097, "columns": 8192, "has_w": True, "has_b": True},
        {"rows": 1000, "columns": 18432, "has_w": True, "quant": "row", "out_dtype": "e4m3fn"},
        {"rows": 50000, "columns": 1024, "has_w": True, "has_b": True, "dtype": "fp32"},
    ),
    "layer_norm_backward": (
        {"rows": 4096, "columns": 4096, "has_w": True, "has_b": True, "has_dtotal": True},
        {"rows": 1000, "columns": 18432, "has_w": True, "has_b": True},
        {"rows": 50000, "columns": 1024, "has_w": True, "has_b": True, "dtype": "fp16"},
    ),
    "quantise_rows": (
        {"rows": 32768, "columns": 7168, "out_dtype": "e4m3fn"},
        {"rows": 4096, "columns": 8192, "quant": "block", "out_dtype": "e4m3fn"},
        {"rows": 4096, "columns": 18432, "has_smooth": True},
    ),
    "quantise_expert_rows": (
        {"tokens": 4096, "columns": 7168, "experts": 256, "slots": 8},
        {"tokens": 1, "columns": 4096, "experts": 8, "slots": 2, "slots_first": True},
    ),
}
"""Fields of problems, by operation."""

SMALL = runpy.run_path(str(Path(__file__).parents[1] / "declared" / "cases" / "cases_rows.py"))
PROBLEMS = [
    ops.family(name).problem_type(**each)
    for table in (SMALL["CASES"], LARGE)
    for name, listed in table.items()
    for each in listed
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_is_right(problem, dispatcher):
    for seed in range(2):
        found = verify.verify(dispatcher, problem, seed=seed, device="cuda:0")
        assert found.ok, (problem, found)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("columns", [4096, 20000])
def test_gradients_repeat_bit_for_bit(name, columns):
    x = torch.randn(3, 700, columns, device="cuda", dtype=torch.bfloat16).requires_grad_()
    w = torch.randn(columns, device="cuda", dtype=torch.bfloat16).requires_grad_()
    dy = torch.randn_like(x)
    made = [torch.autograd.grad(getattr(tw, name)(x, w=w), (x, w), dy) for _ in range(3)]
    for again in made[1:]:
        assert all(map(torch.equal, made[0], again))


@pytest.mark.parametrize("columns", [4096, 20000])
def test_a_mean_far_from_zero_costs_no_digits(columns):
    x = torch.randn(64, columns, device="cuda") + 4096
    expected = torch.nn.functional.layer_norm(x.double(), (columns,))
    assert (tw.layer_norm(x).double() - expected).abs().max() < 2e-3


@pytest.mark.parametrize("quant", ["row", "block"])
def test_what_is_not_a_number_is_no_largest_value(quant):
    x = torch.randn(300, 4096, device="cuda", dtype=torch.bfloat16)
    x[7], x[8, 9] = 0.0, 0.0
    clean, scales = tw.quantise_rows(x, quant=quant, out_dtype="e4m3fn")
    x[8, 9] = float("nan")
    y, found = tw.quantise_rows(x, quant=quant, out_dtype="e4m3fn")
    assert torch.equal(found, scales) and (scales[7] == 1).all()
    assert y[8, 9].float().isnan() and torch.equal(y.float().nan_to_num(), clean.float())
