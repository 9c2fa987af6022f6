"""Reductions and pooling, on a real GPU: the small problems of the pages' tests, those of models'
sizes, and calls against torch."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright import ops, verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402

pytestmark = pytest.mark.gpu

ROWS = {"far": 1, "middle": 1, "inner": 1}
ALL = dict.fromkeys(("sum", "mean", "norm", "max", "min", "absmax", "argmax", "argmin"), True)
WIDE = {"depth": 1, "height": 224, "width": 224}
LARGE = {
    "reduction": (
        {**ROWS, "outer": 4097, "near": 4096, **ALL},
        {**ROWS, "outer": 1, "near": 5000, "inner": 4096, **ALL},
        {**ROWS, "outer": 1, "near": 2**24 + 16, **ALL, "dtype": "fp32"},
        {**ROWS, "outer": 3, "near": 1000003, "dtype": "fp16", **ALL},
        {**ROWS, "outer": 1, "far": 64, "middle": 256, "near": 3136, **ALL},
        {**ROWS, "outer": 256, "near": 128256, "argmax": True, "max": True},
        {**ROWS, "outer": 100, "near": 9999, "sum": True, "dtype": "int32", "out_dtype": "int64"},
        {**ROWS, "outer": 140000, "near": 16384, "sum": True},  # offsets beyond 2^31
    ),
    "reduction_backward": (
        {**ROWS, "outer": 1, "near": 5000, "inner": 4096, "has_d_max": True, "has_max_at": True},
    ),
    "pool": (
        {**WIDE, "images": 700, "channels": 64, "kernel_w": 2, "stride_w": 2, "stride_h": 2},
        {**WIDE, "images": 1000, "channels": 1, "kernel_h": 5, "pad_h": 2, "index": True},
    ),
}
"""Fields of problems, by operation; besides those that the pages state."""

SMALL = runpy.run_path(str(Path(__file__).parents[1] / "declared" / "cases" / "cases_sums.py"))
PROBLEMS = [
    *(
        ops.family(name).problem_type(**each)
        for cases in (SMALL["CASES"], LARGE)
        for name, listed in cases.items()
        for each in listed
    ),
    *(
        problem
        for name in SMALL["CASES"]
        for problem in ops.family(name).profiles["declared"].problems(arch("sm_90"))
    ),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_is_right(problem, dispatcher):
    for seed in range(2):
        found = verify.verify(dispatcher, problem, seed=seed, device="cuda:0")
        assert found.ok, (problem, found)


@pytest.mark.parametrize("dim", [None, 0, 1, (0, 2, 3)])
def test_a_reduction_is_torchs_and_repeats(dim):
    x = torch.randn(64, 128, 28, 28, device="cuda")
    for view in (x, x.contiguous(memory_format=torch.channels_last)):
        total, most = tw.reduce(view, "sum+max", dim)
        axes = tuple(range(4)) if dim is None else dim
        torch.testing.assert_close(total, x.double().sum(axes).float(), rtol=1e-5, atol=1e-2)
        assert torch.equal(most, x.amax(axes))
        again, _ = tw.reduce(view, "sum+max", dim)
        assert torch.equal(again, total)


@pytest.mark.parametrize("lies", [torch.contiguous_format, torch.channels_last])
def test_pooling_and_its_gradient_are_torchs_and_repeat(lies):
    x = torch.randn(16, 64, 112, 112, device="cuda", dtype=torch.bfloat16).to(memory_format=lies)
    made = []
    for f in (tw.max_pool2d, tw.max_pool2d, torch.nn.functional.max_pool2d):
        one = x.clone().requires_grad_()
        y = f(one, 3, stride=2, padding=1)
        torch.manual_seed(0)
        y.backward(torch.randn(y.shape, device="cuda").to(y.dtype))
        made.append((y, one.grad))
    assert all(map(torch.equal, made[0], made[1]))
    assert torch.equal(made[0][0], made[2][0])
    torch.testing.assert_close(made[0][1], made[2][1], rtol=2e-2, atol=2e-2)
