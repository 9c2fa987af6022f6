"""HSTU's attention of jagged sequences, forward and backward: 8,192 to 131,072 rows of 64 to 512
sequences, in bf16 or fp16. torch's form holds all scores of padded sequences, several times; the
sizes of the page that it has no memory for are among those that the page states alone (`-stated`),
where they are left out and said. Inductor tunes two products of each problem, five of its
gradients, each among some twenty kernels, so a case has two problems."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

from declared_cases import Fields, Ranges, between, cases_of, drawn, stated
from tilewright.declared.attention._tiles import STRIDES
from tilewright.dtypes import DTYPES


def jagged(by_chance: random.Random, fields: Fields) -> Fields:
    """Other rows of other sequences, whose strides follow."""
    named = {n: x for n, x in fields.items() if n not in STRIDES}
    sizes = {"rows": between(by_chance, 8192, 131072), "bounds": between(by_chance, 65, 513)}
    return {**named, **sizes, "dtype": by_chance.choice(("bf16", "fp16"))}


RANGES: Ranges = dict.fromkeys(("hstu_attention", "hstu_attention_backward"), jagged)

HELD = {"hstu_attention": 4, "hstu_attention_backward": 7}
"""Arrays as large as all scores that torch's calls hold at once."""
MOST_HELD = 1 << 34
"""Bytes of them, a fifth of a GPU of 80 GB: it has operands, float64 references and copies too."""


def is_held(problem: Any) -> bool:
    """Whether torch's form holds no more than `MOST_HELD`."""
    sequences = problem.bounds - 1
    longest = min(problem.rows, -(-2 * problem.rows // sequences))
    scores = sequences * problem.heads * longest**2 * DTYPES[problem.dtype].bytes
    return bool(HELD[problem.family] * scores <= MOST_HELD)


def held(name: str) -> list[Any]:
    """The first of the page's problems that torch's form holds, and the first that is drawn."""
    return [next(filter(is_held, some)) for some in (stated(name), drawn(name, jagged))]


CASES = tuple(
    replace(case, problems=partial(held, name)) if case.apart != "-stated" else case
    for name in RANGES
    for case in cases_of({name: jagged})
)
