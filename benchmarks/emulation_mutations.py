"""What emulation notices of broken AMD kernels: faults put into kernels one instruction at a time.

    python benchmarks/emulation_mutations.py --json benchmarks/results/emulation_mutations.json

For each architecture, kernels of several pipelines from the spread that `make emulate` runs, all
right and without findings. Every barrier and every wait of a kernel is broken, and some of its
addresses, operands and instructions (`tilewright.emulate.mutants` says how). A mutant is *noticed*
if something is found, if its result is outside tolerance of float64, if the launch fails, or if it
does not end. What is not noticed is explained:

    nothing in flight   a wait: whenever it was executed, nothing was in flight that it waits for
    waited for later    a wait: all that it waits for is waited for again before anybody uses it
    same result         every bit of the outputs is the same: the instruction does nothing there
    within tolerance    the outputs differ, and are still right

The first is no fault at all, and is counted apart.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
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
from tilewright.emulate.machine import Limits, Machine
from tilewright.emulate.mutants import KINDS, Mutant, mutants, sample
from tilewright.emulate.waits import Counters
from tilewright.emulate.waves import Waves
from tilewright.errors import FindingsFound, TilewrightError
from tilewright.listing.text import Program

NOTICED = ("finding", "wrong", "failed")
UNNOTICED = ("nothing in flight", "waited for later", "same result", "within tolerance")
MOST_INSTRUCTIONS = 3000
"""Longer kernels are left to others: each mutant is parsed, checked and executed anew."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: a word of `NOTICED` or of `UNNOTICED`, and more about it."""

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
        self._operands = verify.operands_of(case.problem, SEED)
        self._wanted = verify.reference(case.problem, self._operands.inputs)
        self._before = verify.snapshot(case.problem, self._operands.inputs)
        word, detail = self._run()
        if word != "right" or len(on.ran) != 1:
            raise ValueError(f"{case.label}: {word}: {detail}")
        execution = on.ran[0].execution
        self.program: Program = execution.program
        self.executed: Sequence[int] = execution.executed.tolist()
        self._right = self._outputs()
        self._limits = Limits(steps=4 * execution.steps + 20000, seconds=120.0)

    def judge(self, mutant: Mutant) -> Verdict:
        """Run a mutant."""
        gpu = self._on._emulator()
        try:
            gpu.stand_in(self._kernel, Machine(mutant.program(self.program)), self._limits)
            word, detail = self._run()
        except TilewrightError as error:
            word, detail = "failed", f"{type(error).__name__}: {error}"
        finally:
            gpu.stand_in(self._kernel, None)
        if word == "right":
            return Verdict(mutant, self._explained(mutant))
        return Verdict(mutant, word, detail[:300])

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

    def _explained(self, mutant: Mutant) -> str:
        if mutant.kind == "wait":
            return self._wait(mutant)
        return "same result" if self._outputs() == self._right else "within tolerance"

    def _wait(self, mutant: Mutant) -> str:
        """Whether a wait ever ended anything that the mutant leaves in flight."""
        ended = 0

        def watch(index: int, waves: Waves) -> None:
            nonlocal ended
            if index == mutant.index:
                before = in_flight(waves.counters)
                ended += stated(mutant.before, before) != stated(mutant.after, before)

        gpu = self._on._emulator()
        gpu.stand_in(self._kernel, Machine(self.program, watch=watch), self._limits)
        self._run()
        gpu.stand_in(self._kernel, None)
        return "waited for later" if ended else "nothing in flight"


def in_flight(counters: Counters) -> dict[str, int]:
    """How many accesses each counter has in flight."""
    return {name: len(queue) for name, queue in counters.queues.items()}


_NAMES = {"vmcnt": "vm", "lgkmcnt": "lgkm", "vscnt": "vs"}


def stated(text: str, before: dict[str, int]) -> dict[str, int]:
    """How many accesses are in flight behind a wait, of those `before` it."""

    left: dict[str, int] = {}
    if text.startswith("s_waitcnt_vscnt"):
        left["vs"] = int(text.split(",")[-1], 0)
    elif text.startswith("s_waitcnt"):
        left = {_NAMES.get(m[1], m[1]): int(m[2]) for m in re.finditer(r"(\w+)\((\d+)\)", text)}
    elif found := re.match(r"s_wait_(\w+)\s+(\w+)", text):
        words, value = found[1].split("_"), int(found[2], 0)
        values = [value] if len(words) == 1 else [value >> 8 & 0x3F, value & 0x3F]
        left = {word.removesuffix("cnt"): n for word, n in zip(words, values, strict=True)}
    return {name: min(count, left.get(name, count)) for name, count in before.items()}


