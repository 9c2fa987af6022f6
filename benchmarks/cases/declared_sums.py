"""Reductions. Sizes of more than one element that the page's problem has are drawn anew, from 8
elements to 2^26."""

from __future__ import annotations

import random

from declared_cases import Fields, Ranges, between, cases_of

SIZES = ("outer", "far", "middle", "near", "inner")
LEAST, MOST = 8, 1 << 26


def sizes(by_chance: random.Random, fields: Fields) -> Fields:
    """The problem of a page with other sizes, contiguous."""
    drawn = {name: between(by_chance, LEAST, MOST) for name in SIZES if fields[name] > 1}
    return {**{n: value for n, value in fields.items() if not n.endswith("_stride")}, **drawn}


RANGES: Ranges = {"reduction": sizes, "reduction_backward": sizes}

CASES = cases_of(RANGES)
