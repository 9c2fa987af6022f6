"""aten's products of groups as calls of ours.

Rows of tables never had torch's own kernel beside ours, so none proves that ours is ahead: these
calls are served under ``all`` alone.
"""

from __future__ import annotations

from typing import Any

from tilewright.torch.installing.decisions import Asked, Decisions
from tilewright.torch.installing.overrides import Overrides, serving

FAMILIES = ("grouped_gemm",)
"""What serves these operators."""


def put(overrides: Overrides, decisions: Decisions) -> None:
    """Serve ``_grouped_mm``, which ``torch.nn.functional.grouped_mm`` and its gradients come down
    to."""
    overrides.put("_grouped_mm", serving(decisions, "_grouped_mm", _grouped, _result))


def _result(made: tuple[Any, ...], *_: Any, **__: Any) -> Any:
    return made[0]


def _grouped(
    a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Asked | str:
    if bias is not None or out_dtype not in (None, a.dtype) or a.dtype is not b.dtype:
        return "there is a bias, or several dtypes"
    if 0 in (*a.shape, *b.shape):
        return "an operand is empty"
    if a.dim() == b.dim() == 3:
        return "a batch without offs" if offs is not None else Asked("gemm", (a, b))
    return Asked("grouped_gemm", (a, b, offs))
