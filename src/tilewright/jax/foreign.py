"""Calls as XLA makes them: by handlers in C (`handler.c`), which launch on XLA's stream, and on the
CPU by the interpreter."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from tilewright import capturing, dtypes, native
from tilewright.default import default_dispatcher
from tilewright.errors import TilewrightError
from tilewright.jax.stated import Stated, key_of, read
from tilewright.ops.nouns import TEMPORARY_ALIGNMENT, Operand, View
from tilewright.runtime.bound import BoundLaunch
from tilewright.runtime.launcher import compiled

log = logging.getLogger("tilewright")

TARGET = "tilewright"
"""What XLA knows the handlers by."""

PLATFORMS = {"cpu": "cpu", "cuda": "CUDA", "rocm": "ROCM"}
"""JAX's platforms, each of which has a handler, and XLA's names for them."""

_SOURCE = Path(__file__).with_name("handler.c")
_HEADER = "xla/ffi/api/c_api.h"


@dataclass(frozen=True, slots=True)
class Lowered:
    """A call as it stands in a module of XLA.

    text, key: its attributes.
    memory: bytes of a further result, which temporaries lie in; 0 for none, on the CPU.
    """

    text: str
    key: int
    memory: int


def lowered(stated: Stated, platform: str) -> Lowered:
    """Plan a call for the first device of a platform, and have its kernel built and loaded there.
    Raises as `Dispatcher.bound` does, and `NoCompiler`."""
    handlers = _handlers()
    if platform == "cpu":
        text = stated.text()
        return Lowered(text, key_of(text), 0)
    index = jax.local_devices(backend=platform)[0].local_hardware_id or 0
    kernel, launch = _launch(stated, index, "")
    text = stated.text(kernel)
    handlers.keep(key_of(text), index, _resolved(launch))
    _, scratch = launch.workspace
    return Lowered(text, key_of(text), scratch + TEMPORARY_ALIGNMENT if scratch else 1)


@cache
def _handlers() -> ModuleType:
    """The compiled handlers, known to XLA."""
    folder = Path(jax.ffi.include_dir())
    built = native.compiled(_SOURCE, (folder / _HEADER,), "JAX's handlers", folder)
    try:
        spec = importlib.util.spec_from_file_location("handler", built)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (OSError, ImportError) as error:
        raise native.cannot_keep(built, "JAX's handlers", error) from None
    module.serve(lambda *call: _said(_resolve, *call), lambda *call: _said(_run, *call))
    capturing.watch(_LAUNCHES)
    for platform, name in PLATFORMS.items():
        handler = getattr(module, f"on_{platform}")
        jax.ffi.register_ffi_target(TARGET, handler, platform=name)
    return module


class _Launches:
    """What a capture that begins has to know of: it sees a call when its launch is made anew."""

    def forget_launches(self) -> None:
        _handlers().forget()


_LAUNCHES = _Launches()
"""Captures keep it weakly."""


def _said(function: Callable[..., Any], *given: Any) -> Any:
    """What a function returns, or what it raises as a text, which XLA raises again."""
    try:
        return function(*given)
    except TilewrightError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        log.exception("a call under JAX failed")
        return f"{type(error).__name__}: {error}"


# --- on a GPU ----------------------------------------------------------------------------------


def _resolve(text: str, index: int) -> Any:
    """What a call launches on a device that it was not lowered for: another of the machine's, or
    one of another process, which XLA's cache or an export brought the call from."""
    stated, kernel = read(text)
    _, launch = _launch(stated, index, kernel)
    return _resolved(launch)


def _launch(stated: Stated, index: int, kernel: str) -> tuple[str, BoundLaunch]:
    """The name of a call's kernel, and its launch on a device."""
    plan, launch = default_dispatcher().bound(
        stated.problem, stated.bound, dict(stated.scalars), index, kernel
    )
    for capture in capturing.active:
        capture.follow(plan, launch.launches)
    return plan.config.name, launch


def _resolved(launch: BoundLaunch) -> tuple[Any, ...]:
    """As handler.c takes it."""
    _, scratch = launch.workspace
    alone, again = compiled().launch_alone, partial(_said, partial(_again, launch))
    return launch.native, alone, launch.exchange_function, scratch, again


def _again(launch: BoundLaunch, stream: int, addresses: tuple[int, ...]) -> None:
    operands, kept_zero, scratch = addresses[:-2], addresses[-2], addresses[-1]
    launch(stream, operands, (kept_zero, scratch), apart=True)


# --- on the CPU --------------------------------------------------------------------------------


def _run(text: str, addresses: tuple[int, ...]) -> None:
    """Compute a call from and to arrays in this machine's memory."""
    stated, _ = read(text)
    outputs = tuple(map(_view, stated.outputs))
    found = [
        _array(view, address)
        for view, address in zip((*stated.views, *outputs), addresses, strict=True)
    ]
    first, made = found[: len(stated.views)], found[len(stated.views) :]
    inputs = len(first) - len(stated.named)
    named = dict(zip(stated.named, first[inputs:], strict=True))
    keywords = {**dict(stated.options), **named, **dict(stated.scalars)}
    default_dispatcher().run_given(stated.op, first[:inputs], tuple(made), None, keywords)


def _view(made: Operand) -> View:
    return View(made.shape, made.strides, made.dtype, 0, "cpu")


def _array(view: View, address: int) -> Any:
    """The NumPy array at an address, without gaps."""
    kind = dtypes.numpy_dtype(dtypes.dtype(view.dtype))
    if 0 in view.shape:
        return np.empty(view.shape, kind)
    count = int(np.prod(view.shape)) * kind.itemsize
    memory: Any = (ctypes.c_char * count).from_address(address)
    strides = [step * kind.itemsize for step in view.strides]
    return np.ndarray(view.shape, kind, memory, 0, strides)
