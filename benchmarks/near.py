"""How the results of calls are judged that round between their steps, as torch's do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright import ops, verify

NEAR = 0.1
"""Rms of the errors over the rms of the result, at most: 8-bit values that fall to the other side
of a step are as far off as that."""
PLACES = ("int32", "int64")
"""Types of places. Of equal elements torch may take another than ours."""


def far(problem: Any, written: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Why results are far from the reference; "" if they are not. An output is near if it is within
    its tolerance, or if the rms of its errors is within `NEAR`. Places are not judged."""
    family = ops.family(problem.family)
    allowed = family.tolerances(problem, None)
    places = {one.name for one in family.operands(problem) if one.dtype in PLACES}
    for name in written.keys() - places:
        check = verify.compare(written[name], wanted[name], allowed[name])
        if not check.ok and not check.rms <= NEAR * check.rms_reference:
            return f"{name} is {check}"
    return ""
