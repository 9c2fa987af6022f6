"""Executes a kernel: the waves of a launch, in lockstep while they agree where to go.

All waves that are at one instruction are one `Waves`, and execute it together in NumPy. A branch on
which they disagree splits them. The group that is furthest behind goes first, so that groups meet
again; a barrier joins the waves of whole workgroups. Workgroups begin in the order of their
numbers, as many at a time as `MOST_WAVES` allows: a kernel may wait for a workgroup with a smaller
number or near by, and for no other, as on a GPU.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.emulate import unwritten, waits
from tilewright.emulate.counts import Counts
from tilewright.emulate.entry import begin
from tilewright.emulate.findings import Findings
from tilewright.emulate.isa.control import BARRIER, END
from tilewright.emulate.isa.registry import Context, executor
from tilewright.emulate.lds import Shared, granule
from tilewright.emulate.memory import Memory
from tilewright.emulate.order import Order
from tilewright.emulate.races import Races
from tilewright.emulate.resources import undeclared
from tilewright.emulate.scratch import Scratch
from tilewright.emulate.waves import Array, Waves
from tilewright.errors import KernelEndless, LaunchFailed
from tilewright.listing.effects import effects
from tilewright.listing.hazards import shortages
from tilewright.listing.text import Program

MOST_WAVES = 2048
"""Waves that execute together. 128 KiB of registers each, where a kernel uses all of them."""

_TURN = 2000
"""Instructions that a group executes before another group gets its turn, so that a group that waits
for another in a loop does not wait for ever."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a launch is given up: after so many instructions executed by groups of waves, and
    seconds."""

    steps: int = 20_000_000
    seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Execution:
    """What a launch did.

    executed: int64, for each instruction how many waves executed it.
    waves: of the whole launch.
    steps: instructions executed by groups of waves. seconds: of this machine's time.
    """

    program: Program
    findings: Findings
    executed: Array
    waves: int
    steps: int
    seconds: float


class Machine:
    """One kernel, ready to be launched any number of times.

    checks: whether findings are looked for. Results are the same without, and come sooner.
    watch: called before waves execute an instruction, with its index and the waves.

    Raises `UnknownInstruction`.
    """

    def __init__(
        self,
        program: Program,
        *,
        checks: bool = True,
        watch: Callable[[int, Waves], None] | None = None,
    ) -> None:
        self.program = program
        self._watch = watch
        self._checks = checks
        self._effects = [effects(ins, program.target) for ins in program.instructions]
        self._shortages = shortages(program, self._effects) if checks else []
        self._registers = _vector_registers(program)

    def launch(
        self,
        grid: tuple[int, int, int],
        threads: int,
        arguments: bytes,
        shared: int,
        memory: Memory,
        *,
        limits: Limits | None = None,
        preload: bool = True,
        counts: Counts | None = None,
    ) -> Execution:
        """Execute a whole grid.

        threads: of a workgroup, along x. arguments: the kernel's argument segment.
        shared: bytes of shared memory (LDS) of a workgroup.
        preload: see `entry.begin`.
        counts: what memory accesses are counted in, if they are.

        Raises `LaunchFailed` if the launch does not fit the kernel, `KernelEndless` at a limit,
        and `UnknownInstruction`.
        """
        program, lanes = self.program, self.program.target.lanes
        if threads % lanes:
            raise LaunchFailed(f"{threads} threads are no whole waves of {lanes}")
        findings = Findings()
        segment = memory.allocate(
            len(arguments),
            "the kernel's arguments",
            writable=False,
            contents=np.frombuffer(arguments, np.uint8),
        )
        order = Order(math.prod(grid), threads // lanes, program.target)
        run = _Run(self, memory, findings, limits or Limits(), order, shared, counts)
        try:
            if self._checks:
                undeclared(program, shared, findings)
                for each in self._shortages:
                    findings.report("wait states", each.ins, detail=each.detail)
            for first in range(0, math.prod(grid), run.together):
                numbers = np.arange(first, min(first + run.together, math.prod(grid)))
                run.prepare(first, len(numbers))
                run.execute(self._waves(numbers, run, grid, (segment, arguments), preload))
        finally:
            memory.release(segment)
        return Execution(
            program,
            findings,
            np.array(run.executed, np.int64),
            math.prod(grid) * (threads // lanes),
            run.steps,
            time.monotonic() - run.began,
        )

    def _waves(
        self,
        numbers: Array,
        run: _Run,
        grid: tuple[int, int, int],
        segment: tuple[int, bytes],
        preload: bool,
    ) -> Waves:
        """The waves of some workgroups, as they begin."""
        workgroup = np.repeat(numbers, run.waves_each)
        wave = np.tile(np.arange(run.waves_each), len(numbers))
        counters = waits.Counters(len(wave))
        waves = Waves(workgroup, wave, self.program.target.lanes, self._registers, counters)
        begin(self.program, waves, grid, segment, preload=preload)
        return waves


class _Run:
    """A launch under way.

    together: workgroups that execute together. waves_each: waves of a workgroup.
    executed: for each instruction how many waves executed it.
    """

    def __init__(
        self,
        machine: Machine,
        memory: Memory,
        findings: Findings,
        limits: Limits,
        order: Order,
        shared: int,
        counts: Counts | None,
    ) -> None:
        self.waves_each = waves_each = order.each
        self.together = max(1, MOST_WAVES // waves_each)
        self.steps = 0
        self.began = time.monotonic()
        program = machine.program
        self.executed = [0] * len(program.instructions)
        self._name, self._instructions = program.name, program.instructions
        self._limits, self._findings = limits, findings
        self._effects, self._watch = machine._effects, machine._watch
        self._context = Context(
            program.target,
            findings,
            program.labels,
            memory,
            order=order,
            races=Races(memory, order, findings) if machine._checks else None,
            counts=counts,
            checks=machine._checks,
        )
        self._program, self._shared, self._granule = program, shared, granule(program)
        self._loads = [waits.loads_of(ins, program.target) for ins in program.instructions]
        self._executors = [executor(ins, self._context) for ins in program.instructions]
        self._ended: dict[int, int] = {}

    def prepare(self, first: int, count: int) -> None:
        """Make the shared memory and the scratch of the workgroups that execute next."""
        context, program = self._context, self._program
        context.shared = Shared(
            first,
            count,
            self._shared,
            order=context.order,
            granule=self._granule,
            findings=self._findings if context.checks else None,
        )
        context.scratch = Scratch(
            first,
            count,
            self.waves_each,
            program.target.lanes,
            program.resources.get("private_segment_fixed_size", 0),
            self._findings,
        )

    def execute(self, waves: Waves) -> None:
        """Execute waves until all have ended."""
        ready: list[Waves] = [waves]
        parked: list[Waves] = []
        check = self.steps + _TURN
        while ready or parked:
            ready = _met(ready)
            group = min(ready, key=lambda each: (each.spent // _TURN, each.position))
            ready.remove(group)
            before = self.steps
            self._advance(group, ready, parked)
            group.spent += self.steps - before
            if self.steps >= check:
                self._check_limits()
                check = self.steps + _TURN
            if parked:
                passed, parked = self._released(parked)
                ready += passed

    def _advance(self, waves: Waves, ready: list[Waves], parked: list[Waves]) -> None:
        """Execute a group until it ends, waits, splits, meets another group, leaves the group
        behind that was furthest behind, or its turn is over."""
        executors, executed = self._executors, self.executed
        checks, watch, turn = self._context.checks, self._watch, self.steps + _TURN
        places = {each.position for each in ready}
        lowest = min(places, default=len(executors))
        if waves.position > lowest:
            lowest = len(executors)
        while True:
            index = waves.position
            if index in places or index > lowest:
                ready.append(waves)
                return
            if self.steps >= turn:
                ready.append(waves)
                return
            waves.position = index + 1
            executed[index] += waves.count
            self.steps += 1
            if watch is not None:
                watch(index, waves)
            if checks:
                self._look(index, waves)
            signal = executors[index](waves)
            if signal is None:
                continue
            if signal is BARRIER:
                if self._whole(waves).all():
                    self._pass(waves)
                    continue
                parked.append(waves)
            elif signal is END:
                for workgroup in waves.workgroup.tolist():
                    self._ended[workgroup] = self._ended.get(workgroup, 0) + 1
            elif isinstance(signal, Waves):
                ready += [signal, waves]
            return

    def _look(self, index: int, waves: Waves) -> None:
        """Look for findings before an instruction is executed."""
        effects, ins = self._effects[index], self._instructions[index]
        if effects.reads & ~waves.known:
            unwritten.follow(index, self._instructions, effects, waves, self._findings)
        else:
            waves.known |= effects.writes
        if effects.touches & waves.counters.pending:
            waits.look(ins, effects, self._loads[index], waves, self._findings)

    def _whole(self, waves: Waves, here: Array | None = None) -> Array:
        """For each wave, whether all of its workgroup that have not ended are here.

        here: how many waves of each workgroup are; by default those of `waves`.
        """
        here = np.bincount(waves.workgroup) if here is None else here.copy()
        for workgroup, count in self._ended.items():
            if workgroup < len(here):
                here[workgroup] += count
        return np.asarray(here[waves.workgroup] == self.waves_each)

    def _pass(self, waves: Waves) -> None:
        """Whole workgroups pass a barrier."""
        if self._context.checks:
            self._context.order.leave(waves)

    def _released(self, parked: list[Waves]) -> tuple[list[Waves], list[Waves]]:
        """Groups that pass their barriers, and those that stay. The hardware counts waves: those of
        a workgroup may wait at different barriers, and waves that have ended are not waited for.
        Others may wait in a loop for these, so they pass as soon as they can."""
        passed, staying = [], []
        here = np.bincount(np.concatenate([group.workgroup for group in parked]))
        for group in parked:
            whole = self._whole(group, here)
            if whole.all():
                passed.append(group)
            elif whole.any():
                passed.append(group.taken(np.flatnonzero(whole)))
                staying.append(group.taken(np.flatnonzero(~whole)))
            else:
                staying.append(group)
        for group in passed:
            self._pass(group)
        return passed, staying

    def _check_limits(self) -> None:
        taken = time.monotonic() - self.began
        if self.steps > self._limits.steps or taken > self._limits.seconds:
            raise KernelEndless(
                f"{self._name} was given up after {self.steps} instructions and {taken:.1f} s; the "
                f"limits are {self._limits.steps} and {self._limits.seconds:g} s"
            )


def _met(groups: Sequence[Waves]) -> list[Waves]:
    """Groups, those at the same instruction joined."""
    by_position: dict[int, list[Waves]] = {}
    for group in groups:
        by_position.setdefault(group.position, []).append(group)
    return [Waves.joined(each) for each in by_position.values()]


def _vector_registers(program: Program) -> int:
    """How many vector registers there are to be: v0, which the hardware sets, and those that the
    instructions name."""
    most = 1
    for ins in program.instructions:
        for part in ins.parts or (ins,):
            for place in part.operands:
                if place.file == "v":
                    most = max(most, place.first + place.count)
    return most
