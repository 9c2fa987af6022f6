"""The vendor library's GEMM for a problem, as torch calls it, to compare kernels with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.protocols import Bind

Made = Callable[[Sequence[Any], Any], Callable[[], Any]]
"""Prepares a call from a problem's inputs in order and its output (torch tensors on a GPU). Work
outside the product, such as reshaping scales, is done here and not in the call. The call returns
the result; it is not `out` if torch's call takes no output."""

_PLAIN = ("fp16", "bf16", "fp32")
_FP8 = ("e4m3fn", "e5m2")

# Sizes that torch's checks require (aten/src/ATen/native/cuda, Blas.cpp and ScaledBlas.cpp). The
# public ones are cuBLASLt's own.
_LEAST_INT8_ROWS = 17
_INT8_MULTIPLE = 8
FP8_MULTIPLE = 16
BLOCKS = ("1x128", "128x128")
BLOCK_ROWS_MULTIPLE = 4
_BLOCK_K_MULTIPLE = 512
"""torch's releases agree on the distance between columns of B's scales only if each column has a
multiple of four scales along K: later releases round it up to four."""


def vendor(problem: GemmProblem) -> Mapping[str, Bind]:
    """Torch's call that computes `problem` with the vendor's library, by its name; {} if torch has
    no such call. TF32 has none: in torch it is a setting of the process."""
    found = _found(problem)
    if found is None:
        return {}
    name, make = found
    return {name: lambda inputs, outputs: make([*inputs.values()], outputs["C"])}


def _found(problem: GemmProblem) -> tuple[str, Made] | None:
    p = problem
    if p.pre_a or p.pre_b or p.batching not in ("none", "strided"):
        return None
    if p.scale_a or p.scale_b:
        return ("torch._scaled_mm", _block_scaled_mm) if _block_scaled(p) else None
    if p.layout[2] != "r" or p.layout[1] == "s" or p.precision == "tf32":
        return None
    same = p.dtype_a == p.dtype_b
    if same and p.dtype_a in _PLAIN and p.dtype_c == p.dtype_a and not p.epilogue:
        return ("torch.mm", _mm) if p.batching == "none" else ("torch.bmm", _bmm)
    if p.batching != "none" or p.layout != "rcr":
        return None
    if same and p.dtype_a == "int8" and p.dtype_c == "int32" and not p.epilogue:
        fits = p.m >= _LEAST_INT8_ROWS and _multiples(_INT8_MULTIPLE, p.n, p.k)
        return ("torch._int_mm", _int_mm) if fits else None
    fp8 = p.dtype_a in _FP8 and p.dtype_b in _FP8 and not p.dtype_a == p.dtype_b == "e5m2"
    # torch takes scales of rows and columns with a bf16 output only.
    served = ("", "scale", "row_scale+col_scale") if p.dtype_c == "bf16" else ("", "scale")
    if fp8 and p.dtype_c in ("bf16", "fp16") and p.epilogue in served:
        return ("torch._scaled_mm", _scaled_mm) if _multiples(FP8_MULTIPLE, p.n, p.k) else None
    return None


def _block_scaled(p: GemmProblem) -> bool:
    """Whether torch has the block-scaled `p`: the form of DeepSeek-V3, on sm_90."""
    types = (p.dtype_a, p.dtype_b, p.dtype_c) == ("e4m3fn", "e4m3fn", "bf16")
    sizes = _multiples(FP8_MULTIPLE, p.n) and _multiples(_BLOCK_K_MULTIPLE, p.k)
    rows = _multiples(BLOCK_ROWS_MULTIPLE, p.m)
    plain = p.layout == "rcr" and p.batching == "none" and not p.epilogue
    return types and sizes and rows and plain and (p.scale_a, p.scale_b) == BLOCKS


def _multiples(of: int, *lengths: int) -> bool:
    return all(length > 0 and length % of == 0 for length in lengths)


def _mm(inputs: Sequence[Any], out: Any) -> Callable[[], Any]:
    import torch

    return partial(torch.mm, *inputs, out=out)


def _bmm(inputs: Sequence[Any], out: Any) -> Callable[[], Any]:
    """The call of torch.bmm, which wants a view with a batch of a matrix that the batch shares."""
    import torch

    stacked = (x if x.dim() == 3 else x.expand(out.shape[0], *x.shape) for x in inputs)
    return partial(torch.bmm, *stacked, out=out)


def _int_mm(inputs: Sequence[Any], out: Any) -> Callable[[], Any]:
    import torch

    return partial(torch._int_mm, *inputs)


def _scaled_mm(inputs: Sequence[Any], out: Any) -> Callable[[], Any]:
    """With no scale, one scale, or one for each row and column."""
    import torch

    a, b, *given = inputs
    of_a = of_b = torch.ones((), device=a.device)
    if len(given) == 1:
        of_a = given[0].reshape(())
    elif given:
        of_a, of_b = given[0].reshape(-1, 1), given[1].reshape(1, -1)
    return partial(torch._scaled_mm, a, b, of_a, of_b, out_dtype=out.dtype, use_fast_accum=True)


def _block_scaled_mm(inputs: Sequence[Any], out: Any) -> Callable[[], Any]:
    """With a scale for each block; the scales of a column of blocks lie side by side."""
    import torch

    a, b, *given = inputs
    of_a, of_b = (scales.T.contiguous().T for scales in given)
    # Sums of more than 128 products in the matrix units' own precision are not offered.
    return partial(torch._scaled_mm, a, b, of_a, of_b, out_dtype=out.dtype, use_fast_accum=False)
