"""Depthwise filters as bands of matrices: what the rules refuse, how pixels are cut, the kernels in
the simulation, faults put into them, and what they are built to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sim_language as language

from simulate import worst_error
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.pipelines import bands

FAMILY = ops.family("conv")
SM_90 = arch("sm_90")
H200 = device("h200")
TWO = replace(H200, compute_units=2)
CONVNEXT = ConvProblem(128, 96, 96, (56, 56), (7, 7), 96, pad=(3, 3))
ODD = ConvProblem(3, 40, 40, (7, 19), (3, 3), 40, pad=(1, 1))


def configs(p: ConvProblem):
    """The configs of the pipeline that serve `p`."""
    spaces = FAMILY.tuning_spaces(p, SM_90)
    found = dict.fromkeys(c for space in spaces for c in space.expand(SM_90).configs)
    return [c for c in found if c.pipeline == bands.PIPELINE and FAMILY.supports(c, p, SM_90)]


@pytest.fixture(autouse=True)
def _functions_with_these_names(monkeypatch):
    """Faults replace what kernels call, so functions take their names anew."""
    monkeypatch.setattr(language, "known_functions", {})


# --- in the simulation -------------------------------------------------------------------------

CASES = {
    "3x3": ODD,
    "5x5, fp16": replace(ODD, filter=(5, 5), pad=(2, 2), dtype="fp16", dtype_out="fp16"),
    "7x7": replace(ODD, filter=(7, 7), pad=(3, 3), n=2, c=16, k=16, groups=16),
    "unequal": replace(ODD, filter=(2, 9), pad=(0, 5), pad_after=(2, -1)),
    "one image": replace(ODD, n=1, spatial=(3, 131), c=16, k=16, groups=16),
    "many images": replace(ODD, n=17, spatial=(5, 6), c=16, k=16, groups=16),
    "gaps": replace(
        ODD, x_strides=(19200, 1, 1920, 96), y_strides=(19200, 1, 1920, 96),
        w_strides=(19, 1, 6, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
@pytest.mark.parametrize(("number", "case"), [*enumerate(CASES)])
def test_bands_in_the_simulation(number, case, direction):
    """The forms of a workgroup in turn."""
    p = replace(CASES[case], direction=direction)
    found = configs(p)
    c = found[number % len(found)]
    assert worst_error(c, p, TWO, number) <= 1, c.name
