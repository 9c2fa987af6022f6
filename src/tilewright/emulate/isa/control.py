"""Branches, barriers, the end of a kernel, and instructions without a result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.operand import VCC
from tilewright.listing.text import Instruction


class Signal:
    """What an executor returns instead of None: see `BARRIER` and `END`."""


BARRIER = Signal()
"""The waves wait until all of their workgroup have come here."""
END = Signal()
"""The waves have ended."""


@means(
    "s_nop",
    "s_sleep",
    "s_delay_alu",
    "s_clause",
    "s_setprio",
    "s_sendmsg",
    "s_set_inst_prefetch_distance",
    "s_inst_prefetch",
    "s_icache_inv",
    "s_wait_alu",
    "s_waitcnt_depctr",
    "s_wait_idle",
    "s_set_vgpr_msb",
    "v_nop",
)
def _nothing(ins: Instruction, context: Context) -> Executor:
    """No result that a kernel sees: they order or delay. The parser has applied ``s_set_vgpr_msb``
    to the registers' numbers."""
    return lambda waves: None


@means("s_endpgm")
def _end(ins: Instruction, context: Context) -> Executor:
    return lambda waves: END


def _target(ins: Instruction, context: Context) -> Callable[[Waves], None]:
    """Sends waves to the label of a branch."""
    place = context.labels[ins.operands[0].text]

    def jump(waves: Waves) -> None:
        waves.position = place

    return jump


@means("s_branch")
def _branch(ins: Instruction, context: Context) -> Executor:
    return _target(ins, context)


def _vcc_zero(waves: Waves) -> Array:
    words = waves.scalar[VCC : VCC + waves.lanes // 32]
    return np.asarray(~words.any(0))


def _exec_zero(waves: Waves) -> Array:
    return np.asarray(~waves.active.any(1))


_CONDITIONS: dict[str, Callable[[Waves], Array]] = {
    "s_cbranch_scc0": lambda waves: ~waves.scc,
    "s_cbranch_scc1": lambda waves: waves.scc,
    "s_cbranch_vccz": _vcc_zero,
    "s_cbranch_vccnz": lambda waves: ~_vcc_zero(waves),
    "s_cbranch_execz": _exec_zero,
    "s_cbranch_execnz": lambda waves: ~_exec_zero(waves),
}


@means(*_CONDITIONS)
def _conditional(ins: Instruction, context: Context) -> Executor:
    """Returns the waves that jump, if only some do."""
    condition, jump = _CONDITIONS[ins.base], _target(ins, context)

    def execute(waves: Waves) -> Waves | None:
        taken = condition(waves)
        if taken.all():
            jump(waves)
            return None
        if not taken.any():
            return None
        apart = waves.taken(np.flatnonzero(taken))
        jump(apart)
        waves.become(waves.taken(np.flatnonzero(~taken)))
        return apart

    return execute
