"""Under JAX: functions of `tilewright.jax` beside JAX's own, forward and with their gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cases import Programs

Steps = Mapping[str, Callable[[], object]]

SIZES = ((512, 4096, 4096), (4096, 4096, 4096), (8192, 14336, 4096))
"""m, n, k."""
LENGTHS = ((8, 2048), (2, 8192))
"""Sequences, and tokens of each."""
HEADS, KEYS, DIM = 32, 8, 128
LAYERS = ((32, 56, 64), (32, 28, 128), (32, 14, 256))
"""Images, pixels along a side, channels."""
WORDS = ("NHWC", "OHWI", "NHWC")
FAR = 0.02
"""What an error beside the same in fp32 may be, of its norm."""


def made(shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Random arrays in bf16 on the GPU, of whose memory JAX takes no more than it needs: models of
    other cases want it too."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    keys = jax.random.split(jax.random.key(0), len(shapes))
    made = [jax.random.normal(k, s, "bfloat16") for k, s in zip(keys, shapes, strict=True)]
    return jax.block_until_ready(made)


def steps(ours: Any, theirs: Any, args: Sequence[Any], gradients: bool) -> Steps:
    """A step of either side, waited for, after its results were compared with JAX's in fp32.

    Raises `AssertionError`.
    """
    import jax
    import jax.numpy as jnp

    import tilewright.jax as tj

    def step(function: Any) -> Any:
        if not gradients:
            return jax.jit(lambda *args: (function(*args),))

        def loss(*args: Any) -> Any:
            return jnp.mean(jnp.square(function(*args).astype("float32")))

        return jax.jit(jax.grad(loss, tuple(range(len(args)))))

    with jax.default_matmul_precision("highest"):
        exact = step(theirs)(*(x.astype("float32") for x in args))
    ways = {"ours": step(ours), "vendor": step(theirs)}
    if on_gpu():
        tj.prepare(ways["ours"], *args)
    for name, way in ways.items():
        for found, wanted in zip(way(*args), exact, strict=True):
            error = jnp.linalg.norm((found.astype("float32") - wanted).ravel())
            assert error <= FAR * jnp.linalg.norm(wanted.ravel()), name
    return {name: partial(_done, way, args) for name, way in ways.items()}


def on_gpu() -> bool:
    import jax

    return bool(jax.default_backend() == "gpu")


def _done(way: Any, args: Sequence[Any]) -> object:
    import jax

    return jax.block_until_ready(way(*args))


def product(m: int, n: int, k: int, gradients: bool) -> Steps:
    """A layer with a bias and GELU, which XLA computes behind the product."""
    import jax

    import tilewright.jax as tj

    return steps(
        lambda a, b, bias: tj.gemm(a, b, bias=bias, epilogue="bias+gelu_tanh"),
        lambda a, b, bias: jax.nn.gelu(a @ b + bias, approximate=True),
        made(((m, k), (k, n), (n,))),
        gradients,
    )


def attention(batch: int, rows: int, gradients: bool) -> Steps:
    """Causal attention of a Llama, beside cuDNN's."""
    import jax

    import tilewright.jax as tj

    def attend(q: Any, k: Any, v: Any, how: Any = "xla") -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=how)

    @jax.checkpoint
    def of_one(qkv: Any) -> Any:
        return attend(*qkv)

    def theirs(q: Any, k: Any, v: Any) -> Any:
        if q.dtype == "bfloat16":
            return attend(q, k, v, "cudnn" if on_gpu() else "xla")
        return jax.lax.map(of_one, (q, k, v))  # the scores of one sequence alone are in memory

    shapes = ((batch, rows, heads, DIM) for heads in (HEADS, KEYS, KEYS))
    return steps(partial(tj.attention, causal=True), theirs, made([*shapes]), gradients)


def convolution(images: int, side: int, channels: int, gradients: bool) -> Steps:
    """A 3×3 layer of a ResNet, channels last."""
    import jax

    import tilewright.jax as tj

    def theirs(x: Any, w: Any) -> Any:
        pad = ((1, 1), (1, 1))
        return jax.lax.conv_general_dilated(x, w, (1, 1), pad, dimension_numbers=WORDS)

    return steps(
        partial(tj.conv, dimension_numbers=WORDS, pad=(1, 1)),
        theirs,
        made(((images, side, side, channels), (channels, 3, 3, channels))),
        gradients,
    )


def _programs(gradients: bool) -> dict[str, Callable[[], Steps]]:
    end = "-gradients" if gradients else ""
    kinds: tuple[tuple[str, Any, Any], ...] = (
        ("product", product, SIZES),
        ("attention", attention, LENGTHS),
        ("conv", convolution, LAYERS),
    )
    return {
        f"jax-{kind}-{'x'.join(map(str, size))}{end}": partial(make, *size, gradients=gradients)
        for kind, make, sizes in kinds
        for size in sizes
    }


CASES = (
    Programs(
        "jax", "bf16, products with bias and GELU, causal attention and 3×3 convolutions under "
        "jax.jit", "JAX's own, by cuBLAS, cuDNN and XLA", _programs(False),
    ),
    Programs(
        "jax-gradients", "the same with all gradients", "JAX's own, by cuBLAS, cuDNN and XLA",
        _programs(True),
    ),
)  # fmt: skip
