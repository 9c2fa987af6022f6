"""A few new positions of causal 1-D convolutions, over states that are updated in place.

Idea. A workgroup has some channels of a sequence. The positions before the new ones come from its
state; each new position moves the window of TAPS positions, in registers, on by one. Then the new
positions are written to the state: behind its others, which move up, or in a circular state at the
place where its length ends.

Each thread has its channels' whole state: none reads what another writes. An index that names no
entry of the states is padding: its results are 0, and nothing is written. A length below 0 is 0.

What limits it: the launch; with long states their way through memory. Not timed.
"""

import triton
import triton.language as tl

from tilewright.ops.causal_conv.kernels.whole import none


@triton.jit
def causal_update(
    x, conv_state, w, y, bias, cache_seqlens, conv_state_indices, channels, tokens, state_len,
    cache_entries, x_strides, w_strides, y_strides, conv_state_strides,
    TILE_N: tl.constexpr, TAPS: tl.constexpr, BIAS: tl.constexpr, SILU: tl.constexpr,
    CIRCULAR: tl.constexpr, INDEXED: tl.constexpr,
):  # fmt: skip
    """TILE_N channels of a sequence."""
    tiles_n = tl.cdiv(channels, TILE_N)
    image = tl.program_id(0) // tiles_n
    c = tl.program_id(0) % tiles_n * TILE_N + tl.arange(0, TILE_N)
    there = c < channels
    entry = image
    if INDEXED:
        entry = tl.load(conv_state_indices + image)
    live = there & (entry >= 0) & (entry < cache_entries)
    begin = 0
    if CIRCULAR:
        begin = tl.maximum(tl.load(cache_seqlens + image), 0) % state_len
    mine = conv_state + (entry * conv_state_strides[0] + c * conv_state_strides[1])
    from_x = x + (image * x_strides[0] + c * x_strides[1])
    to_y = y + (image * y_strides[0] + c * y_strides[1])
    factors = none()
    window = none()
    for k in tl.static_range(TAPS):
        factor = tl.load(w + (c * w_strides[0] + k * w_strides[1]), mask=there, other=0.0)
        factors = factors + (factor.to(tl.float32),)
    for k in tl.static_range(TAPS - 1):
        before = (begin + state_len + (k - (TAPS - 1))) % state_len
        v = tl.load(mine + before * conv_state_strides[2], mask=live, other=0.0).to(tl.float32)
        window = window + (v,)
    shift = tl.zeros((TILE_N,), tl.float32)
    if BIAS:
        shift += tl.load(bias + c, mask=there, other=0.0).to(tl.float32)
    for i in range(tokens):
        v = tl.load(from_x + i * x_strides[2], mask=live, other=0.0).to(tl.float32)
        window = window + (v,)
        acc = shift
        for k in tl.static_range(TAPS):
            acc += window[k] * factors[k]
        if SILU:
            acc = acc / (1.0 + tl.exp(-acc))
        acc = tl.where(live, acc, 0.0)
        tl.store(to_y + i * y_strides[2], acc.to(y.dtype.element_ty), mask=there)
        kept = none()
        for k in tl.static_range(1, TAPS):
            kept = kept + (window[k],)
        window = kept
    tl.debug_barrier()
    if CIRCULAR:
        # Of more positions than the state has, the last stay.
        for i in range(tl.maximum(tokens - state_len, 0), tokens):
            newest = tl.load(from_x + i * x_strides[2], mask=live, other=0.0)
            tl.store(mine + (begin + i) % state_len * conv_state_strides[2], newest, mask=live)
    else:
        for slot in range(state_len):
            from_state = slot + tokens
            old = tl.load(
                mine + from_state * conv_state_strides[2],
                mask=live & (from_state < state_len),
                other=0.0,
            )
            new = tl.load(
                from_x + (from_state - state_len) * x_strides[2],
                mask=live & (from_state >= state_len), other=0.0,
            )  # fmt: skip
            moved = tl.where(from_state < state_len, old, new)
            tl.store(mine + slot * conv_state_strides[2], moved, mask=live)
