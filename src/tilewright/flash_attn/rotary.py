"""Rotary embeddings of a position, as FlashAttention's ``flash_attn.layers.rotary`` applies them.
Torch computes them, with gradients of x, cos and sin."""

from __future__ import annotations

from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import checked


def apply_rotary_emb(
    x: Any,
    cos: Any,
    sin: Any,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: Any = 0,
    cu_seqlens: Any = None,
    max_seqlen: int | None = None,
) -> Any:
    """x, with the first rotary_dim elements of each row turned by the row's place in its sequence.
    Returns an array like x, or x.

    x: floating, [batch, seqlen, heads, dim]; with cu_seqlens packed, [total, heads, dim].
    cos, sin: floating, [places, rotary_dim / 2], of the angle of each place; rotary_dim is dim or
        less.
    interleaved: whether elements 0 and 1, 2 and 3 … are turned together, or the first half of
        rotary_dim with the second.
    inplace: whether the result is written to x.
    seqlen_offsets: the place of each sequence's first row: a number, or int32 or int64 [batch].
    cu_seqlens: int32 or int64 [batch + 1], the first row of each sequence, and the end.
    max_seqlen: most rows of a sequence, which the tables must have places for; needed with
        cu_seqlens, as FlashAttention needs it.

    Products are in fp32, or fp64 of an fp64 x, and rounded once. Rows behind the last sequence are
    left as they are, and so are rows whose place the tables do not have, which only numbers on the
    device can say. Raises `BadArgument` and `WrongDevice`.
    """
    import torch

    interleaved = checked.flag("interleaved", interleaved)
    inplace = checked.flag("inplace", inplace)
    places, half = _check(x, cos, sin, inplace=inplace)
    at, inside = _places(x, places, seqlen_offsets, cu_seqlens, max_seqlen)
    wide = torch.promote_types(x.dtype, torch.float32)
    angles = []
    for table, beyond in ((cos, 1.0), (sin, 0.0)):
        rows = table[at].to(wide)
        if inside is not None:
            rows = torch.where(inside[..., None], rows, beyond)
        angles.append(rows.unsqueeze(-2))
    c, s = angles
    turned = x[..., : 2 * half].to(wide)
    if interleaved:
        one, other = turned.unflatten(-1, (half, 2)).unbind(-1)
    else:
        one, other = turned.unflatten(-1, (2, half)).unbind(-2)
    pair = one * c - other * s, one * s + other * c
    made = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    made = made.to(x.dtype)
    if inplace:
        x[..., : 2 * half].copy_(made)
        return x
    return made if 2 * half == x.shape[-1] else torch.cat((made, x[..., 2 * half :]), -1)


def _check(x: Any, cos: Any, sin: Any, *, inplace: bool) -> tuple[int, int]:
    """The places that the tables have, and half of rotary_dim. Raises unless they fit x."""
    import torch

    checked.tensor("x", x)
    for name, table in (("cos", cos), ("sin", sin)):
        checked.tensor(name, table, "places", "rotary_dim / 2")
    for name, one in (("x", x), ("cos", cos), ("sin", sin)):
        if not one.dtype.is_floating_point:
            raise BadArgument(f"{name} is {str(one.dtype).removeprefix('torch.')}, not floating")
    if cos.shape != sin.shape:
        raise BadArgument(f"sin is {list(sin.shape)}, but cos is {list(cos.shape)}")
    if x.ndim and 2 * cos.shape[1] > x.shape[-1]:
        raise BadArgument(
            f"cos and sin turn {2 * cos.shape[1]} elements of a row, and x has {x.shape[-1]}"
        )
    checked.together(x=x, cos=cos, sin=sin)
    if inplace and x.is_leaf and x.requires_grad and torch.is_grad_enabled():
        raise BadArgument(
            "x is a leaf that requires a gradient, which cannot be written in place; pass "
            "inplace=False"
        )
    return cos.shape[0], cos.shape[1]


def _places(
    x: Any, places: int, seqlen_offsets: Any, cu_seqlens: Any, max_seqlen: Any
) -> tuple[Any, Any]:
    """The place of each row of x, within the tables, and whether it is one; None where all are."""
    import torch

    if cu_seqlens is None:
        checked.tensor("x", x, "batch", "seqlen", "heads", "dim")
        batch, longest = x.shape[:2]
        if max_seqlen is not None:
            raise BadArgument("max_seqlen is of packed sequences; leave it out, or pass cu_seqlens")
    else:
        checked.tensor("x", x, "total", "heads", "dim")
        checked.tensor("cu_seqlens", cu_seqlens, "batch + 1", kinds=checked.INTEGERS)
        checked.together(x=x, cu_seqlens=cu_seqlens)
        batch, longest = len(cu_seqlens) - 1, checked.count("max_seqlen", max_seqlen)
    ahead = _offset(x, batch, seqlen_offsets)
    if isinstance(ahead, int) and ahead + longest > places:
        raise BadArgument(
            f"cos and sin have {places} places, under the {ahead + longest} of seqlen_offsets and "
            "the longest sequence"
        )
    if cu_seqlens is None:
        at = torch.arange(longest, device=x.device)
        if isinstance(ahead, int):
            return at + ahead, None
        at = at + ahead.long()[:, None]
        there = True
    else:
        rows = torch.arange(x.shape[0], device=x.device)
        offsets = cu_seqlens.long()
        sequence = torch.searchsorted(offsets[1:].contiguous(), rows, right=True)
        there = (sequence < batch) & (rows >= offsets[:1])
        known = sequence.clamp(max=max(0, batch - 1))
        at = rows - offsets[known]
        at = at + (ahead if isinstance(ahead, int) or not batch else ahead.long()[known])
    inside = (at >= 0) & (at < places) & there
    return at.clamp(0, max(0, places - 1)), inside


def _offset(x: Any, batch: int, seqlen_offsets: Any) -> Any:
    """`seqlen_offsets` as a number, or an array [batch]."""
    if getattr(seqlen_offsets, "ndim", 0) or isinstance(seqlen_offsets, list | tuple):
        checked.tensor("seqlen_offsets", seqlen_offsets, "batch", kinds=checked.INTEGERS)
        if len(seqlen_offsets) != batch:
            raise BadArgument(
                f"seqlen_offsets is {list(seqlen_offsets.shape)}, but must be [{batch}]"
            )
        checked.together(x=x, seqlen_offsets=seqlen_offsets)
        return seqlen_offsets
    return checked.count("seqlen_offsets", seqlen_offsets)
