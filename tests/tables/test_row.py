"""Rows: what they may say, how they are written, and which kernel is the winner."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from table_cases import DEEP, H200, PLAIN, WIDE, gemm, kernel, row

from tilewright.errors import BadArgument, BadFile, UnknownName
from tilewright.ops.gemm import FAMILY
from tilewright.ops.grouped_gemm import GroupedGemmProblem
from tilewright.tables.row import meant, preference, said, still_serves
from tilewright.verdict import YES


def test_a_row_knows_its_rates():
    one = row(gemm(512), us=10.0)
    assert one.tflops == pytest.approx(2 * 512**3 / 10.0 / 1e6)
    assert one.gb_per_s == pytest.approx(3 * 512 * 512 * 2 / 10.0 / 1e3)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"median_us": 0.0, "interval_us": (0.0, 0.0)}, "low_us = 0.0 is not a number from 1e-06"),
        ({"median_us": float("nan")}, "median_us = nan"),
        ({"median_us": 5e-324, "interval_us": (5e-324, 1.0)}, "low_us = 5e-324"),
        ({"interval_us": (9.0, float("inf"))}, "high_us = inf"),
        ({"median_us": "10", "interval_us": ("9", "11")}, "low_us = '9' is not a number"),
        ({"median_us": 1.0, "interval_us": (0.0, 2.0)}, "low_us = 0.0"),
        ({"interval_us": (11.0, 12.0)}, "no interval"),
        ({"kernel": ""}, "not different names"),
        ({"ties": (PLAIN,)}, "not different names"),
        ({"ties": (WIDE, WIDE)}, "not different names"),
        ({"ours": PLAIN}, "is the winner or a tie"),
        ({"ties": (WIDE,), "ours": WIDE}, "is the winner or a tie"),
        ({"error": -1.0}, "error = -1.0"),
        ({"versions": (("triton", "3"), ("tilewright", "0"))}, "in the order"),
    ],
)
def test_numbers_that_no_measurement_gives_are_refused(fields, says):
    with pytest.raises(BadArgument, match=says):
        replace(row(gemm(64)), **fields)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (gemm(33), {"m", "n", "k"}),
        (gemm(64, batch=3, epilogue="bias+gelu", stride_a=0), {"epilogue", "stride_a"}),
        (gemm(64, dtype_a="int8"), {"dtype_a"}),
        (GroupedGemmProblem("list", sizes=((1, 64, 64), (7, 128, 64))), {"sizes"}),
        (GroupedGemmProblem("contiguous", groups=8, m=100, n=512, k=256, bounds=True), {"bounds"}),
    ],
)
def test_a_problem_is_said_by_what_does_not_follow_from_the_rest(problem, words):
    told = json.loads(json.dumps(said(problem)))
    assert meant(told, "here") == problem
    assert words <= told.keys() and len(told) <= 8
    for name in told.keys() - {"family"}:
        rest = {key: value for key, value in told.items() if key != name}
        with suppress(BadFile):
            assert meant(rest, "here") != problem


def test_who_is_preferred_needs_no_workspace_and_is_then_the_first_by_name():
    linear = kernel(scheduler="split_k", split_k=2, reduction="linear")
    first = preference(gemm(512), H200)
    assert linear < PLAIN and sorted((linear, WIDE, PLAIN, DEEP), key=first) == [
        *sorted((PLAIN, WIDE, DEEP)), linear,
    ]  # fmt: skip
    with pytest.raises(UnknownName):
        first("gemm_of_old")


def test_a_kernel_still_serves_if_it_may_be_built_here_and_computes_the_rows_problem(monkeypatch):
    assert still_serves(PLAIN, row(gemm(64)))
    assert still_serves("gemm_of_old", row(gemm(64))).rule == "no_such_kernel"
    assert still_serves(kernel(pad_k=False), row(gemm(64, k=520))).rule == "divisibility"
    # A family whose `supports` takes it that the config may be built.
    monkeypatch.setattr(type(FAMILY), "supports", lambda *asked: YES)
    illegal = kernel(num_stages=9, tile_m=256, tile_n=256)
    assert still_serves(illegal, row(gemm(64))).rule == "registers"
