"""Numbers in sentences."""

from __future__ import annotations


def many(count: int, noun: str) -> str:
    """How many: ``1 kernel``, ``0 kernels``."""
    return f"{count} {noun}{'s' * (count != 1)}"
