"""The mask function that is registered: the cheapest form of a mask that attention takes.

- None, where the rule of torch's ``scaled_dot_product_attention`` says all: causal from the first
  key on (or one query that sees all keys), or all keys.
- A `DescribedMask`, where windows, lengths, left padding or packed sequences say it.
- A plain boolean mask, as transformers makes it for ``sdpa``, in all other cases.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import causal_mask_function, sdpa_mask

from tilewright.errors import BadArgument
from tilewright.transformers.described import DescribedMask, Seen
from tilewright.transformers.patterns import Function, Packed, Pattern, pattern_of


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Function = causal_mask_function,
    attention_mask: Any = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: Any = "cpu",
    config: Any = None,
    **others: Any,
) -> Any:
    """The mask of one kind of layer, as transformers' ``sdpa_mask`` states it.

    attention_mask: bool [batch, keys and more], False for padding.

    It waits for the device once if there is padding to look at, or packed sequences. Raises
    `BadArgument` for a model that computes attention itself.
    """
    if config is not None:
        _refuse(type(config))
    found = None
    if not torch.compiler.is_compiling() and isinstance(kv_offset, int):
        pattern = None if use_vmap else pattern_of(mask_function)
        if isinstance(pattern, Pattern) and pattern.chunk is not None:
            within = kv_offset + kv_length <= pattern.chunk
            pattern = Pattern(right=0) if within else None
        if isinstance(pattern, Packed) and attention_mask is None:
            return _packed(pattern, device)
        if isinstance(pattern, Pattern):
            padding = _padding(attention_mask, kv_length, kv_offset, q_offset, q_length)
            if padding is not None:
                shape = (batch_size, 1, q_length, kv_length)
                build = _causal if pattern.causal else _both_ways
                found = build(shape, device, pattern, padding, kv_offset)
    if found is None:
        return sdpa_mask(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
            kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask,
            local_size=local_size, allow_is_causal_skip=allow_is_causal_skip,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip, use_vmap=use_vmap,
            device=device, **others,
        )  # fmt: skip
    # Of one query, None says that it sees all keys; of more, that the first sees the first key.
    plain = found.used is None and found.left_pad is None and found.seen.left is None
    if found.seen.right == 0:
        skip = allow_is_causal_skip and found.seen.top_left == (q_length > 1)
    else:
        skip = allow_is_bidirectional_skip and found.seen.right is None
    return None if plain and skip else found


class _Padding:
    """What is known of the padding, with no further waiting.

    first, last: int32 [batch], the first and the last key that is no padding; None without a mask.
    left, right: whether any sequence has padding there.
    q_offset: the first query's place, on the host if it is known there.
    """

    __slots__ = ("first", "last", "left", "q_offset", "right")

    def __init__(self, first: Any, last: Any, left: bool, right: bool, q_offset: Any) -> None:
        self.first, self.last, self.left, self.right = first, last, left, right
        self.q_offset = q_offset


def _padding(
    attention_mask: Any, kv_length: int, kv_offset: int, q_offset: Any, q_length: int
) -> _Padding | None:
    """What is to be known of padding; None for padding between tokens, and where a CUDA graph that
    is being captured cannot be waited for.

    An offset of many queries that lies on the device is read with it: prompts are not compiled.
    """
    asked = {}
    first = last = None
    if attention_mask is not None:
        shown = attention_mask[:, kv_offset : kv_offset + kv_length].int()
        n = shown.shape[-1]
        first = shown.argmax(-1).int()
        last = (n - 1 - shown.flip(-1).argmax(-1)).int()
        count = shown.sum(-1)
        # Of a sequence of padding alone, `first` is 0 and `last` is n - 1.
        last = torch.where(count == 0, -1, last).int()
        asked["holes"] = (last - first + 1 != count).any()
        asked["left"] = (first > 0).any()
        asked["right"] = (last + 1 < kv_length).any()
    if isinstance(q_offset, torch.Tensor) and q_length > 1:
        asked["q_offset"] = q_offset.reshape(())
    known = {}
    if asked:
        device = next(iter(asked.values())).device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return None
        values = torch.stack([x.long().to(device) for x in asked.values()]).tolist()
        known = dict(zip(asked, values, strict=True))
    if known.get("holes"):
        return None
    at = known.get("q_offset", q_offset)
    return _Padding(first, last, bool(known.get("left")), bool(known.get("right")), at)


def _causal(
    shape: tuple[int, int, int, int], device: Any, pattern: Pattern, padding: _Padding,
    kv_offset: int,
) -> DescribedMask | None:  # fmt: skip
    """A causal mask, with or without a window.

    Padding on the right hides nothing that the other rule does not: a query whose own key is no
    padding sees none behind it.
    """
    batch, _, n_q, n_kv = shape
    end = padding.q_offset - kv_offset + n_q  # keys that the last query sees
    left = pattern.left
    on_device = isinstance(end, torch.Tensor)
    if not on_device:
        if end > n_kv or end < n_q:
            return None
        if left is not None and left + 1 >= end:
            left = None
    padded = padding.first if padding.left else None
    if not on_device and padded is None and n_q > 1 and end == n_q:
        return DescribedMask(shape, device, Seen(left, 0, top_left=True))
    used = None
    if on_device or end < n_kv or padded is not None:
        used = _each(end, batch, device)
    return DescribedMask(shape, device, Seen(left, 0), used, padded)


def _both_ways(
    shape: tuple[int, int, int, int], device: Any, pattern: Pattern, padding: _Padding,
    kv_offset: int,
) -> DescribedMask | None:  # fmt: skip
    """A mask that is not causal, with or without a window."""
    batch, _, n_q, n_kv = shape
    left, right = pattern.left, pattern.right
    first = padding.first if padding.left else None
    used = padding.last + 1 if padding.right else None
    if left is not None or right is not None:
        in_place = isinstance(padding.q_offset, int) and padding.q_offset == kv_offset
        if not in_place or (first is not None and (used is not None or n_q != n_kv)):
            return None
    if first is not None and used is None:
        used = _each(n_kv, batch, device)
    windowed = left is not None
    return DescribedMask(shape, device, Seen(left, right, windowed and first is None), used, first)


def _each(length: Any, batch: int, device: Any) -> Any:
    """int32 [batch] of one length, from the host or the device."""
    if isinstance(length, torch.Tensor):
        return length.to(device=device, dtype=torch.int32).reshape(-1).expand(batch).contiguous()
    return torch.full((batch,), length, dtype=torch.int32, device=device)


def _packed(packed: Packed, device: Any) -> DescribedMask:
    """Sequences behind one another. Only their lengths are read."""
    ids = packed.ids
    batch, n = ids.shape
    begins = torch.ones(batch, n, dtype=torch.bool, device=ids.device)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    starts = begins.flatten().nonzero().flatten()
    offsets = torch.cat((starts, starts.new_full((1,), batch * n)))
    longest = int(offsets.diff().max())
    left = packed.pattern.left
    if left is not None and left + 1 >= longest:
        left = None
    seen = Seen(left, 0, longest=longest)
    return DescribedMask((batch, 1, n, n), device, seen, offsets=offsets.int())


def _refuse(config: type) -> None:
    """Raise `BadArgument` for a model whose attention asks no interface, which would take the
    mask for one of its own kind."""
    if config not in _OWN:
        _OWN[config] = _computes_itself(config)
    if _OWN[config]:
        raise BadArgument(
            f"{_OWN[config]} computes attention itself, so its attn_implementation cannot be "
            "'tilewright'; pass attn_implementation='eager'"
        )


_OWN: dict[type, str] = {}
"""Of each class of configs, the model that computes attention itself; empty if none does."""


def _computes_itself(config: type) -> str:
    module = sys.modules.get(config.__module__.replace("configuration_", "modeling_"))
    if module is None:
        return ""
    for model in vars(module).values():
        own = isinstance(model, type) and issubclass(model, PreTrainedModel)
        if own and model.__module__ == module.__name__:
            return "" if model._can_set_attn_implementation() else model.__name__
    return ""
