"""Convolutions of all kinds: for property tests, and drawn from a seed for the kernels."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import assume
from hypothesis import strategies as st

from tilewright.errors import BadArgument
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.problem import DIRECTIONS
from tilewright.ops.conv.stated import first_strides

EPILOGUES = ("", "", "bias", "bias+relu", "scale+bias+silu", "col_scale+bias", "add", "clamp")


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    """Any that is valid, of small sizes."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    groups = draw(st.integers(1, 4))
    direction = draw(st.sampled_from(sorted(DIRECTIONS)))
    said = {
        "n": draw(st.integers(0, 3)), "c": groups * draw(st.integers(0, 9)),
        "k": groups * draw(st.integers(0, 9)), "spatial": each(0, 12), "filter": each(1, 5),
        "groups": groups, "stride": each(1, 4), "dilation": each(1, 4), "pad": each(-2, 5),
        "pad_after": each(-2, 5), "direction": direction,
        "dtype": draw(st.sampled_from(("bf16", "fp16", "fp32", "int8", "e4m3fn"))),
        "alignment": draw(st.sampled_from((1, 2, 4, 8, 16))),
    }  # fmt: skip
    if direction != "weights":
        said["epilogue"] = draw(st.sampled_from(EPILOGUES))
    if said["dtype"] == "fp32":
        said["precision"] = draw(st.sampled_from(("ieee", "tf32")))
    try:
        found = ConvProblem(**said)
        if draw(st.booleans()):
            found = replace(found, **first_strides(found))
        return found
    except BadArgument:
        assume(False)
        raise


def drawn(seed: int) -> ConvProblem:
    """A problem that the interpreter computes in a moment."""
    rng = random.Random(seed)
    while True:
        rank = rng.choice((1, 2, 2, 3))
        most = {1: 40, 2: 9, 3: 5}[rank]

        def each(low: int, high: int, rank: int = rank) -> tuple[int, ...]:
            return tuple(rng.randint(low, high) for _ in range(rank))

        direction = rng.choice((*DIRECTIONS,))
        groups = rng.choice((1, 1, 2, 3, 8))
        c, k = (groups * rng.choice((1, 3, 8, 17)) for _ in "ck")
        if rng.random() < 0.3:
            groups = c = k = rng.choice((5, 16, 40))
        dtypes = ("bf16", "fp16", "fp32")
        dtype = rng.choice((*dtypes, "int8", "e4m3fn") if direction == "forward" else dtypes)
        pad = each(-1, 3)
        try:
            found = ConvProblem(
                rng.randint(1, 3), c, k, each(1, most), each(1, 4), groups, each(1, 3), pad,
                tuple(max(-1, p + rng.choice((0, 0, 1, -1))) for p in pad), each(1, 3), direction,
                dtype,
                precision=rng.choice(("ieee", "tf32")) if dtype == "fp32" else "ieee",
                epilogue="" if direction == "weights" else rng.choice(EPILOGUES),
            )  # fmt: skip
        except BadArgument:
            continue
        if rng.random() < 0.3:
            found = replace(found, **first_strides(found))
        return found
