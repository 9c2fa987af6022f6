"""Operations on A and B before the product: CK Tile's multi-ABD.

`pre_a` and `pre_b` are chains like an epilogue's, of the same table (`epilogues.OPERATIONS`):
``"add"``, ``"mul+scale"``, ``"col_scale"``. Each element of the operand goes through its chain in
fp32 and is rounded once, to the operand's dtype, for the matrix units. Vectors run over the
operand's own columns or rows (A is m × k, B is k × n). Matrices have the operand's layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright import arrays
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument
from tilewright.ops import epilogues

Shapes = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and dtype of each operand of a chain, in order."""


def check(layout: str, dtype_a: str, pre_a: str, pre_b: str, epilogue: str) -> None:
    """Raise `BadArgument` unless a GEMM of this layout and operand dtype can have these chains."""
    if pre_a == pre_b == "":
        return
    if pre_b and layout[1] == "s":
        raise BadArgument(f"pre_b = '{pre_b}': B is shuffled; combine the weights before, once")
    for field, chain in (("pre_a", pre_a), ("pre_b", pre_b)):
        halves = [o.name for o in epilogues.parse(chain) if o.halves]
        if halves:
            raise BadArgument(
                f"{field} = '{chain}': {halves[0]} makes one column of two, but an operand keeps "
                "its shape; it can only be in an epilogue"
            )
        if chain and DTYPES[dtype_a].kind == "int":
            raise BadArgument(
                f"{field} = '{chain}': its fp32 result would not be {dtype_a} again without a "
                "choice of rounding; scale in an epilogue instead"
            )
    chains = (pre_a, pre_b, epilogue)
    count = sum(len(epilogues.takes(chain)) for chain in chains)
    if count > epilogues.MAX_OPERANDS:
        raise BadArgument(
            f"pre_a, pre_b and epilogue take {count} operands together, over "
            f"{epilogues.MAX_OPERANDS}"
        )


def check_alone(of: Any) -> None:
    """Raise `BadArgument` if a problem or config combines operations on A or B, or a shuffled B,
    with a feature that excludes them."""
    if of.pre_a or of.pre_b:
        what = f"pre_a '{of.pre_a}' and pre_b '{of.pre_b}'"
    elif of.layout[1] == "s":
        what = f"layout {of.layout}, a shuffled B,"
    else:
        return
    if of.batching != "none":
        raise BadArgument(f"{what} with batching {of.batching}: it is for one GEMM, not a batch")
    if of.scale_a or of.scale_b:
        raise BadArgument(f"{what} with block scales: operands with scales come as they are")
    if of.dtype_a != of.dtype_b or DTYPES[of.dtype_a].packed > 1:
        raise BadArgument(f"{what} with {of.dtype_a} and {of.dtype_b}: both take one dtype, whole")


def shapes(chain: str, rows: int, columns: int, dtype: str) -> Shapes:
    """The operands of a chain on a rows × columns matrix of `dtype`."""
    of_kind = {"n": (columns,), "m": (rows,), "d": (rows, columns), "s": (1,)}
    taken = epilogues.takes(chain)
    return tuple((of_kind[t.kind], epilogues.operand_dtype(t, dtype)) for t in taken)


def reference(chain: str, matrix: Any, operands: Sequence[Any], dtype: str) -> Any:
    """`matrix` in float64 as the product reads it: after its chain, rounded to `dtype`."""
    if not chain:
        return matrix
    return arrays.rounded(epilogues.reference(chain, matrix, operands), dtype)
