"""What FlashAttention calls S_dmask: the softmax, with the sign of dropout, for tests of a caller's
own. Torch computes it, sequence after sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.ops.attention.mask import Mask


@dataclass(frozen=True, slots=True)
class Sequences:
    """Queries and keys of a call, and two of its outputs.

    q, k: [batch, rows, heads, dim], or packed.
    lse, random: as `tilewright.attention` returns them.
    lengths: the words of the call that say lengths.
    """

    q: Any
    k: Any
    lse: Any
    random: Any
    lengths: Mapping[str, Any]

    def __iter__(self) -> Iterator[tuple[Any, Any, Any]]:
        """Each sequence's q [n_q, heads, dim], k [n_kv, heads of keys, dim], lse [heads, n_q]."""
        if "q_offsets" not in self.lengths:
            yield from zip(self.q, self.k, self.lse, strict=True)
            return
        for rows, keys in zip(self._spans("q"), self._spans("kv"), strict=True):
            yield self.q[rows], self.k[keys], self.lse[:, rows]

    def _spans(self, name: str) -> list[slice]:
        starts = self.lengths[f"{name}_offsets"].tolist()
        used = self.lengths[f"{name}_used"]
        ends = starts[1:]
        if used is not None:
            ends = [start + n for start, n in zip(starts, used.tolist(), strict=False)]
        return [slice(start, end) for start, end in zip(starts, ends, strict=False)]


def probabilities(sequences: Sequences, said: Mapping[str, Any]) -> Any:
    """[batch, heads, most queries, most keys] in the dtype of q: softmax before dropout, negative
    where a weight was dropped; 0 where nothing is seen, and beyond a sequence's rows.

    said: the words of the call that say what is computed.
    """
    import torch

    random = sequences.random
    found = torch.zeros(random.shape, dtype=torch.float32, device=random.device)
    dropped = round(256 * said["dropout"])
    for b, (q, k, lse) in enumerate(sequences):
        n_q, n_kv = q.shape[0], k.shape[0]
        weights = torch.exp(_scores(q, k, b, said) - lse[:, :, None])
        kept = random[b, :, :n_q, :n_kv] >= dropped
        weights = torch.where(kept, weights, -weights)
        # A row that sees nothing has lse -inf, and weights of NaN.
        found[b, :, :n_q, :n_kv] = torch.where(_seen(q, k, said), weights, 0.0)
    return found.to(sequences.q.dtype)


def _seen(q: Any, k: Any, said: Mapping[str, Any]) -> Any:
    import torch

    left, right = said.get("window", (None, None))
    mask = Mask(left, 0 if said.get("mask") == "causal" else right)
    i, j = (torch.arange(x.shape[0], device=q.device) for x in (q, k))
    return mask.seen(i, j, q.shape[0], k.shape[0])


def _scores(q: Any, k: Any, b: int, said: Mapping[str, Any]) -> Any:
    import torch

    n_q, n_kv, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    keys = k.float().repeat_interleave(group, 1)
    scale = said.get("scale", q.shape[-1] ** -0.5)
    s = torch.einsum("ihd,jhd->hij", q.float(), keys) * scale
    if "softcap" in said:
        s = said["softcap"] * torch.tanh(s / said["softcap"])
    if "slopes" in said:
        slopes = said["slopes"] if said["slopes"].ndim == 1 else said["slopes"][b]
        i, j = (torch.arange(n, device=q.device) for n in (n_q, n_kv))
        away = (i[:, None] + n_kv - n_q - j[None, :]).abs()
        s = s - slopes[:, None, None] * away
    return s
