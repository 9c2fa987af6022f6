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
