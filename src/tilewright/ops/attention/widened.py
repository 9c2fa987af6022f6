"""Gradients of attention in fp8: the backward pass runs in 16 bits, on Q, K, V times their scales.

    wide q = q·q_scale, in bf16         ← as the forward kernel multiplies them
    dq, dk, dv                          ← attention_backward of the wide operands, O, LSE and dO
    scaled dq = dq·q_scale              ← the gradient of the fp8 numbers themselves

K and V in fp8 under Q in 16 bits are widened to the dtype of Q. The functions take torch tensors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.ops.attention import features
from tilewright.ops.attention.problem import FP8, OUTPUTS, AttentionProblem
from tilewright.ops.backward import Computation
from tilewright.verdict import Verdict, no

_SCALED = frozenset(("tscale", "hscale", "bscale"))
_METHODS = {"bf16": "bfloat16", "fp16": "half"}
"""By dtype, torch's method that converts to it."""


def problem(p: AttentionProblem) -> AttentionProblem | Verdict:
    """The problem whose gradients are computed: `p` in 16 bits, or why it cannot be."""
    if p.dtype_kv not in FP8:
        return p
    if p.dtype_o in FP8:
        return no("gradients_output", f"an output in {p.dtype_o} has no gradients; write bf16")
    if p.words & {"hscale", "bscale"} and p.words & {"packedq", "packedkv"}:
        return no(
            "gradients_scales",
            "packed rows with a scale for each sequence have no gradients; one scale for each "
            "tensor has",
        )
    wide = "bf16" if p.dtype in FP8 else p.dtype
    return replace(
        p,
        dtype=wide,
        dtype_kv=wide,
        dtype_o=p.dtype_o if p.dtype_o in OUTPUTS[wide] else wide,
        scale_block=0,
        others=features.join(features.listed(p.others) - _SCALED),
    )


def steps(p: AttentionProblem) -> tuple[list[Computation], dict[str, str]]:
    """The computations before ``attention_backward``, for `p` in fp8, and what each operand is then
    called."""
    made: list[Computation] = []
    names: dict[str, str] = {}
    wide = problem(p)
    assert isinstance(wide, AttentionProblem)
    for name in ("q", "k", "v"):
        if (p.dtype if name == "q" else p.dtype_kv) in FP8:
            names[name] = f"wide {name}"
            scales = (f"{name}_scale",) if p.words & _SCALED else ()
            convert = partial(_widened, p, name, _METHODS[wide.dtype])
            made.append(Computation(names[name], convert, (name, *scales)))
    if wide.dtype_o != p.dtype_o:
        for name in ("o", "do"):
            names[name] = f"wide {name}"
            convert = partial(_converted, _METHODS[wide.dtype_o])
            made.append(Computation(names[name], convert, (name,)))
    return made, names


def scaled(p: AttentionProblem, name: str, gradient: str) -> Computation | None:
    """The gradient of the fp8 numbers of Q, K or V, from that of the wide ones; None where they are
    the same."""
    if name not in ("q", "k", "v") or (p.dtype if name == "q" else p.dtype_kv) not in FP8:
        return None
    if not p.words & _SCALED:
        return None
    return Computation(f"scaled {gradient}", partial(_times, p, name), (gradient, f"{name}_scale"))


def _converted(method: str, x: Any) -> Any:
    return getattr(x, method)()


def _widened(p: AttentionProblem, name: str, method: str, x: Any, *scales: Any) -> Any:
    wide = x.float()
    for one in scales:
        wide = wide * _like_rows(p, name, one)
    return getattr(wide, method)()


def _times(p: AttentionProblem, name: str, gradient: Any, scales: Any) -> Any:
    return gradient * _like_rows(p, name, scales).to(gradient.dtype)


def _like_rows(p: AttentionProblem, name: str, scales: Any) -> Any:
    """Scales in a shape that multiplies Q, K or V."""
    if "tscale" in p.words:
        return scales
    heads, rows = (p.heads, p.q_len) if name == "q" else (p.kv_heads, p.kv_len)
    if "hscale" in p.words:  # those of Q are by head of keys
        by_row = scales.repeat_interleave(heads // p.kv_heads, 1)[:, :, None]
    else:
        by_row = scales.repeat_interleave(p.scale_block, 2)[:, :, :rows]
    layout = p.layout if name == "q" else p.kv_layout
    return (by_row if layout == "bhsd" else by_row.transpose(1, 2))[..., None]
