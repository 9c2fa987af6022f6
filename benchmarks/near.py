"""How the results of calls are judged that round between their steps, as torch's do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright import ops, verify

NEAR = 0.1
"""Rms of the errors over the rms of the result, at most: 8-bit values that fall to the other side
of a step are as far off as that."""
TIED: Mapping[str, tuple[str, ...]] = {
    "topk": ("indices",),
    "topk_routing": ("ids",),
    "sorted_routing": ("ids", "order", "ends", "places"),
    "reduction": ("max_at", "min_at"),
    "pool": ("places",),
}
"""Outputs of operations that say places. Of equal elements torch may take another than ours."""


def far(problem: Any, written: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Why results are far from the reference; "" if they are not. An output is near if it is within
    its tolerance, or if the rms of its errors is within `NEAR`. Those of `TIED` are not judged."""
    allowed = ops.family(problem.family).tolerances(problem, None)
    for name in written.keys() - {*TIED.get(problem.family, ())}:
        check = verify.compare(written[name], wanted[name], allowed[name])
        if not check.ok and not check.rms <= NEAR * check.rms_reference:
            return f"{name} is {check}"
    return ""
