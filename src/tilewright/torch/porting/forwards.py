"""What a module's ``forward`` is while it is ported: torch's own, with our functions for torch's.

Each reads parameters, sizes and hooks at every call, so that a module may change after it was
ported. A call with tensors that our functions do not take goes to the forward of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from tilewright.operation import again
from tilewright.torch.functional import convolutions
from tilewright.torch.functional.attention import scaled_dot_product_attention
from tilewright.torch.functional.precision import tf32
from tilewright.torch.functional.products import LINEAR, linear
from tilewright.torch.porting import methods
from tilewright.torch.porting.served import attempted, has_hooks, served


def linear_forward(module: nn.Linear, input: Any) -> Any:
    """Of ``torch.nn.Linear``."""
    made = _linear(module, input)
    return type(module).forward(module, input) if made is None else made


def compiled_linear(parameters: Mapping[str, Any], input: Any) -> Any:
    """Of ``torch.nn.Linear`` in compiled code. None where tensors are not served, or a parameter is
    parametrised."""
    if "weight" not in parameters or "bias" not in parameters:
        return None
    return product(input, parameters["weight"], parameters["bias"])


def _linear(module: nn.Linear, input: Any, activation: str | None = None) -> Any:
    """None where tensors are not served."""
    return product(input, module.weight, module.bias, activation)


def product(input: Any, weight: Any, bias: Any, activation: str | None = None) -> Any:
    """`linear`; None where tensors are not served. A call like an earlier one is not asked
    again."""
    made = again((LINEAR, activation, tf32(input)), (input, weight, bias))
    if made is None and served(input, weight, bias, split=True):
        made = attempted(linear, input, weight, bias, activation)
    return made


def turned_forward(module: Any, input: Any) -> Any:
    """Of transformers' ``Conv1D``, as GPT-2 has it: a linear layer whose weight is [in, out]."""
    weight, bias, made = module.weight, module.bias, None
    if served(input, weight, bias):
        made = attempted(linear, input, weight.t(), bias)
    return type(module).forward(module, input) if made is None else made


_ACTIVATIONS = {nn.ReLU: "relu", nn.SiLU: "silu"}
"""Those that have no options, by GEMM's names."""

_CONV, _TRANSPOSED = (
    {
        (rank + 2, activation, in_tf32): convolutions.where(
            served, f"{form}{rank}d", activation, in_tf32
        )
        for rank in (1, 2, 3)
        for activation in activations
        for in_tf32 in (False, True)
    }
    for form, activations in (
        ("conv", ("", "gelu", "gelu_tanh", *_ACTIVATIONS.values())),
        ("conv_transpose", ("",)),
    )
)
"""By the dimensions of a weight, an activation, and whether fp32 is multiplied as tf32. They are
made here, as ``torch.compile`` would trace how one is made, which breaks its graph."""


def conv_forward(module: Any, input: Any) -> Any:
    """Of ``torch.nn.Conv1d`` and its like."""
    made = _convolved(module, input)
    return type(module).forward(module, input) if made is None else made


def _convolved(module: Any, input: Any, activation: str = "") -> Any:
    """None where tensors are not served."""
    weight, padding = module.weight, module.padding
    if module.padding_mode != "zeros":
        around = module._reversed_padding_repeated_twice
        input = nn.functional.pad(input, around, mode=module.padding_mode)
        padding = 0
    conv = _CONV[weight.dim(), activation, tf32(input, "conv")]
    said = module.stride, padding, module.dilation, module.groups
    return attempted(conv, input, weight, module.bias, *said)


def transposed_forward(module: Any, input: Any, output_size: Any = None) -> Any:
    """Of ``torch.nn.ConvTranspose1d`` and its like."""
    weight, stride, padding, dilation = (
        module.weight, module.stride, module.padding, module.dilation
    )  # fmt: skip
    more = module._output_padding(
        input, output_size, stride, padding, module.kernel_size, weight.dim() - 2, dilation
    )
    conv = _TRANSPOSED[weight.dim(), "", tf32(input, "conv")]
    said = stride, padding, tuple(more), module.groups, dilation
    made = attempted(conv, input, weight, module.bias, *said)
    return type(module).forward(module, input, output_size) if made is None else made


# --- neighbours in a Sequential -----------------------------------------------------------------


def activation_of(layer: Any) -> str:
    """GEMM's name of an activation; empty for another layer."""
    if type(layer) is nn.GELU:
        return "gelu_tanh" if layer.approximate == "tanh" else "gelu"
    return _ACTIVATIONS.get(type(layer), "")


