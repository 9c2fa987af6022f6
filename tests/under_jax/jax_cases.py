"""Functions of `tilewright.jax` beside the same of `jax`, which the tests for the CPU and for a GPU
share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tilewright.jax as tj


def normal(*shape, dtype=np.float32, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32)).astype(dtype)


def close(found, expected, tolerance=1e-4):
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    wide = [np.asarray(x, np.float64) for x in (found, expected)]
    np.testing.assert_allclose(*wide, tolerance, tolerance)


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
QKV = (normal(2, 5, 2, 4), normal(2, 5, 1, 4, seed=1), normal(2, 5, 1, 4, seed=2))
AB = (normal(6, 5), normal(5, 4, seed=1))
CASES = {
    "gemm": Case(tj.gemm, jnp.matmul, AB),
    "gemm, both": Case(tj.gemm, jnp.matmul, AB, (0, 1)),
    "gemm, B alone": Case(tj.gemm, jnp.matmul, AB, (1,)),
    "gemm, transposed": Case(
        partial(tj.gemm, transpose_a=True, transpose_b=True),
        lambda a, b: a.T @ b.T,
        (normal(5, 6), normal(4, 5, seed=1)),
    ),
    "gemm, batch": Case(tj.gemm, jnp.matmul, (normal(3, 6, 5), AB[1])),
    "gemm, epilogue": Case(
        lambda a, b, bias: tj.gemm(a, b, bias=bias, epilogue="bias+gelu"),
        _gelu,
        (*AB, normal(4, seed=2)),
        calls=(1, 3),
    ),
    "gemm, bias alone": Case(
        lambda a, b, bias: tj.gemm(a, b, bias=bias, epilogue="bias"),
        lambda a, b, bias: a @ b + bias,
        (*AB, normal(4, seed=2)),
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
        QKV,
        calls=(1, 2),
    ),
    "attention, bias": Case(
        lambda q, k, v, bias: tj.attention(q, k, v, bias=bias),
        lambda q, k, v, bias: jax.nn.dot_product_attention(q, k, v, bias=bias),
        (*QKV, normal(1, 2, 5, 5, seed=3)),
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


def gradients(function, count):
    return jax.grad(lambda *args: jnp.sum(jnp.sin(function(*args))), tuple(range(count)))


def mapped(case):
    """The arguments of `vmap` of two calls, and its axes."""
    axes = tuple(0 if i in case.alone else None for i in range(len(case.args)))
    each = zip(case.args, axes, strict=True)
    return [x if axis is None else jnp.stack([x, x[::-1]]) for x, axis in each], axes
