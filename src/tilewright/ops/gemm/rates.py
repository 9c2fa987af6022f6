"""GEMM's figures (`arch/figures/gemm.json`), beside those of all devices. They are shares of a data
sheet's figures, clocks, or a latency, so that they can be used for other GPUs. That they hold there
is an assumption until somebody measures. What each fit gained: docs/notes/gemm-estimate.md."""

from __future__ import annotations

from tilewright.arch.figures import figures

GEMM = figures("gemm")
