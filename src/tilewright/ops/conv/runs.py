"""Runs: the taps of a row of the filter with their channels, of a problem with few channels.

Along the width, the pixels that a pixel of y sees are neighbours in memory, and so are their
channels: filters of S taps and C channels read S·C elements in a row. Their first is
``(q·stride - pad)·C`` elements from the row's begin. Vectors need multiples, so a run begins a few
elements earlier, the same number everywhere: those elements are read, and made zero.
"""

from __future__ import annotations

import math

from tilewright.dtypes import DTYPES
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.pool import Each, most

READ = 16
"""Bytes that channels of y are aligned to in a gradient of weights by runs."""


def refusal(p: ConvProblem) -> str | None:
    """Why the pixels that a row of the filter sees are no run, if so."""
    if p.groups != 1:
        return f"runs are of all channels of a pixel, not of one of {p.groups} groups"
    if p.dilation[-1] != 1:
        return f"runs are of neighbouring pixels, not of a dilation of {p.dilation[-1]}"
    strides = p.strides_of("x")
    if (p.c > 1 and strides[1] != 1) or (p.spatial[-1] > 1 and strides[-1] != p.c):
        return f"pixels of x with strides of {strides} are not neighbours in memory"
    if p.direction == "weights" and p.rows_alignment("y") < READ:
        return f"channels of y are aligned to {p.rows_alignment('y')} bytes, under {READ}"
    return None


def alignment(p: ConvProblem) -> int:
    """Bytes, at most 16, that runs, rows and images of x begin at multiples of, but for the same
    few bytes of each run."""
    size = DTYPES[p.dtype].bytes
    shape, strides = p.shape_of("x"), p.strides_of("x")
    found = math.gcd(p.alignment, p.stride[-1] * p.c * size, p.spatial[-1] * p.c * size)
    for n, stride in (*zip(shape[2:-1], strides[2:-1], strict=True), (shape[0], strides[0])):
        if n > 1:
            found = math.gcd(found, stride * size)
    return found


def alignments(p: ConvProblem) -> tuple[int, int]:
    """Bytes of alignment of runs, and of what is made."""
    return alignment(p), p.rows_alignment(p.output_name)


def sizes(p: ConvProblem, aligned: Each) -> tuple[Each, Each, Each, Each, Each]:
    """In elements: a run with those before its first tap, and rounded up; from a run to that of the
    next pixel; from a row's begin to its first run; a row; those before a run's first tap.

    aligned: bytes that the first four are multiples of.
    """
    width = most(1, aligned // DTYPES[p.dtype].bytes)
    early = -p.pad[-1] * p.c % width
    run = -(-(early + p.filter[-1] * p.c) // width) * width
    return run, p.stride[-1] * p.c, -p.pad[-1] * p.c - early, p.spatial[-1] * p.c, early
