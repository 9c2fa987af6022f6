"""Build many kernels in parallel child processes."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache
from queue import SimpleQueue
from typing import Any

from tilewright import triton_versions
from tilewright.arch import arch as by_name
from tilewright.arch.model import Arch
from tilewright.compile.builder import Builder, Outcome, Task, judged
from tilewright.compile.compiler import Job
from tilewright.compile.compilers import SCRATCH
from tilewright.compile.kernel import Kernel, check_launch
from tilewright.compile.key import build_key, config_key, sources_digest
from tilewright.compile.report import BuildReport, BuildResult, Progress
from tilewright.compile.signing import UntrustedEntry
from tilewright.compile.store import Store, log
from tilewright.errors import BuildFailed, StoreError, TilewrightError
from tilewright.ops.library import library_key, library_of
from tilewright.ops.nouns import KernelSource
from tilewright.scratch import clear
from tilewright.verdict import Verdict

TIMEOUT_SECONDS = 120.0
"""Longest time to build one kernel, by default."""


def build(
    requests: Sequence[tuple[Any, Arch | str]],
    *,
    store: Store,
    workers: int | None = None,
    timeout: float = TIMEOUT_SECONDS,
    progress: Progress | None = None,
) -> BuildReport:
    """Have all kernels of every (config, architecture) of `requests` in `store`; compile those
    that are not there.

    store: where kernels are looked up and kept.
    workers: child processes that compile; by default one for each CPU that this process may use.
    timeout: seconds that one kernel may take. A kernel that takes longer, or crashes the compiler,
        costs only itself.
    progress: called with each result.

    With everything in the store already, nothing is started and Triton is not imported.

    Raises `UnknownArch`, and `StoreError` when the store cannot take what must be built (read-only:
    before compiling; full: at once, keeping what was built). A kernel that cannot be built is a
    result, not an exception: see `BuildReport.raise_if_failed`.
    """
    start = time.monotonic()
    results: list[BuildResult | None] = []
    tasks: dict[str, Task] = {}
    waiting: dict[str, list[tuple[int, Any]]] = {}
    for config, arch in requests:
        for found in _look_up(config, by_name(arch), store):
            if isinstance(found, Task):
                tasks.setdefault(found.job.key, found)
                waiting.setdefault(found.job.key, []).append((len(results), config))
                results.append(None)
            else:
                results.append(found)
    known = [result for result in results if result is not None]
    if progress:
        for number, result in enumerate(known, 1):
            progress(result, number, len(results))
    done = len(known)
    if tasks:
        _check_writable(store, tasks)
        clear(SCRATCH)
    with closing(
        _compile(tasks, store, workers or len(os.sched_getaffinity(0)), timeout)
    ) as outcomes:
        for key, outcome in outcomes:
            for place, config in waiting[key]:
                results[place] = result = replace(outcome, config=config)
                done += 1
                if progress:
                    progress(result, done, len(results))
    finished = tuple(result for result in results if result is not None)
    assert len(finished) == len(results)
    return BuildReport(finished, time.monotonic() - start)


def find(config: Any, arch: Arch | str, store: Store) -> dict[str, Kernel] | None:
    """The usable kernels that `store` already has for this config and architecture, by part; None
    if one would have to be built; {} for an algorithm of the vendor's library. Never starts a
    compiler. Raises `UntrustedEntry` for one that somebody else made."""
    found = _look_up(config, by_name(arch), store)
    for one in found:
        if isinstance(one, Task) and one.refused:
            raise UntrustedEntry(one.refused)
    if library_of(config) and all(isinstance(one, BuildResult) and one.ok for one in found):
        return {}
    kernels = [r.kernel for r in found if isinstance(r, BuildResult) and r.ok and r.kernel]
    return {kernel.part: kernel for kernel in kernels} if len(kernels) == len(found) else None


def build_keys(configs: Sequence[Any], arch: Arch | str, interpreted: bool = False) -> list[str]:
    """One key for the binaries of each of `configs`, whether built or not (see `config_key`);
    ``""`` where there is nothing that could be compiled; for an algorithm of the vendor's library,
    the library's version. interpreted: keys of the kernels that
    Triton's interpreter runs in their places, which are in no store."""
    return [
        library_key(config)
        if library_of(config) and not interpreted
        else config_key(part_keys(config, arch, interpreted))
        for config in configs
    ]


