"""The mask function that is registered: the cheapest form of a mask that attention takes.

- None for one query that sees all keys, and for no mask at all. Within a graph of
  ``torch.compile`` also for a prompt without padding, which its module's causality says.
- A `DescribedMask`, where the rule of causality, windows, lengths, left padding or packed sequences
  say it.
- A plain mask, as transformers makes it for ``sdpa``, in all other cases.

A model that does not support ``sdpa`` expects the masks of ``eager``, which are added to scores: to
such a model a mask is of that kind.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import causal_mask_function, eager_mask, sdpa_mask

from tilewright.errors import BadArgument
from tilewright.transformers.described import DescribedMask, Seen
from tilewright.transformers.patterns import Chunks, Function, Packed, Pattern, pattern_of


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
    dtype: Any = torch.float32,
    config: Any = None,
    **others: Any,
) -> Any:
    """The mask of one kind of layer, as transformers' ``sdpa_mask`` and ``eager_mask`` state it.

    attention_mask: bool [batch, keys and more], False for padding.
    dtype: of a mask that is added.

    It waits for the device once if there is padding to look at, or packed sequences. Raises
    `BadArgument` for a model that computes attention itself.
    """
    added = config is not None and _adds(type(config))
    # ``sdpa``'s function says so too, unless torch takes any graph for an export, as old ones do.
    if torch.compiler.is_compiling() and allow_is_causal_skip and not (use_vmap or added):
        within = local_size is None or kv_length < local_size
        at_first = isinstance(q_offset, int) and q_length == kv_length
        if attention_mask is None and within and at_first:
            return None
    found = None
    if not torch.compiler.is_compiling() and isinstance(kv_offset, int):
        pattern = None if use_vmap else pattern_of(mask_function)
        if isinstance(pattern, Chunks) and kv_offset + kv_length <= pattern.size:
            pattern = Pattern(right=0)
        if isinstance(pattern, Packed) and attention_mask is None:
            found = _packed(pattern)
        elif isinstance(pattern, Pattern | Chunks):
            padding = _padding(attention_mask, kv_length, kv_offset, q_offset, q_length)
            if padding is not None:
                size = _Size(batch_size, q_length, kv_length, kv_offset, device)
                if isinstance(pattern, Chunks):
                    found = _chunked(size, pattern, padding)
                elif pattern.causal:
                    found = _causal(size, pattern, padding, allow_is_causal_skip and not added)
                else:
                    found = _both_ways(size, pattern, padding)
    if found is None:
        return (eager_mask if added else sdpa_mask)(
            batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
            kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask,
            local_size=local_size, allow_is_causal_skip=allow_is_causal_skip,
            allow_is_bidirectional_skip=allow_is_bidirectional_skip, use_vmap=use_vmap,
            device=device, dtype=dtype, **others,
        )  # fmt: skip
    skip = allow_is_causal_skip and not added and q_length == 1
    if found.all_seen and (allow_is_bidirectional_skip if found.seen.right is None else skip):
        return None
    kind = dtype if added else torch.bool
    return DescribedMask((batch_size, 1, q_length, kv_length), device, dtype=kind, **found.parts)


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """What a `DescribedMask` is made of."""

    seen: Seen
    used: Any = None
    left_pad: Any = None
    offsets: Any = None

    @property
    def parts(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def all_seen(self) -> bool:
        """Whether the last query sees all keys."""
        hidden = (self.seen.left, self.used, self.left_pad, self.offsets)
        return all(x is None for x in hidden) and not self.seen.top_left


@dataclass(frozen=True, slots=True, eq=False)
class _Size:
    batch: int
    n_q: int
    n_kv: int
    kv_offset: int
    device: Any


@dataclass(frozen=True, slots=True, eq=False)
class _Padding:
    """What is known of the padding, with no further waiting.

    first, last: int32 [batch], the first and the last key that is no padding; None without a mask.
    left, right: whether any sequence has padding there, of all keys.
    behind: whether any has padding on the right where `attention_mask` says so.
    q_offset: the first query's place, on the host if it is known there.
    """

    first: Any
    last: Any
    left: bool
    right: bool
    behind: bool
    q_offset: Any


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
        asked["behind"] = (last + 1 < n).any()
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
    left, right, behind = (bool(known.get(name)) for name in ("left", "right", "behind"))
    return _Padding(first, last, left, right, behind, at)


def _causal(size: _Size, pattern: Pattern, padding: _Padding, skip: bool) -> _Found | None:
    """A causal mask, with or without a window.

    skip: whether ``sdpa`` may leave it out.

    Padding on the right hides nothing that the other rule does not: a query whose own key is no
    padding sees none behind it.
    """
    n_q, n_kv = size.n_q, size.n_kv
    end = padding.q_offset - size.kv_offset + n_q  # keys that the last query sees
    left = pattern.left
    on_device = isinstance(end, torch.Tensor)
    if not on_device:
        if end > n_kv or end < n_q:
            return None
        if left is not None and left + 1 >= end:
            left = None
    padded = padding.first if padding.left else None
    if not on_device and padded is None and n_q > 1 and end == n_q:
        plain = skip and left is None and not padding.behind
        return _Found(Seen(left, 0, top_left=True, plain=plain))
    used = None
    if on_device or end < n_kv or padded is not None:
        used = _each(end, size)
    return _Found(Seen(left, 0), used, padded)


def _both_ways(size: _Size, pattern: Pattern, padding: _Padding) -> _Found | None:
    """A mask that is not causal, with or without a window."""
    left, right = pattern.left, pattern.right
    first = padding.first if padding.left else None
    used = padding.last + 1 if padding.right else None
    if left is not None or right is not None:
        in_place = isinstance(padding.q_offset, int) and padding.q_offset == size.kv_offset
        if not in_place or (first is not None and (used is not None or size.n_q != size.n_kv)):
            return None
    if first is not None and used is None:
        used = _each(size.n_kv, size)
    windowed = left is not None
    return _Found(Seen(left, right, windowed and first is None), used, first)


def _chunked(size: _Size, chunks: Chunks, padding: _Padding) -> _Found | None:
    """A causal mask within chunks: those of a prompt are sequences of their own, and one more token
    leaves out the chunks before its own. Padding on the left is in other chunks than tokens."""
    chunk, pads, n = chunks.size, chunks.pads, size.n_q
    if n == 1:
        place = padding.q_offset
        first = pads + (place - pads) // chunk * chunk - size.kv_offset
        end = place - size.kv_offset + 1
        return _Found(Seen(None, 0), _each(end, size), first.clamp(min=0).int())
    if n != size.n_kv or padding.q_offset != 0 or size.kv_offset != 0:
        return None
    ends = pads[:, None] % chunk + chunk * torch.arange(-(-n // chunk) + 1, device=pads.device)
    rows = n * torch.arange(size.batch, device=pads.device)[:, None]
    offsets = torch.nn.functional.pad((ends.clamp(max=n) + rows).flatten(), (1, 0))
    return _Found(Seen(None, 0, longest=chunk), offsets=offsets.int())


def _each(length: Any, size: _Size) -> Any:
    """int32 [batch] of one length, from the host or the device."""
    if isinstance(length, torch.Tensor):
        found = length.to(device=size.device, dtype=torch.int32).reshape(-1)
        return found.expand(size.batch).contiguous()
    return torch.full((size.batch,), length, dtype=torch.int32, device=size.device)


def _packed(packed: Packed) -> _Found:
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
    return _Found(Seen(left, 0, longest=longest), offsets=offsets.int())


def _adds(config: type) -> bool:
    """Whether a model expects masks that are added. Raises `BadArgument` for one whose attention
    asks no interface, which would take a mask for one of its own kind."""
    own: str
    added: bool
    own, added = _kind_of(config)
    if own:
        raise BadArgument(
            f"{own} computes attention itself, so its attn_implementation cannot be 'tilewright'; "
            "pass attn_implementation='eager'"
        )
    return added


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _kind_of(config: type) -> tuple[str, bool]:
    """The model of a class of configs that computes attention itself, empty for none; and whether
    its masks are added. ``torch.compile`` asks, and does not trace how it is found."""
    if config not in _kinds:
        _kinds[config] = _looked_up(config)
    return _kinds[config]


_kinds: dict[type, tuple[str, bool]] = {}


def _looked_up(config: type) -> tuple[str, bool]:
    beside = f"{config.__module__.rpartition('.')[0]}.modeling_"
    added = False
    for name, module in [*sys.modules.items()]:
        for model in vars(module).values() if name.startswith(beside) else ():
            own = isinstance(model, type) and issubclass(model, PreTrainedModel)
            if own and model.__module__ == name and model.config_class is config:
                if not model._can_set_attn_implementation():
                    return model.__name__, False
                added = added or not model._supports_sdpa
    return "", added
