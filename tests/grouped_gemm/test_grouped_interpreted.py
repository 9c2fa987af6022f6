"""Every grouped GEMM kernel, form, dtype and layout, run on the CPU and compared with float64."""

from __future__ import annotations

import pytest
from grouped_cases import cases, epilogues, label

from tilewright import verify
from tilewright.dispatch import Dispatcher


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_kind_of_kernel_is_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.parametrize("case", epilogues("sm_90"), ids=label)
def test_epilogues_are_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


def test_fnuz_types_are_right():
    dispatcher = Dispatcher(device="mi300x")
    for kernel, problem in cases("gfx942"):
        if kernel.dtype_a == "e4m3fnuz" and kernel.dtype_c == "bf16":
            result = verify.verify(dispatcher, problem, kernel.name)
            assert result.ok, (kernel.name, result)
