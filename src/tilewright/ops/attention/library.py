"""Pipeline ``vendor``: engines of NVIDIA's library, cuDNN, beside the kernels that are built here.

The library is asked for the engines that it would take for an attention (`query`); each becomes a
config (`config_of`), which is verified, timed, written into tables and launched like any kernel.
Nothing is built for it: its launch is one step that the library computes. A name says the engine
and its knobs in the library's own numbers, so that any later run takes the same engine or none:

    attention_bf16_bf16_bf16_d128x128_causal_vendor_cudnn9_2_k24-7_ws1_f-lse
                                             library |   |    |    +-MiB of workspace
                                               engine+   +-knobs

Asked for: bf16 and fp16, dense sequences of one length, grouped heads, head dims of multiples of 8
up to 256, no mask or a causal one that shows each query a key, rows of neighbouring elements,
arrays aligned to 16 bytes, with or without lse; and part of that in fp8 (`library_fp8`). Everything
else is refused, with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

from tilewright.arch.model import Arch, Device
from tilewright.ops.attention import library_fp8
from tilewright.ops.attention.config import AttentionConfig, of_engine
from tilewright.ops.attention.operands import strides_of
from tilewright.ops.attention.problem import AttentionProblem, Strides
from tilewright.ops.estimate import Estimate
from tilewright.ops.library import CUDNN, kind
from tilewright.ops.library_attention import FP8, Attention, Diagonal
from tilewright.ops.library_engine import MOST_WORKSPACE, Offered, Tensor, foreign, said, words
from tilewright.ops.library_launch import launch as engine_launch
from tilewright.ops.nouns import Argument, Given, Launch, Pointer, Scalar
from tilewright.ops.physics import at_best
from tilewright.verdict import YES, Verdict, no

DTYPES = ("bf16", "fp16")
WORDS = frozenset(("lse",))
"""Features that the library is asked for."""
DIM_MULTIPLE, MOST_DIM = 8, 256
ALIGNMENT = 16
"""Bytes."""
MOST_COUNT, MOST_ELEMENTS = 2**16 - 1, 2**31
"""Sequences or heads, as grids have them; elements of an array. More were never checked."""

Problem = TypeVar("Problem")


def refused(p: AttentionProblem) -> tuple[str, str] | None:
    """The rule by which the library is not asked for `p` on any architecture, and why; None if it
    is asked on some (`on`)."""
    types, dims = (p.dtype, p.dtype_kv, p.dtype_o), (p.head_dim, p.head_dim_v)
    in_fp8 = p.dtype in FP8
    if not in_fp8 and (p.dtype not in DTYPES or set(types) != {p.dtype}):
        return "dtype", f"attention of {', '.join(types)} is not asked of the library"
    if in_fp8 and (objection := library_fp8.refused(p)):
        return objection
    if not in_fp8 and (more := sorted(p.words - WORDS)):
        return "features", f"attention with {', '.join(more)} is not asked of the library"
    if any(dim % DIM_MULTIPLE or dim > MOST_DIM for dim in dims):
        return "head_dim", (
            f"head dims {dims[0]} and {dims[1]} are not multiples of {DIM_MULTIPLE} up to "
            f"{MOST_DIM}, which the library is asked for"
        )
    if p.mask.kind != "none" and (p.mask.kind, p.right) != ("causal", 0):
        return "mask", "the library is asked for no mask but a causal one"
    if _diagonal(p) == "bottom_right" and p.q_len > p.kv_len:
        return "mask", f"of {p.q_len} queries beside {p.kv_len} keys, the first see none"
    if min(p.batch, p.q_len, p.kv_len) < 1:
        return "extent", "an array without elements is left to kernels of ours"
    if max(p.batch, p.heads) > MOST_COUNT:
        return "extent", f"more than {MOST_COUNT} sequences or heads are left to kernels of ours"
    if p.alignment < ALIGNMENT:
        return "vector_width", f"arrays are aligned to {p.alignment} bytes, under {ALIGNMENT}"
    return unusual({name: lying(p, name, strides_of(p, name)) for name in "qkvo"})


def on(arch: Arch, dtype: str, dtype_o: str, head_dim: int, head_dim_v: int) -> Verdict:
    """Whether `arch` has the library, and it is asked there for these dtypes and sizes."""
    if reason := foreign(CUDNN, arch):
        return no("library", reason)
    if dtype in FP8:
        return library_fp8.on(arch, dtype, dtype_o, head_dim, head_dim_v)
    return YES


def unusual(tensors: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """What no tensor is asked for with, by name: elements that share memory, rows whose elements
    lie apart (cuDNN 9.19 crashes), and more than were ever checked."""
    for name, one in tensors.items():
        apart = [*zip(one.shape, one.strides, strict=True)]
        if one.strides[-1] != 1:
            return "extent", f"elements of a row of {name} lie {one.strides[-1]} apart"
        if any(n > 1 and not s for n, s in apart):
            return "extent", f"{name} repeats elements by a stride of 0"
        if sum((n - 1) * abs(s) for n, s in apart) >= MOST_ELEMENTS:
            return "extent", f"{name} spans more than {MOST_ELEMENTS} elements"
    return None


def _diagonal(p: AttentionProblem) -> Diagonal:
    if p.mask.kind == "none":
        return ""
    return "bottom_right" if p.mask.bottom_right and p.q_len != p.kv_len else "top_left"


# --- the library's words -----------------------------------------------------------------------


def query(p: AttentionProblem, arch: Arch, library_name: str) -> Attention | Verdict:
    """What to ask the library for, or why it is not asked."""
    asked = query_of(p, arch, library_name, refused, attention)
    there = on(arch, p.dtype, p.dtype_o, p.head_dim, p.head_dim_v)
    return asked if there or not asked else there


def query_of(
    p: Problem,
    arch: Arch,
    library_name: str,
    refused: Callable[[Problem], tuple[str, str] | None],
    asked: Callable[[Problem, str], Attention],
) -> Attention | Verdict:
    """What to ask the library for, or why it is not asked.

    refused: as the function here. asked: what a library, by its name, is asked for.
    """
    if kind(library_name) != CUDNN:
        return no("family", f"{library_name} computes no attention")
    if reason := foreign(CUDNN, arch):
        return no("library", reason)
    objection = refused(p)
    return no(*objection) if objection else asked(p, library_name)


@lru_cache(maxsize=1024)
def attention(p: AttentionProblem, library_name: str) -> Attention:
    """The attention as the library has it."""
    q, k, v, o = (lying(p, name, strides_of(p, name)) for name in "qkvo")
    rows = p.batch, p.heads, p.q_len, 1
    lse = Tensor("fp32", rows, (p.heads * p.q_len, p.q_len, 1, 1)) if "lse" in p.words else None
    return Attention(
        library_name, q, k, v, o, lse, _diagonal(p), scaled="tscale" in p.words,
        alignment=ALIGNMENT, workspace=MOST_WORKSPACE,
    )  # fmt: skip


def lying(p: AttentionProblem, name: str, strides: Strides) -> Tensor:
    """A tensor of the shape of Q, K, V or O, of (batch, head, row, element).

    strides: of (batch, row, head, element).
    """
    heads, rows = (p.heads, p.q_len) if name in "qo" else (p.kv_heads, p.kv_len)
    dim = p.head_dim if name in "qk" else p.head_dim_v
    outer, row, head, element = strides
    dtype = p.dtype_o if name == "o" else p.dtype
    return Tensor(dtype, (p.batch, heads, rows, dim), (outer, head, row, element))


def config_of(p: AttentionProblem, library_name: str, found: Offered) -> AttentionConfig:
    """The config of an engine that the library offers for `p`."""
    return of_engine(
        p.dtype, p.dtype_o, p.head_dim, p.head_dim_v, p.mask.kind, p.features,
        words(library_name, found),
    )  # fmt: skip


# --- what to launch ----------------------------------------------------------------------------


def launch(c: AttentionConfig, p: AttentionProblem, device: Device) -> Launch:
    """The launch of an engine for `p`."""
    asked = attention(p, said(c.library_engine).library)
    names = ("q", "k", "v", "o", "lse") if asked.lse else ("q", "k", "v", "o")
    scales = library_fp8.arguments(asked) if asked.in_fp8 else []
    arguments = (*map(Pointer, names), Given("fp32", "scale"), *scales, *masking(asked))
    return engine_launch(asked, c.library_engine, arguments)


def masking(asked: Attention) -> list[Argument]:
    """What the library is given under a mask: the score of keys that a query does not see; and the
    numbers of keys and of queries, under a diagonal from the bottom right."""
    if not asked.diagonal:
        return []
    lengths = (asked.k.shape[2], asked.q.shape[2]) if asked.diagonal == "bottom_right" else ()
    return [Scalar("fp32", float("-inf")), *(Scalar("i32", length) for length in lengths)]


def interpreted(c: AttentionConfig) -> AttentionConfig:
    """The kernel that Triton's interpreter runs in place of the library."""
    return AttentionConfig(
        c.dtype, c.dtype_kv, c.dtype_o, c.head_dim, c.head_dim_v, c.mask, 64, 64, 4, 2, "basic",
        "tile", features=c.features,
    )  # fmt: skip


def estimate(p: AttentionProblem, device: Device) -> Estimate:
    """The least time that anything could take there: nothing is known of the library's engines."""
    return at_best(p, device, "cuDNN's engine, at best")
