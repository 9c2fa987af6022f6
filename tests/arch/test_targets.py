"""Lists of what to build for: how they are read, and that they mean the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.arch import Device, archs, devices
from tilewright.arch.targets import VARIABLES, Target, parse, targets
from tilewright.errors import BadArgument, NoDriver, UnknownArch

MI300X, H200 = devices()["mi300x"], devices()["h200_sxm"]


def none() -> Sequence[Device]:
    raise NoDriver("libcuda.so.1 is not installed")


def never() -> Sequence[Device]:
    raise AssertionError("a GPU was looked for")


names = st.sampled_from(archs())
space = st.text(" \t", max_size=2)
items = st.builds(Target, names, st.one_of(st.none(), st.integers(1, 999)))


@given(st.lists(st.tuples(items, space, space, st.booleans()), min_size=1), st.integers(0, 3))
def test_what_is_listed_is_read(said: list, extra: int) -> None:
    """Trimmed, in any case, in order, each once, between any number of separators of both kinds."""
    words = [a + (str(t).upper() if upper else str(t)) + b for t, a, b, upper in said]
    for separator in ";,":
        text = ";" * extra + separator.join(words) + "," * extra
        assert parse(text, never) == tuple(dict.fromkeys(t for t, *_ in said))


@given(st.text(max_size=30))
def test_any_text_gives_targets_or_one_of_the_errors(text: str) -> None:
    try:
        found = parse(text, none)
    except (BadArgument, NoDriver) as error:
        known = isinstance(error, BadArgument) and "0 compute units" not in str(error)
        assert all(name in str(error) for name in archs()) or not known
        return
    assert found and {t.arch for t in found} <= set(archs())
    assert parse(";".join(map(str, found)), never) == found


def test_all_is_every_architecture_once() -> None:
    every = tuple(map(Target, archs()))
    assert parse("ALL", never) == every
    assert parse("gfx942:304, all", never) == (Target("gfx942", 304), *every)


@given(st.text("; ,\t", min_size=1).filter(lambda text: ";" in text or "," in text))
def test_separators_alone_are_an_error_that_lists_the_known(text: str) -> None:
    with pytest.raises(BadArgument, match=r"separators.*gfx942, gfx950.*native"):
        parse(text, never)


def test_an_unknown_architecture_lists_the_known() -> None:
    with pytest.raises(UnknownArch, match=r"'gfx943'; known: gfx1100.*or native"):
        parse("gfx942;gfx943", never)
    for bad in ("gfx942:x", "gfx942:-1", "gfx942:304:304", "gfx942|gfx950", "gfx942 gfx950"):
        with pytest.raises(BadArgument, match="known: gfx1100"):
            parse(bad, never)
    with pytest.raises(BadArgument, match="0 compute units"):
        parse("gfx942:0", never)


def test_the_words_of_compilers_and_drivers() -> None:
    assert parse("sm90;SM_90a; gfx942:sramecc+:xnack-:304", never) == (
        Target("sm_90"),
        Target("gfx942", 304),
    )


@pytest.mark.parametrize("word", ["native", "NATIVE", " Native ", "", "  "])
def test_native_is_the_gpus_that_are_here_by_their_compute_units(word: str) -> None:
    assert parse(word, lambda: [MI300X, MI300X, H200]) == (
        Target("gfx942", 304),
        Target("sm_90", 132),
    )


def test_native_among_others() -> None:
    assert parse("gfx950;native;gfx942:304", lambda: [MI300X]) == (
        Target("gfx950"),
        Target("gfx942", 304),
    )


def test_no_gpu_and_no_list_says_both_ways_out() -> None:
    with pytest.raises(NoDriver, match=r"TILEWRIGHT_ARCHS.*--arch.*driver visible"):
        targets({}, none)
    with pytest.raises(NoDriver, match=r"^GPU_ARCHS: .*TILEWRIGHT_ARCHS"):
        targets({"GPU_ARCHS": "native"}, none)


def test_where_the_list_comes_from() -> None:
    ours, rocm = VARIABLES
    assert targets({ours: "gfx950", rocm: "gfx942"}, never) == (Target("gfx950"),)
    assert targets({ours: " ", rocm: "gfx942"}, never) == (Target("gfx942"),)
    with pytest.raises(UnknownArch, match=r"^GPU_ARCHS: "):
        targets({rocm: "gfx12"}, never)


def test_a_list_means_the_same_with_any_gpu_and_without() -> None:
    text = "gfx942;gfx950:256"
    assert targets({"GPU_ARCHS": text}, none) == targets({"GPU_ARCHS": text}, lambda: [H200])


def test_a_target_covers_the_devices_it_says() -> None:
    assert Target("gfx942").covers(MI300X) and Target("gfx942", 304).covers(MI300X)
    assert not Target("gfx942", 80).covers(MI300X) and not Target("sm_90").covers(MI300X)


def test_two_targets_meet_in_a_gpu_that_is_both() -> None:
    some, other, any_ = Target("gfx942", 304), Target("gfx942", 80), Target("gfx942")
    for one, two in ((some, some), (some, any_), (any_, other), (any_, any_)):
        assert one.meets(two) and two.meets(one)
    for one, two in ((some, other), (some, Target("gfx950", 304)), (any_, Target("gfx950"))):
        assert not one.meets(two) and not two.meets(one)
