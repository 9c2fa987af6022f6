"""What the names in a kernel's source stand for in a simulation: simulated functions, modules of
them, and device functions that run in Python with such names."""

from __future__ import annotations

import types
from typing import Any

import sim_language as language
import triton.language as tl
from sim_values import Fault, Int, Tensor, scalar
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper


class _Module:
    """A module of which some names are simulated."""

    def __init__(self, real: Any, functions: dict[str, Any]) -> None:
        self._real, self._functions = real, functions

    def __getattr__(self, name: str) -> Any:
        if name in self._functions:
            return self._functions[name]
        found = getattr(self._real, name)
        if isinstance(found, types.ModuleType):
            return simulated(found)
        known = language.OBJECTS.get(id(found))
        if known is not None:
            return known
        if (
            callable(found)
            and not isinstance(found, type)
            and not hasattr(found, "primitive_bitwidth")
        ):
            raise Fault(f"the simulation does not know {self._real.__name__}.{name}")
        return found


_MODULES = {
    id(gl): _Module(gl, language.FUNCTIONS),
    id(tl): _Module(tl, language.FUNCTIONS),
    id(tl.math): _Module(tl.math, language.FUNCTIONS),
    id(hopper.mbarrier): _Module(hopper.mbarrier, language.BARRIER),
    id(hopper.tma): _Module(hopper.tma, language.COPIES),
    id(hopper.async_copy): _Module(hopper.async_copy, language.THREADS_COPIES),
}


class Function:
    """A device function, run by Python with simulated names."""

    def __init__(self, real: Any) -> None:
        self._python = real.fn
        self.name = real.fn.__name__
        self._runs: Any = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self._runs is None:
            old = self._python
            names = {
                name: simulated(value)
                for name, value in old.__globals__.items()
                if name in _names(old.__code__)
            }
            names["__builtins__"] = {
                **vars(__import__("builtins")),
                "range": _range,
                "min": _least,
                "max": _most,
            }
            defaults = tuple(map(simulated, old.__defaults__ or ()))  # some are device functions
            self._runs = types.FunctionType(
                old.__code__, names, old.__name__, defaults, old.__closure__
            )
            self._runs.__kwdefaults__ = old.__kwdefaults__
        return self._runs(*arguments, **keywords)


def _least(*values: Any) -> Any:
    if any(isinstance(v, Tensor) for v in values):
        return language.FUNCTIONS["minimum"](*values)
    return scalar(min(*values))


def _most(*values: Any) -> Any:
    if any(isinstance(v, Tensor) for v in values):
        return language.FUNCTIONS["maximum"](*values)
    return scalar(max(*values))


def _range(*limits: Any, **_: Any) -> Any:
    return map(Int, range(*(int(x) for x in limits)))


language.FUNCTIONS["range"] = _range


def _names(code: Any) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


known_functions: dict[int, Any] = {}


def simulated(value: Any) -> Any:
    """What stands for a global of a kernel's module."""
    known = _MODULES.get(id(value)) or language.OBJECTS.get(id(value))
    if known is not None:
        return known
    if isinstance(value, tl.constexpr):
        return simulated_constant(value.value)
    if isinstance(value, types.ModuleType):
        return _Module(value, {}) if value.__name__.startswith("triton") else value
    if type(value).__name__ in ("GluonJITFunction", "JITFunction"):
        if id(value) not in known_functions:
            known_functions[id(value)] = Function(value)
        return known_functions[id(value)]
    if getattr(value, "__triton_aggregate__", False):
        return lambda *values: types.SimpleNamespace(**dict(zip(value.fields, values, strict=True)))
    if type(value).__name__ == "ConstexprFunction":
        return lambda *a, **k: simulated_constant(_plain(value.fn(*map(_plain, a), **k)))
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, tl.constexpr):
        return value.value
    if isinstance(value, Int):
        return int(value)
    return value


def simulated_constant(value: Any) -> Any:
    """A compile-time constant."""
    if isinstance(value, tl.constexpr):
        return simulated_constant(value.value)
    if isinstance(value, tuple):
        return tuple(map(simulated_constant, value))
    return scalar(value) if isinstance(value, int | float) else value
