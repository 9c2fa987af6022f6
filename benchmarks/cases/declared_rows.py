"""Norms of rows and rounding rows, forward and backward. Rows of 64 elements to 32,768, 8 rows to
65,536."""

from __future__ import annotations

from declared_cases import Ranges, cases_of

SIZES = {"rows": (8, 65536, 1), "columns": (64, 32768, 64)}

RANGES: Ranges = dict.fromkeys(
    ("rms_norm", "rms_norm_backward", "layer_norm", "layer_norm_backward"), SIZES
)

CASES = cases_of(RANGES)
