"""``scaled_dot_product_attention``, with torch's arguments."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.errors import BadArgument, shown
from tilewright.flash_attn.words import dropped
from tilewright.operation import again, alike, operation, remember, scalars
from tilewright.torch import autocast
from tilewright.torch.functional import checked

attention = operation("attention")
"""`tilewright.attention`."""

_NAME = "nn.functional.scaled_dot_product_attention"


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """As ``torch.nn.functional.scaled_dot_product_attention``, with gradients.

    query: [..., heads, queries, dim]; the dimensions in front may be left out.
    key, value: [..., heads, keys, dim], value with a dim of its own. Dimensions in front are
        broadcast.
    attn_mask: broadcast to [..., heads, queries, keys]: bool, True for a key that takes part, or
        numbers that are added, in the dtype of query or float32.
    dropout_p: share of weights that become 0, rounded to a multiple of 1/256. Its seed comes from
        torch's generator of the CPU.
    is_causal: query i sees keys 0 to i, whatever their numbers.
    scale: of scores; None: dim to the power of -½.
    enable_gqa: whether key and value may have fewer heads than query.

    A query that sees no key gives 0. The result lies as query does: with heads inside of rows where
    query has them so.

    Raises `BadArgument`.
    """
    given = (query, key, value, attn_mask)
    if not dropout_p:
        made = repeated(given, is_causal, scale, enable_gqa)
        if made is not None:
            return made
    checked.floats(_NAME, query=query, key=key, value=value)
    said: dict[str, Any] = {} if scale is None else {"scale": scale}
    if is_causal:
        if attn_mask is not None:
            raise BadArgument("attn_mask and is_causal are both given; pass one of them")
        said |= {"mask": "causal", "corner": "top_left"}
    if dropout_p:
        said |= _dropped(dropout_p)
    batch = _shape_of_batch(query, key, value, enable_gqa)
    q, k, v = (_four(x, batch) for x in (query, key, value))
    if attn_mask is not None:
        said["bias"] = _mask(attn_mask, (*batch, query.shape[-3] if query.dim() > 2 else 1), q, k)
    inside = _heads_inside(q)
    if inside:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    else:
        said["layout"] = "bhsd"
    made = attention(q, k, v, **said)
    if inside:
        made = made.transpose(1, 2)
    result = _of_shape(made, batch, query)
    if not dropout_p and result is made and not autocast.active():
        outputs = (made.transpose(1, 2) if inside else made,)
        what = _what(is_causal, scale, enable_gqa)
        remember(what, given, ("bias",), "attention", (q, k, v), said, outputs, (made,))
    return result


def repeated(given: tuple[Any, ...], is_causal: bool, scale: Any, enable_gqa: bool) -> Any:
    """The result of a call without dropout that is like an earlier one; None if there was none.

    given: query, key, value, attn_mask.
    """
    what = _what(is_causal, scale, enable_gqa)
    if what is None:
        return None
    return again(what, given, () if scale is None else scalars("attention", scale=scale))


def _what(is_causal: bool, scale: Any, enable_gqa: bool) -> Any:
    """What `tilewright.operation.again` tells calls apart by; None for one that is not repeated."""
    if scale is not None and type(scale) is not float:
        return None
    return alike("scaled_dot_product_attention", is_causal, enable_gqa)


def _dropped(dropout_p: Any) -> dict[str, Any]:
    """Dropout with a fresh seed. Raises `BadArgument`."""
    if type(dropout_p) not in (int, float) or not 0 <= dropout_p < 1:
        raise BadArgument(f"dropout_p = {shown(dropout_p)} is not from 0 to under 1")
    if torch.compiler.is_compiling():
        raise BadArgument(
            "dropout_p needs a seed from the host at each call, which a graph does not have: "
            f"{checked.instead(_NAME)} under torch.compile"
        )
    return dropped(dropout_p)


def _shape_of_batch(query: Any, key: Any, value: Any, enable_gqa: bool) -> tuple[int, ...]:
    """The dimensions in front of heads, broadcast. Raises `BadArgument` for shapes that do not
    fit."""
    shapes = [list(x.shape) for x in (query, key, value)]
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < 2:
            raise BadArgument(f"{name} is {list(x.shape)}, but must have 2 or more dimensions")
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise BadArgument(
            f"query, key and value are {shapes}: query and key must have one dim, key and value "
            "as many keys"
        )
    heads = [x.shape[-3] if x.dim() > 2 else 1 for x in (query, key, value)]
    if enable_gqa:
        if heads[1] != heads[2] or not heads[1] or heads[0] % heads[1]:
            raise BadArgument(
                f"query, key and value have {heads} heads: with enable_gqa, key and value must "
                "have as many, and query a multiple of it"
            )
    elif len({n for n in heads if n != 1}) > 1:
        raise BadArgument(
            f"query, key and value have {heads} heads: pass enable_gqa=True if several heads of "
            "query share one of key and value"
        )
    try:
        fronts = (x.shape[:-3] for x in (query, key, value))
        return tuple(torch.broadcast_shapes(*fronts))  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise BadArgument(f"query, key and value are {shapes}: {error}") from None


def _four(x: Any, batch: tuple[int, ...]) -> Any:
    """`x` as [batch, heads, rows, dim], with neighbours in the last dimension. A batch of 1 is for
    all."""
    if x.dim() < 4:
        x = x[(None,) * (4 - x.dim())]
    elif len(batch) > 1:
        ones = all(n == 1 for n in x.shape[:-3])
        x = (x if ones else x.expand(*batch, *x.shape[-3:])).flatten(0, -4)
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _mask(mask: Any, front: tuple[int, ...], q: Any, k: Any) -> Any:
    """The mask as [1 or batch, 1 or heads, 1 or queries, keys]. Raises `BadArgument`.

    front: the batch and the heads of the result.
    """
    checked.strided(_NAME, "attn_mask", mask)
    if mask.dtype not in (torch.bool, torch.float32, q.dtype):
        raise BadArgument(f"attn_mask is {mask.dtype}, but must be bool, float32 or {q.dtype}")
    whole = (*front, q.shape[-2], k.shape[-2])
    sizes = (1,) * (len(whole) - mask.dim()) + tuple(mask.shape)
    if not checked.fills(sizes, whole):
        raise BadArgument(
            f"attn_mask is {list(mask.shape)}, which is not broadcast to {list(whole)}"
        )
    mask = mask.reshape(sizes)
    if sizes[-1] != whole[-1]:
        mask = mask.expand(*sizes[:-1], whole[-1])
    if len(sizes) > 4:
        several = any(n != 1 for n in sizes[:-3])
        mask = (mask.expand(*whole[:-3], *mask.shape[-3:]) if several else mask).flatten(0, -4)
    elif len(sizes) < 4:
        mask = mask[(None,) * (4 - len(sizes))]
    return mask if mask.stride(-1) == 1 or mask.shape[-1] == 1 else mask.contiguous()


def _heads_inside(q: Any) -> bool:
    """Whether heads lie inside of rows, as where a projection's columns were split into heads."""
    heads, rows = q.shape[1:3]
    return bool(heads > 1 and rows > 1 and q.stride(1) < q.stride(2))


def _of_shape(made: Any, batch: tuple[int, ...], query: Any) -> Any:
    """The result with torch's dimensions."""
    if len(batch) == 1:
        return made
    if not batch:
        return made[0] if query.dim() > 2 else made[0, 0]
    return made.unflatten(0, batch)
