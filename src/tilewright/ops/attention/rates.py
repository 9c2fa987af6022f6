"""Attention's figures (`arch/figures/attention.json`), beside those of all devices. They were
fitted to 559 medians of an H200, as the paces in pipelines' records; for other GPUs they are what
that one's were. How good the fits are: docs/notes/attention-estimate.md."""

from __future__ import annotations

from tilewright.arch.figures import figures

ATTENTION = figures("attention")
