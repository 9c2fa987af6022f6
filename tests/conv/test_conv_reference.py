"""The reference: tap by tap, or pixel by pixel."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from conv_problems import problems
from hypothesis import assume, given

from tilewright.ops.conv import ConvProblem, reference


def operands(p: ConvProblem, seed: int = 0):
    """x, w and y by groups; the result is zero."""
    rng = np.random.default_rng(seed)
    shapes = {
        "x": (p.n, p.groups, p.group_c, *p.spatial),
        "w": (p.groups, p.group_k, p.group_c, *p.filter),
        "y": (p.n, p.groups, p.group_k, *p.out_sizes),
    }
    made = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    made[p.output_name][...] = 0
    return made


@given(problems())
def test_taps_and_pixels_give_the_same(p):
    assume(p.taps * math.prod(p.out_sizes) < 20000)
    by_taps, by_pixels = operands(p), operands(p)
    reference._by_taps(p, **by_taps)
    reference._by_pixels(p, **by_pixels)
    assert np.allclose(by_taps[p.output_name], by_pixels[p.output_name])


@pytest.mark.parametrize(
    ("spatial", "filter", "steps"),
    [((24,) * 3, (24,) * 3, 1), ((24, 24), (23, 24), 2), ((24, 24), (3, 2), 6), ((2,), (1,), 1)],
)
def test_there_is_a_step_for_each_tap_or_for_each_pixel_whichever_are_fewer(
    monkeypatch, spatial, filter, steps
):
    p, taken = ConvProblem(2, 4, 1, spatial, filter, direction="weights"), []

    def counted(*axes):
        taken.extend(itertools.product(*axes))
        return taken

    monkeypatch.setattr(reference, "itertools", SimpleNamespace(product=counted))
    inputs = {name: np.ones(p.shape_of(name)) for name in "xwy"}
    made = reference.reference(p, inputs)["w"]
    assert len(taken) == steps
    assert made.shape == p.shape_of("w") and (made == 2 * math.prod(p.out_sizes)).all()
