"""Listening: the products, convolutions and attentions that a model makes by torch's own
operations, as problems with counts, in a file that tuning reads.

    with tilewright.torch.listen("shapes.jsonl"):
        train()

    TILEWRIGHT_LISTEN=shapes.jsonl python train.py      # a whole process, and its children

Torch's kernels of these operations are wrapped (`hooks`), not its modules or functions: eager code
and the code that ``torch.compile`` makes call the same kernels, in the forward pass and in the
backward pass, in every thread. What is heard is kept by shapes, strides and dtypes (`heard`), timed
(`clock`), and written as a capture is (`tilewright.capture_file`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.torch.listening.listener import Listener

__all__ = ["listen", "listen_until_exit"]


@contextmanager
def listen(path: str | os.PathLike[str]) -> Iterator[None]:
    """Append the problems of torch's own products, convolutions and attentions to `path`
    (``.jsonl``), with counts and times, until the context ends.

    All threads are heard, forward and backward, eager and compiled. A CUDA graph counts once, when
    it is captured.

    Raises `BadArgument` for a file that cannot be appended to or is no capture. If the disk fills
    up later, listening ends with a warning.
    """
    listener = Listener(path)
    listener.start()
    try:
        yield
    finally:
        listener.stop()


def listen_until_exit(path: str | os.PathLike[str]) -> None:
    """As `listen`, until the process ends."""
    listener = Listener(path)
    listener.start()
    listener.until_exit()
