"""Convolutions over one more dimension as one convolution of more images."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ops import epilogues
from tilewright.ops.joined import Joined
from tilewright.ops.nouns import Call


def joined(call: Call, apart: Sequence[bool]) -> Joined | None:
    """See `tilewright.ops.protocols.Launching`. Calls with filters of their own, and gradients of
    filters, are made one by one."""
    if call.options.get("direction", "forward") == "weights" or len(call.inputs) != 2:
        return None
    chain = call.options.get("epilogue", "")
    kinds = dict(
        zip(epilogues.chain_names(chain), (t.kind for t in epilogues.takes(chain)), strict=True)
    )
    whole = [True, False, *(kinds.get(name) == "d" for name in call.named)]
    if any(differs and not images for differs, images in zip(apart, whole, strict=True)):
        return None
    return Joined(tuple(0 if images else None for images in whole), (0,))