def sequential_forward(module: nn.Sequential, input: Any) -> Any:
    """Of ``torch.nn.Sequential``: a ported layer and the activation behind it are one call, where
    no hook would miss it and the backward pass takes no longer."""
    layers = [*module._modules.values()]
    alone = _has_any_global_hook()  # type: ignore[no-untyped-call]
    place = 0
    while place < len(layers):
        layer = layers[place]
        behind = layers[place + 1] if place + 1 < len(layers) else None
        activation = "" if alone or behind is None else joined(layer, behind)
        made = _activated(layer, input, activation) if activation else None
        input = layer(input) if made is None else made
        place += 1 if made is None else 2
    return input


def joined(layer: Any, behind: Any) -> str:
    """The activation of `behind` if it and `layer` may be one call: the layer is ported, and
    neither has a hook. Else empty."""
    activation = activation_of(behind)
    forward = layer.__dict__.get("forward")
    if not activation or methods.function(forward) not in (linear_forward, conv_forward):
        return ""
    hooked = has_hooks(layer) or has_hooks(behind) or "forward" in behind.__dict__
    return "" if hooked else activation


def _cheap(activation: str) -> bool:
    """Whether an activation may be within the kernel: the derivative of relu is that of its
    result. Others have their input kept where gradients are recorded."""
    return activation == "relu" or not torch.is_grad_enabled()


def _activated(layer: Any, input: Any, activation: str) -> Any:
    """A layer and its activation in one call; None where that is not to be, or tensors are not
    served."""
    if not _cheap(activation):
        return None
    if isinstance(layer, nn.Linear):
        return _linear(layer, input, activation)
    return _convolved(layer, input, activation)


# --- multi-head attention -----------------------------------------------------------------------


def heads_forward(
    module: nn.MultiheadAttention,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> Any:
    """Of ``torch.nn.MultiheadAttention``. Calls that want the weights, drop some of them, or have
    no batch go to the forward of its class."""
    out, made = module.out_proj, None
    if not (
        need_weights
        or (module.training and module.dropout)
        or query.dim() != 3
        or (is_causal and attn_mask is None)
        or not served(query, key, value, out.weight, out.bias, module.in_proj_bias)
    ):
        said = key_padding_mask, attn_mask, is_causal
        made = attempted(_attended, module, query, key, value, *said)
    if made is not None:
        return made, None
    return type(module).forward(
        module, query, key, value, key_padding_mask, need_weights, attn_mask,
        average_attn_weights, is_causal,
    )  # fmt: skip


def _attended(
    module: nn.MultiheadAttention,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any,
    attn_mask: Any,
    is_causal: bool,
) -> Any:
    """Multi-head attention of tensors with a batch."""
    q, k, v = (
        x if module.batch_first else x.transpose(0, 1)
        for x in _projected(module, query, key, value)
    )
    q, k, v = (x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    if is_causal and key_padding_mask is None:
        made = scaled_dot_product_attention(q, k, v, is_causal=True)
    else:
        mask = _merged(key_padding_mask, attn_mask, q)
        made = scaled_dot_product_attention(q, k, v, mask)
    rows = made.transpose(1, 2).flatten(-2)
    if not module.batch_first:
        rows = rows.transpose(0, 1)
    return linear(rows, module.out_proj.weight, module.out_proj.bias)


def _projected(module: nn.MultiheadAttention, query: Any, key: Any, value: Any) -> Any:
    """Q, K and V: in one product where they come from one tensor and one weight."""
    bias = module.in_proj_bias
    if module._qkv_same_embed_dim:
        weight = module.in_proj_weight
        if query is key is value:
            return linear(query, weight, bias).chunk(3, -1)
        weights = weight.chunk(3)
    else:
        weights = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    return [linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]


def _merged(padding: Any, mask: Any, q: Any) -> Any:
    """One mask of [1 or batch, 1 or heads, 1 or queries, keys] out of two, in which True hides a
    key, as multi-head attention has it."""
    found = []
    if padding is not None:
        found.append(padding[:, None, None, :])
    if mask is not None:
        apart = mask.dim() == 3
        found.append(mask.view(q.shape[0], q.shape[1], *mask.shape[-2:]) if apart else mask)
    if not found:
        return None
    if all(one.dtype is torch.bool for one in found):
        hidden = found[0] if len(found) == 1 else found[0] | found[1]
        return hidden.logical_not()
    added = [
        torch.zeros_like(one, dtype=q.dtype).masked_fill_(one, float("-inf"))
        if one.dtype is torch.bool
        else one.to(q.dtype)
        for one in found
    ]
    return added[0] if len(added) == 1 else added[0] + added[1]
