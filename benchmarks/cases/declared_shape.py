"""Moves of elements and chains of operations on them. Orders of dimensions, chains and what is
broadcast are those that the pages' problems have; every dimension has 2 elements to 8,192."""

from __future__ import annotations

import random

from declared_cases import Fields, Ranges, between, cases_of
from tilewright.declared.shape._problems import FIRST, HEADS, LAST, TURNED, permuted

ORDERS = (HEADS, LAST, FIRST, TURNED, (1, 0), (0, 2, 1))
CAST_ORDERS = ((0, 1), (1, 0))
LEAST, MOST = 2, 8192


def moved(by_chance: random.Random, fields: Fields) -> Fields:
    """An order of dimensions, with the element types of a page's problem."""
    more = {n: fields[n] for n in ("dtype", "out_dtype", "has_scale") if n in fields}
    dims = by_chance.choice(CAST_ORDERS if "out_dtype" in more else ORDERS)
    shape = [between(by_chance, LEAST, MOST) for _ in dims]
    return permuted(shape, dims, **more)


def chained(by_chance: random.Random, fields: Fields) -> Fields:
    """The chain of a page's problem on other sizes."""
    wide = [n for n in ("n1", "n2", "n3") if fields[n] > 1]
    return {**fields, **{n: between(by_chance, LEAST, MOST) for n in wide}}


RANGES: Ranges = {"strided_copy": moved, "elementwise_chain": chained}

CASES = cases_of(RANGES)
