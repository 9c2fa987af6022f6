"""The launcher's recipes: calls that make their outputs, and whose operands are views."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from stand_in_driver import (  # noqa: E402
    LARGE,
    MAP,
    StandIn,
    bound,
    kernel,
    torch_says,
)
from test_known_calls import Subclass  # noqa: E402

from tilewright.ops.nouns import Descriptor, Given, Pointer  # noqa: E402

pytestmark = pytest.mark.usefixtures("native")
ARGUMENTS = (Pointer("a"), Pointer("out"))
MAKER = (torch.empty_strided, ((16, 16), (16, 1)))


def ready(driver, **scalars):
    return bound(driver, ARGUMENTS, LARGE, **scalars).native


def recipe_of(native, launch, makers, sources):
    """Of one launch, which returns all that it makes."""
    return native.recipe(((launch, sources),), makers, len(makers))


def test_outputs_are_made_and_operands_found(native):
    driver, x = StandIn("<Q", "<Q"), torch.zeros(2, 16, 16)
    sources = ((1, 1024, x[1].data_ptr()), (-1, 0, 0))
    recipes = {
        native.signature("op", (None, x)): recipe_of(native, ready(driver), (MAKER,), sources)
    }
    for _ in range(2):
        y = torch.ones(2, 16, 16)
        made = native.repeat(torch_says(), recipes, "op", (None, y), ())
        assert made.shape == (16, 16)
        assert driver.launches[-1]["values"] == [y[1].data_ptr(), made.data_ptr()]
        assert driver.launches[-1]["stream"] == 5


def test_an_output_may_be_passed(native):
    driver, x, out = StandIn("<Q", "<Q"), torch.zeros(16, 16), torch.zeros(1, 16, 16)
    sources = ((0, 0, x.data_ptr()), (1, 0, out.data_ptr()))
    recipes = {native.signature("op", (x, out)): recipe_of(native, ready(driver), (), sources)}
    assert native.repeat(torch_says(), recipes, "op", (x, out), ()) == ()
    assert (x._version, out._version) == (0, 1), "the write is counted"
    assert native.repeat(torch_says(), recipes, "op", (x, x[None]), ()) is None, "it overlaps"
    assert [one["values"] for one in driver.launches] == [[x.data_ptr(), out.data_ptr()]]


def test_other_calls_are_left_to_python(native):
    driver, x = StandIn("<Q", "<Q"), torch.zeros(2, 16, 16)
    made = recipe_of(native, ready(driver), (MAKER,), ((0, 0, x.data_ptr()), (-1, 0, 0)))
    recipes = {native.signature("op", (x, None)): made}
    others = [
        (x,), (x, x), (None, x), (None, None), (x.as_subclass(Subclass), None), (x.half(), None),
        (x[:1], None), (x.transpose(1, 2), None), (torch.zeros(516)[4:].view(2, 16, 16)[:, :], x),
        (torch.zeros(513)[1:].view(2, 16, 16), None), ([1], None), (x.numpy(), None),
    ]  # fmt: skip
    for arrays in others:
        assert native.repeat(torch_says(), recipes, "op", arrays, ()) is None
    assert native.repeat(torch_says(), recipes, "another", (x, None), ()) is None
    assert native.repeat(torch_says(), recipes, "op", (x, None), (1, 2)) is None, "no such scalars"
    wants = x.clone().requires_grad_()
    assert native.repeat(torch_says(grad=True), recipes, "op", (wants, None), ()) is None
    assert not driver.launches
    assert native.repeat(torch_says(), recipes, "op", (wants, None), ()) is not None
    assert len(driver.launches) == 1


def test_an_operand_that_is_aligned_otherwise_is_left_to_python(native):
    """An array at 4 and one at 12 bytes behind a multiple of 16 are aligned alike, their views are
    not."""
    driver, memory = StandIn("<Q", "<Q"), torch.zeros(1024)
    here, there = memory[1:601], memory[3:603]
    sources = ((0, 4, here[1:].data_ptr()), (-1, 0, 0))
    recipe = recipe_of(native, ready(driver), (MAKER,), sources)
    recipes = {native.signature("op", (here,)): recipe}
    assert native.signature("op", (here,)) == native.signature("op", (there,))
    assert native.repeat(torch_says(), recipes, "op", (there,), ()) is None
    assert native.repeat(torch_says(), recipes, "op", (here,), ()) is not None


def test_scalars_are_those_of_the_call_or_all_defaults(native):
    driver, x = StandIn("<Q", "<Q", "<f"), torch.zeros(16, 16)
    launch = bound(
        driver, (*ARGUMENTS, Given("fp32", "scale")), LARGE, given=("scale",),
        defaults={"scale": 2.0},
    )  # fmt: skip
    recipe = recipe_of(native, launch.native, (MAKER,), ((0, 0, x.data_ptr()), (-1, 0, 0)))
    recipes = {native.signature("op", (x,)): recipe}
    for scalars in ((), (3.0,), (None,), (4.0,)):
        assert native.repeat(torch_says(), recipes, "op", (x,), scalars) is not None
    assert [one["values"][2] for one in driver.launches] == [2.0, 3.0, 2.0, 4.0]
    assert native.repeat(torch_says(), recipes, "op", (x,), ("no number",)) is None
    key, _ = native.describe("op", (x, torch.zeros(16, 16)))
    assert native.call(torch_says(), {key: launch.native}, "op", (x, torch.zeros(16, 16)), ()) == 0


def test_a_signature_tells_apart_what_is_there(native):
    x, y = torch.zeros(3), torch.zeros(3)
    given = [(x,), (None, x), (x, None), (x, y), (None, x, None), (), (None,)]
    assert len({native.signature("op", arrays) for arrays in given}) == len(given)
    assert native.signature("op", (x,)) == native.signature("op", (y,))
    assert native.signature("op", (x, 3)) is None


def test_what_a_maker_raises_is_raised(native):
    def full(*_):
        raise MemoryError("full")

    driver, x = StandIn("<Q", "<Q"), torch.zeros(16, 16)
    recipe = recipe_of(native, ready(driver), ((full, ()),), ((0, 0, x.data_ptr()), (-1, 0, 0)))
    with pytest.raises(MemoryError, match="full"):
        native.repeat(torch_says(), {native.signature("op", (x,)): recipe}, "op", (x,), ())
    assert not driver.launches


def test_launches_follow_one_another(native):
    """The second reads what the first makes, which is not returned; each has scalars of its own."""
    driver, x = StandIn("<Q", "<Q", "<f"), torch.zeros(16, 16)
    first, second = (
        bound(driver, (*ARGUMENTS, Given("fp32", name)), LARGE, given=(name,)).native
        for name in ("scale", "shift")
    )
    recipe = native.recipe(
        ((first, ((0, 0, x.data_ptr()), (-2, 0, 0))), (second, ((-2, 0, 0), (-1, 0, 0)))),
        (MAKER, MAKER),
        1,
    )
    recipes = {native.signature("op", (x,)): recipe}
    made = native.repeat(torch_says(), recipes, "op", (x,), (2.0, 3.0))
    one, two = (launched["values"] for launched in driver.launches)
    assert one == [x.data_ptr(), two[0], 2.0]
    assert two == [one[1], made.data_ptr(), 3.0]
    assert native.repeat(torch_says(), recipes, "op", (x,), (2.0,)) is None, "too few scalars"


def test_where_a_later_launch_lacks_a_tensor_map_none_is_queued(native):
    driver, x = StandIn("<Q", "<Q"), torch.zeros(16, 16)
    view = Descriptor("a", "fp32", (16, 16), (16, 1), (8, 8))
    tiled = bound(driver, (view, Pointer("out")), LARGE, built=kernel(MAP))
    sources = ((0, 0, x.data_ptr()), (-1, 0, 0))
    recipe = native.recipe(((ready(driver), sources), (tiled.native, sources)), (MAKER,), 1)
    recipes = {native.signature("op", (x,)): recipe}
    assert native.repeat(torch_says(), recipes, "op", (x,), ()) is None
    assert not driver.launches
    tiled(5, (x.data_ptr(), 0x1000000))
    driver.launches.clear()
    assert native.repeat(torch_says(), recipes, "op", (x,), ()) is not None
    assert len(driver.launches) == 2


def test_a_recorded_call_is_handed_to_its_function(native):
    driver, x = StandIn("<Q", "<Q"), torch.zeros(16, 16)
    given = []

    def function(*all_of_it):
        given.append(all_of_it)
        return (x,)

    recipe = recipe_of(native, ready(driver), (MAKER,), ((1, 0, x.data_ptr()), (-1, 0, 0)))
    wants = x.clone().requires_grad_()
    key = native.signature("op", (None, wants), True)
    recipes = {key: (recipe, function)}
    assert key != native.signature("op", (None, x), True) == native.signature("op", (None, wants))
    assert native.repeat(torch_says(grad=True), recipes, "op", (None, wants), ()) is x
    (scalars, (made,), tensor), (launched,) = *given, driver.launches
    assert scalars == () and tensor is wants and launched["values"][1] == made.data_ptr()
    for grad, array in ((False, wants), (True, x), (False, x)):
        assert native.repeat(torch_says(grad=grad), recipes, "op", (None, array), ()) is None
    inside = torch_says(grad=True, transform="vmap")
    assert native.repeat(inside, recipes, "op", (None, wants), ()) is None
    assert len(driver.launches) == 1


def test_the_arguments_of_a_function_are_split(native):
    x, w = torch.zeros(3), torch.nn.Parameter(torch.zeros(4))
    what, arrays = native.split("f", (x, w, None, (1, 2), "same", 3))
    assert what == ("f", ..., ..., None, (1, 2), "same", 3)
    assert len(arrays) == 2 and arrays[0] is x and arrays[1] is w
    for other in (True, 1.0, (1, True), (1, 1.0), [1], x.numpy(), x.as_subclass(Subclass)):
        assert native.split("f", (x, other)) is None
