"""Strips of neighbouring pixels in registers, as tuples, for windows (held, rows)."""

import triton
import triton.language as tl


@triton.jit
def zeros(COUNT: tl.constexpr, like):
    found = ()
    for _ in tl.static_range(COUNT):
        found = found + (tl.zeros_like(like),)  # type: ignore[assignment]
    return found


@triton.jit
def seen_by(cols, FILTERS: tl.constexpr, DATA: tl.constexpr):
    """The channel of the source that each column of a tile sees, where a channel has so many
    filters; in the gradient of the data the first of them."""
    found = cols
    if FILTERS > 1:
        if DATA:
            found = cols * FILTERS
        else:
            found = cols // FILTERS
    return found


@triton.jit
def pixels_of_row(
    source, base, from_w, there, cols_there, size_w, stride_w, like, COUNT: tl.constexpr
):  # fmt: skip
    """Neighbouring pixels of a row, in the dtype of `like`; zeros outside."""
    # One place, moved on: of many, the compiler would keep each in a register.
    places = base + (from_w * stride_w)[:, None]
    found = ()
    for i in tl.static_range(COUNT):
        mask = there & (from_w + i >= 0) & (from_w + i < size_w)
        x = tl.load(source + places, mask=mask[:, None] & cols_there[None, :], other=0.0)
        found = found + (x.to(like.dtype),)  # type: ignore[assignment]
        places += stride_w
    return found


@triton.jit
def widened(pixels, like, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """COUNT pixels from number FIRST on, in the dtype of `like`."""
    found = ()
    for i in tl.static_range(COUNT):
        found = found + (pixels[FIRST + i].to(like.dtype),)  # type: ignore[assignment]
    return found


@triton.jit
def joined(
    total, pixels, factors, T: tl.constexpr, FIRST: tl.constexpr, TAPS_W: tl.constexpr,
    STEP_W: tl.constexpr, DATA: tl.constexpr,
):  # fmt: skip
    """The sum of a strip's pixel T with all products of a row of the filter, whose first tap is
    FIRST, and a row of the source."""
    BEFORE: tl.constexpr = (TAPS_W + STEP_W - 1) // STEP_W - 1
    for tap in tl.static_range(TAPS_W):
        if not DATA:
            total += pixels[tap + T * STEP_W] * factors[FIRST + tap]
        elif (T - tap) % STEP_W == 0:
            total += pixels[BEFORE + (T - tap) // STEP_W] * factors[FIRST + tap]
    return total
