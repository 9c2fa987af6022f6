"""What emulation notices of broken AMD kernels: faults put into kernels one instruction at a time.

    python benchmarks/emulation_mutations.py --json benchmarks/results/emulation_mutations.json

For each architecture, kernels of several pipelines from the spread that `make emulate` runs, all
right and without findings. Some of a kernel's barriers, waits, addresses, operands and instructions
are broken (`tilewright.emulate.mutants` says how). A mutant is *noticed* if something is found, if
its result is outside tolerance of float64, if the launch fails, or if it does not end.

A mutant that is not noticed is *equivalent* if that is proven by watched runs of the kernel and of
the mutant (`tilewright.emulate.equivalence`):

    nothing in flight   a wait: whenever it was executed, nothing was in flight that it waits for
    waited for later    a wait: all that it waits for is waited for again before anybody could tell
    orders nothing      a barrier: no two waves access the same bytes in the intervals about it
    same value          the other register held the same in all lanes whenever it was read
    same memory         all memory that the kernel may write is the same, bit for bit, twice: with
                        other data too. A barrier or a wait is never called equivalent for this

The share is of the mutants that are not equivalent. Of what is left:

    within tolerance    the outputs differ, and are still right
    not explained       the outputs are the same, and nothing is proven
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from environment import environment

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "emulate"))
from emulated_cases import ARCHS, cases
from executing import SEED, dispatcher
from spread import Case

from tilewright import verify
from tilewright.compile import Store, build, find
from tilewright.compile.kernel import Kernel
from tilewright.dispatch import Dispatcher
from tilewright.emulate.equivalence import Watched, waited_for_later
from tilewright.emulate.machine import Limits, Machine
from tilewright.emulate.mutants import KINDS, Mutant, mutants, sample
from tilewright.errors import FindingsFound, TilewrightError
from tilewright.listing.text import Program

NOTICED = ("finding", "wrong", "failed")
EQUIVALENT = (
    "nothing in flight",
    "waited for later",
    "orders nothing",
    "same value",
    "same memory",
)
MISSED = ("within tolerance", "not explained")
MOST_INSTRUCTIONS = 1600
"""Longer kernels are left to others: each mutant is parsed, checked and executed anew."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: a word of `NOTICED`, `EQUIVALENT` or `MISSED`, and more about it."""

    mutant: Mutant
    word: str
    detail: str = ""


class Subject:
    """A kernel with a problem and its data, on which mutants are run.

    program: the kernel's. executed: for each instruction how many waves executed it.

    Raises `ValueError` if the kernel itself is not right, or something is found of it.
    """

    def __init__(self, case: Case, on: Dispatcher, kernel: Kernel) -> None:
        self._case, self._on, self._kernel = case, on, kernel
        self._data: dict[int, tuple[verify.Operands, dict[str, Any], dict[str, Any]]] = {}
        self._memory: dict[int, list[bytes]] = {}
        self._load(SEED)
        on._emulator().stand_in(kernel, None, Limits())
        word, detail = self._run()
        if word != "right" or len(on.ran) != 1:
            raise ValueError(f"{case.label}: {word}: {detail}")
        execution = on.ran[0].execution
        self.program: Program = execution.program
        self.executed: Sequence[int] = execution.executed.tolist()
        self._right = self._outputs()
        self._limits = Limits(steps=4 * execution.steps + 20000, seconds=120.0)
        self._logged: Watched | None = None

    def judge(self, mutant: Mutant) -> Verdict:
        """Run a mutant."""
        word, detail = self._on_machine(lambda: Machine(mutant.program(self.program)))
        if word != "right":
            return Verdict(mutant, word, detail[:300])
        within = self._outputs() != self._right
        if reason := self._equivalent(mutant):
            return Verdict(mutant, reason)
        return Verdict(mutant, "within tolerance" if within else "not explained")

    def _load(self, seed: int) -> None:
        """Use the data of a seed from now on."""
        if seed not in self._data:
            problem = self._case.problem
            operands = verify.operands_of(problem, seed)
            wanted = verify.reference(problem, operands.inputs)
            self._data[seed] = operands, wanted, verify.snapshot(problem, operands.inputs)
        self._operands, self._wanted, self._before = self._data[seed]

    def _on_machine(self, made: Callable[[], Machine]) -> tuple[str, str]:
        """Run another machine in place of the kernel's."""
        gpu = self._on._emulator()
        try:
            gpu.stand_in(self._kernel, made(), self._limits)
            return self._run()
        except TilewrightError as error:
            return "failed", f"{type(error).__name__}: {error}"
        finally:
            gpu.stand_in(self._kernel, None)

    def _run(self) -> tuple[str, str]:
        problem, name = self._case.problem, self._case.config.name
        verify.reset(self._operands, self._before)
        try:
            verify.run(self._on, problem, self._operands, name)
        except FindingsFound as error:
            return "finding", error.findings[0]
        except TilewrightError as error:
            return "failed", f"{type(error).__name__}: {error}"
        written = self._operands.written(problem)
        check = verify.compare_all(problem, self._case.config, written, self._wanted)
        return ("right" if check.ok else "wrong"), str(check)

    def _outputs(self) -> dict[str, bytes]:
        written = self._operands.written(self._case.problem)
        return {name: np.ascontiguousarray(array).tobytes() for name, array in written.items()}

    def _watched(
        self, mutant: Mutant | None = None, *, broken: bool = False, log: bool = False
    ) -> Watched | None:
        """A watched run of the kernel, or of the mutant; None if something is noticed of it."""
        program = mutant.program(self.program) if mutant and broken else self.program
        machine = Watched(program, mutant, log=log)
        word, _ = self._on_machine(lambda: machine)
        return machine if word == "right" else None

    def _log(self) -> Watched:
        if self._logged is None:
            self._logged = self._watched(log=True)
        assert self._logged is not None
        return self._logged

    def _equivalent(self, mutant: Mutant) -> str:
        """Why a mutant makes no difference; ``""`` if that is not proven."""
        if mutant.kind == "barrier":
            return "orders nothing" if self._log().orders_nothing(mutant.index) else ""
        kernel = self._watched(mutant)
        assert kernel is not None
        if mutant.kind == "wait":
            if not kernel.ended:
                return "nothing in flight"
            broken = self._watched(mutant, broken=True)
            later = broken is not None and waited_for_later(kernel, broken, self._log())
            return "waited for later" if later else ""
        if kernel.same_value:
            return "same value"
        try:
            same = all(self._same_memory(mutant, seed) for seed in (SEED, SEED + 1))
        finally:
            self._load(SEED)
        return "same memory" if same else ""

    def _same_memory(self, mutant: Mutant, seed: int) -> bool:
        self._load(seed)
        if seed not in self._memory:
            kernel = self._watched()
            if kernel is None:
                return False
            self._memory[seed] = kernel.memory
        broken = self._watched(mutant, broken=True)
        return broken is not None and broken.memory == self._memory[seed]


