"""Tilewright: the best tile kernel for each problem on each GPU.

    import tilewright
    c = tilewright.gemm(a, b)          # chooses, builds on first use, launches

Everything below is imported when first used: ``import tilewright`` costs milliseconds and
imports neither torch nor triton.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright import variables
from tilewright.version import __version__

if TYPE_CHECKING:
    from tilewright.addresses import pointers
    from tilewright.arch import Arch, Device
    from tilewright.arch.detect import live_device, live_devices
    from tilewright.bundle import Bundle
    from tilewright.capturing import capture
    from tilewright.compile import BuildReport, Kernel, Store, build
    from tilewright.default import default_dispatcher, prepare
    from tilewright.dispatch import Dispatcher
    from tilewright.errors import TilewrightError
    from tilewright.explain import Explanation
    from tilewright.moe import fused_moe as fused_moe
    from tilewright.moe import routed_moe as routed_moe
    from tilewright.operations import *  # noqa: F403 (a stub, made by docs/site/stubs.py)
    from tilewright.plan import Plan
    from tilewright.pointer_array import Pointers
    from tilewright.preparing import Measured, Measuring, Preparation
    from tilewright.registry import Registry
    from tilewright.select import ByFunction, Chain, FirstFit
    from tilewright.select.analytical import Analytical
    from tilewright.select.constraints import Constraints
    from tilewright.select.tuned import Tuned
    from tilewright.space import Expansion, KernelSpace
    from tilewright.space_file import load_space
    from tilewright.tables.row import Row
    from tilewright.tables.table import Table
    from tilewright.verdict import Verdict

_EXPORTS = {
    "arch": ("Arch", "Device"),
    "arch.detect": ("live_device", "live_devices"),
    "compile": ("BuildReport", "Kernel", "Store", "build"),
    "bundle": ("Bundle",),
    "capturing": ("capture",),
    "default": ("default_dispatcher", "prepare"),
    "dispatch": ("Dispatcher",),
    "plan": ("Plan",),
    "pointer_array": ("Pointers",),
    "preparing": ("Measured", "Measuring", "Preparation"),
    "addresses": ("pointers",),
    "errors": ("TilewrightError",),
    "explain": ("Explanation",),
    "moe": ("fused_moe", "routed_moe"),
    "registry": ("Registry",),
    "select": ("ByFunction", "Chain", "FirstFit"),
    "select.analytical": ("Analytical",),
    "select.constraints": ("Constraints",),
    "select.tuned": ("Tuned",),
    "space": ("Expansion", "KernelSpace"),
    "space_file": ("load_space",),
    "tables.row": ("Row",),
    "tables.table": ("Table",),
    "verdict": ("Verdict",),
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}
_ROOMS = (
    "arch",
    "compile",
    "bundle",
    "dispatch",
    "errors",
    "flash_attn",
    "moe",
    "ops",
    "quantise",
    "registry",
    "select",
    "serving",
    "space",
    "space_file",
    "tables",
    "torch",
    "verify",
)

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    """A name of the public interface, or of an operation family: its function (``gemm``), its
    problem and its config type, its helpers, its other functions."""
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    elif _is_module(name):  # `from tilewright import …` asks here first, and imports it then
        raise AttributeError(f"module '{__name__}.{name}' is not imported")
    else:
        value = _of_a_family(name)
        if isinstance(value, type) and value.__module__ == __name__:
            return value  # of a user's operation: to register that anew makes another type
    globals()[name] = value
    return value


def _is_module(name: str) -> bool:
    here = Path(__file__).parent
    return (here / f"{name}.py").exists() or (here / name / "__init__.py").exists()


def _of_a_family(name: str) -> Any:
    from tilewright import ops

    if not name.startswith("_"):
        if name in ops.families():
            from tilewright.operation import operation

            return operation(name)
        # Pages are many, and each takes a few milliseconds to import: they come last.
        pages = ops.declared()
        others = (one for one in ops.families() if one not in pages)
        for family in map(ops.family, (*others, *pages)):
            for kind in (family.problem_type, family.config_type):
                if kind.__name__ == name:
                    return kind
            if name in family.helpers:
                return family.helpers[name]
            if name in family.functions:
                from tilewright.operation import function

                return function(family.name, name, family.functions[name])
    raise AttributeError(f"module 'tilewright' has no attribute '{name}'")


def __dir__() -> list[str]:
    from tilewright import ops

    return sorted({*globals(), *_HOME, *_ROOMS, *ops.families()})


variables.warn()
