"""HSTU's attention of jagged sequences, forward and backward: 8,192 to 131,072 rows of 64 to 512
sequences. torch's form holds all scores of padded sequences, several times; the sizes of the page
that it has no memory for are among those that the page states alone (`-stated`), where they are
left out and said."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from cases import Case
from declared_cases import Ranges, cases_of
from tilewright.dtypes import DTYPES

SIZES = {"rows": (8192, 131072, 1), "bounds": (65, 513, 1)}
RANGES: Ranges = dict.fromkeys(("hstu_attention", "hstu_attention_backward"), SIZES)

HELD = {"hstu_attention": 4, "hstu_attention_backward": 7}
"""Arrays as large as all scores that torch's calls hold at once."""
MOST_HELD = 1 << 36


def is_held(problem: Any) -> bool:
    """Whether a GPU of 80 GB has memory for torch's form."""
    sequences = problem.bounds - 1
    longest = min(problem.rows, -(-2 * problem.rows // sequences))
    scores = sequences * problem.heads * longest**2 * DTYPES[problem.dtype].bytes
    return bool(HELD[problem.family] * scores <= MOST_HELD)


def held(case: Case) -> list[Any]:
    return [problem for problem in case.problems() if is_held(problem)]


CASES = tuple(
    case if case.apart == "-stated" else replace(case, problems=partial(held, case))
    for case in cases_of(RANGES)
)
