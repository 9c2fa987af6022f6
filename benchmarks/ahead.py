"""Compile before anything is measured, side by side on all cores: what rivals compile, and our
kernels for the same problems.

Rivals leave their kernels in caches on disk, and beside them what they chose by timing. A worker
times only while it holds the GPU's lock (`Turn`), so no other worker uses the GPU meanwhile. What
fails here is compiled once more where its problem is measured, and fails or not there.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cases
from cases import AnyCase, Case, InGraphs
from run_file import Documents
from turn import Turn

GPU = "cuda:0"
PATIENCE_SECONDS = 120
"""Without a word from any worker: then the rest is compiled where it is measured."""
SHARE = 0.5
"""Of the time that is left, what compiling may take."""
BUILDERS = 4
"""One in so many cores builds kernels of ours."""
SEED = 1
"""Of the operands of a case's first problem; the next ones' follow. Those that are measured are the
same: the numbers among them are constants of what Inductor compiles."""


Task = Callable[[Turn], str]
"""Returns what is to be said: "" for nothing."""


def compile_ahead(known: Mapping[str, Documents], deadline: float) -> None:
    """Compile what the cases need of which these are the known results, and say how it went."""
    found = tasks_of(cases.every(), known)
    if not found:
        return
    begun, cores = time.time(), len(os.sched_getaffinity(0))
    builders = max(1, cores // BUILDERS)
    names = tuple(dict.fromkeys(name for name, _ in found))
    tasks: list[Task] = [partial(build_ours, names, builders), *(task for _, task in found)]
    said = [*_by_workers(tasks, 1 + cores - builders, begun + SHARE * (deadline - begun))]
    for text in filter(None, said):
        print(f"  ahead: {text}")
    done, took = f"{len(said)} of {len(tasks)}", f"{time.time() - begun:.0f} s"
    print(f"compiled ahead in {took}: {done} tasks, {sum(map(bool, said))} failed", flush=True)


def tasks_of(
    every: Mapping[str, AnyCase], known: Mapping[str, Documents]
) -> list[tuple[str, Task]]:
    """What compiles for the cases of which these are the known results, without what is for these;
    each beside its case's name. In the order of the cases, which is that of measuring: when time
    ends, the last lack it."""
    found: list[tuple[str, Task]] = []
    for name, results in known.items():
        case = every[name]
        if isinstance(case, Case) and case.ahead is not None:
            left = (i for i, p in enumerate(case.problems()) if str(p) not in results)
            found += [(name, partial(compile_one, name, i)) for i in left]
        elif isinstance(case, InGraphs) and (new := [n for n in case.names if n not in results]):
            found += [(name, partial(run_one, name, job)) for job in case.ahead(new)]
    return found


# --- in the parent ------------------------------------------------------------------------------


def _by_workers(tasks: Sequence[Task], count: int, until: float) -> Iterator[str]:
    """What each task said, by at most so many workers, who are ended with the last. Where there are
    fewer tasks than workers, each compiles by several threads: HSTU's gradients tune five products
    among some twenty kernels each."""
    threads = max(1, count // len(tasks))
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        started = []
        try:
            for _ in range(min(count, len(tasks))):
                here, there = context.Pipe()
                process = context.Process(
                    target=_serve, args=(there, Path(folder) / "gpu", threads)
                )
                process.start()
                there.close()
                started.append((here, process))
            yield from answers([here for here, _ in started], tasks, until)
        finally:
            for _, process in started:
                process.kill()
            for _, process in started:
                process.join()


def answers(workers: Sequence[Connection], tasks: Sequence[Task], until: float) -> Iterator[str]:
    """What each task said, as soon as it says it. The task of a worker that dies is lost. Ends
    early at `until`, and if no worker says anything for long."""
    left, busy = [*reversed(tasks)], list[Connection]()
    idle = [*workers]
    while True:
        while idle and left:
            worker = idle.pop()
            with suppress(OSError):  # it died after its last answer
                worker.send(left[-1])
                busy.append(worker)
                left.pop()
        ready = wait(busy, max(0.0, min(PATIENCE_SECONDS, until - time.time()))) if busy else []
        if not ready:
            return
        for worker in ready:
            busy.remove(worker)
            try:
                said = worker.recv()
            except EOFError:
                yield "a worker died"
            else:
                idle.append(worker)
                yield said


# --- in a worker --------------------------------------------------------------------------------


def _serve(pipe: Connection, lock: Path, threads: int) -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(threads)
    turn = Turn(lock)
    while True:
        pipe.send(pipe.recv()(turn))


_every = cache(cases.every)


def compile_one(name: str, number: int, turn: Turn) -> str:
    """Let a case compile for one of its problems. A fault of the device ends the process."""
    import torch

    case = _every()[name]
    assert isinstance(case, Case) and case.ahead is not None
    problem, compiles = case.problems()[number], case.ahead

    def job(turn: Turn) -> None:
        torch.cuda.synchronize()  # a process's first use of the GPU takes long, and needs no turn
        with turn:
            operands = case.operands(problem, SEED + number, GPU)
            torch.cuda.synchronize()
        compiles(problem, operands, turn)

    return run_one(f"{name}, {problem}", job, turn)


def run_one(name: str, job: Callable[[Turn], object], turn: Turn) -> str:
    """Run a job that compiles. A fault of the device ends the process."""
    import torch

    torch.set_num_threads(1)
    try:
        job(turn)
        torch.cuda.synchronize()
    except Exception as error:
        return " ".join(f"{name}: {type(error).__name__}: {error}".split())[:300]
    finally:
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    return ""


def build_ours(names: Sequence[str], workers: int, turn: Turn) -> str:
    """Build the kernels that these cases will surely want."""
    from on_gpu import CaseBench
    from tilewright.compile import Store

    with turn:
        bench = CaseBench(Store())
    wanted: list[Any] = []
    for name in names:
        case = _every()[name]
        assert isinstance(case, Case | InGraphs)
        wanted += bench.wanted(case, case.problems())
    unbuilt = bench.built(wanted, workers=workers)
    return "; ".join(unbuilt.values())[:1000]
