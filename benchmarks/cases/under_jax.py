"""Under JAX: functions of `tilewright.jax` beside JAX's own, forward and with their gradients."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
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
UNTUNED = {"xla_gpu_autotune_level": 0}
"""How the results in fp32 are compiled, which are computed once: XLA tries no algorithms."""


def made(shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """Random arrays in bf16 on the GPU, of whose memory JAX takes no more than it needs: models of
    other cases want it too."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    keys = jax.random.split(jax.random.key(0), len(shapes))
    made = [jax.random.normal(k, s, "bfloat16") for k, s in zip(keys, shapes, strict=True)]
    return jax.block_until_ready(made)


@dataclass(frozen=True, slots=True)
class Pair:
    """A function of ours, JAX's own, and the shapes of what they take."""

    ours: Any
    theirs: Any
    shapes: tuple[tuple[int, ...], ...]


def step(function: Any, count: int, gradients: bool) -> Any:
    """A step of a function of `count` arrays, under `jax.jit`."""
    import jax
    import jax.numpy as jnp

    if not gradients:
        return jax.jit(lambda *args: (function(*args),))

    def loss(*args: Any) -> Any:
        return jnp.mean(jnp.square(function(*args).astype("float32")))

    return jax.jit(jax.grad(loss, tuple(range(count))))


def steps(pair: Pair, gradients: bool) -> Steps:
    """A step of either side, waited for, after its results were compared with JAX's in fp32.

    Raises `AssertionError`.
    """
    import jax
    import jax.numpy as jnp

    args, count = made(pair.shapes), len(pair.shapes)
    precise = [x.astype("float32") for x in args]
    with jax.default_matmul_precision("highest"):
        lowered = step(pair.theirs, count, gradients).lower(*precise)
        exact = lowered.compile(compiler_options=UNTUNED)(*precise)
    ways = {
        name: step(one, count, gradients)
        for name, one in (("ours", pair.ours), ("vendor", pair.theirs))
    }
    if on_gpu():
        build(gradients)
    for name, way in ways.items():
        for found, wanted in zip(way(*args), exact, strict=True):
            error = jnp.linalg.norm((found.astype("float32") - wanted).ravel())
            assert error <= FAR * jnp.linalg.norm(wanted.ravel()), name
    return {name: partial(_done, way, args) for name, way in ways.items()}


@cache
def build(gradients: bool) -> None:
    """Build the kernels of all programs, side by side."""
    import jax

    import tilewright.jax as tj

    def prepare(pair: Pair) -> None:
        given = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in pair.shapes]
        tj.prepare(step(pair.ours, len(given), gradients), *given)

    with ThreadPoolExecutor() as several:
        every = [several.submit(prepare, make(*size)) for _, make, sizes in KINDS for size in sizes]
    for one in every:
        one.result()


def on_gpu() -> bool:
    import jax

    return bool(jax.default_backend() == "gpu")


def _done(way: Any, args: Sequence[Any]) -> object:
    import jax

    return jax.block_until_ready(way(*args))


def product(m: int, n: int, k: int) -> Pair:
    """A layer with a bias and GELU, which XLA computes behind the product."""
    import jax

    import tilewright.jax as tj

    return Pair(
        lambda a, b, bias: tj.gemm(a, b, bias=bias, epilogue="bias+gelu_tanh"),
        lambda a, b, bias: jax.nn.gelu(a @ b + bias, approximate=True),
        ((m, k), (k, n), (n,)),
    )


def attention(batch: int, rows: int) -> Pair:
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
    return Pair(partial(tj.attention, causal=True), theirs, tuple(shapes))


def convolution(images: int, side: int, channels: int) -> Pair:
    """A 3×3 layer of a ResNet, channels last."""
    import jax

    import tilewright.jax as tj

    def theirs(x: Any, w: Any) -> Any:
        pad = ((1, 1), (1, 1))
        return jax.lax.conv_general_dilated(x, w, (1, 1), pad, dimension_numbers=WORDS)

    return Pair(
        partial(tj.conv, dimension_numbers=WORDS, pad=(1, 1)),
        theirs,
        ((images, side, side, channels), (channels, 3, 3, channels)),
    )


KINDS: tuple[tuple[str, Any, Any], ...] = (
    ("product", product, SIZES),
    ("attention", attention, LENGTHS),
    ("conv", convolution, LAYERS),
)


def _programs(gradients: bool) -> dict[str, Callable[[], Steps]]:
    def program(make: Callable[..., Pair], size: Sequence[int]) -> Steps:
        return steps(make(*size), gradients)

    end = "-gradients" if gradients else ""
    return {
        f"jax-{kind}-{'x'.join(map(str, size))}{end}": partial(program, make, size)
        for kind, make, sizes in KINDS
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
