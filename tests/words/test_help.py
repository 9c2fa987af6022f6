"""The families' words for the help are words that the families read."""

from __future__ import annotations

import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.cli import vocabulary
from tilewright.measure.filters import Filters
from tilewright.ops.help import helps

SIZES = {"large", "small", "tiny", "few", "odd"}


@pytest.mark.parametrize("name", helps())
def test_examples_are_problems_and_conditions(name):
    family, said = ops.family(name), helps()[name]
    assert {*said.problems} == SIZES
    for text in said.problems.values():
        words = dict(pair.split("=", 1) for pair in text.split())
        problem = family.parse_problem(words, arch("sm_90"))
    space = family.default_space(problem, arch("sm_90"))
    assert Filters(where=said.where).apply(space.expand("sm_90").configs)[0]


def test_the_vocabulary_is_every_familys_and_fits_a_terminal():
    text = vocabulary.as_text()
    for said in helps().values():
        for here, theirs, meaning in said.vocabulary:
            assert f"{here:<11}{theirs:<22}{meaning}" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_examples_are_one_familys():
    assert [name for name, said in helps().items() if said.usual] == [vocabulary.FAMILY]
