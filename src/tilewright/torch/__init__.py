"""Under PyTorch: every operation as a torch operator (``torch.ops.tilewright.gemm``), its
gradients, and torch's functions with torch's arguments.

    import tilewright.torch            # registers the operators; needs torch

`tilewright.gemm` imports this by itself when torch has to know of a call, so only code that names
``torch.ops.tilewright`` or a function of this package needs the import. Torch's functions are
imported when first used: they stand on `tilewright.gemm` and its like. `install` serves an
unchanged torch program.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tilewright.torch import operators
from tilewright.torch.installing import (
    Installed,
    install,
    installed,
    register_flash_attention,
    uninstall,
)
from tilewright.torch.listening import listen
from tilewright.torch.preparing import prepare

if "torch.utils.flop_counter" in sys.modules:
    from tilewright.torch import flops  # noqa: F401

_CONVOLUTIONS = tuple(f"conv{form}{rank}d" for form in ("", "_transpose") for rank in (1, 2, 3))
_FUNCTIONS = {
    "products": ("addmm", "baddbmm", "bmm", "linear", "matmul", "mm"),
    "scaled": ("grouped_mm", "scaled_mm"),
    "attention": ("scaled_dot_product_attention",),
    "convolutions": _CONVOLUTIONS,
}
_HOME = {name: f"functional.{home}" for home, names in _FUNCTIONS.items() for name in names}
_HOME["keep_filters"] = "filters"
_HOME |= dict.fromkeys(("Ported", "PortedLayer", "port", "unport"), "porting")

__all__ = [
    "Installed",
    "install",
    "installed",
    "listen",
    "operators",
    "prepare",
    "register_flash_attention",
    "uninstall",
    *sorted(_HOME),
]


def __getattr__(name: str) -> Any:
    """A function of torch's, or of `porting`, imported when first used."""
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
