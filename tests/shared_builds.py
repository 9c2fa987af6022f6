"""Kernels that tests need are built once, however many processes run the tests.

The processes of a run (pytest-xdist's workers) have one store. A list of kernels is cut into pieces
with a lock file each. A process that wants the list takes the pieces that nobody else is building,
then waits for the others. Each kernel is built, or looked up, once. The system lets go of a lock
when its process ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tilewright.compile import BuildReport, Store, build

PIECE = 12
"""Kernels: so many that the start of a compiler is a small part of the work."""
Requests = Sequence[tuple[Any, str]]
Case = TypeVar("Case")


def processes() -> int:
    """How many processes run the tests."""
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def piece_of(cases: Sequence[Case], number: int) -> Sequence[Case]:
    """The cases that are built together with case `number`: all of them in a run of one process."""
    if processes() == 1:
        return cases
    first = number // PIECE * PIECE
    return cases[first : first + PIECE]


def build_once(
    requests: Requests,
    store: Store,
    *,
    piece: int = PIECE,
    compile_all: Callable[..., BuildReport] = build,
) -> BuildReport:
    """As `build`: have all of `requests` in `store`, which other processes fill too."""
    sharing = processes()
    size = piece if sharing > 1 else max(1, len(requests))
    workers = max(1, len(os.sched_getaffinity(0)) // sharing)
    pieces = [requests[i : i + size] for i in range(0, len(requests), size)]
    start, reports = time.monotonic(), dict[int, BuildReport]()
    for wait in (False, True):
        for number, some in enumerate(pieces):
            if number not in reports:
                with _locked(store, some, wait) as mine:
                    if mine:
                        reports[number] = compile_all(some, store=store, workers=workers)
    results = (result for _, report in sorted(reports.items()) for result in report.results)
    return BuildReport(tuple(results), time.monotonic() - start)


@contextmanager
def _locked(store: Store, requests: Requests, wait: bool) -> Iterator[bool]:
    """Whether the lock of these kernels is ours; it is if we `wait` for it."""
    names = "\n".join(f"{config.name} {arch}" for config, arch in requests)
    folder = Path(f"{store.path}.locks")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / hashlib.sha256(names.encode()).hexdigest()).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
