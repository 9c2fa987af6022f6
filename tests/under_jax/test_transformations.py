"""``grad``, ``vmap``, ``jit``, ``checkpoint``, ``scan`` and ``shard_map`` of calls, beside those of
`jax.numpy`. Families' references compute the calls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilewright.jax as tj
from test_calls import close, normal
from tilewright.errors import BadArgument

_WORDS = ("NHWC", "HWIO", "NHWC")


@dataclass(frozen=True)
class Case:
    """A function, and the same by `jax`.

    args: its arguments.
    alone: arguments that `vmap` gives each call its own of.
    calls: how many calls of Tilewright `vmap` of the function makes of 2; of its gradient.
    """

    ours: Any
    theirs: Any
    args: tuple[Any, ...]
    alone: tuple[int, ...] = (0,)
    calls: tuple[int, int] = (1, 3)


def _conv(run, x, w):
    return run(x, w, dimension_numbers=_WORDS)


def _lax_conv(x, w, dimension_numbers):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=dimension_numbers)


def _gelu(a, b, bias):
    return jax.nn.gelu(a @ b + bias, approximate=False)


_IMAGES = (normal(2, 5, 4, 3), normal(2, 3, 3, 4))
_QKV = (normal(2, 5, 2, 4), normal(2, 5, 1, 4, seed=1), normal(2, 5, 1, 4, seed=2))
_AB = (normal(6, 5), normal(5, 4, seed=1))
CASES = {
    "gemm": Case(tj.gemm, jnp.matmul, _AB),
    "gemm, both": Case(tj.gemm, jnp.matmul, _AB, (0, 1)),
    "gemm, B alone": Case(tj.gemm, jnp.matmul, _AB, (1,)),
    "gemm, transposed": Case(
        partial(tj.gemm, transpose_a=True, transpose_b=True),
        lambda a, b: a.T @ b.T,
        (normal(5, 6), normal(4, 5, seed=1)),
    ),
    "gemm, batch": Case(tj.gemm, jnp.matmul, (normal(3, 6, 5), _AB[1])),
    "gemm, epilogue": Case(
        lambda a, b, bias: tj.gemm(a, b, bias=bias, epilogue="bias+gelu"),
        _gelu,
        (*_AB, normal(4, seed=2)),
        calls=(1, 4),
    ),
    "gemm, bias alone": Case(
        lambda a, b, bias: tj.gemm(a, b, bias=bias, epilogue="bias"),
        lambda a, b, bias: a @ b + bias,
        (*_AB, normal(4, seed=2)),
        (2,),
        calls=(2, 4),
    ),
    "matmul": Case(tj.matmul, jnp.matmul, (normal(2, 3, 6, 5), normal(3, 5, 4)), calls=(2, 6)),
    "dot_general": Case(
        lambda a, b: tj.dot_general(a, b, (((0,), (2,)), ((1,), (0,)))),
        lambda a, b: jax.lax.dot_general(a, b, (((0,), (2,)), ((1,), (0,)))),
        (normal(5, 3, 6), normal(3, 4, 5)),
        calls=(2, 4),
    ),
    "attention": Case(
        partial(tj.attention, causal=True),
        partial(jax.nn.dot_product_attention, is_causal=True),
        _QKV,
        calls=(1, 2),
    ),
    "attention, bias": Case(
        lambda q, k, v, bias: tj.attention(q, k, v, bias=bias),
        lambda q, k, v, bias: jax.nn.dot_product_attention(q, k, v, bias=bias),
        (*_QKV, normal(1, 2, 5, 5, seed=3)),
        calls=(1, 3),
    ),
    "conv": Case(
        partial(_conv, tj.conv), partial(_conv, _lax_conv), _IMAGES,
        calls=(1, 4),
    ),
    "conv, filters alone": Case(
        partial(_conv, tj.conv), partial(_conv, _lax_conv), _IMAGES,
        (1,),
        calls=(2, 6),
    ),
}  # fmt: skip
cases = pytest.mark.parametrize("name", CASES)


def _all(found, expected):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-3)


def _gradients(function, count):
    return jax.grad(lambda *args: jnp.sum(jnp.sin(function(*args))), tuple(range(count)))


@pytest.mark.grid(2)
@cases
def test_gradients(name, referenced):
    case = CASES[name]
    count = len(case.args)
    _all(
        jax.jit(_gradients(case.ours, count))(*case.args),
        jax.jit(_gradients(case.theirs, count))(*case.args),
    )


@pytest.mark.grid(2)
@cases
def test_vmap_makes_one_call_where_it_can(name, referenced):
    case = CASES[name]
    axes = tuple(0 if i in case.alone else None for i in range(len(case.args)))
    args = [
        jnp.stack([x, x[::-1]]) if axis == 0 else x for x, axis in zip(case.args, axes, strict=True)
    ]
    _all(jax.jit(jax.vmap(case.ours, axes))(*args), jax.vmap(case.theirs, axes)(*args))
    assert len(referenced) == case.calls[0]


@pytest.mark.grid(1)
@cases
def test_vmap_of_a_gradient(name, referenced):
    case, count = CASES[name], len(CASES[name].args)
    axes = tuple(0 if i in case.alone else None for i in range(count))
    args = [
        jnp.stack([x, x[::-1]]) if axis == 0 else x for x, axis in zip(case.args, axes, strict=True)
    ]
    _all(
        jax.jit(jax.vmap(_gradients(case.ours, count), axes))(*args),
        jax.jit(jax.vmap(_gradients(case.theirs, count), axes))(*args),
    )
    assert len(referenced) == case.calls[1]


@pytest.mark.turns(4)
def test_other_axes_of_vmap(referenced):
    a, b = normal(6, 2, 5), _AB[1]
    found = jax.vmap(tj.gemm, (1, None), 2)(a, b)
    _all(found, jax.vmap(jnp.matmul, (1, None), 2)(a, b))


@pytest.mark.turns(4)
def test_the_gradient_of_vmap_sums_what_calls_share(referenced):
    a, b = normal(2, 6, 5), _AB[1]

    def both(product):
        return jax.grad(lambda a, b: jnp.sum(jax.vmap(product, (0, None))(a, b) ** 2), (0, 1))

    _all(both(tj.gemm)(a, b), both(jnp.matmul)(a, b))


@pytest.mark.turns(4)
def test_gradients_under_checkpoint_and_scan(referenced):
    def layers(product):
        layer = jax.checkpoint(lambda x, w: (jnp.tanh(product(x, w)), None))
        return jax.grad(lambda x, w: jax.lax.scan(layer, x, w)[0].sum(), (0, 1))

    x, w = normal(3, 4), normal(3, 4, 4, seed=1)
    _all(jax.jit(layers(tj.gemm))(x, w), jax.jit(layers(jnp.matmul))(x, w))


@pytest.mark.turns(4)
def test_second_derivatives_of_products(referenced):
    a, b = _AB

    def twice(product):
        once = jax.grad(lambda a: jnp.sum(jnp.sin(product(a, b))))
        return jax.grad(lambda a: jnp.sum(once(a) ** 2))

    _all(jax.jit(twice(tj.gemm))(a), jax.jit(twice(jnp.matmul))(a))


def test_what_has_no_derivative_is_refused(referenced):
    q, k, v = _QKV
    once = jax.grad(lambda q: tj.attention(q, k, v).sum())
    with pytest.raises(BadArgument, match="attention has no derivative here"):
        jax.eval_shape(jax.grad(lambda q: once(q).sum()), q)
    with pytest.raises(TypeError, match="jvp"):
        jax.jvp(tj.gemm, _AB, _AB)
    whole = jnp.ones((4, 4), jnp.int8)
    scaled = partial(tj.gemm, epilogue="scale")
    with pytest.raises(BadArgument, match="stop_gradient"):
        jax.eval_shape(jax.grad(lambda s: scaled(whole, whole, scale=s).sum()), 1.0)


def test_only_the_gradients_that_are_asked_for_are_stated():
    """int8 operands have none, and are no hindrance to others' in another call."""
    a, b = _AB
    used = jnp.array([3, 5], jnp.int32)
    q, k, v = _QKV
    found = jax.eval_shape(
        jax.grad(lambda q: tj.attention(q, k, v, kv_used=used).sum() + tj.gemm(a, b).sum()), q
    )
    assert found.shape == q.shape


@pytest.mark.turns(4)
def test_shard_map_sums_the_gradient_of_what_devices_share(referenced):
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
    a, b = _AB

    def loss(product):
        spec = PartitionSpec("x")
        local = jax.shard_map(product, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec)
        return jax.grad(lambda a, b: jnp.sum(local(a, b) ** 2), (0, 1))

    _all(jax.jit(loss(tj.gemm))(a, b), jax.jit(loss(jnp.matmul))(a, b))


def test_prepare_builds_what_a_gradient_needs(monkeypatch):
    from tilewright import default

    asked = {}
    monkeypatch.setattr(default, "prepare", lambda problems, **given: asked.update(p=problems))

    def loss(w, x):
        return jax.lax.scan(lambda x, w: (tj.gemm(x, w), None), x, w)[0].sum()

    w = jax.ShapeDtypeStruct((3, 32, 32), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((16, 32), jnp.bfloat16)
    tj.prepare(jax.value_and_grad(loss), w, x)
    assert [(p.m, p.n, p.k, p.layout) for p in asked["p"]] == [
        (16, 32, 32, "rrr"),
        (16, 32, 32, "rcr"),
        (32, 32, 16, "crr"),
    ]
