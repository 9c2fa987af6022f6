"""How far a convolution may be from the reference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tilewright.ops import epilogues
from tilewright.ops.conv.operands import terms
from tilewright.ops.conv.problem import ConvProblem
from tilewright.tolerance import Tolerance, tolerance

_MOST_UNEVEN = 64.0


def tolerances(p: ConvProblem) -> Mapping[str, Tolerance]:
    """How far the output may be from the reference. Parts of a sum over pixels are added in fp32,
    as the sum itself is: they round less often than one workgroup that adds all pixels."""
    dtype = "tf32" if p.precision == "tf32" else p.dtype
    most = max(1, terms(p))
    found = tolerance(dtype, p.dtype_out, most, 1, epilogues.amplification(p.epilogue))
    return {p.output_name: replace(found, scaled=found.scaled * _uneven(p, most))}


def _uneven(p: ConvProblem, most: int) -> float:
    """How much larger the longest sums are than the root mean square of all: near padding, and in
    classes of the strides without taps, sums are short or empty."""
    all_terms = p.pairs * p.group_c * p.k * p.n
    mean = all_terms / max(1, math.prod(p.shape_of(p.output_name)))
    return min(_MOST_UNEVEN, math.sqrt(max(1.0, most / mean))) if mean else 1.0
