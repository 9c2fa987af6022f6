"""What cuDNN is asked for in fp8, and what its engines are given beside what others are.

The library multiplies with scales, as we do: one each for Q, K and V. It also takes three factors:
of weights before they are rounded to fp8, of products with values, and of O. Weights are raised by
`RAISED` and results lowered by as much, so that small weights keep their bits; O's factor is 1. We
divide by `o_scale`, an array on the device, and no engine divides: engine 2 of cuDNN 9.19 computes
the same under a division as under a product. So problems with `oscale` are left to kernels of ours.

On Hopper the engines write O in the dtype of Q alone: "FP8 input with F16 output is only supported
on Blackwell", 9.19 says of a graph. As in bf16, they take the largest product for the largest
score; so the scales of Q and K are above 0, as every quantiser makes them.
"""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.library_attention import Attention
from tilewright.ops.nouns import Argument, Pointer, Scalar
from tilewright.verdict import YES, Verdict, no

WORDS = frozenset(("lse", "tscale"))
"""Features that the library is asked for."""
DIM_MULTIPLE = 16

RAISED = 256.0
"""The largest power of two in e4m3: the largest weight of a row is 1."""

_ARCHS = frozenset(("sm_90", "sm_100", "sm_103", "sm_120"))
"""Architectures on which the library is asked."""
MOST_DIM = 128
"""Elements of a row, at most (NVIDIA/cudnn-frontend 1.32, `node/sdpa_support_surface.h`). That says
256 for sm_90, where engine 2 of cuDNN 9.19 with knob 24 at 32 accessed memory outside of its arrays
on an H200, for 200 rows of 256."""
_WIDER = frozenset(("sm_100", "sm_103"))
"""Architectures on which O may have 16 bits."""


def refused(p: AttentionProblem) -> tuple[str, str] | None:
    """The rule by which the library is not asked for `p`, which is in fp8, on any architecture;
    None if it is asked on some (`on`)."""
    if more := sorted(p.words - WORDS):
        return "features", f"attention in fp8 with {', '.join(more)} is not asked of the library"
    dims = p.head_dim, p.head_dim_v
    if any(dim % DIM_MULTIPLE for dim in dims):
        return "head_dim", f"head dims {dims[0]} and {dims[1]} are not multiples of {DIM_MULTIPLE}"
    if p.mask.kind != "none" and p.mask.bottom_right and p.q_len != p.kv_len:
        return "mask", "in fp8 the library is asked for a diagonal from the top left alone"
    return None


def on(arch: Arch, dtype: str, dtype_o: str, head_dim: int, head_dim_v: int) -> Verdict:
    """Whether the library is asked for attention in fp8 of these dtypes and sizes on `arch`."""
    if arch.name not in _ARCHS:
        return no("dtype", f"the library is not asked for attention in {dtype} on {arch.name}")
    if dtype_o != dtype and (dtype_o not in ("bf16", "fp16") or arch.name not in _WIDER):
        return no("dtype", f"on {arch.name} the library does not write {dtype_o} from {dtype}")
    if max(head_dim, head_dim_v) > MOST_DIM:
        return no(
            "head_dim",
            f"on {arch.name} the library is asked for head dims up to {MOST_DIM} in fp8, not "
            f"{head_dim} and {head_dim_v}",
        )
    return YES


def arguments(asked: Attention) -> list[Argument]:
    """What an engine is given in fp8: the scales of Q, K and V, and the three factors."""
    operands: list[Argument] = [
        Pointer(f"{name}_scale") if asked.scaled else Scalar("fp32", 1.0) for name in "qkv"
    ]
    return [*operands, *(Scalar("fp32", factor) for factor in (RAISED, 1 / RAISED, 1.0))]
