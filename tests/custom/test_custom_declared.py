"""What a declaration may say beside the plain: outputs on a condition, rows of any rank, types that
a call states, values that an option may have, and the order of kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewright import ops
from tilewright.arch import arch, device
from tilewright.custom import Declaration, Gradient, In, Out, extents, kernel
from tilewright.custom.family import CustomFamily
from tilewright.custom.fitting import check
from tilewright.custom.kinds import packed
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.nouns import Call, View
from tilewright.tolerance import Tolerance

PLACE = "tilewright.declared.rows.kernels.rms_norm:rms_norm"
H200 = device("h200_sxm")


def declared(**changes: Any) -> Declaration:
    """RMS norm's kernel, as another operation."""
    real = ops.family("rms_norm").declared
    return replace(real, **{"name": "scaled", "gradients": (), **changes})


@pytest.fixture(autouse=True)
def family(monkeypatch: pytest.MonkeyPatch) -> CustomFamily:
    made = CustomFamily(declared())
    monkeypatch.setattr(ops, "_registered", {**ops._registered, "scaled": made})
    return made


def view(*shape: int, dtype: str = "bf16", strides: tuple[int, ...] | None = None) -> View:
    return View(shape, strides or packed(shape), dtype, 4096, "cpu")


def call(*inputs: View, outputs=None, **said: Any) -> Call:
    named = {name: said.pop(name) for name in [*said] if isinstance(said[name], View)}
    return Call(inputs, named, outputs, said)


@pytest.mark.parametrize("ahead", [(), (3,), (2, 3), (2, 1, 3)])
def test_rows_may_have_any_number_of_dimensions(family, ahead):
    count = {(): 1, (3,): 3}.get(ahead, 6)
    asked = call(view(*ahead, 32))
    assert family.problem_of(asked) == family.problem_type(rows=count, columns=32)
    (y,) = family.outputs(asked)
    assert y.shape == (*ahead, 32) and y.strides[-1] == 1
    given = replace(asked, outputs=(view(*ahead, 32),))
    assert family.problem_of(given) == family.problem_of(asked)


def test_rows_must_lie_evenly(family):
    even = view(2, 3, 32, strides=(3 * 40, 40, 1))
    assert family.problem_of(call(even)).x_stride == 40
    with pytest.raises(BadArgument, match=r"first 2 dimensions of x .* do not lie evenly"):
        family.problem_of(call(view(2, 3, 32, strides=(200, 40, 1))))


def test_other_operands_have_as_many_rows(family):
    asked = call(view(2, 3, 32), residual=view(6, 32))
    assert family.problem_of(asked).has_residual
    assert [one.shape for one in family.outputs(asked)] == [(2, 3, 32)] * 2
    with pytest.raises(BadArgument, match="residual of scaled has shape"):
        family.problem_of(call(view(2, 3, 32), residual=view(5, 32)))


def test_an_output_is_there_on_a_condition(family):
    said = {
        "": ["y"],
        "row": ["y", "row_scales"],
        "block": ["y", "block_scales"],
    }
    for quant, names in said.items():
        more = {"quant": quant, "out_dtype": "e4m3fn"} if quant else {}
        asked = call(view(4, 256), **more)
        assert [one.name for one in family.outputs(asked)] == names
        problem = family.problem_of(asked)
        assert [one.name for one in family.operands(problem) if one.written] == names
    with pytest.raises(BadArgument, match="is there when 'norm' is, which is no option"):
        y = Out("*rows", "columns", dtype="out_dtype", when="norm")
        check(declared(operands={**declared().operands, "y": y}))


