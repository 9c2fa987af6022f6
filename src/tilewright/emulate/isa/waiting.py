"""Waits, barriers and cache maintenance."""

from __future__ import annotations

import re

from tilewright.emulate.isa import transfer
from tilewright.emulate.isa.control import BARRIER
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waits import Counter, Entry
from tilewright.emulate.waves import Waves
from tilewright.errors import KernelCrashed
from tilewright.listing.target import Generation
from tilewright.listing.text import Instruction


def _wait(context: Context, stated: dict[Counter, int]) -> Executor:
    """Waits until of each counter so many accesses are left."""

    def execute(waves: Waves) -> None:
        for counter, left in stated.items():
            for entry in waves.counters.wait(counter, left):
                if entry.lands is not None:
                    context.shared.land(waves, entry.lands)

    return execute


_BEFORE_GFX12: tuple[Generation, ...] = ("cdna1", "cdna2", "cdna3", "cdna4", "rdna3")
_GFX12: tuple[Generation, ...] = ("rdna4", "gfx1250")
_RDNA3: tuple[Generation, ...] = ("rdna3",)

_CLASSIC: dict[str, Counter | None] = {"vmcnt": "vm", "lgkmcnt": "lgkm", "expcnt": None}


@means("s_waitcnt", generations=_BEFORE_GFX12)
def _classic(ins: Instruction, context: Context) -> Executor:
    """``vmcnt(n) lgkmcnt(n) expcnt(n)``, in any choice. Nothing here counts in expcnt: stores have
    read their registers when the next instruction begins."""
    text = ins.operands[0].text
    stated: dict[Counter, int] = {}
    for word in text.split():
        found = re.fullmatch(r"(\w+)\((\d+)\)", word)
        if found is None:
            raise ValueError(text)
        counter = _CLASSIC[found[1]]
        if counter is not None:
            stated[counter] = int(found[2])
    return _wait(context, stated)


@means("s_waitcnt_vscnt", generations=_RDNA3)
def _stores(ins: Instruction, context: Context) -> Executor:
    """``null, n``: stores."""
    register, _, left = ins.operands[0].text.partition(",")
    if register.strip() != "null":
        raise ValueError(f"a register {register}")
    return _wait(context, {"vs": int(left, 0)})


_SPLIT: dict[str, Counter] = {
    "s_wait_loadcnt": "load",
    "s_wait_storecnt": "store",
    "s_wait_dscnt": "ds",
    "s_wait_kmcnt": "km",
    "s_wait_asynccnt": "async",
    "s_wait_tensorcnt": "tensor",
}


@means(*_SPLIT, generations=_GFX12)
def _split(ins: Instruction, context: Context) -> Executor:
    return _wait(context, {_SPLIT[ins.base]: _whole(ins)})


@means("s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt", generations=_GFX12)
def _both(ins: Instruction, context: Context) -> Executor:
    """Two counters in one number: the first from bit 8 on, LDS from bit 0 (RDNA4 ISA, SOPP)."""
    first: Counter = "load" if "load" in ins.base else "store"
    number = _whole(ins)
    return _wait(context, {first: number >> 8 & 0x3F, "ds": number & 0x3F})


@means("s_wait_xcnt", "s_wait_expcnt", "s_wait_samplecnt", "s_wait_bvhcnt", generations=_GFX12)
def _others(ins: Instruction, context: Context) -> Executor:
    """Counters of what does not happen here: address translation that is tried again (gfx1250's
    xcnt), exports, samplers, ray tracing."""
    _whole(ins)
    return lambda waves: None


def _whole(ins: Instruction) -> int:
    value = ins.operands[0].value
    if ins.operands[0].file != "constant" or not isinstance(value, int):
        raise ValueError(ins.operands[0].text)
    return value


# -------------------------------------------------------------------------------------- barriers


def _arrive(ins: Instruction, context: Context, waves: Waves) -> None:
    """Note that waves come to a barrier, and look whether what they wrote to LDS is there."""
    if not context.checks:
        return
    if any(entry.writes for entry in waves.counters.entries()):
        detail = "a write to it is in flight at the barrier"
        context.findings.report("unwaited shared memory", ins, waves, detail=detail)
    context.order.arrive(waves)


@means("s_barrier")
def _barrier(ins: Instruction, context: Context) -> Executor:
    def execute(waves: Waves) -> object:
        _arrive(ins, context, waves)
        return BARRIER

    return execute


@means("s_barrier_signal", generations=_GFX12)
def _signal(ins: Instruction, context: Context) -> Executor:
    """The workgroup's barrier is number -1; the wait that follows is where waves are held. Signals
    are counted (RDNA4 ISA, "Barriers"), so one too many or too few lets waves pass alone, or none.
    """
    _workgroups(ins)

    def execute(waves: Waves) -> None:
        if waves.counters.signalled:
            raise _broken(ins, waves, "signals a barrier again, which it has not waited at")
        waves.counters.signalled = True
        _arrive(ins, context, waves)

    return execute


@means("s_barrier_wait", generations=_GFX12)
def _barrier_wait(ins: Instruction, context: Context) -> Executor:
    _workgroups(ins)

    def execute(waves: Waves) -> object:
        if not waves.counters.signalled:
            raise _broken(ins, waves, "waits at a barrier that it has not signalled")
        waves.counters.signalled = False
        return BARRIER

    return execute


def _broken(ins: Instruction, waves: Waves, what: str) -> KernelCrashed:
    return KernelCrashed(
        f"line {ins.line}, `{ins.text}`: wave {waves.wave[0]} of workgroup {waves.workgroup[0]} "
        f"{what}"
    )


def _workgroups(ins: Instruction) -> None:
    if ins.operands[0].text != "-1":
        raise ValueError(f"a barrier {ins.operands[0].text}")


# ----------------------------------------------------------------------------- cache maintenance


@means("buffer_wbl2", "global_wb")
def _write_back(ins: Instruction, context: Context) -> Executor:
    """Counts as a store until it has ended (LLVM: the memory model waits for vmcnt, storecnt)."""
    wide = transfer.plain(ins)
    to = transfer.waiting(context, "flush")

    def execute(waves: Waves) -> None:
        if context.checks and wide:
            context.order.write_back(waves)
        waves.counters.issue(to, Entry("flush"))

    return execute


@means("buffer_inv", "buffer_wbinvl1_vol", "buffer_wbinvl1", "buffer_gl1_inv", "global_inv")
def _invalidate(ins: Instruction, context: Context) -> Executor:
    """Invalidates the caches that other workgroups' stores do not reach. On gfx11
    ``buffer_gl1_inv`` goes before ``buffer_gl0_inv``. On gfx12 it counts as a load."""
    agent = transfer.plain(ins) or ins.base.startswith(("buffer_wbinvl1", "buffer_gl1"))
    counted = ins.base == "global_inv"

    def execute(waves: Waves) -> None:
        if context.checks and agent:
            context.order.invalidate(waves)
        if counted:
            waves.counters.issue("load", Entry("load"))

    return execute


@means("buffer_gl0_inv", "s_dcache_inv", "s_gl1_inv", "s_dcache_wb")
def _nothing(ins: Instruction, context: Context) -> Executor:
    """Caches that hold nothing that other workgroups write here."""
    transfer.plain(ins)
    return lambda waves: None
