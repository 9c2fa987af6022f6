"""Causal 1-D convolutions of whole sequences, forward and backward, for every architecture.

Idea. A workgroup has tiles of positions and channels. Each of the few taps loads the tile shifted
by a position, and adds its product; bias, SiLU and the mask of packed sequences follow in
registers. Positions before the first are the initial states, or zero.

The gradients are one pass. A position of dX meets the TAPS results behind it. What reaches them
through SiLU needs their sums, which are computed anew from the 2·TAPS - 1 positions around, all in
registers: no intermediate array is written. A workgroup keeps sums for the weights and the bias
while it walks over its share of the positions; `causal_totals` adds the shares in a fixed order, so
results repeat bit for bit.

Data movement. x (and dY) are read once from memory, and TAPS times from L1; arrays whose channels
are neighbours in vectors, and those whose positions are, coalesced.

What limits it: memory; with SiLU the gradients' exponentials, TAPS for each element. Not timed.
"""

import triton
import triton.language as tl


@triton.jit
def none():
    """A tuple to begin with."""
    return ()


@triton.jit
def _places(image, c, strides, INNER: tl.constexpr):
    """Elements to position 0 of an image's channels. INNER: ``channels`` where they are
    neighbours."""
    found = image * strides[0] + c
    if INNER != "channels":
        found = image * strides[0] + c * strides[1]
    return found


@triton.jit
def _along(positions, strides, INNER: tl.constexpr):
    """Elements from position 0. INNER: ``tokens`` where positions are neighbours."""
    found = positions
    if INNER != "tokens":
        found = positions * strides[2]
    return found


