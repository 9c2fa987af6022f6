"""Registers what is planted: workers import this. Tests do not, so that nobody else's see it."""

import planted

from tilewright.ops.epilogues import register

for _operation in planted.OPERATIONS:
    register(_operation)
