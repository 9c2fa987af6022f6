"""Workspaces with stand-ins for the driver and torch's streams; what GPUs see is in tests/gpu."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tilewright.errors import LaunchFailed  # noqa: E402
from tilewright.ops.nouns import FLAG_BYTES, Launch  # noqa: E402
from tilewright.runtime.workspace import Workspaces  # noqa: E402


class Driver:
    """A driver whose streams are captured as `captures` says: the capture's number by stream."""

    def __init__(self) -> None:
        self.captures: dict[int, int] = {}
        self.allowed = False

    def current(self, device):
        return nullcontext()

    def capture(self, stream):
        return self.captures.get(stream, 0)

    @contextmanager
    def capture_allowed(self):
        self.allowed = True
        yield
        self.allowed = False


class User:
    """A launch that writes down which addresses it was to keep."""

    def __init__(self, driver: Driver, device: int = 0) -> None:
        self.driver, self.device = driver, device
        self.kept: list[tuple[int, int]] = []

    def keep_workspace(self, stream: int, address: int) -> None:
        self.kept.append((stream, address))


class Made:
    """torch's streams and allocations on the CPU: what was allocated while which stream was
    current, whether the driver allowed it during captures, and which streams were waited for."""

    def __init__(self, monkeypatch, driver: Driver) -> None:
        self.driver = driver
        self.allocated: list[tuple[int, bool]] = []
        self.waited: list[int] = []
        self.current = 0
        self._next = 100
        self._empty = torch.empty
        monkeypatch.setattr(torch, "empty", self.empty)
        monkeypatch.setattr(torch.cuda, "Stream", self.stream)
        monkeypatch.setattr(torch.cuda, "ExternalStream", self.external)
        monkeypatch.setattr(torch.cuda, "default_stream", lambda d: SimpleNamespace(number=0))
        monkeypatch.setattr(torch.cuda, "stream", self.on)

    def empty(self, size, **how):
        self.allocated.append((self.current, self.driver.allowed))
        return self._empty(size, dtype=torch.uint8).fill_(255)

    def external(self, handle, device):
        """As torch has it: without a handle, one of its own streams."""
        return SimpleNamespace(number=handle) if handle else self.stream(device)

    def stream(self, device):
        self._next += 1
        number = self._next
        return SimpleNamespace(
            number=number, cuda_stream=number, synchronize=lambda: self.waited.append(number)
        )

    @contextmanager
    def on(self, stream):
        before, self.current = self.current, stream.number
        yield
        self.current = before


def launch(size: int, **options) -> Launch:
    return Launch((1, 1, 1), (), workspace_bytes=FLAG_BYTES + size, **options)


def buffers(workspaces: Workspaces) -> list:
    return [*workspaces._buffers.values()]


def test_no_room_for_a_workspace_is_a_clear_error(monkeypatch):
    def full(size, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    driver = Driver()
    Made(monkeypatch, driver)
    monkeypatch.setattr(torch, "empty", full)
    workspaces = Workspaces()
    with pytest.raises(LaunchFailed, match=r"cuda:1 for a workspace of 69632 bytes.*max_workspace"):
        workspaces.address(launch(4096), User(driver, device=1), 5, True)
    assert workspaces.bytes() == 0


def test_a_launch_keeps_its_workspace_until_it_is_given_back(monkeypatch):
    driver = Driver()
    Made(monkeypatch, driver)
    workspaces, user = Workspaces(), User(driver)
    small, large = launch(4096), launch(1 << 20)
    first = workspaces.address(small, user, 5, True)
    assert user.kept == [(5, first)]
    grown = workspaces.address(large, user, 5, True)
    assert grown != first and user.kept[1:] == [(5, grown)]
    assert workspaces.bytes() == small.workspace_bytes + large.workspace_bytes, "both are there"
    assert workspaces.address(small, user, 5, False) == grown
    assert len(user.kept) == 2, "another thread's stream is not kept"
    driver.captures[5] = 1
    assert workspaces.address(small, user, 5, True) not in (first, grown)
    assert len(user.kept) == 2, "the workspace of a graph is not kept"
    workspaces.release()
    assert user.kept[2:] == [(0, 0)] and workspaces.bytes() == 0


@pytest.mark.parametrize("zero", [False, True])
def test_a_graphs_workspace_is_zeroed_at_once_on_a_stream_that_no_graph_captures(monkeypatch, zero):
    driver = Driver()
    made, workspaces = Made(monkeypatch, driver), Workspaces()
    driver.captures |= {5: 7, 101: 7}  # the first stream torch hands out is captured too
    workspaces.address(launch(64, zero_workspace=zero), User(driver), 5, True)
    assert made.allocated == [(102, True)] and made.waited == [102]
    (buffer,) = buffers(workspaces)
    assert not buffer[:FLAG_BYTES].any()
    assert bool(buffer[FLAG_BYTES:].any()) is not zero
    assert made.current == 0 and not driver.allowed


def test_launches_of_one_capture_share_a_workspace_and_captures_do_not(monkeypatch):
    driver = Driver()
    Made(monkeypatch, driver)
    workspaces, user = Workspaces(), User(driver)
    ordinary = workspaces.address(launch(64), user, 5, True)
    driver.captures = {5: 1, 6: 1}
    first = workspaces.address(launch(64), user, 5, True)
    assert workspaces.address(launch(32), user, 5, True) == first
    assert workspaces.address(launch(64), user, 6, True) != first, "its streams run side by side"
    driver.captures = {5: 2}
    second = workspaces.address(launch(64), user, 5, True)
    assert len({ordinary, first, second}) == 3
    driver.captures = {}
    assert workspaces.address(launch(64), user, 5, True) == ordinary


@pytest.mark.parametrize("stream", [5, 0])
@pytest.mark.parametrize("current", [True, False])
def test_a_stream_outside_the_capture_zeroes_its_workspace_itself(monkeypatch, stream, current):
    driver = Driver()
    made, workspaces = Made(monkeypatch, driver), Workspaces()
    made.current = stream if current else 9
    workspaces.address(launch(64), User(driver), stream, current)
    assert made.allocated == [(stream, False)] and made.waited == []
    assert not buffers(workspaces)[0][:FLAG_BYTES].any()


def test_where_every_stream_is_captured_the_error_says_what_to_do(monkeypatch):
    driver = Driver()
    Made(monkeypatch, driver)
    driver.captures = dict.fromkeys((5, *range(101, 200)), 1)
    with pytest.raises(LaunchFailed, match="capture fewer streams"):
        Workspaces().address(launch(64), User(driver), 5, True)