def test_a_size_is_said_by_a_multiple_of_it():
    """As of an array that has two halves, unless the other half is an operand of its own."""
    halves = "columns * (2 - has_residual)"
    x, residual = In("*rows", halves, strides=("x_stride", 1)), declared().operands["residual"]
    joined = {**declared().operands, "x": x, "residual": residual}
    family = CustomFamily(declared(operands=joined))
    check(declared(operands=joined))
    both = family.problem_of(call(view(2, 3, 64)))
    assert (both.rows, both.columns, both.x_stride) == (6, 32, 64)
    assert family.outputs(call(view(2, 3, 64)))[0].shape == (2, 3, 32)
    apart = family.problem_of(call(view(6, 64), residual=view(6, 64)))
    assert (apart.columns, apart.has_residual) == (64, True)
    assert [one.shape for one in family.operands(apart) if one.name == "x"] == [(6, 64)]
    with pytest.raises(BadArgument, match=r"x of scaled has shape \(6, 65\); .* is 64"):
        family.problem_of(call(view(6, 65)))
    with pytest.raises(BadArgument, match="no operand that is read has the size 'columns'"):
        unsaid = {"x": In("*rows", "columns + 1"), "y": Out("*rows", "columns")}
        check(declared(operands=unsaid, parts=(), axes={}, dtypes={}))


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("k", ("k", 1)),
        ("2 * k", ("k", "2")),
        ("k * (2 - has_b)", ("k", "2 - has_b")),
        ("k * n", ("", 1)),
        ("k + 1", ("", 1)),
        ("k // 2", ("", 1)),
        ("has_b", ("", 1)),
        (3, ("", 1)),
    ],
)
def test_what_an_extent_says(size, says):
    assert extents.said(size, frozenset({"has_b"})) == says


def test_a_call_states_the_type_of_an_output(family):
    assert family.problem_of(call(view(4, 64))).out_dtype == "bf16"
    said = family.problem_of(call(view(4, 64), out_dtype="fp32"))
    assert said.out_dtype == "fp32" and family.options(said) == {"out_dtype": "fp32"}
    assert family.outputs(call(view(4, 64), out_dtype="fp32"))[0].dtype == "fp32"
    given = call(view(4, 64), outputs=(view(4, 64, dtype="fp32"),))
    assert family.problem_of(given) == said
    with pytest.raises(BadArgument, match="given out_dtype = fp16 and an operand of fp32"):
        family.problem_of(replace(given, options={"out_dtype": "fp16"}))
    # The type of an operand that is not there is of no concern to a call.
    assert "out_dtype" in family.keywords() and "w_dtype" not in family.keywords()


def test_types_have_defaults():
    family = CustomFamily(declared(dtypes={"out_dtype": "fp32", "w_dtype": "dtype"}))
    problem = family.problem_type(rows=1, columns=8, dtype="fp16")
    assert (problem.out_dtype, problem.w_dtype) == ("fp32", "fp16")
    family = CustomFamily(declared(dtypes={"dtype": "fp32"}))  # of an operand that calls pass
    assert family.problem_type(rows=1, columns=8).dtype == "fp32"
    with pytest.raises(BadArgument, match="limits= names 'much', which is no scalar"):
        check(declared(limits={"much": (0.0, 1.0)}))
    for wrong in (
        {"dtype": "w_dtype"},
        {"y_dtype": "fp32"},
        {"out_dtype": "z"},
        {"w_dtype": "out_dtype"},
    ):
        with pytest.raises(BadArgument, match="dtypes= gives"):
            check(declared(dtypes=wrong))


def test_values_that_an_option_has_not_are_refused(family):
    with pytest.raises(BadArgument, match="scaled has no quant = 'rows'; there are '', 'row'"):
        family.problem_type(rows=1, columns=8, quant="rows")


def test_fields_that_do_not_fit_together_are_refused(family):
    with pytest.raises(BadArgument, match=r"^scaled: quant = 'row' does not go with out_dtype"):
        family.problem_type(rows=1, columns=8, quant="row")


def test_a_name_may_have_an_empty_word(family):
    config = family.config_type("bf16", "bf16", "bf16", *(False,) * 4, "", False, 16)
    assert family.parse_name(config.name) == config
    with pytest.raises(UnknownName):
        family.parse_name(config.name.replace("quant", "quint"))


def test_values_of_axes_have_the_types_that_are_declared(family):
    this = arch("sm_90")
    right = {**family.axes(), "out_dtype": "float16"}
    assert family.make_config(right, this).out_dtype == "fp16"
    for wrong in ({"BLOCK": "64"}, {"HELD": 1}, {"num_warps": None}, {"quant": 3}, {"dtype": "z"}):
        with pytest.raises(BadArgument, match=r"which is no|unknown dtype"):
            family.make_config({**right, **wrong}, this)
    with pytest.raises(UnknownName):
        family.parse_name(family.make_config(right, this).name.replace("al16", "al" + "9" * 5000))


