"""A process of `test_capturing`: threads that dispatch, into the capture its environment says.

    python capture_script.py NUMBER THREADS CALLS

Every thread meets a problem of all processes and threads CALLS times, and CALLS problems of its own
once each.
"""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

from tilewright import Dispatcher, GemmProblem, capturing

SHARED = GemmProblem(16, 16, 16)


def plan(problem: Any, selector: str = "analytical") -> Any:
    """As much of a plan as a capture looks at."""
    return SimpleNamespace(problem=problem, selector=selector)


def own(number: int, thread: int, call: int) -> GemmProblem:
    return GemmProblem(number + 1, thread + 1, call + 1)


def dispatch(number: int, thread: int, calls: int, shared: Any) -> None:
    (capture,) = capturing.active
    for call in range(calls):
        capture.saw(shared)
        capture.saw(plan(own(number, thread, call)))


def main(number: int, threads: int, calls: int) -> None:
    Dispatcher()  # starts the environment's capture
    shared = plan(SHARED)
    running = [
        threading.Thread(target=dispatch, args=(number, t, calls, shared)) for t in range(threads)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
