"""HSTU's attention of jagged sequences, forward and backward: 8,192 to 131,072 rows of 64 to 512
sequences. torch's form holds all scores of padded sequences, which the largest sizes of the page
may have no memory for: it is then left out, and said."""

from __future__ import annotations

from declared_cases import Ranges, cases_of

SIZES = {"rows": (8192, 131072, 1), "bounds": (65, 513, 1)}

RANGES: Ranges = dict.fromkeys(("hstu_attention", "hstu_attention_backward"), SIZES)

CASES = cases_of(RANGES)
