"""What a call passes: keywords, operands by name, outputs in order, and who may share memory."""

from __future__ import annotations

import math
import sys
from decimal import Decimal
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from blend_family import BlendProblem, NumpyDispatcher, known
from tilewright import arrays, calls
from tilewright.errors import BadArgument

BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def family():
    with known() as found:
        yield found


def floats(n=8, kind=np.float32):
    return np.arange(n).astype(kind)


def spoken(outputs=0, **keywords):
    return calls.spoken("blend", keywords, outputs)


def read(family, *operands, out=None, **keywords):
    return calls.read(family, None, operands, spoken(len(out or ()), **keywords), out)


# --- keywords -----------------------------------------------------------------------------------


def test_keywords_are_operands_scalars_or_options():
    mask = floats()
    said = spoken(shift=3, way="other", mask=mask, scale=2.0)
    assert list(said.named) == ["mask"] and said.named["mask"] is mask
    assert said.scalars == (2.0, 3, None, None) and said.options == {"way": "other"}


def test_a_keyword_that_is_none_is_left_out():
    said = spoken(scale=1.0, shift=None, way=None, mask=None)
    assert said == spoken(scale=1.0)
    assert said.scalars == (1.0, None, None, None) and said.named == said.options == {}


def test_what_tells_calls_apart_is_all_but_arrays_and_scalars():
    plain = spoken(scale=1.0)
    assert plain.what == spoken(scale=2.0).what == "blend"
    with_mask, other_way = spoken(mask=floats()), spoken(way="other")
    assert with_mask.what == spoken(mask=floats(16), scale=2.0).what
    apart = [plain.what, with_mask.what, other_way.what, spoken(way="more").what, spoken(2).what]
    assert len(set(apart)) == len(apart)


def test_words_are_sorted_once_and_arrays_never_kept():
    assert spoken(way=("a", 1, None), scale=2.0) is spoken(way=("a", 1, None), scale=2.0)
    assert spoken(way="a") is not spoken(1, way="a")
    mask = floats()
    for keywords in ({"mask": mask}, {"way": (mask,)}):
        kept = sys.getrefcount(mask)
        spoken(**keywords)
        assert sys.getrefcount(mask) == kept


def test_the_order_of_keywords_does_not_change_what_a_call_states(family):
    mask = floats()
    one = read(family, floats(), floats(), mask=mask, way="other", scale=1.0)
    other = read(family, floats(), floats(), scale=1.0, way="other", mask=mask)
    assert one.problem == other.problem and one.names == other.names


def test_an_option_that_cannot_be_hashed_is_the_familys_to_refuse(family):
    assert spoken(way=["a", "b"]) == spoken(way=("a", "b"))
    assert spoken(sort={"a": 1}).what is None
    with pytest.raises(BadArgument, match="no option sort"):
        read(family, floats(), floats(), sort={"a": 1})


def test_scalars_left_out_have_the_familys_defaults(family):
    problem, unread = BlendProblem(8), {"low": 0.0, "seed": 0}
    values = calls.scalar_values(family, problem, spoken(scale=2.5).scalars)
    assert values == {"scale": 2.5, "shift": 1.0, **unread}
    values = calls.scalar_values(family, problem, spoken(scale=0, shift=0).scalars)
    assert values == {"scale": 0, "shift": 0, **unread}
    with pytest.raises(BadArgument, match="blend needs scale=, a number, at each call"):
        calls.scalar_values(family, problem, spoken(shift=1).scalars)


NUMBERS = (
    (np.float32(0.3), float(np.float32(0.3))), (np.float16(0.5), 0.5), (BF16(0.5), 0.5),
    (np.float64(0.3), 0.3), (np.array(0.25), 0.25), (Fraction(1, 4), 0.25), (Decimal("0.5"), 0.5),
    (np.int64(3), 3), (np.uint8(3), 3), (np.array(3), 3),
)  # fmt: skip


@pytest.mark.parametrize(("given", "own"), NUMBERS, ids=lambda x: type(x).__name__)
def test_numbers_of_other_libraries_are_numbers(given, own):
    said = spoken(scale=given, way=(given, None))
    assert said == spoken(scale=own, way=(own, None))
    assert [type(x) for x in (said.scalars[0], said.options["way"][0])] == [type(own)] * 2