@functools.cache
def _on(arch: str, store: str) -> Dispatcher:
    return dispatcher(arch, cases(arch), Store(store))


def run(
    arch: str, number: int, store: str, most: int, waits: int, barriers: int
) -> dict[str, Any] | None:
    """The verdicts on one kernel's mutants; None if it is no subject."""
    case, on = cases(arch)[number], _on(arch, store)
    kernels = find(case.config, arch, on.store)
    if kernels is None or len(kernels) != 1:
        return None
    began = time.monotonic()
    try:
        subject = Subject(case, on, *kernels.values())
    except (ValueError, TilewrightError) as error:
        print(f"left out: {error}", file=sys.stderr)
        return None
    if len(subject.program.instructions) > MOST_INSTRUCTIONS:
        return None
    found = sample(mutants(subject.program, subject.executed), most, waits, barriers)
    verdicts = [subject.judge(mutant) for mutant in found]
    return {
        "arch": arch,
        "kernel": case.config.name,
        "problem": str(case.problem),
        "instructions": len(subject.program.instructions),
        "seconds": round(time.monotonic() - began, 1),
        "mutants": {
            kind: dict(Counter(v.word for v in verdicts if v.mutant.kind == kind)) for kind in KINDS
        },
        "unnoticed": [
            {"mutant": str(v.mutant), "because": v.word}
            for v in verdicts
            if v.word not in NOTICED and v.word != "nothing in flight"
        ],
    }


def subjects(arch: str) -> Iterator[int]:
    """Cases in turn from every pipeline, without those whose kernels are surely long."""
    for number, case in enumerate(cases(arch)):
        tile = case.config.tile_m * case.config.tile_n * case.config.tile_k
        if tile <= 64 * 64 * 64 and case.config.num_warps > 1:
            yield number


def table(results: list[dict[str, Any]]) -> str:
    """By architecture and kind: the mutants that could be noticed, how many were, and the others;
    then the equivalent ones, by their proofs."""
    head = f"{'architecture':14}{'kernels':>7}  {'kind':12}{'could':>6}{'noticed':>8}{'share':>6}"
    words = (*MISSED, *EQUIVALENT)
    lines = [head + "".join(f"{word:>19}" for word in words)]
    for arch in dict.fromkeys(result["arch"] for result in results):
        those = [result for result in results if result["arch"] == arch]
        for kind in KINDS:
            count: Counter[str] = Counter()
            for result in those:
                count.update(result["mutants"][kind])
            noticed = sum(count[word] for word in NOTICED)
            could = noticed + sum(count[word] for word in MISSED)
            lines.append(
                f"{arch:14}{len(those):>7}  {kind:12}{could:>6}{noticed:>8}"
                f"{noticed / max(1, could):>6.0%}"
                + "".join(f"{count[word] or '':>19}" for word in words)
            )
    return "\n".join(lines)


def write(to: Path, results: list[dict[str, Any]], seconds: float) -> None:
    """Write the record: the environment, the command, and the kernels so far."""
    document = {
        "environment": environment(),
        "command": ["python", "benchmarks/emulation_mutations.py", *sys.argv[1:]],
        "seconds": round(seconds),
        "kinds": KINDS,
        "kernels": results,
    }
    to.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", action="append", choices=ARCHS, help="only this one; repeatable")
    parser.add_argument("--kernels", type=int, default=10, help="of each architecture")
    parser.add_argument("--most", type=int, default=6, help="mutants of a kind, of each kernel")
    parser.add_argument("--waits", type=int, default=12, help="mutants of waits")
    parser.add_argument("--barriers", type=int, default=8, help="mutants of barriers")
    parser.add_argument("--store", type=Path, help="kernels' store; by default the user's")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    store = Store(options.store) if options.store else Store()
    began = time.monotonic()
    results: list[dict[str, Any]] = []
    for arch in options.arch or ARCHS:
        waiting = list(subjects(arch))
        found = 0
        while waiting and found < options.kernels:
            some = waiting[: options.kernels - found]
            waiting = waiting[len(some) :]
            build([(cases(arch)[n].config, arch) for n in some], store=store, timeout=600.0)
            for number in some:
                counts = options.most, options.waits, options.barriers
                result = run(arch, number, str(store.path), *counts)
                if result is not None:
                    results.append(result)
                    found += 1
                    said = f"{arch} {result['kernel']}: {result['seconds']} s {result['mutants']}"
                    print(said, file=sys.stderr)
                    if options.json:
                        write(options.json, results, time.monotonic() - began)
    print(table(results))


if __name__ == "__main__":
    main()
