"""What the gradients must be, in float64, sequence by sequence and by heads that share keys.

With P = exp(S - LSE), dropout's factor D (0, or 1 over the share that is kept) and the soft cap's
derivative C:

    dV = (P∘D)ᵀ·dO                      dS = P∘(D∘(dO·Vᵀ) - delta)
    delta = Σ O·dO - dLSE               dQ = scale·(dS∘C)·K        dK = scale·(dS∘C)ᵀ·Q
    dbias = dS, summed over what shares it
    dsink = -Σ exp(sink - LSE)·delta    dslope = -Σ dS·|distance|

O and LSE are those that the kernels read, which are rounded. But under a bias P is the softmax of
S, for LSE has no place for the logarithm of a sum beside a large maximum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright import arrays
from tilewright.ops.attention import reference as forward
from tilewright.ops.attention.reference import Heads, full, library, taken
from tilewright.ops.attention.rows import (
    Rows,
    by_row,
    index,
    keys_at,
    keys_seen,
    place,
    queries_at,
    sequences,
    whole,
)
from tilewright.ops.attention_backward.operands import operands
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem


def reference(
    p: AttentionBackwardProblem, inputs: Mapping[str, Any], *, rounding: str = ""
) -> dict[str, Any]:
    """Each gradient by name, for float64 `inputs`, NumPy's or torch's. Rows that no sequence has
    are 0, as are gradients of what has no part in a result. Under ``accumulate``, plus what the
    inputs have under the gradient's name.

    rounding: a dtype that each step's result is rounded to, as it is where a framework
        differentiates one operation after another; O and LSE are then not read.
    """
    said = whole(inputs)
    out = {
        # What is added to, or zeros.
        one.name: inputs[one.name] + 0.0 if p.accumulate else full(inputs["q"], one.shape, 0.0)
        for one in operands(p)
        if one.written
    }
    for of in sequences(p, said):
        _sequence(p, inputs, said, of, out, rounding)
    return out


def _sequence(
    p: AttentionBackwardProblem,
    inputs: Mapping[str, Any],
    said: Mapping[str, Any],
    of: Rows,
    out: dict[str, Any],
    rounding: str,
) -> None:
    """Add what one sequence gives."""
    q_at, k_at = queries_at(p, of), keys_at(p, said, of, of.kv_first, of.n_kv)
    q, k, v = (taken(p, name, inputs[name], k_at if name != "q" else q_at) for name in "qkv")
    if p.blocks_shape:  # what no query sees may be NaN
        hidden = index(k, (~keys_seen(p, inputs["blocks"], of, of.n_kv),))
        k[hidden] = v[hidden] = 0.0
    at = place(p, "o", *q_at)
    o, do = (by_row(p, "o", x)[index(x, at)] for x in (inputs["o"], inputs["do"]))
    lse = _rows(p, inputs["lse"], of)
    dlse = _rows(p, inputs["dlse"], of) if p.dlse else full(lse, lse.shape, 0.0)
    delta = (o * do).sum(-1).swapaxes(0, 1) - dlse  # [heads, rows]
    step = max(1, forward.PART // max(1, p.group * of.n_kv))
    found = {name: full(x, x.shape, 0.0) for name, x in (("dq", q), ("dk", k), ("dv", v))}
    for g in range(p.kv_heads):
        heads = slice(g * p.group, (g + 1) * p.group)
        for first in range(0, of.n_q, step):
            rows = slice(first, min(of.n_q, first + step))
            part = Heads(of, heads.start, first, q[rows, heads].swapaxes(0, 1), k[:, g], v[:, g])
            own = do[rows, heads].swapaxes(0, 1)
            known = Known(own, lse[heads, rows], delta[heads, rows], dlse[heads, rows], rounding)
            _part(p, inputs, part, known, g, found, out)
    for name, at in (("dq", q_at), ("dk", k_at), ("dv", k_at)):
        if name in out:
            target = by_row(p, name[1:], out[name])
            target[index(target, place(p, name[1:], *at))] += found[name]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of some queries: dO [heads, rows, dim]; LSE, delta and dLSE [heads, rows].

    rounding: see `reference`.
    """

    do: Any
    lse: Any
    delta: Any
    dlse: Any
    rounding: str

    def rounded(self, x: Any) -> Any:
        return arrays.rounded(x, self.rounding) if self.rounding else x


def _part(
    p: AttentionBackwardProblem,
    inputs: Mapping[str, Any],
    part: Heads,
    known: Known,
    g: int,
    found: dict[str, Any],
    out: dict[str, Any],
) -> None:
    """Add what some queries of the heads that share a head of keys give."""
    xp, of, rounded, do = library(part.q), part.of, known.rounded, known.do
    heads = slice(part.head, part.head + p.group)
    rows = slice(part.first, part.first + part.q.shape[1])
    s, capped = forward.scores(p, inputs, part, known.rounding)
    lse = known.lse
    if known.rounding or p.bias_shape:  # beside large biases LSE has no place for the sum
        weights, lse = forward.softmax(p, inputs, part, s)
    some = xp.isfinite(lse)  # rows that see something
    if not (known.rounding or p.bias_shape):
        weights = xp.where(some[..., None], xp.exp(s - xp.where(some, lse, 0.0)[..., None]), 0.0)
    weights = rounded(weights)
    random = forward.dropout_bytes(p, inputs, part) if p.dropout else None

    def kept(x: Any) -> Any:
        dropped = round(256 * p.dropout)
        return x if random is None else xp.where(random < dropped, 0.0, x / (1 - dropped / 256))

    dp = rounded(kept(rounded(do @ part.v.swapaxes(0, 1))))
    delta = (weights * dp).sum(-1) - known.dlse if known.rounding else known.delta
    delta = xp.where(some, delta, 0.0)
    ds = rounded(weights * (dp - delta[..., None]))
    through = rounded(ds * (1 - (capped / p.softcap) ** 2)) if p.softcap else ds
    scale = inputs["scale"]
    found["dq"][rows, heads] = rounded(scale * rounded(through @ part.k)).swapaxes(0, 1)
    found["dk"][:, g] += rounded(through.swapaxes(1, 2) @ rounded(scale * part.q)).sum(0)
    found["dv"][:, g] += rounded(rounded(kept(weights)).swapaxes(1, 2) @ do).sum(0)
    if "dbias" in out:
        batch = of.number if p.bias_shape[0] > 1 else 0
        own = ds if p.bias_shape[1] > 1 else ds.sum(0)[None]
        at = heads if p.bias_shape[1] > 1 else slice(0, 1)
        out["dbias"][batch, at, rows, : of.n_kv] += own
    if "dsinks" in out:
        sinks = inputs["sinks"][heads][:, None]
        if p.bias_shape:
            share = rounded(xp.where(some, 1 - weights.sum(-1), 0.0))
        else:
            share = rounded(xp.where(some, xp.exp(sinks - xp.where(some, lse, 0.0)), 0.0))
        out["dsinks"][heads] -= (share * delta).sum(-1)
    if "dslopes" in out:
        target = out["dslopes"][of.number] if p.slopes_batched else out["dslopes"]
        target[heads] -= (ds * forward.distances(p, part)).sum((-2, -1))


def _rows(p: AttentionBackwardProblem, lse: Any, of: Rows) -> Any:
    """What LSE, or an array like it, has of a sequence: [heads, rows]."""
    own = lse if "packedq" in p.words else lse[of.number]
    return own[:, of.q_first : of.q_first + of.n_q]
