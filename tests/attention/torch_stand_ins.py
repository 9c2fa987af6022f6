"""Stand-ins for torch's calls of attention, which compute what its documentation says; arrays as
tensors."""

from __future__ import annotations

import ml_dtypes
import torch


def attend(q, k, v, scale, left, right, bias=None):
    """[rows, heads, dim] of one sequence, bounds from the bottom right; O and LSE [heads, rows]."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 0) for x in (k, v))
    s = q @ k.transpose(1, 2) * scale
    at = torch.arange(s.shape[1])[:, None] + s.shape[2] - s.shape[1]
    keys = torch.arange(s.shape[2])[None, :]
    s = s if bias is None else s + bias.double()
    seen = torch.ones_like(s[0], dtype=torch.bool)
    seen = seen & (keys <= at + right) if right is not None else seen
    seen = seen & (keys >= at - left) if left is not None else seen
    s = s.masked_fill(~seen, -torch.inf)
    lse = s.logsumexp(-1)
    weights = (s - torch.where(lse.isfinite(), lse, 0.0)[..., None]).exp()
    return (weights @ v).transpose(0, 1), lse


def flash(q, k, v, q_at, k_at, max_q, max_k, dropout, causal, debug, *, scale, **options):
    used = options["seqused_k"]
    left, right = options["window_size_left"], 0 if causal else options["window_size_right"]
    if q_at is None:
        assert used is None and q.dim() == 4
        pairs = [(q[b], k[b], v[b]) for b in range(len(q))]
    else:
        pairs = []
        for b in range(len(q_at) - 1):
            end = k_at[b + 1] if used is None else k_at[b] + used[b]
            pairs.append((q[q_at[b] : q_at[b + 1]], k[k_at[b] : end], v[k_at[b] : end]))
    found = [attend(*pair, scale, left, right) for pair in pairs]
    outs = [o.to(q.dtype) for o, _ in found]
    o = torch.stack(outs) if q_at is None else torch.cat(outs)
    lse = torch.stack([log for _, log in found]).float() if q_at is None else None
    return o, lse, None, None, None


def cudnn(q, k, v, bias, with_lse, dropout, causal, *, scale):
    found = [
        attend(*(x[b].transpose(0, 1) for x in (q, k, v)), scale, None, 0 if causal else None,
               bias=None if bias is None else bias[b])
        for b in range(len(q))
    ]  # fmt: skip
    o = torch.stack([o.to(q.dtype).transpose(0, 1) for o, _ in found])
    lse = torch.stack([log for _, log in found]).float()[..., None] if with_lse else None
    return (o, lse, None, None, None)


def tensor(x):
    kind = str(x.dtype)
    if kind == "bfloat16":
        return torch.from_numpy(x.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(x)


def array(x):
    if x.dtype is torch.bfloat16:
        return x.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()
