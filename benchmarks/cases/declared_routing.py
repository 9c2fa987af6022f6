"""Tokens to experts: what is chosen of each row, its gradients, and rows sorted by expert. 1,024
rows to 262,144; experts and k are those of the models that the pages name."""

from __future__ import annotations

from declared_cases import Ranges, cases_of

ROWS = {"rows": (1024, 262144, 1)}

RANGES: Ranges = {
    "topk": {**ROWS, "columns": (64, 8192, 8)},
    "topk_routing": ROWS,
    "topk_routing_backward": ROWS,
    "sort_by_expert": {"tokens": (1024, 262144, 1)},
}

CASES = cases_of(RANGES)
