"""One compiling thread: its child process, and what each of its answers means."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec

from tilewright.child import KILLED, Child, ChildDied, ChildTimeout, describe_exit
from tilewright.compile.compiler import Job, environment
from tilewright.compile.kernel import Kernel, check_limits
from tilewright.compile.report import BuildResult, Status
from tilewright.compile.store import Store
from tilewright.compile.worker import MARK
from tilewright.errors import BuildFailed, StoreError
from tilewright.scratch import scratch
from tilewright.verdict import YES

WORKER = "tilewright.compile.worker"
SCRATCH = "tilewright-build-"
"""What the names of folders for the compiler's temporary files begin with."""


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel that must be compiled, the result it will fill in, and why the store's own
    entry was not good enough, if it has one."""

    job: Job
    result: BuildResult
    refused: str


Outcome = tuple[str, BuildResult] | BaseException
"""A build key and what became of it, or an error that ends the whole build."""


def judged(pending: BuildResult, kernel: Kernel, status: Status) -> BuildResult:
    """The result of having `kernel`: refused if its architecture cannot launch it."""
    verdict = check_limits(kernel, pending.arch)
    if verdict:
        return replace(pending, status=status, kernel=kernel, verdict=YES)
    return replace(
        pending, status="rejected", kernel=kernel, verdict=verdict, reason=verdict.reason
    )


def telling(stderr: str) -> str:
    """The lines that say what was wrong with the last kernel, out of stack traces and dumps of
    whole modules; the first few, since the cause comes before its consequences."""
    lines = [line.strip()[:300] for line in stderr.rpartition(MARK)[2].splitlines()]
    wrong = [line for line in lines if re.search("error|assert|fatal|cannot|fail", line, re.I)]
    return "\n".join((wrong or lines)[:6])


class Builder(threading.Thread):
    """A thread with its own child process, replaced whenever it dies."""

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
        self._child: Child | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            with scratch(SCRATCH) as folder:
                try:
                    while not self._stopped:
                        task = self._queue.get_nowait()
                        self._outcomes.put((task.job.key, self._build(task, folder)))
                except Empty:
                    pass
                finally:
                    self._drop()
        except BaseException as error:
            self._outcomes.put(error)  # the caller's thread raises it

    def stop(self) -> None:
        """Make `run` return soon, from another thread; the child is killed."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.interrupt()

    def _build(self, task: Task, folder: str) -> BuildResult:
        start = time.monotonic()
        result = self._tried(task, folder)
        if result is None:
            result = self._tried(task, folder, last=True)
            assert result is not None
        return replace(result, seconds=time.monotonic() - start)

    def _tried(self, task: Task, folder: str, last: bool = False) -> BuildResult | None:
        """The result of compiling; None where somebody killed the compiler, who may not have meant
        the kernel: it is to be tried again, unless this was the `last` time."""
        try:
            child = self._running(folder)
            answer, files = child.request({"job": asdict(task.job)}, timeout=self._timeout)
            if answer.get("disk_full"):
                raise StoreError(
                    f"no space left for the compiler's temporary files in {Path(folder).parent}; "
                    "what was built already is intact"
                )
            if "error" in answer:
                raise BuildFailed(f"{answer['error']}\n{telling(child.stderr_tail())}".strip())
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

    def _running(self, folder: str) -> Child:
        with self._lock:
            if self._child is None and not self._stopped:
                self._child = Child(WORKER, environment(folder))
            if self._child is None:
                raise BuildFailed("the build was stopped")
            return self._child

    def _drop(self) -> None:
        with self._lock:
            if self._child is not None:
                self._child.kill()
                self._child = None
