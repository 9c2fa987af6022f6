"""What the GPU tests share: kernels that all processes of a run build once, and the GPU itself."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from gpu_arch import ARCH

from shared_builds import build_once, piece_of
from tilewright.compile import Store
from tilewright.dispatch import Dispatcher

_KEPT = 1 << 28
"""Bytes of the GPU that a process may keep from test to test."""


def pytest_collection_modifyitems(items):
    """Neither building, nor waiting for what another process builds or for the GPU, counts as a
    test's time."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(func_only=True))


class Kernels:
    """The kernels that this process has seen in the store of the run."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._seen: set[str] = set()

    def need(self, configs: Sequence[Any]) -> None:
        """Have `configs` in the store. Raises `BuildFailed`."""
        if not self._seen.issuperset(config.name for config in configs):
            build_once([(config, ARCH) for config in configs], self.store).raise_if_failed()
            self._seen.update(config.name for config in configs)


@pytest.fixture(scope="session")
def kernels(store: Store) -> Kernels:
    return Kernels(store)


class Sharing(Dispatcher):
    """Kernels that it is asked for later are built once too."""

    def __init__(self, kernels: Kernels) -> None:
        super().__init__(store=kernels.store)
        self._shared, self._kernels = kernels, self.loader.kernels
        self.loader.kernels = self._shared_kernels

    def _shared_kernels(self, config, target):
        self._shared.need([config])
        return self._kernels(config, target)


@pytest.fixture(scope="module")
def dispatcher(kernels: Kernels) -> Dispatcher:
    return Sharing(kernels)


@pytest.fixture(autouse=True)
def _built(request, kernels: Kernels) -> None:
    """A test of CASES[number], a config and a problem, finds its kernel in the store.

    The kernel is built with those of the cases beside it. The first tests run after a few kernels,
    while other processes build others.
    """
    case = getattr(request.node, "callspec", None)
    if case is not None and "number" in case.params and "dispatcher" in request.fixturenames:
        those = piece_of(request.module.CASES, case.params["number"])
        kernels.need([kernel for kernel, _ in those])


@pytest.fixture(autouse=True)
def _gpu(_built: None, request, store: Store) -> Iterator[None]:
    """A test marked `alone` has the GPU to itself, since it measures; others share it.

    Whoever waits for the room keeps the door closed behind him, so that a test that wants to be
    alone is not overtaken for ever.
    """
    alone = request.node.get_closest_marker("alone") is not None
    how = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    door, room = (Path(f"{store.path}.{name}") for name in ("door", "room"))
    with _lock(door, fcntl.LOCK_EX) as held, _lock(room, how):
        fcntl.flock(held, fcntl.LOCK_UN)
        yield
    _give_back()


def _give_back() -> None:
    """Free what torch keeps for later: with it, 18 processes filled 80 GB."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > _KEPT:
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True, scope="session")
def _collected_before_captures() -> None:
    """Garbage of earlier tests, a dead graph among it, is destroyed before a graph is captured:
    destroyed meanwhile it would invalidate the capture. torch does so by default up to 2.8."""
    torch = sys.modules.get("torch")
    config = None if torch is None else getattr(torch.compiler, "config", None)
    if hasattr(config, "force_cudagraph_gc"):
        config.force_cudagraph_gc = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and item.path.is_relative_to(Path(__file__).parent):
        _end_captures()
    return report


def _end_captures() -> None:
    """After a capture that failed, torch's current stream is still the graph's, and its random
    numbers expect to be captured: they raise an error outside of graphs, until the next capture
    ends well."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    torch.cuda.set_stream(torch.cuda.default_stream())
    try:
        torch.rand(1, device="cuda")
    except RuntimeError:
        with suppress(RuntimeError):
            graph = torch.cuda.CUDAGraph()
            x = torch.zeros(1, device="cuda")
            with torch.cuda.graph(graph):
                x.add_(1)


@contextmanager
def _lock(path: Path, how: int) -> Iterator[Any]:
    with path.open("w") as file:
        fcntl.flock(file, how)
        try:
            yield file
        finally:  # what the test forked has the file too, and would keep the lock
            fcntl.flock(file, fcntl.LOCK_UN)
