"""Bundles: prebuilt kernels in one file, served without Triton, a compiler, or a certain Python.

`write` makes a bundle from a store. `Bundle` reads it. `opened` finds the bundles of a dispatcher.
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
