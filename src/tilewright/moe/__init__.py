"""Mixtures of experts as one layer: steps that are operations of the package, in a plan.

    y = tilewright.fused_moe(x, w1, w2, weights, experts)
    y = tilewright.routed_moe(x, logits, w1, w2, k=8, renormalize=True)
    print(tilewright.moe.plan(tokens=64, hidden=7168, inner=2048, experts=256, k=8))

The steps (`form` says which a layer has): rows are sorted by expert, as maps; the first product
gathers tokens by the map; the activation is in its epilogue, or a step of its own; the second
product; and the weighted sum of each token's rows. Each step is planned by itself, so that both
products have tiles of their own. No step waits for the device, so that a graph can be captured and
replayed with other routings.
"""

from __future__ import annotations

from tilewright.moe.form import Form, form
from tilewright.moe.layer import fused_moe, routed_moe, rows_of_experts
from tilewright.moe.planned import LayerPlan, PlannedStep, plan

__all__ = [
    "Form",
    "LayerPlan",
    "PlannedStep",
    "form",
    "fused_moe",
    "plan",
    "routed_moe",
    "rows_of_experts",
]
