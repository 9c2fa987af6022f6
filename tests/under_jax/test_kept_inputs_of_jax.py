"""A forward pass with gradients keeps what its backward pass would compute anew: the input of an
activation. Families' references compute the calls."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cases import normal

import tilewright.jax as tj
from tilewright.jax.tensors import Tensor
from tilewright.ops.derivatives import Derivative
from tilewright.ops.epilogues import OPERATIONS, Operation, register

ROOMS = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""How far a result may be from that in float64, as a share of its norm: a few roundings."""

_FORMS = {
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "silu": jax.nn.silu,
    "glu": jax.nn.sigmoid,
}


def _clamped(gate, up, limit, alpha, plus):
    gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    return gate * jax.nn.sigmoid(alpha * gate) * (up + plus)


def _gate(form):
    return lambda x: form(x[..., 0::2]) * x[..., 1::2]


JAX = {
    **{name: form for name, form in _FORMS.items() if name != "glu"},
    **{
        gate: _gate(_FORMS[name])
        for gate, name in (
            ("swiglu", "silu"), ("geglu", "gelu"), ("geglu_tanh", "gelu_tanh"),
            ("reglu", "relu"), ("glu", "glu"),
        )
    },
    "clamped_swiglu": lambda x, *given: _clamped(x[..., 0::2], x[..., 1::2], *given, 0),
    "clamped_swiglu_plus": lambda x, *given: _clamped(x[..., 0::2], x[..., 1::2], *given, 1),
    "clamp": jnp.clip,
    "bias": jnp.add,
    "add": jnp.add,
    "mul": jnp.multiply,
    "scale": jnp.multiply,
    "row_scale": lambda x, scale: x * scale[:, None],
}  # fmt: skip
_CONSTANT = {"low": -1.5, "high": 2.0, "limit": 2.0, "alpha": 1.7}
M, N, K = 6, 8, 5
CHAINS = {  # products that a forward and a backward pass make
    **{f"bias+{name}": 3 for name in JAX if OPERATIONS[name].gradient and name not in (
        "bias", "add", "mul", "scale", "row_scale")},
    "silu": 3,
    "bias+mul": 3,
    "bias+relu+mul": 3,
    "bias+gelu+row_scale+add": 3,
    "bias+swiglu+add": 3,
    "scale+silu": 4,  # the sums before a scale, which fp16 may not hold, are computed anew
}  # fmt: skip


def _operands(chain, dtype, shape=(M, N)):
    """A, B and the epilogue's operands, and how many of them want gradients."""
    m, n = shape
    found = {"a": normal(m, K, dtype=dtype), "b": normal(K, n, seed=1, dtype=dtype)}
    for name in chain.split("+"):
        for taken in OPERATIONS[name].takes:
            each = {"n": (n,), "m": (m,), "d": (m, n), "s": (1,)}[taken.kind]
            of = (taken.dtype and "float32") or dtype
            found[taken.name] = normal(*each, seed=len(found), dtype=of)
            if taken.name in _CONSTANT:
                found[taken.name] = jnp.full(1, _CONSTANT[taken.name], "float32")
        n //= 2 if OPERATIONS[name].halves else 1
    return found


def _by_jax(chain, a, b, *rest):
    found, left = a @ b, iter(rest)
    for name in chain.split("+"):
        found = JAX[name](found, *(next(left) for _ in OPERATIONS[name].takes))
    return found


def _gradients(function, names, operands, arrived):
    """The result, and the gradient of each operand that has one."""
    constant = {name: x for name, x in operands.items() if name in _CONSTANT}
    given = {name: x for name, x in operands.items() if name not in _CONSTANT}

    def called(given):
        whole = given | constant
        return function(*(whole[name] for name in names))

    found, backward = jax.vjp(called, given)
    return {"C": found, **backward(arrived(found))[0]}


def _arrived(x):
    return jnp.cos(jnp.arange(x.size).reshape(x.shape)).astype(x.dtype)


def _exact(function, operands, like):
    with jax.enable_x64(True):
        wide = {name: jnp.asarray(np.asarray(x, np.float64)) for name, x in operands.items()}
        arrived = np.asarray(_arrived(like), np.float64)
        return _gradients(function, tuple(operands), wide, lambda x: jnp.asarray(arrived))


def _far(found, exact):
    found, exact = (np.asarray(x, np.float64) for x in (found, exact))
    assert found.shape == exact.shape
    return np.linalg.norm(found - exact) / max(np.linalg.norm(exact), 1e-30)


