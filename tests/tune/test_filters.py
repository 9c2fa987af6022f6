"""Which kernels a sweep takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tune_cases import CONFIGS, SM90

from tilewright.errors import BadArgument, EmptySpace
from tilewright.measure.filters import Filters, LeftOut
from tilewright.space import KernelSpace

MANY = KernelSpace(
    "gemm", {"tile_m": [16, 64, 128], "tile_n": [32, 64, 128], "tile_k": [32, 64],
             "num_stages": [2, 3], "alignment": [1, 16]},
).expand(SM90).configs  # fmt: skip


def kept(**filters):
    return Filters(**filters).apply(MANY)


def test_without_filters_all_pass():
    assert kept() == (MANY, ())


def test_patterns_of_names():
    found, left = kept(match=("*_64x64x*_al1", "*_16x*_al1"))
    assert found == tuple(
        c for c in MANY if c.alignment == 1 and (c.tile_m == 16 or c.tile_m == c.tile_n == 64)
    )
    assert left == (
        LeftOut(len(MANY) - len(found), "the name does not match *_64x64x*_al1 or *_16x*_al1"),
    )


@pytest.mark.parametrize(
    ("where", "same"),
    [
        ("tile_m >= 64", lambda c: c.tile_m >= 64),
        ("16 < tile_m <= 64 and num_stages == 2", lambda c: c.tile_m == 64 and c.num_stages == 2),
        ("tile_m * tile_n // num_warps > 500", lambda c: c.tile_m * c.tile_n // c.num_warps > 500),
        ("not (tile_k == 32 or alignment == 1)", lambda c: c.tile_k != 32 and c.alignment != 1),
        ("pipeline in ('basic', 'tma') and tile_n not in [64]", lambda c: c.tile_n != 64),
        ("mma == (0, 0, 0) and -tile_m < -64", lambda c: c.tile_m > 64),
        ("'as' in pipeline and pad_m", lambda c: True),
        (" or ".join(f"tile_m == {n}" for n in range(1, 601)), lambda c: c.tile_m <= 600),
        ("tile_m < 1" + "0" * 400, lambda c: True),
    ],
)
def test_expressions_over_fields(where, same):
    assert kept(where=where)[0] == tuple(c for c in MANY if same(c))


@pytest.mark.parametrize(
    "where",
    [
        "__import__('os').system('true')", "tile_m.real", "[c for c in (1,)]", "lambda: 1",
        "tile_m if 1 else 2", "(x := 3)", "tile_m ** 99", "f'{tile_m}'", "{1}", "tile_m[0]",
        "tile_m >= ", "import os", "tile_m; 1", "", " " * 3, "1 << 99", "tile_m is 3", "(" * 5000,
        "tile_m == 1" + " + 1" * 600, "-" * 2000 + "tile_m", "tile_m + " * 10**6 + "1", "1\0",
        "[" * 150 + "]" * 150, "tile_m < 1" + "0" * 5000,
    ],
)  # fmt: skip
def test_nothing_else_can_be_said(where):
    if not where:
        return
    with pytest.raises(BadArgument):
        Filters(where=where)


def test_fields_and_values_that_do_not_fit():
    with pytest.raises(BadArgument, match=r"no field 'tile_x'; they have "):
        kept(where="tile_x > 3")
    with pytest.raises(BadArgument, match="cannot be evaluated for gemm_"):
        kept(where="tile_m > 'a'")
    with pytest.raises(BadArgument, match="arithmetic is for numbers"):
        kept(where="pipeline * 99 == ''")
    with pytest.raises(BadArgument, match=r"cannot be evaluated for gemm_.*too large"):
        kept(where="1" + "0" * 400 + " / tile_m > 1.5")
    with pytest.raises(BadArgument, match="zero"):
        kept(where="tile_m / 0 == 1")
    with pytest.raises(BadArgument, match="at least 1"):
        Filters(max_kernels=0)


@given(st.integers(1, 2 * len(MANY)))
def test_at_most_so_many_evenly_and_always_the_same(count):
    found, left = kept(max_kernels=count)
    assert len(found) == min(count, len(MANY))
    assert found == kept(max_kernels=count)[0]
    places = [MANY.index(c) for c in found]
    assert places == sorted(places)
    assert all(i * len(MANY) // count <= p < (i + 1) * len(MANY) // count or count > len(MANY)
               for i, p in enumerate(places))  # fmt: skip
    assert sum(one.count for one in left) == len(MANY) - len(found)


def test_a_thinned_space_keeps_every_value_of_every_axis():
    found, _ = kept(max_kernels=len(MANY) // 4)
    for axis in ("tile_m", "tile_n", "tile_k", "num_stages", "alignment"):
        assert {getattr(c, axis) for c in found} == {getattr(c, axis) for c in MANY}, axis


def test_filters_apply_in_turn_and_say_so():
    found, left = kept(match=("*_al1",), where="tile_m > 16", max_kernels=3)
    assert len(found) == 3
    assert sum(one.count for one in left) == len(MANY) - 3
    assert [one.why.split()[0] for one in left] == ["the", "not", "at"]


def test_nothing_left_is_an_error_with_the_reasons():
    with pytest.raises(EmptySpace, match=r"no kernel is left.*does not match \*_int8_\*"):
        Filters(match=("*_int8_*",)).apply(CONFIGS)
