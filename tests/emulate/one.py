"""One instruction on given registers: what tests of the meanings of instructions use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import tilewright.emulate.isa  # fills the table of meanings
from tilewright.emulate.findings import Findings
from tilewright.emulate.isa.registry import Context, executor
from tilewright.emulate.waves import Waves
from tilewright.listing.operand import EXEC, MODE
from tilewright.listing.target import GENERATIONS, Target
from tilewright.listing.text import instruction

assert tilewright.emulate.isa

OVERFLOW = 1 << 23
"""The mode register's bit FP16_OVFL."""
FAR = 512
"""Vector registers of the waves here."""


def target(name: str, **changes: Any) -> Target:
    """A GPU's instruction set as the compiler sets it for Triton's kernels."""
    lanes = 64 if name in ("gfx90a", "gfx942", "gfx950") else 32
    made = Target(name, GENERATIONS[name], lanes, ieee=not name.startswith("gfx12"))
    return replace(made, **changes)


def waves(
    gpu: Target,
    vector: Mapping[int, Any] | None = None,
    scalar: Mapping[int, Any] | None = None,
    *,
    count: int = 1,
    scc: bool = False,
    active: int | None = None,
    mode: int = 0,
) -> Waves:
    """Waves with these registers.

    vector: by register's number, what a lane or all hold, as uint32 that broadcast to (count,
        lanes). scalar: the same, to (count,).
    active: the bits of EXEC; all by default.
    """
    made = Waves(np.arange(count), np.zeros(count, int), gpu.lanes, FAR)
    for register, value in (vector or {}).items():
        made.vector[register] = np.asarray(value, np.uint32)
    for register, value in (scalar or {}).items():
        made.scalar[register] = np.asarray(value, np.uint32)
    made.scc[:] = scc
    made.scalar[MODE] = mode
    if active is not None:
        made.scalar[EXEC], made.scalar[EXEC + 1] = active & 0xFFFFFFFF, active >> 32
        made.reread_active()
    return made


def execute(
    text: str, gpu: Target, on: Waves, context: Context | None = None, index: int = 0
) -> object:
    """Execute one instruction on waves, in place; what its executor returns."""
    ins = instruction(text, index)
    with np.errstate(all="ignore"):
        return executor(ins, context or Context(gpu, Findings()))(on)


def one(text: str, name: str = "gfx942", **state: Any) -> Waves:
    """Execute one instruction on new waves (`waves`), and return them."""
    gpu = target(name)
    made = waves(gpu, **state)
    execute(text, gpu, made)
    return made