def test_a_tensor_without_dimensions_is_a_number():
    torch = pytest.importorskip("torch")
    said = spoken(scale=torch.tensor(0.5, dtype=torch.bfloat16), shift=torch.tensor(3))
    assert said.scalars == (0.5, 3, None, None)
    with pytest.raises(BadArgument, match="scale requires a gradient"):
        spoken(scale=torch.tensor(0.5, requires_grad=True))
    with torch.no_grad():
        assert spoken(scale=torch.tensor(0.5, requires_grad=True)).scalars[0] == 0.5
    with pytest.raises(BadArgument, match="scale is a Tensor without a value here"):
        spoken(scale=torch.tensor(0.5, device="meta"))
    with pytest.raises(BadArgument, match=r"scale = tensor\(\[0.5.*\]\) is not a number"):
        spoken(scale=torch.tensor([0.5]))


NOT_NUMBERS = (True, np.bool_(True), ".3", b"3", 1j, (1.0,), {}, object())


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: type(value).__name__)
def test_a_scalar_is_a_number(value):
    spoken(scale=1)  # which equals True
    with pytest.raises(BadArgument, match=r"^scale = .* is not a number$"):
        spoken(scale=value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_a_scalar_is_finite_unless_the_family_says_otherwise(value):
    with pytest.raises(BadArgument, match="is not a finite number"):
        spoken(scale=value)
    assert math.isinf(calls.spoken("blend", {"low": -math.inf}, 0).scalars[2])


def test_a_scalar_fits_its_type():
    for value in (1e39, -(10**400)):
        with pytest.raises(BadArgument, match="is too large for fp32"):
            spoken(scale=value)
    assert calls.spoken("blend", {"seed": -(2**63)}, 0).scalars[3] == -(2**63)
    for value in (2**63, -(2**63) - 1, 1.0, True, np.uint64(2**63), "1"):
        with pytest.raises(BadArgument, match=f"not a whole number from -{2**63} to {2**63 - 1}"):
            calls.spoken("blend", {"seed": value}, 0)


def test_zeros_of_either_sign_and_flags_are_not_taken_for_equal_numbers():
    for zero in (0.0, -0.0, 0.0):
        assert math.copysign(1, spoken(scale=zero).scalars[0]) == math.copysign(1, zero)
    for one in (1, True, 1.0, True):
        assert type(spoken(way=one).options["way"]) is type(one)
        assert type(spoken(way=(one, 2)).options["way"][0]) is type(one)


# --- operands -----------------------------------------------------------------------------------


def test_operands_have_names_and_roles(family):
    x, state, mask, y, z = *(floats() for _ in range(4)), floats(kind=BF16)
    given = read(family, x, state, out=(y, z), mask=mask)
    assert given.names == ("x", "state", "mask", "y", "z")
    assert [one.role for one in given.bound] == ["in", "inout", "in", "out", "out"]
    assert [one.bytes for one in given.bound] == [32, 32, 32, 32, 16]
    assert given.written == ("state", "y", "z")
    assert given.problem == BlendProblem(8, mask=True)
    for name, array in zip(given.names, (x, state, mask, y, z), strict=True):
        assert given.by_name[name] is array
    assert given.outputs == (y, z)
    assert [view.address for view in given.target_views] == [y.ctypes.data, z.ctypes.data]


def test_outputs_are_made_each_with_its_dtype(family):
    given = read(family, floats(), floats())
    y, z = given.outputs
    assert (y.dtype, z.dtype, y.shape, z.shape) == (np.float32, BF16, (8,), (8,))
    assert given.written == ("state", "y", "z")


def test_several_outputs_are_returned_as_a_tuple():
    x, state = floats(), np.ones(8, np.float32)
    y, z = NumpyDispatcher().run("blend", x, state, scale=2.0)
    np.testing.assert_array_equal(y, 2 * x + 1)
    np.testing.assert_array_equal(z.astype(np.float32), 2 * x)
    np.testing.assert_array_equal(state, 1 + x)
    mine = floats(), floats(kind=BF16)
    found = NumpyDispatcher().run("blend", x, state, out=mine, scale=2.0, shift=0)
    assert found[0] is mine[0] and found[1] is mine[1]
    np.testing.assert_array_equal(mine[0], 2 * x)


@pytest.mark.parametrize(
    ("operands", "says"),
    [
        (1, r"takes 2 operands by position \(x, state\) and was given 1; pass outputs as out="),
        (3, r"takes 2 operands by position \(x, state\) and was given 3; pass outputs as out="),
    ],
)
def test_a_wrong_number_of_operands_is_refused(family, operands, says):
    with pytest.raises(BadArgument, match=says):
        read(family, *(floats() for _ in range(operands)))


@pytest.mark.parametrize("count", [1, 3])
def test_a_wrong_number_of_outputs_is_refused(family, count):
    outputs = tuple(floats() for _ in range(count))
    with pytest.raises(BadArgument, match=rf"has 2 outputs \(y, z\) but out= has {count}; pass a"):
        read(family, floats(), floats(), out=outputs)


@pytest.mark.parametrize("name", ["masks", "y"])
def test_an_array_under_a_name_that_no_input_has_is_refused(family, name):
    with pytest.raises(BadArgument, match=rf"reads no operand '{name}'; it reads x, state$"):
        read(family, floats(), floats(), **{name: floats()})


def test_an_operand_may_be_passed_by_its_name(family):
    x, state = floats(), floats()
    given = read(family, x, state=state)
    assert given.by_name["x"] is x and given.by_name["state"] is state


def test_an_argument_that_is_no_array_is_named(family):
    with pytest.raises(BadArgument, match=r"^operand 2 is a list"):
        read(family, floats(), [1.0])
    with pytest.raises(BadArgument, match=r"^mask: elements of type object"):
        read(family, floats(), floats(), mask=np.array([{}]))
    with pytest.raises(BadArgument, match=r"^out is a list"):
        read(family, floats(), floats(), out=(floats(), [1.0]))


def test_a_problems_inputs_go_where_a_call_takes_them(family):
    problem = BlendProblem(8, mask=True, way="other")
    made = family.make_inputs(problem, arrays.Random(1))
    given, keywords = calls.positional(problem, made)
    assert [x is made[name] for x, name in zip(given, ("x", "state"), strict=True)] == [True] * 2
    assert set(keywords) == {"mask", "way", "scale"} and keywords["mask"] is made["mask"]
    assert read(family, *given, **keywords).problem == problem


# --- sharing memory -----------------------------------------------------------------------------


def pieces(*parts):
    """Arrays of 8 floats in one buffer, each at its own place."""
    room = np.zeros(64, np.float32)
    return [room[at : at + 8] for at in parts]


def test_operands_that_are_only_read_may_share_memory(family):
    x, mask, state = pieces(0, 4, 16)
    assert read(family, x, state, mask=mask).problem.mask
    assert read(family, x, state, mask=x).problem.mask


def test_neighbours_in_memory_share_nothing(family):
    x, state, y = pieces(0, 8, 16)
    read(family, x, state, out=(y, floats(kind=BF16)))
    room = np.zeros(16, np.float32)
    read(family, room[::2], floats(), out=(room[1::2], floats(kind=BF16)))


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ((0, 16, 32, 4), r"out \(y\) shares memory with operand x, which the kernel also reads"),
        ((0, 4, 16, 32), "operand state shares memory with operand x, .* also reads"),
        ((0, 16, 16, 32), "operand state shares memory with operand mask, .* also reads"),
        ((0, 16, 32, 18), r"operand state shares memory with out \(y\), .* also writes"),
        ((0, 16, 32, 36), r"out \(y\) shares memory with operand mask, .* also reads"),
    ],
)
def test_what_is_written_shares_memory_with_nothing(family, places, says):
    x, state, mask, y = pieces(*places)
    z = floats(kind=BF16)
    with pytest.raises(BadArgument, match=says):
        read(family, x, state, mask=mask, out=(y, z))


def test_outputs_share_no_memory_with_each_other(family):
    y = floats()
    z = y.view(BF16)[:8]
    with pytest.raises(BadArgument, match=r"out \(y\) shares memory with out \(z\), .* writes"):
        read(family, floats(), floats(), out=(y, z))
