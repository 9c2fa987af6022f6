"""Pipeline ``vendor``: engines of NVIDIA's library, cuDNN, for attention's gradients, as
`ops.attention.library` has them for attention:

    attention_backward_bf16_bf16_d128x128_causal_vendor_cudnn9_6_k24-26_varies_ws1_g-dq-dk-dv

Asked for where that is, and dQ, dK and dV are computed together. Workgroups add to dQ in any order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilewright.arch.model import Arch, Device
from tilewright.ops.attention import library as forward
from tilewright.ops.attention_backward.config import AttentionBackwardConfig, of_engine
from tilewright.ops.attention_backward.problem import USUAL, AttentionBackwardProblem
from tilewright.ops.library_attention import Attention, Gradients
from tilewright.ops.library_engine import Offered, Tensor, said, words
from tilewright.ops.library_launch import launch as engine_launch
from tilewright.ops.nouns import Argument, Given, Launch, Pointer, Scalar, Temporary
from tilewright.verdict import Verdict

DELTA, SUMS = "delta", "dq_sums"
"""Temporaries: the sum of O · dO of each row, and dQ in fp32."""


def refused(p: AttentionBackwardProblem) -> tuple[str, str] | None:
    """The rule by which the library is not asked for `p`, and why; None if it is asked."""
    if objection := forward.refused(p):
        return objection
    if p.grads != USUAL:
        return "gradients", f"the library computes {USUAL}, not {p.grads}"
    if p.dlse or p.accumulate:
        what = "LSE's gradient" if p.dlse else "gradients that are added to arrays"
        return "gradients", f"the library is not asked for {what}"
    return forward.unusual({name: _tensor(p, name) for name in ("do", "dq", "dk", "dv")})


def query(p: AttentionBackwardProblem, arch: Arch, library_name: str) -> Attention | Verdict:
    """What to ask the library for, or why it is not asked."""
    return forward.query_of(p, arch, library_name, refused, gradients)


@lru_cache(maxsize=1024)
def gradients(p: AttentionBackwardProblem, library_name: str) -> Attention:
    """The gradients as the library has them."""
    of = Gradients(*(_tensor(p, name) for name in ("do", "dq", "dk", "dv")))
    return replace(forward.attention(p.forward, library_name), gradients=of)


def _tensor(p: AttentionBackwardProblem, name: str) -> Tensor:
    return forward.lying(p, name[1:], p.strides_of(name))


def config_of(
    p: AttentionBackwardProblem, library_name: str, found: Offered
) -> AttentionBackwardConfig:
    """The config of an engine that the library offers for `p`."""
    return of_engine(p.dtype, p.head_dim, p.head_dim_v, p.mask.kind, words(library_name, found))


def launch(c: AttentionBackwardConfig, p: AttentionBackwardProblem, device: Device) -> Launch:
    """The launch of an engine for `p`."""
    asked = gradients(p, said(c.library_engine).library)
    names = ("q", "k", "v", "o", "do", "lse", "dq", "dk", "dv", DELTA)
    arguments: list[Argument] = [*map(Pointer, names), Scalar("fp32", 1.0), Given("fp32", "scale")]
    arguments += [*forward.masking(asked), Pointer(SUMS)]
    rows = p.batch, p.heads, p.q_len
    temporaries = Temporary(DELTA, rows, "fp32"), Temporary(SUMS, (*rows, p.head_dim), "fp32")
    return engine_launch(asked, c.library_engine, arguments, temporaries)


def interpreted(c: AttentionBackwardConfig) -> AttentionBackwardConfig:
    """The kernels that Triton's interpreter runs in place of the library."""
    return AttentionBackwardConfig(
        c.dtype, c.dtype_o, c.head_dim, c.head_dim_v, c.mask, 64, 32, 8, 1
    )
