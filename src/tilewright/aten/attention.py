"""Scaled dot-product attention and its gradients, by each of torch's implementations.

That by ``math`` is products of matrices and a softmax, and is seen as these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilewright.aten.stated import MADE, RECORDED, Given, Same, Stated, apart, contiguous, packed
from tilewright.errors import BadArgument
from tilewright.ops.nouns import Call, View

_TO_TOP_LEFT = 1
"""``custom_mask_type`` of ``_efficient_attention_forward``: causal from the top left. 0 is none, 2
causal from the bottom right."""


def _said(given: Given, layout: str) -> dict[str, Any]:
    """What options say: which keys a query sees, dropout and layout."""
    rows = 2 if layout == "bhsd" else 1
    said: dict[str, Any] = {"layout": layout}
    if given.get("is_causal"):
        said |= _causal(given, rows, "top_left")
    if given.get("dropout_p"):
        said["dropout"] = min(255, round(256 * given["dropout_p"])) / 256  # as in `flash_attn`
    return said


def _causal(given: Given, rows: int, corner: str) -> dict[str, Any]:
    """The corner is said where it matters."""
    same = given["query"].shape[rows] == given["key"].shape[rows]
    return {"mask": "causal"} | ({} if same or corner == "bottom_right" else {"corner": corner})


def _bias(given: Given) -> dict[str, View]:
    found = next(
        (given[name] for name in ("attn_bias", "attn_mask", "bias") if name in given), None
    )
    if found is None:
        return {}
    if found.shape[-1] > 1 and found.strides[-1] != 1:
        found = contiguous(found)
    # Torch expands a mask before it calls an implementation.
    outer = zip(found.shape[:-1], found.strides[:-1], strict=True)
    shape = (*(size if step else 1 for size, step in outer), found.shape[-1])
    return {"bias": replace(found, shape=shape)}


def _inputs(given: Given) -> tuple[View, View, View]:
    return given["query"], given["key"], given["value"]


def _attention(
    given: Given, said: dict[str, Any], named: dict[str, View], logsumexp: bool
) -> Stated:
    o = given[MADE][0]
    options = said | ({"lse": True} if logsumexp else {})
    return [Same("attention", (Call(_inputs(given), named, (o,), options),))]


def _forward(given: Given) -> Stated:
    """``_scaled_dot_product_…_attention``: [batch, heads, rows, dim]. Those that are not asked
    whether to write the logarithms of the sums always write them, and only a backward pass needs
    them."""
    logsumexp = given.get("compute_log_sumexp", given.get(RECORDED, True))
    return _attention(given, _said(given, "bhsd"), _bias(given), logsumexp)


def _backward(given: Given) -> Stated:
    """The backward pass of these."""
    return _gradients(given, _said(given, "bhsd"), _bias(given), _asked(given))


def _asked(given: Given) -> tuple[bool, ...]:
    mask = given.get("grad_input_mask")
    return (True, True, True, False) if mask is None else tuple(mask)


def _gradients(
    given: Given, said: dict[str, Any], named: dict[str, View], asked: tuple[bool, ...]
) -> Stated:
    """The backward pass, whose row sums are as ours are: torch pads those of some
    implementations."""
    q, k, v = _inputs(given)
    o, do = given["out"], _readable(given.get("grad_out", given.get("grad_out_")))
    if "q_offsets" in named:
        shape: tuple[int, ...] = (q.shape[1], q.shape[0])
    elif said["layout"] == "bhsd":
        shape = q.shape[:3]
    else:
        shape = (q.shape[0], q.shape[2], q.shape[1])
    lse = View(shape, packed(shape), "fp32", 0, q.device)
    names = ("dq", "dk", "dv", "dbias")
    wanted = [name for name, one in zip(names, asked, strict=True) if one]
    if not wanted:
        return []
    if "dbias" in wanted:  # it has a row for each query
        named = {"bias": given.get("attn_bias", given.get("bias"))}
    options = {**said, "grads": "+".join(wanted)}
    return [Same("attention_backward", (Call((q, k, v, o, lse, do), named, None, options),))]


def _readable(x: View) -> View:
    """A gradient, or a copy where its rows are not contiguous or share memory."""
    found = apart(x)
    return found if found.strides[-1] == 1 else contiguous(found)


# --- the calls below: [batch, rows, heads, dim], or packed rows ----------------------------------


def _flash(given: Given) -> tuple[dict[str, Any], dict[str, View]]:
    """What ``_flash_attention_…`` says besides its tensors."""
    if given.get("block_table") is not None:
        raise BadArgument("keys and values in pages are not heard")
    said, named = _of_rows(given)
    if given.get("is_causal"):
        said |= _causal(given, 1, "bottom_right")
    bounds = (given.get("window_size_left"), given.get("window_size_right"))
    window = tuple(None if bound is None or bound < 0 else bound for bound in bounds)
    if any(bound is not None for bound in window):
        said["window"] = window
    if (used := given.get("seqused_k")) is not None:
        named["kv_used"] = used
    if (slopes := given.get("alibi_slopes")) is not None:
        named["slopes"] = slopes
    return said, named


def _of_rows(given: Given) -> tuple[dict[str, Any], dict[str, View]]:
    """Layout, dropout, and offsets of packed rows."""
    said = _said({**given, "is_causal": False}, "bshd")
    named: dict[str, View] = {}
    if given.get("cum_seq_q") is not None:
        named |= {"q_offsets": given["cum_seq_q"], "kv_offsets": given["cum_seq_k"]}
        said |= {"max_q": given["max_q"], "max_kv": given["max_k"]}
        del said["layout"]
    return said, named


def _flash_forward(given: Given) -> Stated:
    said, named = _flash(given)
    return _attention(given, said, named, given.get(RECORDED, True))


def _flash_backward(given: Given) -> Stated:
    said, named = _flash(given)
    return _gradients(given, said, named, (True, True, True, False))


def _efficient(given: Given) -> tuple[dict[str, Any], dict[str, View]]:
    """What ``_efficient_attention_…`` says besides its tensors."""
    if given.get("cu_seqlens_q") is not None or given.get("seqlen_k") is not None:
        raise BadArgument("packed rows of _efficient_attention_forward are not heard")
    if given.get("window_size"):
        raise BadArgument("windows of _efficient_attention_forward are not heard")
    said, mask = _said({**given, "is_causal": False}, "bshd"), given["custom_mask_type"]
    if mask:
        said |= _causal(given, 1, "top_left" if mask == _TO_TOP_LEFT else "bottom_right")
    return said, _bias(given)


def _efficient_forward(given: Given) -> Stated:
    said, named = _efficient(given)
    return _attention(given, said, named, given["compute_log_sumexp"])


def _efficient_backward(given: Given) -> Stated:
    said, named = _efficient(given)
    return _gradients(given, said, named, (True, True, True, given["bias_requires_grad"]))


RULES: dict[str, Callable[[Given], Stated]] = {
    "_scaled_dot_product_flash_attention": _forward,
    "_scaled_dot_product_flash_attention_for_cpu": _forward,
    "_scaled_dot_product_efficient_attention": _forward,
    "_scaled_dot_product_cudnn_attention": _forward,
    "_scaled_dot_product_fused_attention_overrideable": _forward,
    "_scaled_dot_product_flash_attention_backward": _backward,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _backward,
    "_scaled_dot_product_efficient_attention_backward": _backward,
    "_scaled_dot_product_cudnn_attention_backward": _backward,
    "_scaled_dot_product_fused_attention_overrideable_backward": _backward,
    "_flash_attention_forward": _flash_forward,
    "_flash_attention_backward": _flash_backward,
    "_efficient_attention_forward": _efficient_forward,
    "_efficient_attention_backward": _efficient_backward,
}
"""By the name of an operation of aten."""
