"""Which names are public, found in the package itself: what the API reference lists, and what must
have a docstring."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import tilewright
from tilewright import ops

MODULES: dict[str, tuple[str, ...]] = {
    "verify": (
        "Check",
        "Operands",
        "check",
        "compare",
        "make_operands",
        "operands_of",
        "reference",
        "require",
        "run",
        "tolerance",
        "verify",
    ),
    "errors": (),
    "capturing": ("load",),
    "torch": (
        "Ported",
        "PortedLayer",
        "Installed",
        "addmm",
        "baddbmm",
        "bmm",
        "grouped_mm",
        "install",
        "installed",
        "keep_filters",
        "linear",
        "listen",
        "matmul",
        "mm",
        "port",
        "prepare",
        "register_flash_attention",
        "scaled_dot_product_attention",
        "scaled_mm",
        "uninstall",
        "unport",
        *(f"conv{form}{rank}d" for form in ("", "_transpose") for rank in (1, 2, 3)),
    ),
    "transformers": ("register",),
    "jax": (),
    "registry": ("Entry", "registries", "registry"),
    "space": ("Dropped",),
    "space_file": ("space_to_json",),
    "arch": (),
    "compile": (),
    "bundle": (),
    "select": ("Choice", "Recalls", "Selector", "Skipped"),
    "tables.row": ("preference",),
    "tables.file": ("load", "save"),
    "custom": (),
    "ops": ("families", "family", "register"),
    "ops.nouns": (),
    "ops.protocols": ("Family",),
    "ops.defaults": ("Defaults",),
    "ops.epilogues": ("Operation", "Takes", "register"),
    "ops.grouped_gemm": ("Packed", "check", "pack"),
    "flash_attn": (),
    "moe": (),
    "serving": (),
    "quantise": ("dequantise", "quantise"),
    "measure.problems": ("Problems", "load_problems"),
    "measure.filters": ("Filters",),
    "measure.groups": ("groups",),
    "measure.devices": ("Place", "interpreted_device"),
    "measure.places": ("parse",),
    "measure.measurement": ("Environment", "Measurement", "Settings", "Telemetry"),
    "measure.crew": ("Crew", "Task"),
    "measure.sweep": ("Outcome", "Plan", "plan", "sweep"),
    "measure.results": ("Results",),
    "measure.summary": ("Best", "best"),
    "report": (),
}
"""The public modules besides `tilewright` itself, and the names in them that are public; without
any, its ``__all__``, or every class of its own. Documents import nothing else."""


_NEEDS = {"jax": "jax"}
"""Modules that are left out where what they need is not installed."""


@dataclass(frozen=True, slots=True)
class Public:
    """The public names of one module.

    names: the name and Sphinx's word for its kind (class, exception, function, data).
    elsewhere: names that stand under an earlier module of the reference.
    """

    module: str
    names: dict[str, str] = field(default_factory=dict)
    elsewhere: list[str] = field(default_factory=list)


def interface() -> list[Public]:
    """Every public module, `tilewright` first. An object is listed where it first appears."""
    seen: set[int] = set()
    found = []
    here = [m for m in MODULES if m not in _NEEDS or importlib.util.find_spec(_NEEDS[m])]
    for module in (tilewright, *(importlib.import_module(f"tilewright.{m}") for m in here)):
        public = Public(module.__name__)
        for name in _names(module):
            value = getattr(module, name)
            if id(value) in seen:
                public.elsewhere.append(name)
                continue
            if not isinstance(value, (str, int, tuple)):  # equal constants may be one object
                seen.add(id(value))
            public.names[name] = _kind(value)
        found.append(public)
    return found


def undocumented() -> list[str]:
    """Public functions, classes, methods and properties without a docstring."""
    lacking = []
    for public in interface():
        module = importlib.import_module(public.module)
        lacking += [] if module.__doc__ else [public.module]
        for name, kind in public.names.items():
            value = getattr(module, name)
            full = f"{public.module}.{name}"
            if kind == "data":
                continue  # its docstring is in the source alone
            lacking += [] if value.__doc__ else [full]
            if kind == "class":
                lacking += [f"{full}.{member}" for member in _bare_members(value)]
    return lacking


def _names(module: ModuleType) -> list[str]:
    if module is tilewright:
        return [name for name in [*_of_families(), *tilewright.__all__] if name != "__version__"]
    listed = MODULES[module.__name__.removeprefix("tilewright.")]
    return list(listed or getattr(module, "__all__", ()) or _classes(module))


def _classes(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]


def _of_families() -> list[str]:
    """What `tilewright` has of each family of operations."""
    found = []
    for name in ops.families():
        family = ops.family(name)
        types = (family.problem_type.__name__, family.config_type.__name__)
        found += [name, *types, *family.helpers]
    return found


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) or hasattr(value, "cache_info") else "data"


def _bare_members(owner: type) -> list[str]:
    """Public methods and properties without a docstring, inherited ones included. A method that
    overrides a documented method needs none of its own."""
    ours = [base for base in owner.__mro__ if base.__module__.startswith("tilewright")]
    return [
        name
        for name, member in {k: v for base in ours for k, v in vars(base).items()}.items()
        if not name.startswith("_")
        and (
            inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))
        )
        and not inspect.getdoc(getattr(owner, name))
    ]
