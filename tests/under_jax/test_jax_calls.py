"""Calls on the CPU beside `jax.numpy`, through the interpreter; and what is refused."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax_cases import close, normal

import tilewright.jax as tj
from tilewright.errors import BadArgument
from tilewright.jax.stated import read


@pytest.mark.turns(6)
def test_a_product_with_an_epilogue_and_a_transposed_operand():
    a, b, bias = normal(20, 17), normal(20, 24, seed=1), normal(24, seed=2)
    found = jax.jit(lambda *x: tj.gemm(*x[:2], transpose_a=True, bias=x[2], epilogue="bias+relu"))(
        a, b, bias
    )
    close(found, jax.nn.relu(a.T @ b + bias))


@pytest.mark.turns(12)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes(dtype):
    a, b = normal(16, 32, dtype=dtype), normal(32, 16, dtype=dtype, seed=1)
    wide = a.astype(jnp.float32) @ b.astype(jnp.float32)
    found = tj.gemm(a, b, scale=0.5, epilogue="scale")
    close(found, (0.5 * wide).astype(found.dtype), 0.02)


@pytest.mark.turns(12)
def test_attention():
    q, k, v = normal(2, 9, 4, 16), normal(2, 9, 2, 16, seed=1), normal(2, 9, 2, 16, seed=2)
    used = jnp.array([3, 9], jnp.int32)
    found, lse = jax.jit(lambda *x: tj.attention(*x, kv_used=used, lse=True))(q, k, v)
    close(found, jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=used))
    assert lse.shape == (2, 4, 9)


@pytest.mark.turns(12)
def test_convolution():
    x, w = normal(2, 6, 7, 8), normal(3, 3, 8, 12, seed=1)
    words = ("NHWC", "HWIO", "NHWC")
    found = tj.conv(x, w, dimension_numbers=words, stride=(2, 1), pad=(1, 1))
    pad = ((1, 1), (1, 1))
    close(found, jax.lax.conv_general_dilated(x, w, (2, 1), pad, dimension_numbers=words))


REFUSED = [
    (lambda a: tj.gemm(a, a[:3]), "A is 4×4 but B is 3×4"),
    (lambda a: tj.gemm(a, a, stages=3), "stages"),
    (lambda a: tj.gemm(a.astype(jnp.int16), a), "int16"),
    (lambda a: tj.attention(a[None, None], a[None, None], a[None, None], scale=a[0, 0]), "Python"),
    (lambda a: tj.conv(a[None, None], a[None, None], dimension_numbers=("NHCC", "", "")), "NHCC"),
]


@pytest.mark.parametrize(("call", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_refusals_name_what_is_wrong(call, why):
    with pytest.raises(BadArgument, match=why):
        jax.eval_shape(call, jax.ShapeDtypeStruct((4, 4), jnp.float32))


def test_an_error_of_a_call_reaches_the_caller(monkeypatch):
    from tilewright.jax import foreign

    def fails(text, addresses):
        raise BadArgument(f"no {read(text)[0].op} today")

    monkeypatch.setattr(foreign, "_run", fails)
    with pytest.raises(Exception, match="BadArgument: no gemm today"):
        jax.block_until_ready(tj.gemm(normal(5, 4), normal(4, 6)))


def test_empty_results_launch_nothing(referenced):
    assert tj.gemm(normal(0, 4), normal(4, 6)).shape == (0, 6)
    assert not referenced


def test_temporaries_are_one_more_result(monkeypatch):
    from tilewright.jax import foreign

    lowered, run, seen = foreign.lowered, foreign._run, []

    def with_memory(stated, platform):
        return replace(lowered(stated, platform), memory=1000)

    def noted(text, addresses):
        seen.append(len(addresses))
        run(text, addresses[:-1])

    monkeypatch.setattr(foreign, "lowered", with_memory)
    monkeypatch.setattr(foreign, "_run", noted)
    a, b = normal(7, 4), normal(4, 6, seed=1)
    close(jax.jit(tj.gemm)(a, b), a @ b)
    assert seen == [4]  # operands, the product, and the memory
