"""Which keyword is an operand, a scalar or an option: the family says it, not the value's type."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright import calls, ops
from tilewright.errors import BadArgument

ARRAY = np.ones(4, np.float32)
OPERATIONS = [name for name in ops.families() if ops.family(name).keywords()]


def spoken(op, **keywords):
    return calls.spoken(op, keywords, 0)


def test_every_family_here_says_what_its_keywords_are():
    assert list(ops.families()) == OPERATIONS


def keywords_of(kind):
    return [(op, name) for op in OPERATIONS for name, one in ops.family(op).keywords().items()
            if one.kind == kind]  # fmt: skip


@pytest.mark.parametrize(("op", "name"), keywords_of("operand"))
def test_an_operand_is_an_array(op, name):
    assert spoken(op, **{name: ARRAY}).named[name] is ARRAY
    assert spoken(op, **{name: None}).named == {}
    for value in ([4], (4, 0), "4", [ARRAY], {}, True):
        with pytest.raises(BadArgument, match=f"^{name} is an operand: pass an array"):
            spoken(op, **{name: value})


@pytest.mark.parametrize(("op", "name"), keywords_of("option"))
def test_an_option_is_no_array(op, name):
    family, torch = ops.family(op), pytest.importorskip("torch")
    dtype = family.keywords()[name].type == "dtype"
    for value in (ARRAY, torch.ones(4)):
        message = "is not an element type" if dtype else f"^{name} is an option, .*takes no array"
        with pytest.raises(BadArgument, match=message):
            spoken(op, **{name: value})
    if dtype:
        for value in (torch.float16, np.float16, np.dtype("float16"), "fp16"):
            assert spoken(op, **{name: value}).options == {name: "fp16"}
    else:
        for value in (np.int64(3), np.array(3), torch.tensor(3)):
            options = spoken(op, **{name: value}).options
            assert options == {name: 3} and type(options[name]) is int
        assert spoken(op, **{name: [np.int64(1), None]}).options == {name: (1, None)}


def test_kinds():
    assert [calls.kind_of("attention", n) for n in ("kv_used", "scale", "mask", "none_such")] == [
        "operand", "scalar", "option", "",
    ]  # fmt: skip
    assert calls.kind_of("gemm", "add_2") == calls.kind_of("conv", "scale") == "operand"


def test_an_array_by_a_name_that_no_family_knows_is_refused_with_the_nearest_name():
    q = np.ones((1, 2, 1, 16), np.float16)
    with pytest.raises(BadArgument, match=r"operand 'kv_use' \(did you mean 'kv_used'\?\)"):
        tw.attention(q, q, q, kv_use=ARRAY)
    with pytest.raises(BadArgument, match=r"option 'kv_use' \(did you mean 'kv_used'\?\)"):
        tw.attention(q, q, q, kv_use=[4])


# --- numbers for operands -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "name"), [("gemm", "scale"), ("gemm", "low"), ("conv", "high"), ("attention", "k_scale")]
)
def test_a_number_becomes_an_array_of_one_element(op, name):
    torch = pytest.importorskip("torch")
    for number in (0.25, 3, np.float32(0.25), np.float64(-0.0)):
        said = spoken(op, **{name: number})
        assert said.what is None and said.numbers == {name: "fp32"} and said.named == {}
        for like in (ARRAY, torch.ones(2)):
            made = calls.with_arrays(said, {name: number}, [like])[name]
            assert type(made) is type(like) and tuple(made.shape) == (1,)
            assert str(made.dtype).endswith("float32") and float(made[0]) == float(number)
            assert np.signbit(float(made[0])) == np.signbit(number)
    again = [calls.with_arrays(spoken(op, **{name: 2.0}), {name: 2.0}, [torch.ones(2)])[name]
             for _ in range(2)]  # fmt: skip
    assert again[0] is again[1]


@pytest.mark.parametrize(
    ("op", "name"), [("gemm", "bias"), ("attention", "sinks"), ("causal_conv", "bias")]
)
def test_a_number_that_says_too_little_is_refused(op, name):
    with pytest.raises(BadArgument, match="says too little: pass an array"):
        spoken(op, **{name: 0.5})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e39, 10**400])
def test_a_number_for_an_operand_is_finite(number):
    with pytest.raises(BadArgument, match=r"^scale = .* is not a number from"):
        tw.gemm(ARRAY[None], ARRAY[:, None], epilogue="scale", scale=number)


def test_products_scaled_by_a_number_and_its_gradient():
    torch = pytest.importorskip("torch")
    a = torch.arange(8.0).reshape(2, 4).requires_grad_()
    b = torch.ones(4, 2)
    made = tw.gemm(a, b, epilogue="scale", scale=0.5)
    assert torch.equal(made, 0.5 * (a @ b))
    made.sum().backward()
    assert torch.equal(a.grad, torch.ones(2, 4))
    out = torch.empty(2, 2)
    tw.gemm(a.detach(), b, epilogue="scale", scale=np.float32(2), out=out)
    assert torch.equal(out, 2 * (a.detach() @ b))


def test_scales_of_attention_in_fp8_are_numbers_or_arrays_without_dimensions():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(1, 4, 1, 16).to(torch.float8_e4m3fn) for _ in range(3))
    by_array = {"q_scale": torch.tensor([0.5]), "k_scale": torch.tensor([2.0]),
                "v_scale": torch.tensor([0.25])}  # fmt: skip
    wanted = tw.attention(q, k, v, scale=0.25, **by_array)
    numbers = {name: x.item() for name, x in by_array.items()}
    assert torch.equal(tw.attention(q, k, v, scale=0.25, **numbers), wanted)
    singles = {name: x[0] for name, x in by_array.items()}
    assert torch.equal(tw.attention(q, k, v, scale=0.25, **singles), wanted)
    from tilewright.flash_attn import flash_attn_func

    # Left out, a scale is 1.
    made = flash_attn_func(q, k, v, softmax_scale=np.float32(0.25), k_descale=1.0, v_descale=0.25)
    assert torch.equal(made, wanted)


@pytest.mark.turns(4)
def test_compiled_calls_sort_their_keywords_alike():
    torch = pytest.importorskip("torch")
    a, b = torch.randn(4, 8), torch.randn(8, 4)
    scaled = torch.compile(
        lambda s: tw.gemm(a, b, epilogue="scale", scale=s), backend="eager", fullgraph=True
    )
    assert torch.equal(scaled(2.0), tw.gemm(a, b, epilogue="scale", scale=2.0))
    wrong = torch.compile(lambda: tw.gemm(a, b, epilogue="bias", bias=[1, 2]), backend="eager")
    with pytest.raises(BadArgument, match="bias is an operand: pass an array"):
        wrong()
    torch._dynamo.reset()  # it skips a function in which it saw an error, from then on
