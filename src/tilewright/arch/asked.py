"""The process that lists this machine's GPUs for its parent, which must not open a driver.

It imports no more than it needs, since every command that uses GPUs waits for it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tilewright.arch.detect import live_devices, live_uuids
from tilewright.child import Blob, Message, serve
from tilewright.errors import TilewrightError


def answer() -> Message:
    """``devices``: every GPU's UUID and fingerprint; or ``error``: why there is none."""
    try:
        return {"devices": [*zip(live_uuids(), map(asdict, live_devices()), strict=True)]}
    except TilewrightError as error:
        return {"error": str(error)}


def main() -> None:
    """Answer one parent until it is gone, whatever it asks."""

    def handle(_message: Message, _blobs: list[bytes]) -> tuple[Message, Sequence[Blob]]:
        return answer(), ()

    serve(handle)
