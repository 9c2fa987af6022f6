"""Workspaces where the device has no room for one; what they hold is tested on GPUs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tilewright.errors import LaunchFailed  # noqa: E402
from tilewright.ops.family import FLAG_BYTES, Launch  # noqa: E402
from tilewright.runtime.workspace import Workspaces  # noqa: E402


def test_no_room_for_a_workspace_is_a_clear_error(monkeypatch):
    def full(size, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", full)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    workspaces = Workspaces()
    launch = Launch((1, 1, 1), (), workspace_bytes=FLAG_BYTES + 4096)
    with pytest.raises(LaunchFailed, match=r"cuda:1 for a workspace of 69632 bytes.*max_workspace"):
        workspaces._buffer(launch, 1, 0)
    assert workspaces.bytes() == 0


class User:
    """A launch that writes down which addresses it was to keep."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int]] = []

    def keep_workspace(self, stream: int, address: int) -> None:
        self.kept.append((stream, address))


def test_a_launch_keeps_its_workspace_until_it_is_given_back(monkeypatch):
    capturing = [False]
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda size, **how: empty(size, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    workspaces, user = Workspaces(), User()
    small, large = (
        Launch((1, 1, 1), (), workspace_bytes=FLAG_BYTES + size) for size in (4096, 1 << 20)
    )
    first = workspaces.address(small, 0, 5, user)
    assert user.kept == [(5, first)]
    grown = workspaces.address(large, 0, 5, user)
    assert grown != first and user.kept[1:] == [(5, grown)]
    assert workspaces.bytes() == small.workspace_bytes + large.workspace_bytes, "both are there"
    capturing[0] = True
    assert workspaces.address(small, 0, 5, user) not in (first, grown)
    assert len(user.kept) == 2, "what is a graph's is not kept"
    workspaces.release()
    assert user.kept[2:] == [(0, 0)] and workspaces.bytes() == 0
