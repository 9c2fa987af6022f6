"""Problems of causal convolutions that several tests share."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ops.causal_conv import CausalConvProblem

PLAIN = CausalConvProblem(2, 20, 21, dtype="fp16")
FEATURES = (
    {"extras": "", "taps": 2},
    {"extras": "bias+silu", "dtype": "bf16", "dtype_w": "fp32"},
    {"extras": "bias+silu+initial+final", "taps": 3},
    {"extras": "silu+packed", "dtype": "fp32"},
    # Sequences shorter than the filter, whose final states are initial states in part; one tap.
    {"extras": "initial+final", "tokens": 2, "taps": 6},
    {"extras": "final", "tokens": 1, "taps": 1},
)
UPDATES = (
    {"extras": "", "state_len": 3},
    {"extras": "bias+silu", "state_len": 7, "tokens": 2},
    {"extras": "indexed", "state_len": 4, "tokens": 6, "cache_entries": 5},
    {"extras": "bias+circular", "state_len": 3, "tokens": 5},
    {"extras": "silu+circular+indexed", "state_len": 6, "cache_entries": 4, "taps": 2},
)
KINDS = ("tokens", "gaps", "any")
"""Layouts (`strided`)."""


def strided(problem, kind):
    """`problem` with all arrays channels-first, with gaps, or in no order."""
    found = {}
    for field in ("x_strides", "y_strides", "dx_strides"):
        _, channels, last = problem.shape_of(field)
        found[field] = {
            "tokens": (channels * last, last, 1),
            "gaps": (2 * channels * last, 1, 2 * channels),
            "any": (1, 2 * problem.batch, 2 * problem.batch * channels),
        }[kind]
    if problem.direction == "forward":
        del found["dx_strides"]
    return replace(problem, **found, w_strides=(1, problem.channels))
