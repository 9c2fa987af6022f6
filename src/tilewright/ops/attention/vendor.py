"""What torch has for a problem, to compare kernels with: cuDNN's attention and FlashAttention-2.

The calls are ATen's own, below ``scaled_dot_product_attention``, which chooses between them.
Neither has dropout here: their random numbers are others, so nothing could be checked. Torch's
build of FlashAttention-2 refuses ALiBi.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.protocols import Bind

CUDNN = "aten._scaled_dot_product_cudnn_attention"
FLASH = "aten._flash_attention_forward"

Tensors = Mapping[str, Any]

# What torch and the libraries take (aten/src/ATen/native/transformers/cuda: sdp_utils.cpp and
# attention.cu).
_DTYPES = ("bf16", "fp16")
_DIM_MULTIPLE = 8
_MOST_DIM = 256
_FLASH_WORDS = frozenset(("lse", "packedq", "packedkv", "usedkv"))
_CUDNN_WORDS = frozenset(("lse", "bias"))
_LENGTHS = frozenset(("packedq", "packedkv", "usedkv"))


def vendor(p: AttentionProblem) -> Mapping[str, Bind]:
    """The calls of torch that compute `p`, by name."""
    # A row without keys has another LSE there.
    if not plain(p) or ("lse" in p.words and not _every_row_has_keys(p)):
        return {}
    found: dict[str, Bind] = {}
    if p.words <= _CUDNN_WORDS and cudnn_mask(p):
        found[CUDNN] = partial(_cudnn, p)
    if p.words <= _FLASH_WORDS and p.head_dim == p.head_dim_v and flash_mask(p):
        found[FLASH] = partial(_flash, p)
    return found


def stand_in(p: AttentionProblem) -> Mapping[str, Bind]:
    """FlashAttention's call first: torch brings its kernels. cuDNN builds one for each problem,
    which took 0.9 s on an H200."""
    found = vendor(p)
    return {name: found[name] for name in (FLASH, CUDNN) if name in found}


def plain(p: AttentionProblem) -> bool:
    """Whether both libraries take the dtypes, sizes and strides of `p`."""
    return (
        p.dtype == p.dtype_kv == p.dtype_o
        and p.dtype in _DTYPES
        and max(p.head_dim, p.head_dim_v) <= _MOST_DIM
        and p.head_dim % _DIM_MULTIPLE == p.head_dim_v % _DIM_MULTIPLE == 0
        and all(not s or s[3] == 1 for s in (p.q_strides, p.k_strides, p.v_strides))
        and min(p.batch, p.q_len, p.kv_len) > 0
    )


def _every_row_has_keys(p: AttentionProblem) -> bool:
    return not p.words & _LENGTHS and (
        p.mask.kind == "none" or (p.mask.kind == "causal" and p.q_len == p.kv_len)
    )


def cudnn_mask(p: AttentionProblem) -> bool:
    """Whether cuDNN's call says the mask: none, or causal where top left and bottom right are the
    same."""
    if p.mask.kind == "none":
        return True
    causal = (p.left, p.right) == (None, 0) and p.q_len == p.kv_len
    return causal and not p.bias_shape


def flash_mask(p: AttentionProblem) -> bool:
    """Whether FlashAttention's call says the mask and the lengths: no bounds, or bounds from the
    bottom right that leave each query its own place."""
    bounds = [bound for bound in (p.left, p.right) if bound is not None]
    forms = p.words & _LENGTHS
    same = p.q_len == p.kv_len and not forms
    # Packed queries beside packed keys; or all queries, with a length for each sequence's keys.
    known = forms in (set(), {"packedq", "packedkv"}, {"packedq", "packedkv", "usedkv"}, {"usedkv"})
    return (
        known
        and not p.first
        and all(bound >= 0 for bound in bounds)
        and (same or not bounds or p.corner == "bottom_right")
    )


def _cudnn(p: AttentionProblem, inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
    import torch

    q, k, v = (
        x if layout == "bhsd" else x.transpose(1, 2)
        for x, layout in (
            (inputs["q"], p.layout), (inputs["k"], p.kv_layout), (inputs["v"], p.kv_layout),
        )
    )  # fmt: skip
    bias = inputs.get("bias")
    if bias is not None:
        bias = bias.expand(p.batch, p.heads, p.q_len, p.kv_len)
    lse = "lse" in p.words
    run = partial(
        torch.ops.aten._scaled_dot_product_cudnn_attention,
        q, k, v, bias, lse, 0.0, p.mask.kind == "causal", scale=inputs["scale"],
    )  # fmt: skip

    def call() -> Any:
        o, log, *_ = run()
        o = o if p.layout == "bhsd" else o.transpose(1, 2)
        return (o, log.reshape(p.batch, p.heads, p.q_len)) if lse else o

    return call


def _flash(p: AttentionProblem, inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
    import torch

    q, k, v = (inputs[name] for name in ("q", "k", "v"))
    packed = "packedq" in p.words
    if not packed:
        q = q if p.layout == "bshd" else q.transpose(1, 2)
        k, v = (x if p.kv_layout == "bshd" else x.transpose(1, 2) for x in (k, v))
    offsets = (inputs.get("q_offsets"), inputs.get("kv_offsets"))
    if "usedkv" in p.words and not packed:
        # Lengths of keys are for packed rows alone: each sequence has room for the most.
        ones = torch.arange(p.batch + 1, dtype=torch.int32, device=q.device)
        offsets = (ones * p.q_len, ones * p.kv_len)
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    causal = (p.left, p.right) == (None, 0)
    run = partial(
        torch.ops.aten._flash_attention_forward,
        q, k, v, *offsets, p.q_len, p.kv_len, 0.0, causal, False,
        scale=inputs["scale"],
        window_size_left=None if causal else p.left,
        window_size_right=None if causal else p.right,
        seqused_k=inputs.get("kv_used"),
    )  # fmt: skip

    def call() -> Any:
        o, log, *_ = run()
        if not packed:
            o = o.reshape(p.batch, p.q_len, p.heads, p.head_dim_v)
            o = o if p.layout == "bshd" else o.transpose(1, 2)
        return (o, log) if "lse" in p.words else o

    return call
