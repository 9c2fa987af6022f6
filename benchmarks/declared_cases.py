"""Cases of declared operations: the sizes that each page states, and sizes that are drawn anew.

How sizes are drawn: a seed belongs to each operation, its name. One of the page's problems is
taken by chance, and gives everything but the sizes; where the page leaves the element types as
usual, they are all bf16, fp16 or fp32 by chance. Each size is drawn from its range evenly by its
logarithm and rounded up to its multiple. A problem that the operation refuses, that was drawn
before, that a page states, or that moves fewer bytes than `LEAST_BYTES` or more than `MOST_BYTES`
is drawn again. So sizes are from no list.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import rivals
import rivals_declared
import rivals_library
from cases import Case, Part
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.errors import BadArgument

Range = tuple[int, int, int]
"""The least and the most of a size, and what it is a multiple of."""

Fields = dict[str, Any]
Draw = Callable[[random.Random, Fields], Fields]
"""Draws the fields of a problem where its sizes depend on each other. It is given the fields of a
problem that the page states."""

Ranges = Mapping[str, Mapping[str, Range] | Draw]
"""By operation: a range for each size, or what draws them."""

PREFIX = "declared-"
PUBLISHED = "published-"
COUNT = 2
"""Problems that are drawn anew, and those that are taken by chance of the page's. Each takes about
two seconds, and Inductor compiles for each what its autotuning asks for."""
LEAST_BYTES, MOST_BYTES = 1 << 20, 1 << 29
TRIES = 10_000
L2_BYTES = device("h200_sxm").l2_bytes
SECONDS = 0.2
"""Of the samples of one way: there are many problems, and torch's calls may take long."""
DTYPES = ("bf16", "fp16", "fp32")

TORCH = "the fastest of torch's calls, `torch.compile` of them and a library's kernel of the whole"
COMPILED = "`torch.compile` of torch's calls"
COPY = f"{rivals.COPY}, where these are more than an H200's L2 holds"


def between(by_chance: random.Random, least: int, most: int, multiple: int = 1) -> int:
    """A size of a range, evenly by its logarithm."""
    found = round(math.exp(by_chance.uniform(math.log(least), math.log(most))))
    return -(-found // multiple) * multiple


def stated(name: str) -> list[Any]:
    """The problems that an operation's page states, each once."""
    return [*dict.fromkeys(ops.family(name).profiles["declared"].problems(arch("sm_90")))]


def drawn(name: str, ranges: Mapping[str, Range] | Draw, count: int = COUNT) -> list[Any]:
    """Problems of sizes drawn anew: see the module."""
    family: Any = ops.family(name)
    declared = family.declared
    by_chance = random.Random(name)
    found: dict[Any, None] = {}
    known = {*stated(name)}
    few = all(problem.min_bytes < LEAST_BYTES for problem in known)  # which is what it is for
    least = 0 if few else LEAST_BYTES
    for _ in range(TRIES):
        fields = dict(by_chance.choice(declared.problems))
        if "dtype" in declared.dtype_fields and "dtype" not in fields:
            given = {*declared.stated_dtypes, *declared.dtypes}
            passed = [n for n in declared.dtype_fields if n not in given]
            fields = {**dict.fromkeys(passed, by_chance.choice(DTYPES)), **fields}
        if callable(ranges):
            fields = ranges(by_chance, fields)
        else:
            fields = {n: value for n, value in fields.items() if n not in declared.strides}
            fields |= {size: between(by_chance, *ranges[size]) for size in ranges}
        try:
            problem = family.problem_type(**fields)
        except BadArgument:
            continue
        if problem not in known and least <= problem.min_bytes <= MOST_BYTES:
            found[problem] = None
        if len(found) == count:
            return [*found]
    raise ValueError(f"{name}: {TRIES} draws gave {len(found)} problems of {count}")


def some(name: str, ranges: Mapping[str, Range] | Draw) -> list[Any]:
    """`COUNT` of the page's problems by chance, and those drawn."""
    every = stated(name)
    chosen = sorted(random.Random(name).sample(range(len(every)), min(COUNT, len(every))))
    return [*(every[place] for place in chosen), *drawn(name, ranges)]


def _is_drawn(name: str, problem: Any) -> bool:
    return problem not in stated(name)


def _is_large(problem: Any) -> bool:
    return bool(problem.min_bytes > L2_BYTES)


PARTS = (
    Part("compiled", COMPILED, vendor=(rivals_declared.COMPILED,)),
    Part("copy", COPY, vendor=(rivals.COPY,), where=_is_large),
)
"""Of every case."""


def cases_of(ranges: Ranges) -> tuple[Case, ...]:
    """The cases of each operation: by what a dispatcher chooses, by a search, and by what a
    dispatcher chooses for all that the page states."""
    return tuple(case for name, each in ranges.items() for case in _cases(name, each))


def _cases(name: str, ranges: Mapping[str, Range] | Draw) -> Iterator[Case]:
    usual = Case(
        PREFIX + name.replace("_", "-"),
        f"{name}, {COUNT} of the sizes that its page states and {COUNT} drawn anew, by what a "
        "dispatcher chooses: of sizes drawn anew no table has a row",
        TORCH, partial(some, name, ranges), ours="answered",
        vendor=(rivals_declared.eager, rivals_declared.compiled, rivals_library.library),
        beside=(rivals.copy,),
        exact="near", parts=(*PARTS, Part("drawn", TORCH, where=partial(_is_drawn, name))),
        seconds=SECONDS,
        ahead=rivals_declared.compile_ahead,
    )  # fmt: skip
    yield usual
    yield replace(
        usual, name=f"{usual.name}-searched",
        says=f"{name}, the same, by the fastest kernel of its space", ours="searched",
        apart="-searched",
    )  # fmt: skip
    yield replace(
        usual, name=f"{usual.name}-stated",
        says=f"{name}, all sizes that its page states, by what a dispatcher chooses",
        problems=partial(stated, name), parts=PARTS, apart="-stated",
    )  # fmt: skip


def published_case(name: str, sizes: Sequence[Fields]) -> Case:
    """The case of an operation on the sizes of other libraries' own benchmarks."""
    usual = next(_cases(name, {}))
    return replace(
        usual, name=PUBLISHED + name.replace("_", "-"),
        says=f"{name}, sizes that other libraries publish times of, by what a dispatcher chooses",
        problems=lambda: [ops.family(name).problem_type(**fields) for fields in sizes],
        parts=PARTS,
    )  # fmt: skip