def test_a_value_that_no_axis_lists_is_ranked_last(family):
    problem, this = family.problem_type(rows=4, columns=100), arch("sm_90")
    first = family.default_space(problem, this).expand(this).configs[0]
    other = replace(first, num_warps=1)
    alike = CustomFamily(declared(prefers=lambda problem, config: 0))
    assert [c for c, _ in alike.rank(problem, [other, first], H200)] == [first, other]


def test_planning_looks_at_the_kernels_that_a_problem_is_narrowed_to(family):
    problem, this = family.problem_type(rows=4, columns=100), arch("sm_90")
    few = family.default_space(problem, this).expand(this).configs
    every = CustomFamily(declared(narrows=lambda problem: {}))
    listed = every.default_space(problem, this).expand(this).configs
    assert {c.BLOCK for c in few} == {128} and len(listed) > 10 * len(few)
    served = {c.name for c in listed if every.supports(c, problem, this)}
    assert served == {c.name for c in few if family.supports(c, problem, this)}


def test_values_of_axes_go_together():
    pairs = {"sm_90": ((256, 4), (1024, 8)), "gfx942": ((512, 4),)}
    one_each = {name: values[:1] for name, values in declared().axes.items()}
    family = CustomFamily(
        declared(
            narrows=lambda problem: one_each | {"HELD": (True,)},
            together=lambda problem, arch: [
                {"BLOCK": block, "num_warps": warps} for block, warps in pairs[arch.name]
            ],
        )
    )
    problem = family.problem_type(rows=4, columns=100)
    for name, expected in pairs.items():
        found = family.default_space(problem, arch(name)).expand(name).configs
        assert {(c.BLOCK, c.num_warps) for c in found} == {*expected}
        assert len(found) == 2 * len(expected)  # of either alignment


def test_what_a_kernel_moves_decides_then_what_is_preferred():
    by_rows = declared(
        moves=lambda problem, config: problem.min_bytes * (2 if config.num_warps == 4 else 1),
        prefers=lambda problem, config: -config.ROWS,
    )
    family = CustomFamily(by_rows)
    problem = family.problem_type(rows=40000, columns=1000)
    this = arch("sm_90")
    configs = family.default_space(problem, this).expand(this).configs
    ranked = family.rank(problem, configs, H200)
    first, estimate = ranked[0]
    assert (first.alignment, first.num_warps, first.ROWS) == (8, 8, 16)
    assert [c.num_warps for c, _ in ranked[-3:]] == [4, 4, 4]
    assert estimate.limiter == "memory"


def test_a_part_is_there_for_some_configs():
    backward = ops.family("rms_norm_backward")
    this = arch("sm_90")
    for has_w, parts in ((True, ["main", "sum"]), (False, ["main"])):
        problem = backward.problem_type(rows=64, columns=256, has_w=has_w)
        config = backward.default_space(problem, this).expand(this).configs[0]
        assert [*backward.sources(config, this)] == parts
        launch = backward.launch(config, problem, H200)
        assert [step.part for step in launch.steps] == parts
        assert [one.name for one in launch.temporaries] == ["dw_parts"][: int(has_w)]


def test_the_fewest_bytes_may_be_stated():
    family = CustomFamily(declared(least=lambda problem: 7 * problem.rows))
    assert family.problem_type(rows=3, columns=8).min_bytes == 21
    usual = CustomFamily(declared()).problem_type(rows=3, columns=8)
    assert usual.min_bytes == 2 * 2 * 3 * 8


def test_tolerances_may_be_stated():
    exact = {"y": Tolerance(0.0, 0.0)}
    family = CustomFamily(declared(tolerances=lambda problem, config: exact))
    assert family.tolerances(family.problem_type(rows=1, columns=8), None) == exact


def test_other_functions_call_the_operation():
    def make(run):
        return lambda x, **more: run(x, **more)

    assert CustomFamily(declared(functions={"norm": make})).functions == {"norm": make}


def gradients(*stated: Gradient, wanted: tuple[str, ...], **fields: Any) -> Any:
    family = CustomFamily(replace(declared(), gradients=stated))
    problem = family.problem_type(rows=4, columns=256, **fields)
    return family.gradients(problem, wanted)


