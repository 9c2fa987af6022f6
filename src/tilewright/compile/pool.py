"""Build many kernels in parallel child processes."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from tilewright.arch import arch as by_name
from tilewright.arch.model import Arch
from tilewright.compile.builder import SCRATCH, Builder, Outcome, Task, judged
from tilewright.compile.compiler import Job
from tilewright.compile.kernel import Kernel, check_parameters
from tilewright.compile.key import build_key, sources_digest
from tilewright.compile.report import BuildReport, BuildResult, Progress
from tilewright.compile.store import Store, UntrustedEntry, log
from tilewright.errors import StoreError, TilewrightError
from tilewright.ops.nouns import MAIN
from tilewright.scratch import clear


def build(
    requests: Sequence[tuple[Any, Arch | str]],
    *,
    store: Store,
    workers: int | None = None,
    timeout: float = 120.0,
    progress: Progress | None = None,
) -> BuildReport:
    """Have every (config, architecture) of `requests` in `store`, compiling what is not there.

    `workers` child processes (by default one for each CPU that this process may use) compile; a
    kernel that crashes the compiler or takes longer than `timeout` seconds costs only itself.
    With everything in the store already, nothing is started and Triton is not imported.

    Raises `StoreError` when the store cannot take what must be built (read-only: before
    compiling; full: at once, keeping what was built) and `UnknownArch`. A kernel that cannot be
    built is a result, not an exception: see `BuildReport.raise_if_failed`.
    """
    start = time.monotonic()
    results: list[BuildResult | None] = [None] * len(requests)
    tasks: dict[str, Task] = {}
    waiting: dict[str, list[int]] = {}
    for number, (config, arch) in enumerate(requests):
        found = _look_up(config, by_name(arch), store)
        if isinstance(found, Task):
            tasks.setdefault(found.job.key, found)
            waiting.setdefault(found.job.key, []).append(number)
        else:
            results[number] = found
    done = sum(result is not None for result in results)
    if progress:
        for number, known in enumerate([r for r in results if r is not None], 1):
            progress(known, number, len(requests))
    if tasks:
        _check_writable(store, tasks)
        clear(SCRATCH)
    with closing(
        _compile(tasks, store, workers or len(os.sched_getaffinity(0)), timeout)
    ) as outcomes:
        for key, result in outcomes:
            for number in waiting[key]:
                results[number] = replace(result, config=requests[number][0])
                done += 1
                if progress:
                    progress(result, done, len(requests))
    finished = tuple(result for result in results if result is not None)
    assert len(finished) == len(requests)
    return BuildReport(finished, time.monotonic() - start)


def find(config: Any, arch: Arch | str, store: Store) -> Kernel | None:
    """The usable kernel that `store` already has for this config and architecture, or None if
    it would have to be built. Never starts a compiler. Raises `UntrustedEntry` for one that
    somebody else made."""
    found = _look_up(config, by_name(arch), store)
    if isinstance(found, Task) and found.refused:
        raise UntrustedEntry(found.refused)
    return found.kernel if isinstance(found, BuildResult) and found.ok else None


def build_keys(configs: Sequence[Any], arch: Arch | str, interpreted: bool = False) -> list[str]:
    """The keys that the binaries of `configs` have in a store, built or not; ``""`` where
    there is nothing that could be compiled. interpreted: keys of what Triton's interpreter runs
    in their places, which are in no store."""
    return [_key(config, by_name(arch), interpreted) for config in configs]


def _key(config: Any, arch: Arch, interpreted: bool) -> str:
    try:
        return _job(config, arch, interpreted).key
    except StoreError:
        raise
    except TilewrightError:
        return ""


def _look_up(config: Any, arch: Arch, store: Store) -> BuildResult | Task:
    """The result, when no compilation can change it, or what to compile."""
    from tilewright import ops

    pending = BuildResult(config, config.name, arch, "failed")
    verdict = ops.family(config.family).judge(config, arch)
    if not verdict:
        return replace(pending, status="rejected", verdict=verdict, reason=str(verdict))
    try:
        job = _job(config, arch)
        verdict = check_parameters(job.source)
    except StoreError:
        raise
    except TilewrightError as error:
        return replace(pending, reason=str(error))
    if not verdict:
        return replace(pending, status="rejected", verdict=verdict, reason=str(verdict))
    refused = ""
    try:
        kernel = store.load(job.key)
    except UntrustedEntry as error:
        kernel, refused = None, str(error)
    if kernel is not None:
        return judged(pending, kernel, "cached")
    return Task(job, pending, refused)


def _job(config: Any, arch: Arch, interpreted: bool = False) -> Job:
    """What compiling this config means. Raises what its family's `source` raises."""
    from tilewright import ops

    family = ops.family(config.family)
    source = family.sources(family.interpreted(config) if interpreted else config, arch)[MAIN]
    module_digest = sources_digest(*source.modules)
    return Job(
        name=config.name,
        arch=arch.name,
        backend=arch.backend,
        target=arch.target,
        warp_size=arch.warp_size,
        key=build_key(config.name, source, arch, module_digest),
        source=source,
        module_digest=module_digest,
    )


def _check_writable(store: Store, tasks: Mapping[str, Task]) -> None:
    try:
        store.check_writable()
    except StoreError as error:
        refused = [task.refused for task in tasks.values() if task.refused]
        names = ", ".join(task.job.name for task in list(tasks.values())[:3])
        raise StoreError(
            f"{len(tasks)} kernels are not usable from the store and cannot be added "
            f"({names}{'…' if len(tasks) > 3 else ''}): {refused[0] if refused else error}"
        ) from error
    for task in tasks.values():
        if task.refused:
            log.warning("built again: %s", task.refused)


def _compile(
    tasks: Mapping[str, Task], store: Store, workers: int, timeout: float
) -> Generator[tuple[str, BuildResult], None, None]:
    """Compile and store; yields results as they come. Closing it kills the children."""
    queue: SimpleQueue[Task] = SimpleQueue()
    for task in tasks.values():
        queue.put(task)
    outcomes: SimpleQueue[Outcome] = SimpleQueue()
    threads = [Builder(queue, outcomes, store, timeout) for _ in range(min(workers, len(tasks)))]
    try:
        for thread in threads:
            thread.start()
        for _ in tasks:
            outcome = outcomes.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:  # the end, a full disk, Ctrl-C
        for thread in threads:
            thread.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
