"""The binder, by a family of its own: from signatures and a catalogue to sources and launches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tilewright.arch import arch, device
from tilewright.errors import BadArgument
from tilewright.ops import binder
from tilewright.ops.binder import Array, Context, Described, Given, Numbers, Part, Tuple, sizes
from tilewright.ops.nouns import Descriptor, Pointer, Scalar
from tilewright.ops.nouns import Given as GivenArgument


@dataclass(frozen=True)
class Config:
    dtype: str = "bf16"
    tile: int = 64
    has_bias: bool = True
    alignment: int = 16


@dataclass(frozen=True)
class Problem:
    rows: int = 100
    strides: tuple[int, int] = (128, 1)


CATALOGUE = {
    "x": Array("dtype", aligned=lambda c: c.alignment, near=lambda c: True),
    "y": Array("fp32", operand=lambda x: "made"),
    "bias": Array("dtype", there=lambda c: c.has_bias),
    "counts": Array(
        "int32",
        shape=lambda x: (x.splits,),
        initial=lambda c: "zero",
        inside=lambda x: "made" if x.splits == 1 else "",
    ),
    "others": Numbers(lambda c: ("i32",) * (c.tile // 64), lambda x: (7,) * (x.config.tile // 64)),
    **sizes("rows"),
    "x_strides": Numbers(("i64", "i32"), lambda x: x.problem.strides, multiples=lambda c: (8, 1)),
    "factor": Given("fp32"),
    "BIAS": lambda c, _: c.has_bias,
    "WIDE": lambda c, arch: arch.warp_size == 64,
}
SCALE = Part(
    name="main",
    kernel="toy_kernels:scale",
    grid=lambda x: -(-x.problem.rows // x.config.tile),
    options=lambda c, arch: (("num_warps", 4),),
)
ADD = replace(
    SCALE,
    name="add",
    kernel="toy_kernels:add",
    grid=lambda x: (2, 3, x.splits),
    there=lambda c: c.has_bias,
)


def source(config=Config(), on="sm_90", part=SCALE):
    return binder.sources([part], CATALOGUE, config, arch(on))[part.name]


def launch(config=Config(), problem=Problem(), parts=(SCALE, ADD), splits=5):
    context = Context(config, problem, device("h200_sxm"), splits=splits)
    return binder.launch(parts, CATALOGUE, context)


def test_the_signature_is_the_kernels():
    found = source()
    assert (found.module, found.function, found.language) == ("toy_kernels", "scale", "triton")
    assert found.signature == (
        ("x", "*bf16"), ("y", "*fp32"), ("bias", "*bf16"), ("counts", "*i32"), ("rows", "i32"),
        ("x_strides.0", "i64"), ("x_strides.1", "i32"), ("factor", "fp32"), ("TILE", "constexpr"),
        ("BIAS", "constexpr"), ("WIDE", "constexpr"),
    )  # fmt: skip
    assert found.constants == (("TILE", 64), ("BIAS", True), ("WIDE", False))
    assert found.options == (("num_warps", 4),)


def test_constants_may_depend_on_the_architecture():
    assert dict(source(on="gfx942").constants)["WIDE"] is True


def test_promises_are_those_of_the_meanings():
    assert dict(source().divisibility) == {"x": 16, "counts": 16, "x_strides.0": 8}
    assert dict(source(Config(alignment=1)).divisibility) == {"counts": 16, "x_strides.0": 8}


def test_short_arrays_are_said_to_be_so_on_amd_alone():
    assert source().pointer_range_32 == ()
    assert source(on="gfx942").pointer_range_32 == ("x",)


def test_gluon_is_known_by_the_decorator():
    assert source(part=ADD).language == "gluon"


TYPES = {"x": "*bf16", "made": "*fp32", "bias": "*bf16", "counts": "*i32"}


@pytest.mark.parametrize("part", [SCALE, ADD], ids=lambda part: part.name)
def test_a_launch_passes_what_the_source_takes(part):
    passed = launch(parts=[part]).steps[0].arguments
    types = [TYPES[one.operand] if isinstance(one, Pointer) else one.type for one in passed]
    assert types == [kind for _, kind in source(part=part).arguments]


def test_values_and_grids():
    first, second = launch().steps
    assert (first.part, first.grid) == ("main", (2, 1, 1))
    assert (second.part, second.grid) == ("add", (2, 3, 5))
    assert first.arguments == (
        Pointer("x"), Pointer("made"), Pointer("bias"), Pointer("counts"), Scalar("i32", 100),
        Scalar("i64", 128), Scalar("i32", 1), GivenArgument("fp32", "factor"),
    )  # fmt: skip


def test_what_a_config_lacks_is_a_constant_and_is_not_passed():
    without = Config(has_bias=False)
    assert ("bias", "constexpr") in source(without).signature
    assert dict(source(without).constants)["bias"] == 0
    assert Pointer("bias") not in launch(without).steps[0].arguments
    assert "add" not in binder.sources([SCALE, ADD], CATALOGUE, without, arch("sm_90"))
    assert [step.part for step in launch(without).steps] == ["main"]


def test_temporaries_are_those_that_steps_point_to():
    (counts,) = launch().temporaries
    assert (counts.name, counts.shape, counts.dtype) == ("counts", (5,), "int32")
    assert counts.initial == "zero"


def test_a_temporary_may_lie_in_an_output():
    assert [one.inside for n in (1, 2) for one in launch(splits=n).temporaries] == ["made", ""]


def test_a_tuple_may_be_empty():
    part = replace(SCALE, kernel="toy_kernels:few")
    assert source(Config(tile=32), part=part).signature == (("x", "*bf16"), ("others", "()"))
    assert launch(Config(tile=32), parts=[part]).steps[0].arguments == (Pointer("x"),)
    assert ("others.0", "i32") in source(part=part).signature


CHAINED = replace(
    SCALE,
    kernel="toy_kernels:chained",
    own={
        "extra": Tuple(
            lambda c: [
                Array("fp32", lambda _: "bias", aligned=lambda _: c.alignment, near=lambda _: True),
                Numbers("i64", lambda x: x.problem.strides[0], multiples=lambda _: 8),
            ][: 2 * c.has_bias]
        ),
        "CHAIN": lambda c, _: ("ops:plus",) * c.has_bias,
        "rows": replace(
            CATALOGUE["rows"], there=lambda c: c.tile > 64, instead=lambda c: c.tile + 1
        ),
    },
)


def test_a_tuple_has_arrays_and_numbers():
    found = source(part=CHAINED, on="gfx942")
    assert found.signature == (
        ("x", "*bf16"), ("extra.0", "*fp32"), ("extra.1", "i64"), ("rows", "constexpr"),
        ("CHAIN", "constexpr"),
    )  # fmt: skip
    assert dict(found.divisibility) == {"x": 16, "extra.0": 16, "extra.1": 8}
    assert found.pointer_range_32 == ("x", "extra.0")
    (step,) = launch(parts=[CHAINED]).steps
    assert step.arguments == (Pointer("x"), Pointer("bias"), Scalar("i64", 128))
    assert ("extra", "()") in source(Config(has_bias=False), part=CHAINED).signature


def test_an_element_of_a_tuple_may_be_a_descriptor():
    part = replace(
        CHAINED,
        boxes=lambda c: {"extra.0": (c.tile,)},
        views=lambda c, p: {"extra.0": Described((p.rows,), (1,))},
    )
    assert ("extra.0", "tensordesc<fp32[64]>") in source(part=part).signature
    assert (
        Descriptor("bias", "fp32", (100,), (1,), (64,)) in launch(parts=[part]).steps[0].arguments
    )


def test_functions_are_constants_that_are_tuples():
    found = source(part=CHAINED)
    assert found.functions == (("CHAIN", ("ops:plus",)),)
    assert "CHAIN" not in dict(found.constants)
    assert source(Config(has_bias=False), part=CHAINED).functions == (("CHAIN", ()),)


def test_a_number_that_a_kernel_does_not_get_may_be_another_constant():
    assert dict(source(part=CHAINED).constants) == {"rows": 65}


def test_workgroups_may_be_a_cluster():
    assert (source().cluster, source(part=replace(SCALE, cluster=lambda c: 4)).cluster) == (1, 4)


def test_a_part_without_workgroups_is_left_out_with_its_temporaries():
    found = launch(problem=Problem(rows=0), parts=[SCALE])
    assert (found.steps, found.temporaries) == ((), ())


def test_descriptors():
    part = replace(
        SCALE,
        boxes=lambda c: {"x": (c.tile, 32)},
        views=lambda c, p: {"x": Described((p.rows, 128), p.strides)},
    )
    assert ("x", "tensordesc<bf16[64, 32]>") in source(part=part).signature
    assert "x" not in dict(source(part=part).divisibility)
    view = launch(parts=[part]).steps[0].arguments[0]
    assert view == Descriptor("x", "bf16", (100, 128), (128, 1), (64, 32))


@pytest.mark.parametrize(("said", "operand"), [("", "made"), ("turned", "turned")])
def test_a_descriptor_views_what_its_array_or_its_view_says(said, operand):
    part = replace(
        SCALE,
        boxes=lambda c: {"y": (c.tile, 32)},
        views=lambda c, p: {"y": Described((p.rows, 128), p.strides, said)},
    )
    view = launch(parts=[part]).steps[0].arguments[1]
    assert (view.operand, view.dtype) == (operand, "fp32")


def test_a_catalogue_may_say_what_a_descriptor_shows_in_each_launch():
    every_other = Array(
        "dtype",
        view=lambda x: Described((50, 128), (256, 1), offset=128 * x.case, steps=(1, 2)),
    )
    part = replace(SCALE, boxes=lambda c: {"x": (c.tile, 32)}, own={"x": every_other})
    odd = binder.launch([part], CATALOGUE, Context(Config(), Problem(), device("h200_sxm"), case=1))
    view = odd.steps[0].arguments[0]
    assert view == Descriptor("x", "bf16", (50, 128), (256, 1), (64, 32), 128, (1, 2))


def test_a_part_may_have_meanings_of_its_own():
    part = replace(SCALE, own={"WIDE": lambda c, _: 7})
    assert dict(source(part=part).constants)["WIDE"] == 7


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("strange", "takes 'columns', which its family's catalogue does not have"),
        ("fixed", "takes 'rows' as a constant, and its family's catalogue has it as an argument"),
        ("unsaid", "takes 'DEPTH', which its family's catalogue does not have"),
        ("plain", "no kernel toy_kernels:plain"),
        ("nothing", "no kernel toy_kernels:nothing"),
    ],
)
def test_a_parameter_without_a_meaning_is_refused(function, said):
    with pytest.raises(BadArgument, match=said):
        source(part=replace(SCALE, kernel=f"toy_kernels:{function}"))
