"""Forms of HSTU's attention: sequences padded to one length, as its authors' version in torch does
it. Operands are made up with sequences of up to twice the mean length, so that is the length."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

aten = torch.ops.aten


def _longest(rows: int, bounds: int) -> int:
    return min(rows, -(-2 * rows // (bounds - 1)))


def _places(offsets: Any, longest: int) -> tuple[Any, Any]:
    """The row of each place of each sequence, and whether there is one."""
    at = torch.arange(longest, device=offsets.device)
    begin, lengths = offsets[:-1].long(), offsets.diff().long()
    there = at < lengths[:, None]
    return torch.where(there, begin[:, None] + at, 0), there


def _padded(x: Any, places: Any, there: Any) -> Any:
    """[sequences, heads, longest, head dim]."""
    return (x[places] * there[..., None, None]).transpose(1, 2)


def _jagged(x: Any, offsets: Any, rows: int) -> Any:
    """The rows of what is padded, 0 where a row is of no sequence."""
    at = torch.arange(rows, device=x.device)
    sequence = torch.searchsorted(offsets, at.to(offsets.dtype), right=True) - 1
    inside = sequence < len(offsets) - 1
    sequence = sequence.clamp(max=len(offsets) - 2)
    place = (at - offsets[sequence]).clamp(max=x.shape[2] - 1)  # of rows behind the last sequence
    found = x[sequence, :, place]
    return found * inside[:, None, None]


def _seen(
    offsets: Any, num_targets: Any, longest: int, causal: bool, contextual: int, most: int,
    full: int,
) -> Any:  # fmt: skip
    """[sequences, longest, longest]: which rows see which."""
    n = offsets.diff().long()[:, None]
    at = torch.arange(longest, device=offsets.device)[None]
    prefix = n.clamp(max=contextual) if causal else n
    targets = n * 0 if num_targets is None else num_targets.long()[:, None]
    history = n - targets.clamp(min=0).minimum(n - prefix)
    i, j = at[:, :, None], at[:, None, :]
    earlier = j < i
    if most:
        before = (prefix - 1).clamp(min=0)
        place = (at - before).clamp(min=0).minimum(history - before)
        near = place[:, :, None] - place[:, None, :] <= most
        earlier = earlier & ((near | (i >= (history - full)[..., None])) if full else near)
    return ((earlier | (i < prefix[..., None])) & (j < history[..., None])) | (i == j)


def hstu_attention(
    q: Any, k: Any, v: Any, offsets: Any, num_targets: Any, max_seq_len: int, alpha: float,
    causal: bool, contextual_seq_len: int, max_attn_len: int, min_full_attn_seq_len: int,
) -> Any:  # fmt: skip
    longest = _longest(len(q), len(offsets))
    places, there = _places(offsets, longest)
    q, k, dense_v = (_padded(x, places, there) for x in (q, k, v))
    seen = _seen(
        offsets, num_targets, longest, causal, contextual_seq_len, max_attn_len,
        min_full_attn_seq_len,
    )  # fmt: skip
    scores = F.silu(alpha * (q @ k.mT)) / max_seq_len * seen[:, None]
    return _jagged(scores @ dense_v, offsets, len(v))


def hstu_attention_backward(
    q: Any, k: Any, v: Any, offsets: Any, do: Any, num_targets: Any, max_seq_len: int,
    alpha: float, causal: bool, contextual_seq_len: int, max_attn_len: int,
    min_full_attn_seq_len: int,
) -> Any:  # fmt: skip
    rows, longest = len(q), _longest(len(q), len(offsets))
    places, there = _places(offsets, longest)
    q, k, v, do = (_padded(x, places, there) for x in (q, k, v, do))
    seen = _seen(
        offsets, num_targets, longest, causal, contextual_seq_len, max_attn_len,
        min_full_attn_seq_len,
    )[:, None]  # fmt: skip
    scores = alpha * (q @ k.mT)
    weights = F.silu(scores) / max_seq_len * seen
    slopes = aten.silu_backward((do @ v.mT) * seen, scores) * (alpha / max_seq_len)
    made = (slopes @ k, slopes.mT @ q, weights.mT @ do)
    return tuple(_jagged(one, offsets, rows) for one in made)


FORMS = {
    "hstu_attention": hstu_attention,
    "hstu_attention_backward": hstu_attention_backward,
}