BOTH = Gradient(
    ("x", "w"), "rms_norm_backward", ("x", "grad y"), {"w": "w", "dtotal": "grad total"},
    passes=("quant",),
)  # fmt: skip
SAME = Gradient("residual", lambda dx: dx, ("gradient of x",))


def test_gradients_leave_out_what_a_call_has_not():
    found = gradients(BOTH, wanted=("x",))
    *_, made = found.computations
    assert made.makes == "gradient of x" and made.keywords == {}
    assert made.options == {"quant": ""}
    full = gradients(BOTH, SAME, wanted=("w", "residual"), has_w=True, has_residual=True)
    made = next(one for one in full.computations if one.op == "rms_norm_backward")
    assert made.makes == ("gradient of x", "gradient of w")
    assert made.keywords == {"w": "w", "dtotal": "packed grad total"}
    assert full.computations[-1].operands == ("gradient of x",)
    assert full.gradients["residual"] == "gradient of residual"


def test_a_gradient_of_another_is_made_without_that_being_wanted():
    found = gradients(BOTH, SAME, wanted=("residual",), has_residual=True)
    assert [one.makes for one in found.computations[-2:]] == [
        "gradient of x", "gradient of residual",
    ]  # fmt: skip
    assert [*found.gradients] == ["residual"]
    assert not gradients(BOTH, wanted=("residual",), has_residual=True)


def test_a_recorded_call_writes_what_its_gradients_read():
    family = CustomFamily(declared(gradients=(BOTH,), records={"quant": "row"}))
    assert family.gradients(family.problem_type(rows=4, columns=256), ("x",)).options == {
        "quant": "row"
    }
    with pytest.raises(BadArgument, match="records= names 'kept', which is no option"):
        check(declared(records={"kept": True}))


def test_a_gradient_reads_what_was_made_before_it():
    with pytest.raises(BadArgument, match="reads 'gradient of x'; there are"):
        check(replace(declared(), gradients=(SAME, BOTH)))


def test_a_kernel_is_stated_by_its_place():
    with pytest.raises(BadArgument, match=r"there is no kernel tilewright\.nowhere:kernel"):
        place = kernel("main", "tilewright.nowhere:kernel", lambda p, c: (1,))
        check(declared(parts=(place,)))
    with pytest.raises(BadArgument, match="the kernel's parameter 'w' is no operand"):
        check(declared(operands={"x": In("rows", "columns")}))


def test_what_is_a_multiple_of_16_may_depend_on_the_config():
    by_rows = declared(multiples=lambda config: ("columns",) if config.ROWS == 2 else ())
    check(by_rows)
    family, this = CustomFamily(by_rows), arch("sm_90")
    problem = family.problem_type(rows=4, columns=100)
    found = family.default_space(problem, this).expand(this).configs
    ones = {c.ROWS: c for c in found if c.alignment == 16}
    assert "wants columns in 16s" in str(family.supports(ones[2], problem, this))
    assert family.supports(ones[1], problem, this)
    for rows, multiple in ((1, None), (2, 16)):
        promises = dict(family.sources(ones[rows], this)["main"].divisibility)
        assert promises.get("columns") == multiple


