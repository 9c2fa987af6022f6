"""Attention that others compute: FlexAttention, FlashAttention-3 and cuDNN in fp8, if they are
here. As `rivals`."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any

from rivals import FLEX_BACKWARD, Absent, Binds, Tensors
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention_backward import AttentionBackwardProblem

if TYPE_CHECKING:
    from gpu_bench import Bench

FLEX = "torch.flex_attention"
FLASH_3 = "flash_attn_interface.flash_attn_func"
CUDNN_FP8 = "cudnn.sdpa_fp8"

MODE = "max-autotune-no-cudagraphs"
"""Of `torch.compile`: without it FlexAttention takes one tile per head dim, unmeasured."""
OPTIONS: dict[str, dict[str, Any]] = {
    "": {},
    ", options": {
        "ROWS_GUARANTEED_SAFE": True,
        "BLOCKS_ARE_CONTIGUOUS": True,
        "PRESCALE_QK": True,
    },
    ", TMA": {"ROWS_GUARANTEED_SAFE": True, "BLOCKS_ARE_CONTIGUOUS": True, "USE_TMA": True},
}
"""FlexAttention's own options: as torch has them, those that the masks here allow, and with the
copies of Hopper. What torch refuses is left out with the reason."""

# --- FlexAttention ------------------------------------------------------------------------------


def flex(p: AttentionProblem, bench: Bench) -> Binds:
    """FlexAttention, compiled, of batches in bshd. Blocks of a mask do not lie together, as the
    other options take them to."""
    allowed = {"": OPTIONS[""]} if p.blocks_shape else OPTIONS
    return {f"{FLEX}{word}": _flex_bind(p, options) for word, options in allowed.items()}


def flex_backward(p: AttentionBackwardProblem, bench: Bench) -> Binds:
    """The backward pass of FlexAttention, compiled."""
    said = AttentionProblem(**{f.name: getattr(p, f.name) for f in fields(AttentionProblem)})
    run = _flex_function(said, {})

    def bind(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        import torch

        names = ("q", "k", "v", "bias") if "dbias" in p.grads else ("q", "k", "v")
        leaves = [inputs[name].detach().requires_grad_() for name in names]
        given = _flex_given({**inputs, **dict(zip(names, leaves, strict=True))})
        if p.blocks_shape:
            given["blocks"] = _flex_blocks(said, inputs["blocks"])
        out = run(**given)
        return lambda: torch.autograd.grad(out, leaves, inputs["do"], retain_graph=True)

    return {FLEX_BACKWARD: bind}


def _flex_bind(p: AttentionProblem, options: Mapping[str, Any]) -> Any:
    run = _flex_function(p, options)

    def bind(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        given = _flex_given(inputs)
        if p.blocks_shape:
            given["blocks"] = _flex_blocks(p, inputs["blocks"])
        return partial(run, **given)

    return bind


def _flex_blocks(p: AttentionProblem, blocks: Any) -> Any:
    """FlexAttention's form of a mask of blocks, alone or under a causal mask."""
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    if p.mask.kind not in ("none", "causal") or p.q_len != p.kv_len or p.q_len % p.block_size:
        raise ValueError(f"{p} has no form here")
    whole, cut = blocks, torch.zeros_like(blocks)
    if p.mask.kind == "causal":
        of_diagonal = torch.eye(p.block_counts[0], dtype=torch.bool, device=blocks.device)
        whole, cut = blocks.tril(-1), blocks & of_diagonal
    listed = [
        found.expand(p.batch, p.heads, -1, -1).int().contiguous()
        for one in (cut, whole)
        for found in (
            one.sum(-1, keepdim=True),
            one.int().argsort(dim=-1, descending=True, stable=True),
        )
    ]
    cut_count, cut_at, whole_count, whole_at = listed
    return BlockMask.from_kv_blocks(
        cut_count[..., 0].contiguous(), cut_at, whole_count[..., 0].contiguous(), whole_at,
        BLOCK_SIZE=p.block_size, mask_mod=(lambda b, h, i, j: j <= i) if p.right == 0 else None,
    )  # fmt: skip


def _flex_given(inputs: Tensors) -> dict[str, Any]:
    """What the compiled function takes."""
    names = ("q", "k", "v", "scale", "slopes", "sinks", "bias", "blocks")
    return {name: inputs.get(name) for name in names}


def _flex_function(p: AttentionProblem, options: Mapping[str, Any]) -> Callable[..., Any]:
    """FlexAttention of `p` as one compiled function of its operands. It is made at the first call,
    and compiled once for all operands of the same shapes."""
    made: list[Callable[..., Any]] = []

    def run(**given: Any) -> Any:
        if not made:
            made.append(_flex_compiled(p, options, given["q"].device))
        return made[0](**given)

    return run