def _check(function, by_jax, operands, dtype):
    found = jax.jit(partial(_gradients, function, tuple(operands), arrived=_arrived))(operands)
    exact = _exact(by_jax, operands, found["C"])
    assert found.keys() == exact.keys()
    for name, x in found.items():
        assert _far(x, exact[name]) < ROOMS[dtype], name


@pytest.mark.grid(1)
@pytest.mark.parametrize("dtype", ROOMS)
@pytest.mark.parametrize("chain", CHAINS)
def test_gradients_are_those_of_float64_by_two_products_of_the_backward_pass(
    chain, dtype, referenced
):
    operands = _operands(chain, dtype)
    names = [name for name in operands if name not in ("a", "b")]

    def ours(a, b, *rest):
        return tj.gemm(a, b, epilogue=chain, **dict(zip(names, rest, strict=True)))

    _check(ours, lambda *given: _by_jax(chain, *given), operands, dtype)
    assert len(referenced) == CHAINS[chain]


def test_without_gradients_the_epilogue_stays_within_the_product(referenced):
    operands = _operands("bias+gelu", "float32")
    jax.jit(lambda a, b, bias: tj.gemm(a, b, bias=bias, epilogue="bias+gelu"))(*operands.values())
    assert [dict(call.options)["epilogue"] for call in referenced] == ["bias+gelu"]


def test_what_is_kept_has_the_dtype_of_the_result(referenced):
    operands = _operands("bias+gelu", jnp.bfloat16)
    called = lambda a, b, bias: tj.gemm(a, b, bias=bias, epilogue="bias+gelu")  # noqa: E731
    _, backward = jax.vjp(called, *operands.values())
    assert sorted((x.shape, x.dtype.name) for x in jax.tree.leaves(backward)) == sorted(
        [((M, K), "bfloat16"), ((K, N), "bfloat16"), ((M, N), "bfloat16")]
    )


def test_the_gradient_of_a_bias_is_the_sum_of_what_the_products_read():
    """In 16 bits: XLA keeps what is behind a barrier as it is said."""
    operands = _operands("bias+gelu", jnp.bfloat16)

    def loss(a, b, bias):
        return tj.gemm(a, b, bias=bias, epilogue="bias+gelu").astype("float32").sum()

    made = jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*operands.values()).eqns
    (barrier,) = (one for one in made if one.primitive.name == "optimization_barrier")
    (summed,) = barrier.invars
    assert (summed.aval.shape, summed.aval.dtype.name) == ((M, N), "bfloat16")
    read = [one for one in made if summed in one.invars and one is not barrier]
    assert [one.primitive.name for one in read] == ["custom_vjp_call"] * 2


def test_checkpoint_keeps_nothing_and_makes_the_product_again(referenced):
    operands = _operands("bias+gelu", "float32")

    @jax.checkpoint
    def called(a, b, bias):
        return tj.gemm(a, b, bias=bias, epilogue="bias+gelu")

    _, backward = jax.vjp(called, *operands.values())
    shapes = sorted(x.shape for x in jax.tree.leaves(backward))
    assert shapes == sorted(x.shape for x in operands.values())
    backward(jnp.ones((M, N)))
    assert len(referenced) == 4


@pytest.mark.grid(1)
@pytest.mark.parametrize("equation", ["mk,kn->mn", "mk,kn->nm", "bmk,kn->bmn", "bmk,bkn->bmn"])
def test_outputs_that_are_turned_or_folded(equation, referenced):
    terms = equation.partition("->")[0].split(",")
    a, b = (normal(*(4,) * len(term), seed=seed) for seed, term in enumerate(terms))

    def ours(a, b):
        return tj.gemm(a, b, equation=equation, epilogue="silu")

    _check(ours, lambda a, b: jax.nn.silu(jnp.einsum(equation, a, b)), {"a": a, "b": b}, "float32")
    assert len(referenced) == 3


