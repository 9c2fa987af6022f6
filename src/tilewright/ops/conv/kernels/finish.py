"""The end of a tile: the epilogue's operations, and the store.

Operands of the epilogue (see `ops/device/epilogue.py`, whose functions these are): a value for each
channel of the result, an array that lies as the result does, or a scalar.
"""

import triton
import triton.language as tl

from tilewright.ops.device.epilogue import (
    first_operand,
    operand_count,
    operand_kind,
    rounded,
)


@triton.jit
def _operand(extra, J: tl.constexpr, places, channels, mask, channels_inside, TAKES: tl.constexpr):
    KIND: tl.constexpr = operand_kind(TAKES, J)
    if KIND == "n":
        x = tl.load(extra[J] + channels, mask=channels_inside)[None, :]
    elif KIND == "d":
        x = tl.load(extra[J] + places, mask=mask)
    else:
        x = tl.load(extra[J])
    return x.to(tl.float32)


@triton.jit
def _step(
    acc, extra, places, channels, mask, channels_inside, STEP: tl.constexpr,
    CHAIN: tl.constexpr, TAKES: tl.constexpr,
):  # fmt: skip
    J: tl.constexpr = first_operand(TAKES, STEP)
    if operand_count(TAKES, STEP) == 0:
        out = CHAIN[STEP](acc)
    elif operand_count(TAKES, STEP) == 1:
        x = _operand(extra, J, places, channels, mask, channels_inside, TAKES)
        out = CHAIN[STEP](acc, x)
    else:
        x = _operand(extra, J, places, channels, mask, channels_inside, TAKES)
        y = _operand(extra, J + 1, places, channels, mask, channels_inside, TAKES)
        out = CHAIN[STEP](acc, x, y)
    return out


@triton.jit
def chained(
    acc, extra, places, channels, mask, channels_inside, CHAIN: tl.constexpr, TAKES: tl.constexpr
):  # fmt: skip
    """Sums [pixels, channels] after the epilogue, not yet rounded. The arguments: see `finish`."""
    out = acc
    if len(CHAIN) > 0:
        out = acc.to(tl.float32)
        for i in tl.static_range(len(CHAIN)):
            out = _step(out, extra, places, channels, mask, channels_inside, i, CHAIN, TAKES)
    return out


@triton.jit
def finish(
    acc, made, extra, places, channels, mask, channels_inside,
    CHAIN: tl.constexpr, TAKES: tl.constexpr, LARGEST: tl.constexpr,
):  # fmt: skip
    """Store sums [pixels, channels] at `places`, after the epilogue.

    channels: of the result, counted over all groups. mask: of the places; channels_inside: of the
    channels.
    """
    out = chained(acc, extra, places, channels, mask, channels_inside, CHAIN, TAKES)
    tl.store(made + places, rounded(out, made.dtype.element_ty, LARGEST), mask=mask)
