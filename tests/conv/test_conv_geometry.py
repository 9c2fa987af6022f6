"""Which pixels a tap joins, by counting them one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.ops.conv.geometry import Dim, out_size, whole_padding

SMALL = st.integers(1, 6)


@st.composite
def dims(draw: st.DrawFn) -> Dim:
    size, taps, stride, dilation = draw(st.integers(0, 20)), *(draw(SMALL) for _ in range(3))
    pad, after = draw(st.integers(-3, 9)), draw(st.integers(-3, 9))
    out = out_size(size, taps, stride, dilation, pad, after)
    return Dim(size, taps, stride, dilation, pad, max(0, out))


def pixel(dim: Dim, q: int, tap: int) -> int:
    return q * dim.stride - dim.pad + tap * dim.dilation


@given(dims())
def test_pixels_that_a_tap_joins(dim):
    for tap in range(dim.filter):
        first, past = dim.joined(tap)
        seen = [q for q in range(dim.out) if 0 <= pixel(dim, q, tap) < dim.size]
        assert seen == [*range(first, past)]


@given(dims())
def test_taps_of_a_residue_class(dim):
    """Each pixel of x meets the taps of its class, and of those it meets, all of y's pixels."""
    for h in range(dim.size):
        taps = [*dim.taps_of(h % dim.stride)]
        assert taps == [
            r for r in range(dim.filter) if (h + dim.pad - r * dim.dilation) % dim.stride == 0
        ]


@given(dims())
def test_padding_that_is_seen_gives_the_same_size(dim):
    if dim.out:
        after = whole_padding(dim)
        same = out_size(dim.size, dim.filter, dim.stride, dim.dilation, dim.pad, after)
        assert same == dim.out