def part_keys(config: Any, arch: Arch | str, interpreted: bool = False) -> dict[str, str]:
    """The key that each kernel of a config has in a store, by part, whether built or not. Empty
    where one of them could not be compiled. Raises `StoreError`."""
    this = by_name(arch)
    try:
        sources = _sources(config, this, interpreted)
        return {part: _job(config, this, part, made).key for part, made in sources.items()}
    except StoreError:
        raise
    except TilewrightError:
        return {}


def _look_up(config: Any, arch: Arch, store: Store) -> list[BuildResult | Task]:
    """For each kernel of a config the result, when no compilation can change it, or what to
    compile."""
    from tilewright import ops

    pending = BuildResult(config, config.name, arch, "failed")
    verdict = ops.family(config.family).judge(config, arch)
    if not verdict:
        return [replace(pending, status="rejected", verdict=verdict, reason=str(verdict))]
    if library := library_of(config):
        reason = f"an algorithm of {library}, the vendor's library"
        return [replace(pending, status="not needed", verdict=verdict, reason=reason)]
    try:
        sources = _sources(config, arch)
    except StoreError:
        raise
    except TilewrightError as error:
        return [replace(pending, reason=str(error))]
    return [_look_up_part(replace(pending, part=p), s, store) for p, s in sources.items()]


def _look_up_part(pending: BuildResult, source: KernelSource, store: Store) -> BuildResult | Task:
    try:
        verdict = _check_launch(source, pending.arch)
        if not verdict:
            return replace(pending, status="rejected", verdict=verdict, reason=verdict.reason)
        job = _job(pending.config, pending.arch, pending.part, source)
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


def _sources(config: Any, arch: Arch, interpreted: bool = False) -> Mapping[str, KernelSource]:
    """What to compile, by part. Raises `BuildFailed` if there is nothing, and what the family's
    `sources` raises."""
    from tilewright import ops

    family = ops.family(config.family)
    found: Mapping[str, KernelSource] = family.sources(
        family.interpreted(config) if interpreted else config, arch
    )
    if not found:
        raise BuildFailed(f"{config.name} has no kernel to build for {arch.name}")
    return found


def _check_launch(source: KernelSource, arch: Arch) -> Verdict:
    options = dict(source.options)
    return check_launch(
        source.arguments,
        max(int(options.get("num_ctas", 1)), source.cluster),
        bool(options.get("launch_pdl", False)),
        arch,
        _triton(),
    )


@cache
def _triton() -> str:
    return triton_versions.installed()


def _job(config: Any, arch: Arch, part: str, source: KernelSource) -> Job:
    """What compiling a part means. Raises `BuildFailed` if one of its modules is not there."""
    module_digest = sources_digest(*source.modules)
    return Job(
        name=config.name,
        arch=arch.name,
        backend=arch.backend,
        target=arch.target,
        warp_size=arch.warp_size,
        key=build_key(config.name, source, arch, module_digest, part),
        source=source,
        module_digest=module_digest,
        part=part,
    )


def _check_writable(store: Store, tasks: Mapping[str, Task]) -> None:
    try:
        store.check_writable()
    except StoreError as error:
        refused = [task.refused for task in tasks.values() if task.refused]
        names = ", ".join(task.result.called for task in list(tasks.values())[:3])
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
    for task in sorted(tasks.values(), key=lambda task: task.job.arch):
        queue.put(task)  # a compiler is for one architecture
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
