"""Operations of a user's own with whole numbers, gradients, strides, sizes worked out from others,
options of the compiler, and problems of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright import arrays, ops, verify
from tilewright.arch import arch, devices
from tilewright.custom import Gradient, In, InOut, Out, extents, operation
from tilewright.errors import BadArgument

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    """Every process finds the operations, and no other test does."""
    with monkeypatch.context() as patch:
        patch.setattr(ops, "_registered", dict(ops._registered))
        path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        patch.setenv("PYTHONPATH", path)
        patch.setenv(ops.MODULES_VARIABLE, "grown_kernels")
        sys.modules.pop("grown_kernels", None)
        ops._import_named.cache_clear()
        yield
        ops._import_named.cache_clear()


def pick():
    return ops.family("custom_pick")


@pytest.fixture
def dispatcher():
    return tw.Dispatcher(device="h200_sxm")


def problem(**fields):
    return pick().problem_type(**{"many": 5, "width": 20, "count": 4, "dtype": "fp32", **fields})


# --- sizes --------------------------------------------------------------------------------------


@given(st.integers(0, 999), st.integers(1, 999))
def test_arithmetic_on_sizes_is_pythons(n, k):
    for text in ("n", "n // k", "(n + k - 1) // k * 2", "n % k", "7", "min(n, k) + max(k, 3)"):
        assert extents.value(text, {"n": n, "k": k}) == eval(text, {"n": n, "k": k})
    assert extents.names("min(n, k) // max(k, 3)") == ("n", "k")


@pytest.mark.parametrize(
    "text",
    [
        "n /",
        "n / 2",
        "f(n)",
        "min(n)",
        "min(n, k=1)",
        "f(n) + n",
        "n + f(n)",
        "n.real",
        "n ** 9",
        "[n]",
        "1.5",
        "-n",
        "",
    ],
)
def test_anything_else_is_no_size(text):
    with pytest.raises(BadArgument, match="is no size"):
        extents.names(text)


def test_a_size_that_is_no_number_says_so():
    for text, says in (("n - 9", "is -8"), ("1 // (n - 1)", "divides by zero")):
        with pytest.raises(BadArgument, match=says):
            extents.value(text, {"n": 1})


def test_a_size_worked_out_from_others_is_compared_with_the_array(dispatcher):
    table, at = np.zeros((5, 20), np.float32), np.zeros(4, np.int64)
    with pytest.raises(BadArgument, match=r"scale .* has shape \(3,\).* where count // 2 is 2"):
        dispatcher.run("custom_pick", table, at, np.ones(3, np.float32))


@pytest.mark.parametrize("name", ["width", "apart"])
@pytest.mark.parametrize("number", [-1, 2.5, "20", None])
def test_a_problem_has_whole_sizes_and_strides(name, number):
    with pytest.raises(BadArgument, match=rf"{name} = .* is not a whole number"):
        problem(**{name: number})


# --- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_whole_numbers_lie_within_their_bounds(of, dtype):
    def drawn(values):
        made = (
            np.zeros(4096, dtype)
            if of == "numpy"
            else torch.zeros(4096, dtype=getattr(torch, dtype))
        )
        arrays.fill_random([made], 3, [values])
        return np.asarray(made)

    assert set(drawn((2, 6))) == {2, 3, 4, 5}
    info = np.iinfo(dtype)
    anywhere = drawn(None)
    assert anywhere.min() < info.min / 2 if info.min else anywhere.min() < info.max // 4
    assert anywhere.max() > info.max // 2
    with pytest.raises(BadArgument, match=r"there is no u?int"):
        drawn((5, 5))


def test_bounds_may_depend_on_the_problem():
    (at,) = (one for one in pick().operands(problem(many=7)) if one.name == "at")
    assert at.values == (0, 7)


def test_a_function_of_values_is_given_the_problem_and_a_generator():
    drawn = In("n", values=lambda problem, rng: rng.random(problem.n)).values
    from tilewright.custom import drawn as forms

    class Two:
        n = 2

    made = forms.of(drawn, Two)
    assert made(5).shape == (2,) and (made(5) == made(5)).all() and (made(5) != made(6)).any()


# --- declarations that are refused --------------------------------------------------------------


def declare(**changes):
    stated = {
        "operands": {"x": In("length"), "y": Out("length")},
        "axes": {"BLOCK": (64,)},
        "grid": lambda p, c: (1,),
        "reference": lambda x: x,
    }
    import grown_kernels

    operation("custom_refused", **{**stated, **changes})(grown_kernels.halve)


X, Y = In("length"), Out("length")
NO_FORM = "neither two bounds nor a function"


def reading(**stated):
    """The operands of a declaration whose input is stated so."""
    return {"operands": {"x": In("length", **stated), "y": Y}}


def derived(*words, **stated):
    return {"gradients": [Gradient(*words, **stated)]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (reading(values=(1,)), NO_FORM),
        (reading(values=[0, 5]), NO_FORM),
        (reading(values=("a", 5)), "names 'a', which is no size"),
        (reading(values=(True, 5)), "is no bound"),
        (reading(values=lambda seed: 1), "takes 'seed'"),
        (reading(strides=(1, 1)), "1 dimensions and 2 strides"),
        ({"operands": {"x": X, "y": Out("length", "n * 2")}}, "no operand that is read has .* 'n'"),
        ({"axes": {"BLOCK": (64,), "BLOKC": (32,)}}, "no kernel has a parameter 'BLOKC'"),
        (derived("z", "gemm", ("grad y",)), "gradient of 'z', which is no operand"),
        (derived("x", "gemm", ("y",)), "does not read 'grad y'"),
        (derived("x", "gemm", ("grad y", "w")), "reads 'w'"),
        (derived(("x", "x"), "gemm", ("grad y",)), "has two gradients"),
        ({"operands": {"x": X, "y": InOut("length")}, **derived("x", "gemm", ())}, "in place"),
    ],
)
def test_a_declaration_that_means_nothing_is_refused(changes, says):
    with pytest.raises(BadArgument, match=says):
        declare(**changes)
    assert "custom_refused" not in ops.families()


# --- strides ------------------------------------------------------------------------------------


def test_rows_may_lie_apart(dispatcher):
    whole = np.random.default_rng(0).standard_normal((5, 33)).astype(np.float32)
    table, at = whole[:, :20], np.array([4, 0, 0, 2])
    y, seen = dispatcher.run("custom_pick", table, at, np.ones(2, np.float32))
    assert np.array_equal(y, table[at]) and np.array_equal(seen, at)
    with pytest.raises(BadArgument, match=r"strides \(33, 2\).*\(apart, 1\) is declared"):
        dispatcher.run("custom_pick", whole[:, ::2], at, np.ones(2, np.float32))
    with pytest.raises(BadArgument, match=r"elements of table .* share memory: strides \(0, 1\)"):
        dispatcher.run(
            "custom_pick", np.broadcast_to(table[0], (5, 20)), at, np.ones(2, np.float32)
        )


def test_a_stride_left_out_is_a_contiguous_arrays():
    assert problem().apart == 20 and problem(apart=20) == problem()
    assert verify.verify(tw.Dispatcher(device="h200_sxm"), problem(apart=24), seed=1).ok


def test_a_problem_is_printed_in_the_words_that_it_is_read_in():
    for one in (problem(), problem(apart=64, dtype="fp16"), problem(width=3, alignment=1)):
        family, *words = str(one).split()
        assert family == "custom_pick"
        assert pick().parse_problem(dict(w.split("=") for w in words), arch("sm_90")) == one


# --- choosing -----------------------------------------------------------------------------------


def test_each_compiler_gets_its_own_options():
    for name, own, other in (
        ("sm_90", "maxnreg", "waves_per_eu"),
        ("gfx942", "waves_per_eu", "maxnreg"),
    ):
        kernels = pick().default_space(problem(), arch(name)).expand(arch(name)).configs
        options = [dict(pick().sources(c, arch(name))["main"].options) for c in kernels]
        assert {one.get(own, 0) for one in options} == {0, {"maxnreg": 64, "waves_per_eu": 2}[own]}
        assert not any(other in one for one in options)
    refused = pick().config_type("fp32", 16, maxnreg=64)
    assert pick().judge(refused, arch("sm_90")) and not pick().judge(refused, arch("gfx942"))


def test_the_estimate_counts_the_declared_arithmetic():
    few = problem()
    config = pick().default_space(few, arch("sm_90")).expand(arch("sm_90")).configs[0]
    terms = dict(pick().estimate(config, few, devices()["h200_sxm"]).terms)
    # fp32 on the vector units: 132 SMs x 256 a clock x 1.98 GHz
    assert pick().estimate(config, few, devices()["h200_sxm"]).limiter == "launch"
    assert terms["arithmetic"] == pytest.approx(4 * 20 / (132 * 256 * 1.98e9) * 1e6)
    whole = problem(dtype="int64")  # no rate is known of it
    config = pick().default_space(whole, arch("sm_90")).expand(arch("sm_90")).configs[0]
    assert [name for name, _ in pick().estimate(config, whole, devices()["h200_sxm"]).terms] == [
        "memory",
        "launch",
    ]


# --- gradients ----------------------------------------------------------------------------------


def test_a_gradient_by_a_torch_function():
    table = torch.randn(5, 20, requires_grad=True)
    at = torch.tensor([4, 0, 0, 2])
    y, seen = tw.custom_pick(table, at, torch.ones(2))
    weight = torch.randn(4, 20)
    (y * weight).sum().backward()
    other = table.detach().clone().requires_grad_()
    (other[at] * weight).sum().backward()
    torch.testing.assert_close(table.grad, other.grad)
    assert not seen.requires_grad


def test_a_gradient_by_an_operation():
    x = torch.randn(70, requires_grad=True)
    tw.custom_half(x).sum().backward()
    assert torch.equal(x.grad, torch.full((70,), 0.5))


def test_a_gradient_that_is_not_stated_is_refused():
    scale = torch.ones(2, requires_grad=True)
    with pytest.raises(BadArgument, match="custom_pick states no gradient of scale"):
        tw.custom_pick(torch.randn(5, 20), torch.tensor([4, 0, 0, 2]), scale)


# --- integers that a call states ----------------------------------------------------------------


def windows(**fields):
    return ops.family("custom_windows").problem_type(**{"length": 21, **fields})


def test_sizes_may_name_numbers_and_options_that_a_call_states(dispatcher):
    x = np.arange(9, dtype=np.float32)
    y = dispatcher.run("custom_windows", x, taps=3, stride=2, pad=1)
    assert y.tolist() == [1.0, 6.0, 12.0, 18.0, 15.0]
    assert torch.equal(tw.custom_windows(torch.from_numpy(x), stride=8), torch.tensor([1.0]))
    assert verify.verify(dispatcher, windows(taps=3, stride=2, pad=2, dtype="fp32")).ok


def test_one_kernel_serves_all_numbers_and_is_compiled_for_each_option(dispatcher):
    names = {
        dispatcher.select(windows(stride=s, pad=p)).config.name for s in (1, 3) for p in (0, 2)
    }
    assert len(names) == 1
    assert dispatcher.select(windows(taps=3)).config.name not in names


def test_numbers_are_fields_of_the_problem(dispatcher):
    one, family = windows(stride=3, pad=1, taps=4), ops.family("custom_windows")
    assert str(one) == "custom_windows length=21 dtype=bf16 taps=4 stride=3 pad=1"
    words = dict(word.split("=") for word in str(one).split()[1:])
    assert family.parse_problem(words, arch("sm_90")) == one
    assert family.options(one) == {"stride": 3, "pad": 1, "taps": 4}


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"stride": 0}, "divides by zero"),
        ({"pad": -1}, "pad = -1 is not a whole number"),
        ({"stride": "2"}, "stride = '?2'? is not a whole number"),
        ({"taps": 99}, "is -89"),
        ({"strid": 2}, "no option 'strid'.*stride"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(stated, says, dispatcher):
    with pytest.raises(BadArgument, match=says):
        dispatcher.run("custom_windows", np.zeros(9, np.float32), **stated)


def test_a_number_is_no_constexpr():
    import grown_kernels

    with pytest.raises(BadArgument, match="'BLOCK' is known for each problem alone"):
        operation(
            "custom_refused",
            operands={"x": X, "y": Y},
            numbers={"BLOCK": 64},
            axes={},
            grid=lambda p, c: (1,),
            reference=lambda x: x,
        )(grown_kernels.halve)
