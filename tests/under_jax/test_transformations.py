"""``grad``, ``vmap``, ``jit``, ``checkpoint``, ``scan`` and ``shard_map`` of calls, beside those of
`jax.numpy`. Families' references compute the calls."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cases import AB, CASES, QKV, close, gradients, mapped, normal

import tilewright.jax as tj
from tilewright.errors import BadArgument

cases = pytest.mark.parametrize("name", CASES)


def _all(found, expected):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-3)


@pytest.mark.grid(1)
@cases
def test_gradients(name, referenced):
    case = CASES[name]
    count = len(case.args)
    _all(
        jax.jit(gradients(case.ours, count))(*case.args),
        jax.jit(gradients(case.theirs, count))(*case.args),
    )


@pytest.mark.grid(1)
@cases
def test_vmap_makes_one_call_where_it_can(name, referenced):
    case = CASES[name]
    args, axes = mapped(case)
    _all(jax.jit(jax.vmap(case.ours, axes))(*args), jax.vmap(case.theirs, axes)(*args))
    assert len(referenced) == case.calls[0]


@pytest.mark.grid(1)
@cases
def test_vmap_of_a_gradient(name, referenced):
    case, count = CASES[name], len(CASES[name].args)
    args, axes = mapped(case)
    _all(
        jax.jit(jax.vmap(gradients(case.ours, count), axes))(*args),
        jax.jit(jax.vmap(gradients(case.theirs, count), axes))(*args),
    )
    assert len(referenced) == case.calls[1]


@pytest.mark.turns(8)
def test_calls_with_one_seed_drop_the_same_under_vmap(referenced):
    q = normal(1, 8, 2, 16)
    attend = partial(tj.attention, dropout=0.5, seed=7)
    found = jax.vmap(lambda q: attend(q, q, q))(jnp.stack([q, q]))
    assert jnp.array_equal(found[0], found[1])
    assert not jnp.array_equal(found[0], tj.attention(q, q, q))


def test_only_what_the_backward_pass_reads_is_kept(referenced):
    a, b = AB
    _, backward = jax.vjp(tj.gemm, a, b)
    assert sorted(x.shape for x in jax.tree.leaves(backward)) == sorted([a.shape, b.shape])


@pytest.mark.turns(8)
def test_other_axes_of_vmap(referenced):
    a, b = normal(6, 2, 5), AB[1]
    found = jax.vmap(tj.gemm, (1, None), 2)(a, b)
    _all(found, jax.vmap(jnp.matmul, (1, None), 2)(a, b))


@pytest.mark.turns(8)
def test_the_gradient_of_vmap_sums_what_calls_share(referenced):
    a, b = normal(2, 6, 5), AB[1]

    def both(product):
        return jax.grad(lambda a, b: jnp.sum(jax.vmap(product, (0, None))(a, b) ** 2), (0, 1))

    _all(both(tj.gemm)(a, b), both(jnp.matmul)(a, b))


@pytest.mark.turns(8)
def test_gradients_under_checkpoint_and_scan(referenced):
    def layers(product):
        layer = jax.checkpoint(lambda x, w: (jnp.tanh(product(x, w)), None))
        return jax.grad(lambda x, w: jax.lax.scan(layer, x, w)[0].sum(), (0, 1))

    x, w = normal(3, 4), normal(3, 4, 4, seed=1)
    _all(jax.jit(layers(tj.gemm))(x, w), jax.jit(layers(jnp.matmul))(x, w))


@pytest.mark.grid(1)
@pytest.mark.parametrize("equation", ["mk,nk->mn", "mk,kn->nm", "bmk,bnk->bmn"])
def test_the_gradients_of_a_contraction_of_equal_sizes_are_not_turned(equation, referenced):
    """Nothing in the shapes says which dimension is which."""
    terms = equation.partition("->")[0].split(",")
    a, b = (normal(*(4,) * len(term), seed=place) for place, term in enumerate(terms))

    def both(product):
        return jax.grad(lambda a, b: jnp.sum(product(a, b) ** 3), (0, 1))

    ours, theirs = partial(tj.gemm, equation=equation), partial(jnp.einsum, equation)
    _all(both(ours)(a, b), both(theirs)(a, b))


@pytest.mark.turns(8)
def test_second_derivatives_of_products(referenced):
    a, b = AB

    def twice(product):
        once = jax.grad(lambda a: jnp.sum(jnp.sin(product(a, b))))
        return jax.grad(lambda a: jnp.sum(once(a) ** 2))

    _all(jax.jit(twice(tj.gemm))(a), jax.jit(twice(jnp.matmul))(a))


def test_what_has_no_derivative_is_refused(referenced):
    q, k, v = QKV
    once = jax.grad(lambda q: tj.attention(q, k, v).sum())
    with pytest.raises(BadArgument, match="attention has no derivative here"):
        jax.eval_shape(jax.grad(lambda q: once(q).sum()), q)
    with pytest.raises(TypeError, match="jvp"):
        jax.jvp(tj.gemm, AB, AB)
    whole = jnp.ones((4, 4), jnp.int8)
    scaled = partial(tj.gemm, epilogue="scale")
    with pytest.raises(BadArgument, match="stop_gradient"):
        jax.eval_shape(jax.grad(lambda s: scaled(whole, whole, scale=s).sum()), 1.0)


def test_only_the_gradients_that_are_asked_for_are_stated():
    """int8 operands have none, and are no hindrance to others' in another call."""
    a, b = AB
    used = jnp.array([3, 5], jnp.int32)
    q, k, v = QKV
    found = jax.eval_shape(
        jax.grad(lambda q: tj.attention(q, k, v, kv_used=used).sum() + tj.gemm(a, b).sum()), q
    )
    assert found.shape == q.shape


@pytest.mark.turns(8)
def test_shard_map_sums_the_gradient_of_what_devices_share(referenced):
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("x",))
    a, b = AB

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
