"""The vendor library's GEMM for a problem, as torch calls it: what kernels are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.ops.gemm.problem import GemmProblem

VendorCall = Callable[[Sequence[Any], Any], object]
"""From the problem's inputs and its output, torch tensors on a GPU."""

_PLAIN = ("fp16", "bf16", "fp32")
_FP8 = ("e4m3fn", "e5m2")


def vendor(problem: GemmProblem) -> tuple[str, VendorCall] | None:
    """The name of torch's call that computes `problem` by the vendor's library, and the call; None
    where it has none for it. A call that makes its own output leaves the given one alone."""
    p = problem
    if p.scale_a or p.scale_b or p.pre_a or p.pre_b or p.batching not in ("none", "strided"):
        return None
    if p.layout[2] != "r" or p.layout[1] == "s":
        return None
    same = p.dtype_a == p.dtype_b
    if same and p.dtype_a in _PLAIN and p.dtype_c == p.dtype_a and not p.epilogue:
        return _product(p)
    if p.batching != "none" or p.layout != "rcr":
        return None
    if same and p.dtype_a == "int8" and p.dtype_c == "int32" and not p.epilogue:
        return "torch._int_mm", _int8
    fp8 = p.dtype_a in _FP8 and p.dtype_b in _FP8 and p.dtype_c in ("bf16", "fp16")
    if fp8 and p.epilogue in ("", "scale", "row_scale+col_scale"):
        return "torch._scaled_mm", _scaled(p)
    return None


def _product(p: GemmProblem) -> tuple[str, VendorCall]:
    name = "torch.mm" if p.batching == "none" else "torch.bmm"

    def call(inputs: Sequence[Any], out: Any) -> object:
        import torch

        exact = p.precision != "tf32"
        torch.backends.cuda.matmul.allow_tf32 = p.dtype_a == "fp32" and not exact
        return (torch.mm if name == "torch.mm" else torch.bmm)(inputs[0], inputs[1], out=out)

    return name, call


def _int8(inputs: Sequence[Any], out: Any) -> object:
    import torch

    return torch._int_mm(inputs[0], inputs[1])


def _scaled(p: GemmProblem) -> VendorCall:
    def call(inputs: Sequence[Any], out: Any) -> object:
        import torch

        a, b, *scales = inputs
        one = torch.ones((), device=a.device)
        if p.epilogue == "row_scale+col_scale":
            rows, columns = scales[0].reshape(-1, 1), scales[1].reshape(1, -1)
        else:
            rows, columns = (scales[0].reshape(()) if scales else one), one
        return torch._scaled_mm(a, b, rows, columns, out_dtype=out.dtype, use_fast_accum=True)

    return call
