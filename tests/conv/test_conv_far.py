"""Arrays of 2 GiB and more: kernels count in 64 bits where they must, and tensor maps reach."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from boxed_cases import DENSE, FAMILY, SM_90, configs

from tilewright.arch import device
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.problem import DIRECTIONS
from tilewright.ops.nouns import Descriptor, Scalar

GPU = device("h200")
SCRIPT = Path(__file__).parent / "far_arrays.py"


def lines(*said: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, SCRIPT, *said], capture_output=True, text=True, timeout=600
    )
    assert not ran.returncode, ran.stderr[-2000:]
    return ran.stdout.splitlines()


@pytest.mark.turns(48)
def test_results_are_right_beyond_32_bits():
    """Every kernel through pointers, in every direction, with far images, channels, rows, columns,
    filters and taps; and GEMM's kernel for 1×1."""
    found = lines()
    assert len(found) == 3 + 2 * 14
    assert all(re.fullmatch(r".*: 0\.\d+", line) for line in found), found


@pytest.mark.turns(12)
def test_32_bits_would_not_do():
    found = lines("--narrow")
    assert len(found) == 14
    assert not [line for line in found if re.fullmatch(r".*: 0\.\d+", line)], found


@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
def test_kernels_of_boxes_take_arrays_of_many_gibibytes(direction):
    """Strides are 64-bit in tensor maps, and where the epilogue reads an array."""
    epilogue = "" if direction == "weights" else "add"
    problem = replace(DENSE, n=4096, direction=direction, epilogue=epilogue)
    assert max(problem.spans().values()) >= 2**31
    mine = configs(problem)
    assert mine and all(c.index_bits == 64 for c in mine)
    for c in mine:
        narrow = replace(c, index_bits=32)
        assert FAMILY.supports(narrow, problem, SM_90).rule == "index"
    if direction != "weights":
        kinds = dict(FAMILY.sources(mine[0], SM_90)["main"].signature)
        assert {kinds[f"made_strides.{i}"] for i in range(5)} == {kinds["begin"]} == {"i64"}


def test_tensor_maps_end():
    """Strides are under 2^40 bytes."""
    for stride, fits in ((2**38, True), (2**39, False)):
        problem = replace(DENSE, x_strides=(stride, 1, 4096, 128))
        wide = replace(configs(replace(DENSE, n=4096))[0], box="1x4x16", tile_m=128)
        verdict = FAMILY.supports(wide, problem, SM_90)
        assert bool(verdict) == fits, verdict
        assert fits or "has a stride of 1099511627776 bytes" in verdict.reason


@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
def test_no_argument_is_beyond_its_type(direction):
    """Of every kernel of the space, on arrays just over and far over 2 GiB."""
    for n in (4097, 2**17):
        problem = ConvProblem(n, 128, 128, (32, 32), (3, 3), pad=(1, 1), direction=direction)
        space = FAMILY.default_space(problem, SM_90).expand(SM_90).configs
        mine = [c for c in space if FAMILY.supports(c, problem, SM_90)]
        assert mine
        for c in mine:
            launch = FAMILY.launch(c, problem, GPU)
            for one in (one for step in launch.steps for one in step.arguments):
                if isinstance(one, Scalar) and one.type == "i32":
                    assert -(2**31) <= one.value < 2**31, (c.name, one)
                if isinstance(one, Descriptor):
                    assert all(size < 2**32 for size in one.shape)
