"""The reference: tap by tap, or pixel by pixel."""

from __future__ import annotations

import math
import time

import numpy as np
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


def test_a_filter_of_millions_of_taps_takes_no_step_for_each():
    p = ConvProblem(2, 4, 1, (96,) * 3, (96,) * 3, direction="weights")
    start = time.perf_counter()
    made = reference.reference(p, operands(p) | {"x": np.ones(p.shape_of("x"))})["w"]
    assert made.shape == p.shape_of("w") and time.perf_counter() - start < 20
