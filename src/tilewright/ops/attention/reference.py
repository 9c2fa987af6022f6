"""What attention must give, in float64, sequence by sequence and by heads that share keys.

Kernels round the weights to the dtype of the matrix units' operands; the reference does not, and
the tolerances say what that may change (`tolerance.softmax_tolerance`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright import arrays
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.append import appended, query_places, rotated, scale_of
from tilewright.ops.attention.operands import operands
from tilewright.ops.attention.philox import random_bytes
from tilewright.ops.attention.problem import AttentionProblem
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

PART = 1 << 23
"""Scores computed at a time. Their computation holds about six float64 arrays of this size."""


def reference(
    p: AttentionProblem, inputs: Mapping[str, Any], *, rounding: str = ""
) -> dict[str, Any]:
    """Each output by name, for float64 `inputs`, NumPy's or torch's. Rows that nothing is written
    to hold `arrays.poison_of` their dtype; K and V of an append are what they were.

    rounding: a dtype that scores, weights and results are rounded to, as they are where a framework
        computes one operation after another; of fp8 inputs, weights are rounded to their dtype.
    """
    said = whole(inputs)
    found = sequences(p, said)
    values = dict(inputs)
    if p.new_kv:
        values |= appended(p, inputs, said, found)
    out = {
        one.name: full(values["q"], one.shape, arrays.poison_of(DTYPES[one.dtype]))
        for one in operands(p)
        if one.role == "out"
    }
    for of in found:
        _sequence(p, values, said, of, out, rounding)
    return out | {one.name: values[one.name] for one in operands(p) if one.role == "inout"}


@dataclass(frozen=True, slots=True)
class Heads:
    """Queries of the heads that share a head of keys, in one sequence.

    head: the first of these query heads. q: [heads, rows, dim]. k, v: [keys, dim]. The scales are
    in all of them. first: the place of the first of the rows.
    """

    of: Rows
    head: int
    first: int
    q: Any
    k: Any
    v: Any


def _sequence(
    p: AttentionProblem,
    inputs: Mapping[str, Any],
    said: Mapping[str, Any],
    of: Rows,
    out: dict[str, Any],
    rounding: str,
) -> None:
    """Put what one sequence gives into the outputs."""
    q_at = queries_at(p, of)
    q = taken(p, "q", inputs["q"], q_at)
    if p.rotary_dim:
        q = arrays.rounded(rotated(p, inputs, q, query_places(p, of)), p.dtype)
    q = q * scale_of(p, inputs, "q", of, 0, of.n_q)
    k_at = keys_at(p, said, of, of.kv_first, of.n_kv)
    k = taken(p, "k", inputs["k"], k_at)
    v = k[..., : p.head_dim_v] if "latent" in p.words else taken(p, "v", inputs["v"], k_at)
    if p.blocks_shape:  # what no query sees may be NaN
        v[index(v, (~keys_seen(p, inputs["blocks"], of, of.n_kv),))] = 0.0
    k = k * scale_of(p, inputs, "k", of, 0, of.n_kv)
    v = v * scale_of(p, inputs, "v", of, 0, of.n_kv)
    o = by_row(p, "o", out["o"])
    step = max(1, PART // max(1, p.group * of.n_kv))
    for g in range(p.kv_heads):
        heads = slice(g * p.group, (g + 1) * p.group)
        for first in range(0, of.n_q, step):
            rows = slice(first, min(of.n_q, first + step))
            own = q[rows, heads].swapaxes(0, 1)
            part = Heads(of, heads.start, first, own, k[:, g], v[:, g])
            found, lse, random = _attend(p, inputs, part, rounding)
            at = place(p, "o", *(each[rows] for each in q_at))
            where = (*index(o, at), heads)
            o[where] = found.swapaxes(0, 1)
            if "lse" in out:
                target = out["lse"] if "packedq" in p.words else out["lse"][of.number]
                target[heads, of.q_first + rows.start : of.q_first + rows.stop] = lse
            if "random" in out:
                out["random"][of.number, heads, rows, : of.n_kv] = random


def scores(
    p: AttentionProblem, inputs: Mapping[str, Any], part: Heads, rounding: str = ""
) -> tuple[Any, Any]:
    """The scores [heads, rows, keys], -inf where a key is not seen; and those behind the soft cap,
    without bias and mask. rounding: see `reference`."""

    def rounded(x: Any) -> Any:
        return arrays.rounded(x, rounding) if rounding else x

    of, xp = part.of, library(part.q)
    heads = slice(part.head, part.head + p.group)
    i, j = places(part)
    s = rounded(rounded(part.q * inputs["scale"]) @ part.k.swapaxes(0, 1))
    if p.softcap:
        s = rounded(p.softcap * rounded(xp.tanh(rounded(s / p.softcap))))
    capped = s
    if p.bias_shape:
        batch = of.number if p.bias_shape[0] > 1 else 0
        own = inputs["bias"][batch, heads if p.bias_shape[1] > 1 else slice(0, 1)]
        first = 0 if p.bias_shape[2:] else part.first
        own = own[:, first : first + len(i), : of.n_kv]
        if p.bias_dtype == "bool":
            s = xp.where(own != 0, s, -xp.inf)
        else:
            s = rounded(s + own)
    if p.blocks_shape:
        own = inputs["blocks"][of.number if p.blocks_shape[0] > 1 else 0]
        own = own[heads if p.blocks_shape[1] > 1 else slice(0, 1)]
        s = xp.where(own[:, i // p.block_size][:, :, j // p.block_size] != 0, s, -xp.inf)
    if "alibi" in p.words:
        slopes = inputs["slopes"]
        slopes = (slopes[of.number] if p.slopes_batched else slopes)[heads]
        s = rounded(s - rounded(slopes[:, None, None] * distances(p, part)))
    return xp.where(p.mask.seen(i, j, of.n_q, of.n_kv), s, -xp.inf), capped


def places(part: Heads) -> tuple[Any, Any]:
    """The queries and the keys of a part, by number."""
    rows = _arange(part.q, part.first, part.first + part.q.shape[1])
    return rows, _arange(part.q, 0, part.of.n_kv)


def distances(p: AttentionProblem, part: Heads) -> Any:
    """[rows, keys]: how far each query and key are from each other."""
    i, j = places(part)
    shift = part.of.n_kv - part.of.n_q if p.mask.bottom_right else 0
    return abs(i[:, None] + shift - j[None, :])


def dropout_bytes(p: AttentionProblem, inputs: Mapping[str, Any], part: Heads) -> Any:
    """Dropout's bytes: [heads, rows, keys]."""
    i, _ = places(part)
    first = part.of.number * p.heads + part.head
    seed, offset = inputs["seed"], inputs["offset"]
    return library(part.q).stack(
        [random_bytes(i, part.of.n_kv, first + h, seed, offset) for h in range(p.group)]
    )