@pytest.mark.grid(1)
@pytest.mark.parametrize("words", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")])
def test_convolutions(words, referenced):
    images = (2, 3, 5, 4) if words[0] == "NCHW" else (2, 5, 4, 3)
    filters = (4, 3, 3, 3) if words[0] == "NCHW" else (3, 3, 3, 4)
    operands = {"a": normal(*images), "b": normal(*filters, seed=1), "bias": normal(4, seed=2)}

    def ours(a, b, bias):
        return tj.conv(a, b, dimension_numbers=words, bias=bias, epilogue="bias+silu")

    def theirs(a, b, bias):
        found = jax.lax.conv_general_dilated(a, b, (1, 1), "VALID", dimension_numbers=words)
        return jax.nn.silu(found + bias.reshape((-1, 1, 1) if words[0] == "NCHW" else -1))

    _check(ours, theirs, operands, "float32")
    assert len(referenced) == 3


@pytest.mark.grid(1)
@pytest.mark.parametrize("chain", ["bias+gelu", "bias+swiglu", "bias+relu+mul"])
def test_second_derivatives(chain, referenced):
    operands = list(_operands(chain, "float32").values())
    names = [taken.name for name in chain.split("+") for taken in OPERATIONS[name].takes]

    def ours(a, b, *rest):
        return tj.gemm(a, b, epilogue=chain, **dict(zip(names, rest, strict=True)))

    def twice(function):
        places = tuple(range(len(operands)))
        once = jax.grad(lambda *given: jnp.sum(jnp.sin(function(*given))), places)
        return jax.jit(jax.grad(lambda *given: sum(jnp.sum(x**2) for x in once(*given)), places))

    found = twice(ours)(*operands)
    exact = twice(lambda *given: _by_jax(chain, *given))(*operands)
    for one, other in zip(found, exact, strict=True):
        assert _far(one, other) < 1e-4


@pytest.mark.grid(1)
def test_vmap_of_a_gradient_of_a_gate(referenced):
    a, b = normal(3, M, K), normal(K, N, seed=1)

    def grown(product):
        of_a = jax.grad(lambda a, b: jnp.sum(jnp.sin(product(a, b))), (0, 1))
        return jax.jit(jax.vmap(of_a, (0, None)))(a, b)

    found = grown(lambda a, b: tj.gemm(a, b, epilogue="swiglu"))
    exact = grown(lambda a, b: JAX["swiglu"](a @ b))
    assert all(_far(one, other) < 1e-5 for one, other in zip(found, exact, strict=True))
    assert len(referenced) == 3


def test_the_input_of_an_operation_of_a_users_own_is_computed_anew(referenced, monkeypatch):
    """Its reference need not know JAX's arrays."""
    monkeypatch.setattr("tilewright.ops.epilogues.OPERATIONS", dict(OPERATIONS))
    slope = Derivative(lambda dz, x: dz.float() * x.float() * 2.0, reads="x")
    register(
        Operation("kept_square", "nowhere:f", "x²", lambda x: np.square(x), amplifies=2,
                  gradient=slope)
    )  # fmt: skip
    a, b = normal(M, K), normal(K, N, seed=1)
    found = jax.grad(lambda a: tj.gemm(a, b, epilogue="kept_square").sum())(a)
    assert _far(found, 2 * (a @ b) @ b.T) < 1e-5
    assert [dict(call.options).get("epilogue", "") for call in referenced] == [
        "kept_square",
        "",
        "",
    ]


def test_prepare_builds_the_product_that_is_kept(monkeypatch):
    from tilewright import default

    asked = {}
    monkeypatch.setattr(default, "prepare", lambda problems, **given: asked.update(p=problems))

    def loss(a, b, bias):
        return tj.gemm(a, b, bias=bias, epilogue="bias+gelu").sum()

    shapes = [jax.ShapeDtypeStruct(x, jnp.bfloat16) for x in ((16, 32), (32, 64), (64,))]
    tj.prepare(jax.value_and_grad(loss, (0, 1, 2)), *shapes)
    assert [(p.m, p.n, p.k, p.epilogue) for p in asked["p"]] == [
        (16, 64, 32, "bias"),
        (16, 32, 64, ""),
        (32, 64, 16, ""),
    ]


@pytest.mark.parametrize("name", ("gelu", "gelu_tanh", "silu"))
def test_xla_computes_what_an_activation_and_its_slope_share_once(name):
    one, shape = OPERATIONS[name], (16, 32)

    def both(x, dz):
        x, dz = Tensor(x), Tensor(dz)
        return one.reference(x).array, one.gradient.to_input(dz, x).array

    given = [jax.ShapeDtypeStruct(shape, jnp.float32)] * 2
    compiled = jax.jit(both).lower(*given).compile().as_text()
    found = re.findall(r"f32\[16,32\]\S* (exponential|tanh|divide|erf)\(", compiled)
    shared = "erf" if name == "gelu" else "divide"
    assert sorted(found) == sorted([shared, "exponential"])
