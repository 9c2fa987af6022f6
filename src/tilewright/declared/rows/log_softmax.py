"""Logarithm of the softmax of rows: y = scale · x - log(sum(exp(scale · x))).

Elements of -inf stay -inf. Rows of nothing else give NaN, as torch's log_softmax does.
"""

from __future__ import annotations

from typing import Any

from tilewright.declared.rows import _softmax


def reference(x: Any, scale: float) -> Any:
    less, log_sum = _softmax.below(x * scale)
    return less - log_sum


_softmax.forward("log_softmax", reference, amplifies=8.0)
