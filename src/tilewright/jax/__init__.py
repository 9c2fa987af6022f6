"""Under JAX: products, attention and convolutions as functions of JAX's arrays, under ``jit``,
``grad`` and ``vmap``.

    import tilewright.jax as tj        # needs jax

    c = tj.gemm(a, b, bias=bias, epilogue="bias+gelu")

A call becomes a custom call of XLA, which the launcher launches on XLA's stream. On the CPU it runs
in Triton's interpreter.
"""

from __future__ import annotations

from tilewright.jax.functions import attention, conv, dot_general, gemm, matmul
from tilewright.jax.preparing import prepare

__all__ = ["attention", "conv", "dot_general", "gemm", "matmul", "prepare"]
