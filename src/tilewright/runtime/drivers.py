"""The driver of each backend."""

from __future__ import annotations

from functools import cache

from tilewright.runtime.driver import Driver


@cache
def driver(backend: str) -> Driver:
    """The driver for a backend (``"cuda"``, ``"hip"``), opened once. Raises `NoDriver`."""
    if backend == "cuda":
        from tilewright.runtime.cuda import CudaDriver

        return CudaDriver()
    from tilewright.runtime.hip import HipDriver

    return HipDriver()
