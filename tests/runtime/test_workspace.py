"""Workspaces with stand-ins for the driver and torch's streams; tests/gpu runs them on GPUs."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tilewright.errors import LaunchFailed  # noqa: E402
from tilewright.ops.nouns import Temporary  # noqa: E402
from tilewright.runtime.temporaries import layout  # noqa: E402
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
        self.kept: list[tuple[int, int, int]] = []

    def keep_workspace(self, stream: int, kept_zero: int, scratch: int) -> None:
        self.kept.append((stream, kept_zero, scratch))


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


FLAGS = 65536


def launch(scratch: int, kept_zero: int = FLAGS, initial: str = "anything") -> tuple[int, int]:
    """The buffers of a launch with two temporaries of so many bytes."""
    temporaries = (
        Temporary("flags", (kept_zero,), "uint8", "kept_zero"),
        Temporary("slots", (scratch,), "uint8", initial),
    )
    places = layout(temporaries)
    return places.kept_zero_bytes, places.scratch_bytes


def buffer_at(workspaces: Workspaces, address: int):
    (buffer,) = (b for b in workspaces._buffers.values() if b.data_ptr() == address)
    return buffer


def test_no_room_for_a_workspace_is_a_clear_error(monkeypatch):
    def full(size, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    driver = Driver()
    Made(monkeypatch, driver)
    workspaces, user = Workspaces(), User(driver, device=1)
    before = workspaces.addresses(launch(4096), user, 5, True)
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(LaunchFailed, match=r"cuda:1 for a workspace of 8192 bytes.*max_workspace"):
        workspaces.addresses(launch(8192), user, 5, True)
    assert workspaces.addresses(launch(4096), user, 5, True) == before, "nothing is lost"
    assert workspaces.bytes() == FLAGS + 4096


def test_a_launch_gets_buffers_of_the_kinds_that_it_uses(monkeypatch):
    driver = Driver()
    Made(monkeypatch, driver)
    workspaces, user = Workspaces(), User(driver)
    assert workspaces.addresses(launch(0, 0), user, 5, True) == (0, 0)
    kept_zero, none = workspaces.addresses(launch(0), user, 5, True)
    assert kept_zero and not none and workspaces.bytes() == FLAGS
    none, scratch = workspaces.addresses(launch(64, 0), user, 5, True)
    assert scratch and not none and workspaces.bytes() == FLAGS + 64
    assert workspaces.addresses(launch(64), user, 5, True) == (kept_zero, scratch)


@pytest.mark.parametrize("initial", ["anything", "zero"])
def test_only_a_kept_zero_buffer_is_zeroed_when_it_is_made(monkeypatch, initial):
    """`zero` is the launch's own business: it fills before every run."""
    driver = Driver()
    Made(monkeypatch, driver)
    workspaces = Workspaces()
    kept_zero, scratch = workspaces.addresses(launch(64, 4096, initial), User(driver), 5, True)
    assert not buffer_at(workspaces, kept_zero).any()
    assert buffer_at(workspaces, scratch).all()


def test_a_launch_keeps_its_buffers_until_they_are_given_back(monkeypatch):
    driver = Driver()
    Made(monkeypatch, driver)
    workspaces, user = Workspaces(), User(driver)
    small, large = launch(4096), launch(1 << 20)
    first = workspaces.addresses(small, user, 5, True)
    assert user.kept == [(5, *first)]
    grown = workspaces.addresses(large, user, 5, True)
    assert grown[0] == first[0] and grown[1] != first[1]
    assert user.kept[1:] == [(5, *grown)]
    assert workspaces.bytes() == FLAGS + 4096 + (1 << 20), "the outgrown one is still there"
    assert workspaces.addresses(small, user, 5, False) == grown
    assert len(user.kept) == 2, "another thread's stream is not kept"
    driver.captures[5] = 1
    captured = workspaces.addresses(small, user, 5, True)
    assert not {*captured} & {*first, *grown}
    assert len(user.kept) == 2, "the buffers of a graph are not kept"
    workspaces.release()
    assert user.kept[2:] == [(0, 0, 0)] and workspaces.bytes() == 0


def test_an_outgrown_kept_zero_buffer_stays_zero_and_alive(monkeypatch):
    driver = Driver()
    Made(monkeypatch, driver)
    workspaces, user = Workspaces(), User(driver)
    first, _ = workspaces.addresses(launch(64, 1024), user, 5, True)
    old = buffer_at(workspaces, first)
    second, _ = workspaces.addresses(launch(64, 4096), user, 5, True)
    assert second != first and not buffer_at(workspaces, second).any()
    assert any(b is old for b in workspaces._outgrown) and not old.any()


def test_a_graphs_buffers_are_made_at_once_on_a_stream_that_no_graph_captures(monkeypatch):
    driver = Driver()
    made, workspaces = Made(monkeypatch, driver), Workspaces()
    driver.captures |= {5: 7, 101: 7}  # the first stream torch hands out is captured too
    kept_zero, _ = workspaces.addresses(launch(64), User(driver), 5, True)
    assert made.allocated == [(102, True), (103, True)] and made.waited == [102, 103]
    assert not buffer_at(workspaces, kept_zero).any()
    assert made.current == 0 and not driver.allowed


def test_launches_of_one_capture_share_buffers_and_captures_do_not(monkeypatch):
    driver = Driver()
    Made(monkeypatch, driver)
    workspaces, user = Workspaces(), User(driver)
    ordinary = workspaces.addresses(launch(64), user, 5, True)
    driver.captures = {5: 1, 6: 1}
    first = workspaces.addresses(launch(64), user, 5, True)
    assert workspaces.addresses(launch(32), user, 5, True) == first
    other = workspaces.addresses(launch(64), user, 6, True)
    driver.captures = {5: 2}
    second = workspaces.addresses(launch(64), user, 5, True)
    every = [*ordinary, *first, *other, *second]
    assert len({*every}) == len(every) == 8, "streams of a graph run side by side"
    driver.captures = {}
    assert workspaces.addresses(launch(64), user, 5, True) == ordinary


@pytest.mark.parametrize("stream", [5, 0])
@pytest.mark.parametrize("current", [True, False])
def test_a_stream_outside_a_capture_zeroes_its_buffer_itself(monkeypatch, stream, current):
    driver = Driver()
    made, workspaces = Made(monkeypatch, driver), Workspaces()
    made.current = stream if current else 9
    kept_zero, _ = workspaces.addresses(launch(64), User(driver), stream, current)
    assert made.allocated == [(stream, False)] * 2 and made.waited == []
    assert not buffer_at(workspaces, kept_zero).any()


def test_where_every_stream_is_captured_the_error_says_what_to_do(monkeypatch):
    driver = Driver()
    Made(monkeypatch, driver)
    driver.captures = dict.fromkeys((5, *range(101, 200)), 1)
    with pytest.raises(LaunchFailed, match="capture fewer streams"):
        Workspaces().addresses(launch(64), User(driver), 5, True)
