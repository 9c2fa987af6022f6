"""Tokens to experts: what is chosen of each row, its gradients, and rows sorted by expert. 1,024
rows to 262,144; experts and k are those of the models that the pages name."""

from __future__ import annotations

import random
from typing import Any

from declared_cases import Ranges, between, cases_of

ROWS = {"rows": (1024, 262144, 1)}


def some_tokens(by_chance: random.Random, fields: dict[str, Any]) -> dict[str, Any]:
    """Tokens, and a slot for each of their choices."""
    tokens = between(by_chance, 1024, 65536)
    return {**fields, "tokens": tokens, "slots": tokens * fields.get("k", fields.get("per_row"))}


RANGES: Ranges = {
    "topk": {**ROWS, "columns": (64, 8192, 8)},
    "topk_routing": ROWS,
    "sorted_routing": {"rows": (1, 16, 1)},
    "topk_routing_backward": ROWS,
    "sum_of_experts": some_tokens,
    "sum_of_experts_backward": some_tokens,
    "take_rows": some_tokens,
    "sort_by_expert": {"tokens": (1024, 262144, 1)},
}

CASES = cases_of(RANGES)
