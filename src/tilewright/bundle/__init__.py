"""Bundles: prebuilt kernels in one file, served without Triton, a compiler, or a certain Python.

`write` makes one from a store, `Bundle` reads one, `opened` says which of them a dispatcher uses.
"""

from tilewright.bundle.bundle import Bundle, UntrustedBundle
from tilewright.bundle.shelf import Shelf, installed, opened
from tilewright.bundle.wheel import write_wheel
from tilewright.bundle.write import Content, Written, write

__all__ = [
    "Bundle",
    "Content",
    "Shelf",
    "UntrustedBundle",
    "Written",
    "installed",
    "opened",
    "write",
    "write_wheel",
]
