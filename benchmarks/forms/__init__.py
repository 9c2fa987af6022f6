"""Declared operations as torch computes them: for each, a function of the same operands.

A form takes operands and scalars by the names that the page gives them (None for an operand that is
not there), and fields of the problem by theirs (`quant`, `out_dtype`). It returns the outputs in
the page's order. Where torch has a function for the operation, the form calls it; else it is what a
user of torch would write. So a form may compute in fewer bits than ours: what is outside tolerance
is left out of a comparison, and said.

A file for each group of pages. They import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forms import attention, gates, losses, rotary, routing, rows, shape, softmax, sums, windows

GROUPS = (rows, softmax, losses, gates, rotary, routing, shape, windows, sums, attention)
FORMS: dict[str, Callable[..., Any]] = {
    name: form for group in GROUPS for name, form in group.FORMS.items()
}