def softmax(p: AttentionProblem, inputs: Mapping[str, Any], part: Heads, s: Any) -> tuple[Any, Any]:
    """The weights of scores, those of a row that sees nothing 0; and LSE [heads, rows]."""
    xp = library(s)
    heads = slice(part.head, part.head + p.group)
    sinks = inputs["sinks"][heads][:, None, None] if "sinks" in p.words else None
    most = xp.amax(s, -1, keepdims=True) if part.of.n_kv else full(s, (*s.shape[:2], 1), -xp.inf)
    if sinks is not None:
        most = xp.where(most > sinks, most, sinks)
    base = xp.where(xp.isfinite(most), most, 0.0)
    weights = xp.exp(s - base)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + xp.exp(sinks - base)
    some = xp.where(total > 0, total, 1.0)
    lse = xp.where(total > 0, base + xp.log(some), -xp.inf)[..., 0]
    return weights / some, lse


def _attend(
    p: AttentionProblem, inputs: Mapping[str, Any], part: Heads, rounding: str
) -> tuple[Any, Any, Any]:
    """O [heads, rows, dim], LSE [heads, rows], and dropout's bytes [heads, rows, keys] if any."""

    def rounded(x: Any) -> Any:
        return arrays.rounded(x, rounding) if rounding else x

    xp = library(part.q)
    s, _ = scores(p, inputs, part, rounding)
    weights, lse = softmax(p, inputs, part, s)
    if rounding:
        weights = arrays.rounded(weights, p.dtype)
    random = None
    if p.dropout:
        dropped = round(256 * p.dropout)
        random = dropout_bytes(p, inputs, part)
        weights = xp.where(random < dropped, 0.0, weights / (1 - dropped / 256))
    o = rounded(weights @ part.v)
    if "oscale" in p.words:
        o = o / inputs["o_scale"].reshape(())
    bounds = DTYPES[p.dtype_o].range
    return (o.clip(*bounds) if bounds else o), lse, random


def taken(p: AttentionProblem, name: str, array: Any, at: tuple[Any, Any]) -> Any:
    """Rows of Q, K or V: [rows, heads, dim]."""
    view = by_row(p, name, array)
    places = place(p, name, *at)
    rows = view[index(view, places)]
    heads = p.heads if name == "q" else p.kv_heads
    return rows.reshape(len(places[0]), heads, p.head_dim_v if name == "v" else p.head_dim)


def library(like: Any) -> Any:
    """The module of an array: both modules agree on every function used here."""
    if arrays.is_torch(like):
        import torch

        return torch
    import numpy as np

    return np


def full(like: Any, shape: tuple[int, ...], value: float) -> Any:
    if arrays.is_torch(like):
        return like.new_full(shape, value)
    import numpy as np

    return np.full(shape, value)


def _arange(like: Any, first: int, end: int) -> Any:
    """Places in int64."""
    if arrays.is_torch(like):
        import torch

        return torch.arange(first, end, device=like.device)
    import numpy as np

    return np.arange(first, end, dtype=np.int64)
