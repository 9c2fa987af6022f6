"""The element types of products: what each pair of operands may be summed in and stored as."""

from __future__ import annotations

from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues

PRECISIONS = ("ieee", "tf32")
"""How fp32 operands are multiplied; other dtypes have only ``ieee``."""

OUTPUTS: dict[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "fp16": ("fp16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "e4m3fn": ("bf16", "fp16", "fp32"),
    "e5m2": ("bf16", "fp16", "fp32"),
    "e4m3fnuz": ("bf16", "fp16", "fp32"),
    "e5m2fnuz": ("bf16", "fp16", "fp32"),
    "int8": ("int32",),
    "e2m1": ("bf16", "fp16", "fp32"),
}
"""Output dtypes of each operand dtype, the default first; see `outputs` for epilogues."""

WIDENED: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("fp16", "bf16"), ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "int8")
)
"""The dtypes of B in 8 bits beside an A in 16, by A's dtype: kernels convert B's elements to A's
dtype, which has all their values, and multiply in that."""

QUANTISED = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "int8")
"""Outputs of an epilogue that ends by scaling. Values are rounded to nearest even; values beyond
the dtype's range become its ends."""


def accumulator(dtype_a: str) -> str:
    """The dtype of partial sums of `dtype_a` products."""
    return "int32" if DTYPES[dtype_a].kind == "int" else "fp32"


def outputs(dtype_a: str, epilogue: str = "", scaled: bool = False) -> tuple[str, ...]:
    """Output dtypes of `dtype_a` operands, the default first. Scales and epilogues are computed in
    fp32, so integers become floats there."""
    chain = epilogues.parse(epilogue)
    if not chain and not scaled:
        return OUTPUTS[dtype_a]
    plain = ("bf16", "fp16", "fp32") if DTYPES[dtype_a].kind == "int" else OUTPUTS[dtype_a]
    return (*plain, *QUANTISED) if chain and chain[-1].scales else plain


def natural_alignment(sizes: tuple[int, ...]) -> int:
    """The largest power of two, at most 16, that divides every size."""
    combined = 16
    for size in sizes:
        combined |= size
    return combined & -combined
