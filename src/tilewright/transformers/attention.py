"""The attention function that is registered."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.errors import BadArgument
from tilewright.flash_attn import words
from tilewright.transformers.described import DescribedMask, Seen

REFUSED = {
    "output_attentions": "it has no weights to return; pass attn_implementation='eager'",
    "cache": "generate_batch's pages are not read; pass attn_implementation='sdpa'",
    "indices": "keys that are picked one by one are not read; pass attn_implementation='sdpa'",
    "block_indices": "keys that are picked by block are not read; pass attn_implementation='sdpa'",
    "sinks": "sinks of each query are not supported; pass attn_implementation='eager'",
}
"""Arguments that change the result, and what to do instead."""


def attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Any = None,
    position_bias: Any = None,
    cu_seq_lens_q: Any = None,
    cu_seq_lens_k: Any = None,
    max_length_q: Any = None,
    max_length_k: Any = None,
    **others: Any,
) -> tuple[Any, None]:
    """Attention as transformers calls it; other keywords say nothing, as with ``sdpa``.

    query: [batch, heads, queries, dim]. key, value: [batch, heads of keys, keys, dim].
    attention_mask: what `masks.mask` returns, or a mask of the caller's [batch or 1, heads or 1,
        queries or 1, keys]: bool, or numbers that are added to the scores. None: causal if the
        module is, and has more than one query.
    dropout: rounded to a multiple of 1/256.
    softcap: scores s become softcap * tanh(s / softcap).
    s_aux: [heads], a learned score that joins the softmax and has no value.
    position_bias: [batch or 1, heads or 1, queries or 1, keys], added to the scores.
    cu_seq_lens_q, cu_seq_lens_k: int32 [sequences + 1], where packed sequences begin; with
        max_length_q and max_length_k, the most rows of one. A mask of the caller's is taken
        instead.

    Returns ([batch, queries, heads, dim of v], None). Raises `BadArgument` for the arguments of
    `REFUSED`, and for what `tilewright.attention` does not compute.
    """
    for name, why in REFUSED.items():
        if others.get(name) is not None and others[name] is not False:
            raise BadArgument(f"tilewright's attention does not take {name}: {why}")
    said: dict[str, Any] = words.dropped(dropout)
    if scaling is not None:
        said["scale"] = scaling
    if softcap is not None:
        said["softcap"] = softcap
    if s_aux is not None:
        said["sinks"] = s_aux.reshape(-1).float()
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # which attention with left padding does not ask
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = (x.to(dtype) for x in (query, key, value))
    bias = position_bias
    if cu_seq_lens_q is not None and _open(attention_mask):
        if bias is not None:
            raise BadArgument("position_bias does not go with cu_seq_lens_q; leave one out")
        if cu_seq_lens_k is None or max_length_q is None or max_length_k is None:
            raise BadArgument("cu_seq_lens_q needs cu_seq_lens_k, max_length_q and max_length_k")
        said |= {"q_offsets": cu_seq_lens_q.int(), "kv_offsets": cu_seq_lens_k.int()}
        said |= {"max_q": int(max_length_q), "max_kv": int(max_length_k)}
        seen = Seen(None, None) if attention_mask is None else attention_mask.seen
        said |= words.masked(is_causal, (seen.left, None if is_causal else seen.right))
        return _packed(query, key, value, said), None
    mask, sequences = _read(attention_mask, query, key, value, bias)
    if sequences is not None:
        said |= words.masked(True, (attention_mask.seen.left, None))
        return _packed(query, key, value, said | sequences), None
    n_q = query.shape[2]
    if isinstance(mask, DescribedMask):
        said |= _described(mask)
    elif mask is not None:
        bias = _biased(mask, bias)
    elif is_causal and n_q > 1:
        said |= {"mask": "causal", "corner": "top_left"}
    if "corner" in said and said.get("mask") == "causal" and key.shape[2] > n_q:
        key, value = key[:, :, :n_q], value[:, :, :n_q]  # the rest of a cache is not seen
        bias = None if bias is None else bias[..., :n_q]
    if bias is not None:
        alike = bias.dtype in (torch.bool, query.dtype)
        said["bias"] = words.dense_inside(bias if alike else bias.float())
    out = words.attention(*_rows(query, key, value), **said)
    return out, None


def _rows(*arrays: Any) -> tuple[Any, ...]:
    """[batch, heads, rows, dim] as [batch, rows, heads, dim]."""
    return tuple(words.dense_inside(x).transpose(1, 2) for x in arrays)


def _open(mask: Any) -> bool:
    """Whether a mask is that of tokens alone, without padding."""
    if not isinstance(mask, DescribedMask):
        return mask is None
    return mask.used is None and mask.left_pad is None


def _read(
    mask: Any, query: Any, key: Any, value: Any, bias: Any
) -> tuple[Any, dict[str, Any] | None]:
    """What is read of a mask: nothing where it is only a rule, words for sequences, or itself,
    computed where it is of other sizes, or has no gradients or no bias beside it."""
    if not isinstance(mask, DescribedMask):
        return mask, None
    batch, _, n_q, n_kv = mask.shape
    if (query.shape[0], query.shape[2], key.shape[0], key.shape[2]) != (batch, n_q, batch, n_kv):
        return mask.computed(), None
    if mask.seen.plain:
        return None, None
    given = (query, key, value, bias)
    recorded = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given)
    sequences = _sequences(mask, recorded) if bias is None else None
    if sequences is not None:
        return None, sequences
    padded = mask.left_pad is not None and (recorded or bias is not None)
    return (mask.computed() if padded or mask.offsets is not None else mask), None


def _sequences(mask: DescribedMask, recorded: bool) -> dict[str, Any] | None:
    """A mask of packed sequences in the words of `tilewright.attention`; None for another.

    recorded: whether gradients are. Left padding has none, so it is sequences of its own then,
    which see no keys.
    """
    if mask.offsets is not None:
        said = {"q_offsets": mask.offsets, "kv_offsets": mask.offsets}
        return said | {"max_q": mask.seen.longest, "max_kv": mask.seen.longest}
    batch, _, n_q, n_kv = mask.shape
    if mask.left_pad is None or not recorded or n_q != n_kv or mask.seen.right != 0:
        return None
    begins = torch.stack((torch.zeros_like(mask.left_pad), mask.left_pad), 1)
    begins += n_q * torch.arange(batch, device=begins.device, dtype=begins.dtype)[:, None]
    offsets = torch.nn.functional.pad(begins.flatten(), (0, 1), value=batch * n_q)
    used = torch.stack((torch.zeros_like(mask.left_pad), n_kv - mask.left_pad), 1).flatten()
    return {
        "q_offsets": offsets, "kv_offsets": offsets, "kv_used": used, "max_q": n_q, "max_kv": n_kv,
    }  # fmt: skip


def _described(mask: DescribedMask) -> dict[str, Any]:
    """A mask in the words of `tilewright.attention`."""
    seen = mask.seen
    said: dict[str, Any] = {}
    if seen.right == 0:
        said["mask"] = "causal"
    if seen.left is not None:
        said["window"] = (seen.left, None if seen.right == 0 else seen.right)
    if seen.top_left:
        said["corner"] = "top_left"
    if mask.used is not None:
        said["kv_used"] = mask.used
    if mask.left_pad is not None:
        said["left_pad"] = mask.left_pad
    return said


def _biased(mask: Any, bias: Any) -> Any:
    """A mask of the caller's, and a bias, as one bias."""
    if bias is None:
        return mask
    if mask.dtype == torch.bool:  # a row that sees no key is a mean, as in transformers
        return torch.where(mask, bias, torch.finfo(bias.dtype).min)
    return mask + bias


def _packed(query: Any, key: Any, value: Any, said: dict[str, Any]) -> Any:
    """Sequences that lie behind one another in the rows of the batch."""
    q, k, v = (x.flatten(0, 1) for x in _rows(query, key, value))
    return words.attention(q, k, v, **said).unflatten(0, (query.shape[0], query.shape[2]))
