"""A small network that JAX trains, with products, attention and gradients from here.

It needs JAX. On a GPU, calls are launched on XLA's stream; elsewhere they run in the interpreter.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import tilewright.jax as tj

HEADS, DIM, WIDTH = 2, 16, 32


def network(weights, x):
    """Attention, then a layer with a bias and GELU in the product's kernel."""
    qkv = tj.gemm(x.reshape(-1, WIDTH), weights["qkv"]).reshape(*x.shape[:2], 3, HEADS, DIM)
    seen = tj.attention(*jnp.moveaxis(qkv, 2, 0), causal=True).reshape(-1, WIDTH)
    return tj.gemm(seen, weights["out"], bias=weights["bias"], epilogue="bias+gelu")


@jax.jit
def step(weights, x, wanted):
    """The loss, and the weights after a step of gradient descent."""
    loss = lambda weights: jnp.mean((network(weights, x) - wanted) ** 2)  # noqa: E731
    value, gradients = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda w, g: w - 0.5 * g, weights, gradients)


keys = jax.random.split(jax.random.key(0), 5)
shapes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH,), (2, 8, WIDTH), (16, WIDTH))
qkv, out, bias, x, wanted = map(jax.random.normal, keys, shapes)
weights, losses = {"qkv": qkv / 6, "out": out / 6, "bias": bias / 6}, []
for _ in range(6):
    value, weights = step(weights, x, wanted)
    losses.append(float(value))
falls = losses == sorted(losses, reverse=True)
assert falls
print(f"on {jax.devices()[0].platform}: the loss falls in every step: {falls}")