def _flex_compiled(
    p: AttentionProblem, options: Mapping[str, Any], device: Any
) -> Callable[..., Any]:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    shift = p.kv_len - p.q_len if p.mask.bottom_right else 0
    left, right = (math.inf if bound is None else bound for bound in (p.left, p.right))
    windowed, softcap, shared = p.left is not None, p.softcap, p.group > 1
    bias_batches, bias_heads, *_ = (*p.bias_shape, 1, 1)
    changing = bool(softcap or p.words & {"alibi", "bias"})

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        found = j <= i + shift + right
        return found & (j >= i + shift - left) if windowed else found

    of_mask = None
    if p.mask.kind != "none" and not p.blocks_shape:
        of_mask = create_block_mask(seen, None, None, p.q_len, p.kv_len, device=device)

    @torch.compile(fullgraph=True, dynamic=False, mode=MODE)
    def run(
        q: Any, k: Any, v: Any, scale: Any, slopes: Any, sinks: Any, bias: Any, blocks: Any
    ) -> Any:
        def changed(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            if softcap:
                s = softcap * torch.tanh(s / softcap)
            if slopes is not None:
                s = s - slopes[h] * (i + shift - j).abs()
            if bias is not None:
                s = s + bias[b % bias_batches, h % bias_heads, i, j]
            return s

        found = flex_attention(
            q.transpose(1, 2),
            k.transpose(1, 2),
            v.transpose(1, 2),
            score_mod=changed if changing else None,
            block_mask=of_mask if blocks is None else blocks,
            scale=scale,
            enable_gqa=shared,
            return_lse=sinks is not None,
            kernel_options=dict(options),
        )
        if sinks is None:
            return found.transpose(1, 2)
        o, lse = found
        return (o * torch.sigmoid(lse - sinks[:, None])[..., None]).to(o.dtype).transpose(1, 2)

    return run


# --- FlashAttention-3 ---------------------------------------------------------------------------

FORWARD_ONLY = "fa3_fwd_interface"


def flash_3_module() -> Any:
    """FlashAttention-3's own interface, or the one of `fa3-fwd`. Raises `Absent` without either."""
    for name in ("flash_attn_interface", FORWARD_ONLY):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    raise Absent(FLASH_3, f"neither flash_attn_interface nor {FORWARD_ONLY} is installed")


def flash_3(p: AttentionProblem, bench: Bench) -> Binds:
    """FlashAttention-3, if it is installed and has `p`: batches in bshd, or packed rows. The
    package `fa3-fwd` has its forward pass, in bf16 and fp8, without windows."""
    flash = flash_3_module()
    fp16_or_window = p.dtype == "fp16" or p.left is not None
    if flash.__name__ == FORWARD_ONLY and fp16_or_window:
        return {}
    if p.words - {"packedq", "packedkv", "hscale"} or p.layout != "bshd" or p.kv_layout != "bshd":
        return {}
    causal = (p.left, p.right) == (None, 0)
    window = (-1, -1) if causal else tuple(-1 if x is None else x for x in (p.left, p.right))
    said = {"causal": causal, "window_size": window, "softcap": p.softcap}

    def bind(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        q, k, v = (inputs[name] for name in ("q", "k", "v"))
        given = {**said, "softmax_scale": inputs["scale"]}
        if "packedq" in p.words:
            offsets = (inputs["q_offsets"], inputs["kv_offsets"])
            run = partial(flash.flash_attn_varlen_func, q, k, v, *offsets, p.q_len, p.kv_len)
        else:
            run = partial(flash.flash_attn_func, q, k, v)
        if "hscale" in p.words:  # of Q too one for each head of keys
            names = {"q_descale": "q_scale", "k_descale": "k_scale", "v_descale": "v_scale"}
            given |= {theirs: inputs[ours] for theirs, ours in names.items()}

        def call() -> Any:
            found = run(**given)
            return found[0] if isinstance(found, tuple) else found

        return call

    return {FLASH_3: bind}


# --- cuDNN in fp8 -------------------------------------------------------------------------------


def cudnn_fp8(p: AttentionProblem, bench: Bench) -> Binds:
    """cuDNN's attention of fp8 operands, by NVIDIA's own front end, if that is installed. It has
    one scale for each operand and, on Hopper, an output in fp8: another result than ours."""
    try:
        import cudnn  # type: ignore[import-not-found]
    except ImportError as error:
        raise Absent(CUDNN_FP8, str(error)) from None

    def bind(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        import torch

        q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k", "v"))
        e4m3, fp32 = cudnn.data_type.FP8_E4M3, cudnn.data_type.FLOAT
        graph = cudnn.pygraph(
            io_data_type=e4m3, intermediate_data_type=fp32, compute_data_type=fp32
        )

        def tensor(name: str, like: Any, dtype: Any) -> Any:
            return graph.tensor(
                name=name, dim=list(like.shape), stride=list(like.stride()), data_type=dtype
            )

        one = torch.ones(1, 1, 1, 1, device=q.device)
        arrays = {tensor(n, x, e4m3): x for n, x in (("q", q), ("k", k), ("v", v))}
        factors = [tensor(n, one, fp32) for n in ("dq", "dk", "dv", "ds", "ss", "so")]
        o = torch.empty_like(q)
        made, _, *largest = graph.sdpa_fp8(
            *arrays, *factors, is_inference=True, attn_scale=inputs["scale"],
            use_causal_mask=p.mask.kind == "causal", name="attention",
        )  # fmt: skip
        made.set_output(True).set_dim(list(o.shape)).set_stride(list(o.stride()))
        given = {**arrays, **dict.fromkeys(factors, one), made: o}
        for each in largest:
            each.set_output(True).set_dim([1] * 4).set_stride([1] * 4).set_data_type(fp32)
            given[each] = torch.empty_like(one)
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        room = torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=q.device)
        handle = cudnn.create_handle()

        def call() -> Any:
            stream = torch.cuda.current_stream().cuda_stream
            cudnn.set_stream(handle=handle, stream=stream)
            graph.execute(given, room, handle=handle)
            return o.transpose(1, 2)

        return call

    return {CUDNN_FP8: bind}