@functools.cache
def _on(arch: str, store: str) -> Dispatcher:
    return dispatcher(arch, cases(arch), Store(store))


def run(arch: str, number: int, store: str, most: int, waits: int | None) -> dict[str, Any] | None:
    """The verdicts on one kernel's mutants; None if it is no subject."""
    case, on = cases(arch)[number], _on(arch, store)
    kernels = find(case.config, arch, on.store)
    if kernels is None or len(kernels) != 1:
        return None
    try:
        subject = Subject(case, on, *kernels.values())
    except (ValueError, TilewrightError) as error:
        print(f"left out: {error}", file=sys.stderr)
        return None
    if len(subject.program.instructions) > MOST_INSTRUCTIONS:
        return None
    found = sample(mutants(subject.program, subject.executed), most, waits)
    verdicts = [subject.judge(mutant) for mutant in found]
    return {
        "arch": arch,
        "kernel": case.config.name,
        "problem": str(case.problem),
        "instructions": len(subject.program.instructions),
        "mutants": {
            kind: dict(Counter(v.word for v in verdicts if v.mutant.kind == kind)) for kind in KINDS
        },
        "unnoticed": [
            {"mutant": str(v.mutant), "because": v.word}
            for v in verdicts
            if v.word in UNNOTICED and v.word != "nothing in flight"
        ],
    }


def subjects(arch: str) -> Iterator[int]:
    """Cases in turn from every pipeline, without those whose kernels are surely long."""
    for number, case in enumerate(cases(arch)):
        tile = case.config.tile_m * case.config.tile_n * case.config.tile_k
        if tile <= 64 * 64 * 64 and case.config.num_warps > 1:
            yield number


def table(results: list[dict[str, Any]]) -> str:
    """Shares of mutants that were noticed, by architecture and kind, of those that break something;
    and why the others were not."""
    head = f"{'architecture':14}{'kernels':>8}  {'kind':12}{'mutants':>8}{'noticed':>8}{'share':>7}"
    lines = [head + "".join(f"{word:>19}" for word in UNNOTICED)]
    for arch in dict.fromkeys(result["arch"] for result in results):
        those = [result for result in results if result["arch"] == arch]
        for kind in KINDS:
            words: Counter[str] = Counter()
            for result in those:
                words.update(result["mutants"][kind])
            noticed = sum(words[word] for word in NOTICED)
            faults = words.total() - words["nothing in flight"]
            lines.append(
                f"{arch:14}{len(those):>8}  {kind:12}{words.total():>8}{noticed:>8}"
                f"{noticed / max(1, faults):>7.0%}"
                + "".join(f"{words[word] or '':>19}" for word in UNNOTICED)
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", action="append", choices=ARCHS, help="only this one; repeatable")
    parser.add_argument("--kernels", type=int, default=10, help="of each architecture")
    parser.add_argument("--most", type=int, default=12, help="mutants of a kind, of each kernel")
    parser.add_argument("--waits", type=int, help="mutants of waits; by default all of them")
    parser.add_argument("--store", type=Path, help="kernels' store; by default the user's")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    store = Store(options.store) if options.store else Store()
    results: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        for arch in options.arch or ARCHS:
            waiting = list(subjects(arch))
            found: list[dict[str, Any]] = []
            while waiting and len(found) < options.kernels:
                some = waiting[: options.kernels - len(found)]
                waiting = waiting[len(some) :]
                build([(cases(arch)[n].config, arch) for n in some], store=store, timeout=600.0)
                how = (str(store.path), options.most, options.waits)
                futures = [pool.submit(run, arch, number, *how) for number in some]
                for future in as_completed(futures):
                    if (result := future.result()) is not None:
                        found.append(result)
                        print(f"{arch} {result['kernel']}: {result['mutants']}", file=sys.stderr)
            results += found
            if options.json:
                document = {"environment": environment(), "kinds": KINDS, "kernels": results}
                options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
