"""Kernels of the next problems are built while the kernels of these are measured."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tilewright.compile import Store, build
from tilewright.compile.report import BuildResult
from tilewright.errors import TilewrightError
from tilewright.measure.results import Results
from tilewright.measure.sweep import keep_builds

SPARED = 2
"""Cores that are left to who measures: the worker whose host queues kernels, and its parent."""


class Coming:
    """Builds in a thread. A kernel that cannot be built is told by the sweep that wants it."""

    def __init__(self, store: Store, results: Results) -> None:
        self._store, self._results = store, results
        self._thread: threading.Thread | None = None
        self._done: list[BuildResult] = []

    def begin(self, requests: Sequence[tuple[Any, str]]) -> None:
        """Begin to build; what was begun before is done (`finish`)."""
        if requests:
            self._thread = threading.Thread(target=self._build, args=(requests,), daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait until what was begun is built, and write it into the results."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        keep_builds(self._results, self._done)
        self._done = []

    def _build(self, requests: Sequence[tuple[Any, str]]) -> None:
        cores = max(1, len(os.sched_getaffinity(0)) - SPARED)
        with suppress(TilewrightError):  # a store that is full, say: the sweep meets it too
            build(requests, store=self._store, workers=cores, progress=self._keep)

    def _keep(self, result: BuildResult, finished: int, total: int) -> None:
        self._done.append(result)

    def __enter__(self) -> Coming:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
