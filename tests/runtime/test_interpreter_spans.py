"""Operands on their way to the interpreter's process: elements that lie far apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright import Dispatcher
from tilewright.errors import OutOfMemory
from tilewright.runtime import interpreter_spans as spans

GIB = 1 << 30


def far(shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """An array of fp32 with these strides in elements, in memory of which the touched pages alone
    exist."""
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    memory = spans.reserved(4 * (last + 1)).view(np.float32)
    return np.ndarray(shape, np.float32, memory, 0, [4 * s for s in strides])


def filled(array: np.ndarray, seed: int) -> np.ndarray:
    array[...] = np.random.default_rng(seed).standard_normal(array.shape)
    return array


@pytest.mark.turns(12)
def test_a_product_over_wide_strides_touches_its_elements_alone():
    a = filled(far((4, 64), (GIB // 4, 1)), 1)
    b = filled(far((64, 32), (1, GIB // 4)), 2)
    out = far((4, 32), (GIB // 8, 1))
    Dispatcher(device="h200_sxm").run("gemm", a, b, out=out)
    assert np.allclose(out, a.astype("float64") @ b.astype("float64"), atol=1e-4)
    assert spans.Span(a).resident < 1 << 16 and len(spans.Span(b).image) == 64 * 32 * 4


@pytest.mark.turns(12)
def test_a_batch_stride_beyond_32_bits():
    wide = (1 << 31) + 64
    a, out = filled(far((2, 4, 64), (wide, 64, 1)), 1), far((2, 4, 32), (wide, 32, 1))
    b = np.random.default_rng(2).standard_normal((2, 64, 32)).astype(np.float32)
    Dispatcher(device="h200_sxm").run("gemm", a, b, out=out)
    assert np.allclose(out, a.astype("float64") @ b.astype("float64"), atol=1e-4)


def test_too_many_bytes_are_refused_before_any_is_copied():
    a = far((1 << 22, 16), (1 << 12, 1))
    with pytest.raises(OutOfMemory, match=r"operands take \d+ bytes .*A alone .* smaller problem"):
        Dispatcher(device="h200_sxm").run("gemm", a, np.ones((16, 8), np.float32))


def test_a_span_is_as_large_as_its_blocks():
    rows, every = far((4, 64), (GIB // 4, 1)), far((64, 32), (1, GIB // 4))
    for array in (rows, every, rows[::-1]):
        span = spans.Span(array)
        assert len(span.image) == array.size * 4 and span.resident < 1 << 18
    close = np.zeros((4, 64), np.float32)[:, ::2]
    assert len(spans.Span(close).image) == spans.Span(close).resident == 4 * 256 - 4


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(-40, 40)), min_size=1, max_size=4),
    st.integers(0, 2**32),
)
def test_every_element_comes_and_goes(dims, seed):
    """Whatever the strides, of either sign, interleaved or repeated."""
    shape, strides = (tuple(numbers) for numbers in zip(*dims, strict=True))
    low = sum((n - 1) * s for n, s in dims if s < 0)
    high = sum((n - 1) * s for n, s in dims if s > 0)
    memory = np.random.default_rng(seed).integers(0, 1000, high - low + 1).astype(np.int16)
    array = np.ndarray(shape, np.int16, memory, -2 * low, [2 * s for s in strides])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "DENSE", 0)
        patch.setattr(spans, "_PAGE", 4)
        span = spans.Span(array)
        there = spans.placed(span.described, bytes(span.image))
        seen = np.ndarray(shape, np.int16, there, span.described["origin"], array.strides)
        assert np.array_equal(seen, array)
        before, kept = array.copy(), memory.copy()
        seen[...] = 7
        span.write_back(bytes(spans.image_of(span.described, there)))
    assert (array == 7).all() and before.shape == array.shape
    touched = np.zeros(memory.shape, bool)
    np.ndarray(shape, bool, touched, -low, strides)[...] = True
    assert np.array_equal(memory[~touched], kept[~touched])
    assert len(span.image) <= memory.nbytes
