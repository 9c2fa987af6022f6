"""Convolution's figures (`arch/figures/conv.json`), beside those of all devices. How its estimates
compare with records, and what other values of each would change: `benchmarks/conv_figures.py`."""

from __future__ import annotations

from tilewright.arch.figures import figures

CONV = figures("conv")
