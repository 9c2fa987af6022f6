"""A plan's own mask, as a bias that `tilewright.attention` adds to the scores: 0 or -inf."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import checked
from tilewright.serving.buffers import Buffers

LITTLE = 8
"""Bits of a byte of a packed mask, of which the lowest comes first."""


def own_mask(causal: Any, custom_mask: Any, packed_custom_mask: Any) -> bool:
    """Whether a plan has a mask of its own. Raises `BadArgument` if it says more than one mask."""
    if custom_mask is not None and packed_custom_mask is not None:
        raise BadArgument("custom_mask and packed_custom_mask are one mask in two forms; pass one")
    own = custom_mask is not None or packed_custom_mask is not None
    if own and checked.flag("causal", causal):
        raise BadArgument("custom_mask says all of the mask; leave causal out")
    return own


def bias(
    buffers: Buffers,
    lengths: Sequence[tuple[int, int]],
    most: tuple[int, int],
    custom_mask: Any,
    packed_custom_mask: Any,
) -> Any:
    """fp32 [batch, 1, most queries, most keys]: -inf where a key is hidden.

    lengths: queries and keys of each sequence. most: of a sequence, both.
    custom_mask, packed_custom_mask: as in `PagedAttention.plan`; one of them is given.

    Raises `BadArgument` unless the mask is as long as the lengths say.
    """
    import torch

    pairs = [n_q * n_kv for n_q, n_kv in lengths]
    name, given, kind = "custom_mask", custom_mask, "bool"
    if custom_mask is None:
        name, given, kind = "packed_custom_mask", packed_custom_mask, "uint8"
        pairs = [-(-n // LITTLE) for n in pairs]
    checked.tensor(name, given, "all sequences", kinds=(kind,))
    if len(given) != sum(pairs):
        raise BadArgument(
            f"{name} has {len(given)} elements, but the plan's queries and keys need {sum(pairs)}"
        )
    found = buffers.bias(len(lengths), most)
    found.fill_(-torch.inf)
    parts = given.to(found.device).split(pairs)
    for b, (part, (n_q, n_kv)) in enumerate(zip(parts, lengths, strict=True)):
        if custom_mask is None:
            bits = torch.arange(LITTLE, dtype=torch.uint8, device=found.device)
            part = (part[:, None] >> bits & 1).flatten()[: n_q * n_kv].bool()
        found[b, 0, :n_q, :n_kv] = torch.where(part.reshape(n_q, n_kv), 0.0, -torch.inf)
    return found