@triton.jit
def _read(
    x, initial_states, from_x, from_state, at, tokens, mask, x_strides, state_strides,
    TAPS: tl.constexpr, INNER: tl.constexpr, INITIAL: tl.constexpr,
):  # fmt: skip
    """Positions `at` of the sequences behind their initial states, in fp32; zeros outside."""
    v = tl.load(
        x + (from_x[None, :] + _along(at, x_strides, INNER)[:, None]),
        mask=((at >= 0) & (at < tokens))[:, None] & mask[None, :], other=0.0,
    ).to(tl.float32)  # fmt: skip
    if INITIAL:
        slot = at + (TAPS - 1)
        v += tl.load(
            initial_states + (from_state[None, :] + (slot * state_strides[2])[:, None]),
            mask=((slot >= 0) & (at < 0))[:, None] & mask[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
    return v


@triton.jit
def _sequence(seq_idx, image, at, tokens, seq_strides):
    """The sequence that each position is of; -1 outside."""
    return tl.load(
        seq_idx + (image * seq_strides[0] + at * seq_strides[1]),
        mask=(at >= 0) & (at < tokens), other=-1,
    )  # fmt: skip


@triton.jit
def _weights(w, c, mask, w_strides, TAPS: tl.constexpr):
    found = none()
    for k in tl.static_range(TAPS):
        factor = tl.load(w + (c * w_strides[0] + k * w_strides[1]), mask=mask, other=0.0)
        found = found + (factor.to(tl.float32)[None, :],)
    return found


@triton.jit
def causal_forward(
    x, w, y, bias, seq_idx, initial_states, final_states, channels, tokens, x_strides, w_strides,
    y_strides, seq_idx_strides, initial_states_strides, final_states_strides,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TAPS: tl.constexpr, INNER: tl.constexpr,
    BIAS: tl.constexpr, SILU: tl.constexpr, INITIAL: tl.constexpr, FINAL: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """A tile of y, and with the first tile of a sequence its final states."""
    tiles_n = tl.cdiv(channels, TILE_N)
    tiles_m = tl.maximum(tl.cdiv(tokens, TILE_M), 1)
    tile = tl.program_id(0) // tiles_n % tiles_m
    image = tl.program_id(0) // tiles_n // tiles_m
    c = tl.program_id(0) % tiles_n * TILE_N + tl.arange(0, TILE_N)
    c_there = c < channels
    at = tile * TILE_M + tl.arange(0, TILE_M)
    from_x = _places(image, c, x_strides, INNER)
    from_state = c * 0
    if INITIAL:
        from_state = image * initial_states_strides[0] + c * initial_states_strides[1]
    factors = _weights(w, c, c_there, w_strides, TAPS)
    acc = tl.zeros((TILE_M, TILE_N), tl.float32)
    if BIAS:
        acc += tl.load(bias + c, mask=c_there, other=0.0).to(tl.float32)[None, :]
    if PACKED:
        of = _sequence(seq_idx, image, at, tokens, seq_idx_strides)
    for k in tl.static_range(TAPS):
        v = _read(
            x, initial_states, from_x, from_state, at + (k - (TAPS - 1)), tokens, c_there,
            x_strides, initial_states_strides, TAPS, INNER, INITIAL,
        )  # fmt: skip
        if PACKED:
            same = _sequence(seq_idx, image, at + (k - (TAPS - 1)), tokens, seq_idx_strides) == of
            v = tl.where(same[:, None], v, 0.0)
        acc += v * factors[k]
    if SILU:
        acc = acc / (1.0 + tl.exp(-acc))
    if PACKED:
        acc = tl.where((of >= 0)[:, None], acc, 0.0)
    places = _places(image, c, y_strides, INNER)[None, :] + _along(at, y_strides, INNER)[:, None]
    tl.store(y + places, acc.to(y.dtype.element_ty), mask=(at < tokens)[:, None] & c_there[None, :])
    if FINAL:  # noqa: SIM102
        if tile == 0:
            for j in tl.static_range(TAPS - 1):
                last = tokens - (TAPS - 1) + j + tl.arange(0, 1)
                end = _read(
                    x, initial_states, from_x, from_state, last, tokens, c_there, x_strides,
                    initial_states_strides, TAPS, INNER, INITIAL,
                )  # fmt: skip
                to_final = (
                    image * final_states_strides[0]
                    + c * final_states_strides[1]
                    + j * final_states_strides[2]
                )
                tl.store(
                    final_states + to_final[None, :],
                    end.to(y.dtype.element_ty),
                    mask=c_there[None, :],
                )


@triton.jit
def causal_backward(
    x, w, dy, dx, partials, bias, seq_idx, initial_states, dfinal_states, dinitial_states, batch,
    channels, tokens, splits, x_strides, w_strides, dy_strides, dx_strides, seq_idx_strides,
    initial_states_strides, dfinal_states_strides, dinitial_states_strides,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TAPS: tl.constexpr, INNER: tl.constexpr,
    BIAS: tl.constexpr, SILU: tl.constexpr, INITIAL: tl.constexpr, FINAL: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """dX (and the initial states' gradient) of a share of the positions, and its sums of the
    weights' and the bias' gradients: `partials` [share, TAPS + 1, channels], the bias last."""
    tiles_n = tl.cdiv(channels, TILE_N)
    first = 0
    if INITIAL:
        first = 1 - TAPS
    tiles_m = tl.cdiv(tokens - first, TILE_M)
    part = tl.program_id(0) // tiles_n
    c = tl.program_id(0) % tiles_n * TILE_N + tl.arange(0, TILE_N)
    c_there = c < channels
    factors = _weights(w, c, c_there, w_strides, TAPS)
    shift = tl.zeros((1, TILE_N), tl.float32)
    if BIAS:
        shift += tl.load(bias + c, mask=c_there, other=0.0).to(tl.float32)[None, :]
    sums = none()
    for _ in tl.static_range(TAPS):
        sums = sums + (tl.zeros((TILE_M, TILE_N), tl.float32),)
    of_bias = tl.zeros((TILE_M, TILE_N), tl.float32)
    share = tl.cdiv(batch * tiles_m, splits)
    for number in range(part * share, min((part + 1) * share, batch * tiles_m)):
        image = number // tiles_m
        at = first + number % tiles_m * TILE_M + tl.arange(0, TILE_M)
        from_x = _places(image, c, x_strides, INNER)
        from_y = _places(image, c, dy_strides, INNER)
        from_state = c * 0
        if INITIAL:
            from_state = image * initial_states_strides[0] + c * initial_states_strides[1]
        # Positions from TAPS - 1 before to TAPS - 1 behind.
        around = none()
        of = none()
        for i in tl.static_range(2 * TAPS - 1):
            near = at + (i - (TAPS - 1))
            v = _read(
                x, initial_states, from_x, from_state, near, tokens, c_there, x_strides,
                initial_states_strides, TAPS, INNER, INITIAL,
            )  # fmt: skip
            around = around + (v,)
            if PACKED:
                one = _sequence(seq_idx, image, near, tokens, seq_idx_strides)
                of = of + (one,)
        total = tl.zeros((TILE_M, TILE_N), tl.float32)
        for j in tl.static_range(TAPS):
            behind = at + j
            there = (behind >= 0) & (behind < tokens)
            if PACKED:
                there = there & (of[TAPS - 1 + j] >= 0)
            g = tl.load(
                dy + (from_y[None, :] + _along(behind, dy_strides, INNER)[:, None]),
                mask=there[:, None] & c_there[None, :], other=0.0,
            ).to(tl.float32)  # fmt: skip
            if SILU:
                z = shift + tl.zeros((TILE_M, TILE_N), tl.float32)
                for k in tl.static_range(TAPS):
                    v = around[j + k]
                    if PACKED:
                        same = of[j + k] == of[TAPS - 1 + j]
                        v = tl.where(same[:, None], v, 0.0)
                    z += v * factors[k]
                s = 1.0 / (1.0 + tl.exp(-z))
                g = g * (s * (1.0 + z * (1.0 - s)))
            if j == 0:
                of_bias += g
                more = none()
                for k in tl.static_range(TAPS):
                    v = around[k]
                    if PACKED:
                        v = tl.where((of[k] == of[TAPS - 1])[:, None], v, 0.0)
                    more = more + (sums[k] + g * v,)
                sums = more
            if PACKED:
                g = tl.where((of[TAPS - 1] == of[TAPS - 1 + j])[:, None], g, 0.0)
            total += g * factors[TAPS - 1 - j]
        inside = (at >= 0) & (at < tokens)
        if FINAL:
            slot = at - (tokens - (TAPS - 1))
            from_final = image * dfinal_states_strides[0] + c * dfinal_states_strides[1]
            total += tl.load(
                dfinal_states + (from_final[None, :] + (slot * dfinal_states_strides[2])[:, None]),
                mask=((slot >= 0) & (at < tokens))[:, None] & c_there[None, :], other=0.0,
            ).to(tl.float32)  # fmt: skip
        to = _places(image, c, dx_strides, INNER)[None, :] + _along(at, dx_strides, INNER)[:, None]
        tl.store(dx + to, total.to(dx.dtype.element_ty), mask=inside[:, None] & c_there[None, :])
        if INITIAL:
            to = image * dinitial_states_strides[0] + c * dinitial_states_strides[1]
            tl.store(
                dinitial_states
                + (to[None, :] + ((at + TAPS - 1) * dinitial_states_strides[2])[:, None]),
                total.to(dx.dtype.element_ty), mask=(at < 0)[:, None] & c_there[None, :],
            )  # fmt: skip
    to = partials + (part * (TAPS + 1)).to(tl.int64) * channels + c
    for k in tl.static_range(TAPS):
        tl.store(to + k * channels, tl.sum(sums[k], 0), mask=c_there)
    tl.store(to + TAPS * channels, tl.sum(of_bias, 0), mask=c_there)


@triton.jit
def causal_totals(
    partials, dw, dbias, channels, splits, BLOCK: tl.constexpr, TAPS: tl.constexpr,
    BIAS: tl.constexpr,
):  # fmt: skip
    """The gradients of BLOCK channels' weights and bias: shares added in their order."""
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = c < channels
    for k in tl.static_range(TAPS + 1):
        total = tl.zeros((BLOCK,), tl.float32)
        place = partials + (k * channels + c)
        for _ in range(splits):
            total += tl.load(place, mask=there, other=0.0)
            place += (TAPS + 1) * channels
        if k < TAPS:
            tl.store(dw + (c * TAPS + k), total.to(dw.dtype.element_ty), mask=there)
        elif BIAS:
            tl.store(dbias + c, total.to(dbias.dtype.element_ty), mask=there)
