"""Softmax of rows: y = exp(scale · x) / sum(exp(scale · x)).

Elements of -inf give 0. Rows of nothing but -inf give NaN, as torch's softmax does.
"""

from __future__ import annotations

from typing import Any

from tilewright.declared._arrays import functions
from tilewright.declared.rows import _softmax


def reference(x: Any, scale: float) -> Any:
    less, log_sum = _softmax.below(x * scale)
    return functions(x).exp(less - log_sum)


_softmax.forward("softmax", reference, amplifies=16.0)
