"""A compiling thread: it owns a child process and turns the child's answers into results."""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from tilewright import garbage
from tilewright.child import KILLED, ChildDied, ChildTimeout, describe_exit
from tilewright.compile import compilers
from tilewright.compile.compiler import Job
from tilewright.compile.compilers import Compiler
from tilewright.compile.kernel import Kernel, check_limits
from tilewright.compile.report import BuildResult, Status
from tilewright.compile.store import Store
from tilewright.compile.worker import MARK
from tilewright.errors import BuildFailed, StoreError
from tilewright.verdict import YES


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel that must be compiled.

    result: what is known of it already; the thread fills in the rest.
    refused: why the store's entry could not be used, if it has one.
    """

    job: Job
    result: BuildResult
    refused: str


Outcome = tuple[str, BuildResult] | BaseException
"""A build key with its result, or an error that ends the whole build."""


def judged(pending: BuildResult, kernel: Kernel, status: Status) -> BuildResult:
    """The result for a kernel that is there: rejected if its architecture cannot launch it."""
    verdict = check_limits(kernel, pending.arch)
    if verdict:
        return replace(pending, status=status, kernel=kernel, verdict=YES)
    return replace(
        pending, status="rejected", kernel=kernel, verdict=verdict, reason=verdict.reason
    )


def telling(stderr: str) -> str:
    """The lines of the compiler's standard error that say why the last kernel failed, without stack
    traces and dumps of whole modules. Only the first few: the cause comes before its consequences.
    """
    lines = [line.strip()[:300] for line in stderr.rpartition(MARK)[2].splitlines()]
    wrong = [line for line in lines if re.search("error|assert|fatal|cannot|fail", line, re.I)]
    return "\n".join((wrong or lines)[:6])


class Builder(threading.Thread):
    """A thread with a compiler, which is replaced whenever it dies."""

    def __init__(
        self,
        queue: SimpleQueue[Task],
        outcomes: SimpleQueue[Outcome],
        store: Store,
        timeout: float,
    ) -> None:
        super().__init__(name="tilewright-builder", daemon=True)
        self._queue, self._outcomes = queue, outcomes
        self._store, self._timeout = store, timeout
        self._compiler: Compiler | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def run(self) -> None:
        garbage.begin_thread()
        try:
            try:
                with suppress(Empty):
                    while not self._stopped:
                        task = self._queue.get_nowait()
                        result = self._build(task)
                        if self._queue.empty():  # with the last result the caller stops us
                            self._leave()
                        self._outcomes.put((task.job.key, result))
            finally:
                self._drop()
        except BaseException as error:
            self._outcomes.put(error)  # the caller's thread raises it

    def stop(self) -> None:
        """From another thread: kill the child and have `run` return soon."""
        with self._lock:
            self._stopped = True
            if self._compiler is not None:
                self._compiler.child.interrupt()

    def _build(self, task: Task) -> BuildResult:
        start = time.monotonic()
        result = self._tried(task)
        if result is None:
            result = self._tried(task, last=True)
            assert result is not None
        return replace(result, seconds=time.monotonic() - start)

    def _tried(self, task: Task, last: bool = False) -> BuildResult | None:
        """The result of compiling. None if the compiler had imported files that were written since,
        or if somebody killed it: the kernel may have had no part in it. Then it is tried once more,
        in a new compiler, unless this was the `last` time."""
        try:
            compiler = self._running(task.job.arch, fresh=last)
            answer, files = compiler.child.request({"job": asdict(task.job)}, timeout=self._timeout)
            if answer.get("stale"):
                self._drop()
                if last:
                    raise BuildFailed("the kernel's source is being written again and again")
                return None
            if answer.get("disk_full"):
                folder = Path(compiler.folder).parent
                raise StoreError(
                    f"no space left for the compiler's temporary files in {folder}; "
                    "what was built already is intact"
                )
            if "error" in answer:
                said = telling(compiler.child.stderr_tail())
                raise BuildFailed(f"{answer['error']}\n{said}".strip())
            kernel = msgspec.convert(answer["kernel"], Kernel)
            kernel = self._store.save(kernel, dict(zip(answer["kinds"], files, strict=True)))
            return judged(task.result, kernel, "built")
        except ChildDied as error:
            self._drop()
            killed = error.returncode in KILLED and not self._stopped
            if killed and not last:
                return None
            lost = f"the compiler's process was lost: {describe_exit(error.returncode)}"
            if killed:
                lost += ", twice: by somebody, or by the system for want of memory"
            return replace(task.result, reason=f"{lost}\n{telling(error.stderr_tail)}".strip())
        except ChildTimeout:
            self._drop()
            return replace(
                task.result,
                reason=f"the compiler took longer than {self._timeout:g} s and was killed",
            )
        except BuildFailed as error:
            return replace(task.result, reason=str(error))

    def _running(self, arch: str, fresh: bool) -> Compiler:
        """A compiler for `arch`: the one there is, an idle one or a new one."""
        if self._compiler is not None and self._compiler.arch != arch:
            self._leave()
        with self._lock:
            if self._compiler is None and not self._stopped:
                self._compiler = compilers.take(arch, fresh)
            if self._compiler is None:
                raise BuildFailed("the build was stopped")
            return self._compiler

    def _leave(self) -> None:
        with self._lock:
            if self._compiler is not None and not self._stopped:
                compilers.leave(self._compiler)
                self._compiler = None

    def _drop(self) -> None:
        with self._lock:
            if self._compiler is not None:
                self._compiler.close()
                self._compiler = None