@pytest.mark.parametrize(("columns", "most"), [(256, 16), (136, 8), (100, 4), (250, 2), (63, 1)])
def test_kernels_are_promised_what_sizes_are_multiples_of(columns, most):
    """The most that is true of them, of addresses 16 bytes with it; or nothing."""
    family, this = CustomFamily(declared(multiples=("columns",))), arch("sm_90")
    problem = family.problem_type(rows=4, columns=columns)
    found = family.default_space(problem, this).expand(this).configs
    assert {c.alignment for c in found} == {most, 1}
    for config in found:
        assert family.supports(config, problem, this)
        promises = dict(family.sources(config, this)["main"].divisibility)
        assert promises.get("columns", 1) == config.alignment
        assert promises.get("x", 1) == (16 if config.alignment > 1 else 1)
        if most > 1:
            less = replace(config, alignment=max(2, most // 2) if most > 2 else 16)
            assert not family.supports(less, problem, this)
            apart = replace(problem, alignment=8)
            assert bool(family.supports(config, apart, this)) == (config.alignment == 1)


def test_gradients_may_depend_on_the_problem():
    def stated(problem):
        return (BOTH, SAME) if problem.has_w else "no weight"

    family = CustomFamily(replace(declared(), gradients=stated))
    problem = family.problem_type(rows=4, columns=256)
    assert str(family.gradients(problem, ("x",))).endswith("no weight")
    assert family.gradients(replace(problem, has_w=True), ("x",)).gradients
    wrong = CustomFamily(replace(declared(), gradients=lambda problem: (SAME,)))
    with pytest.raises(BadArgument, match="reads 'gradient of x'"):
        wrong.gradients(problem, ("residual",))


def test_a_kernel_is_given_functions_that_it_calls():
    axes = {name: values for name, values in declared().axes.items() if name != "HELD"}
    one = declared(axes=axes, constants={"HELD": lambda config: (f"module:of_{config.ROWS}",)})
    check(one)
    family, this = CustomFamily(one), arch("sm_90")
    config = family.config_type("bf16", "bf16", "bf16", *(False,) * 4, "", False, 16, ROWS=4)
    assert family.sources(config, this)["main"].functions == (("HELD", ("module:of_4",)),)
    with pytest.raises(BadArgument, match="names two things"):
        check(declared(constants={"HELD": lambda config: ()}))


def test_words_of_a_chain_are_part_of_a_name(family):
    config = family.config_type("bf16", "bf16", "bf16", *(False,) * 4, "mul+add", False, 16)
    assert "quantmul+add_" in config.name and family.parse_name(config.name) == config


def test_outputs_that_are_exact_must_equal_the_reference(family):
    real = declared().operands
    said = CustomFamily(declared(operands={**real, "y": replace(real["y"], exact=True)}))
    problem = said.problem_type(rows=2, columns=8, has_residual=True)
    allowed = said.tolerances(problem, None)
    assert allowed["y"] == Tolerance(0.0, 0.0) != allowed["total"]


def test_types_that_the_compiler_refuses_are_refused(family):
    config = family.config_type("bf16", "bf16", "e4m3fn", *(False,) * 4, "row", False, 16)
    assert family.judge(config, arch("sm_90"))
    said = str(family.judge(config, arch("sm_80")))
    assert said.endswith("out_dtype = e4m3fn: Triton 3.6 refuses e4m3 below sm_89")


def test_sizes_of_operands_that_are_left_out_are_0():
    table = In("entries", dtype="fp32", optional=True)
    family = CustomFamily(declared(operands={**declared().operands, "table": table}))
    assert family.problem_of(call(view(4, 64))).entries == 0
    assert family.problem_of(call(view(4, 64), table=view(7, dtype="fp32"))).entries == 7
    words = {"rows": "4", "columns": "64"}
    assert family.parse_problem(words, arch("sm_90")).entries == 0
    assert str(family.problem_type(rows=4, columns=64)).startswith("scaled rows=4 columns=64 dtype")


@pytest.mark.parametrize(("read", "bytes_"), [(True, 3), (False, 2), ("has_residual", 3)])
def test_an_operand_may_be_passed_for_its_sizes_alone(read, bytes_):
    x = In("*rows", "columns", strides=("x_stride", 1), read=read)
    stated = declared()
    family = CustomFamily(declared(operands={**stated.operands, "x": x}))
    problem = family.problem_type(rows=4, columns=64, has_residual=True, dtype="fp32")
    same = CustomFamily(stated).problem_type(rows=4, columns=64, has_residual=True, dtype="fp32")
    assert same.min_bytes - problem.min_bytes == (3 - bytes_) * 4 * 64 * 4
    with pytest.raises(BadArgument, match="x is read where 'has_y' is, which is no option"):
        check(declared(operands={**stated.operands, "x": replace(x, read="has_y")}))


def test_a_flag_of_a_problem_is_a_number_or_a_word(family):
    words = {"rows": "4", "columns": "8"}
    for text, said in (("1", True), ("true", True), ("0", False), ("false", False)):
        assert family.parse_problem({**words, "has_w": text}, arch("sm_90")).has_w == said
