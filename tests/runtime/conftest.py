"""A library of the vendor's, opened, and a GPU that has it, where there is neither; a compiler that
waits until it is told to build."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def library(fake: Any) -> Any:
    """The library whose functions a test file's stand-in has."""
    return fake.opened()


@pytest.fixture
def driver() -> Any:
    """A stand-in for a GPU's driver."""
    import stand_in_gpu

    return stand_in_gpu.Driver()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, driver: Any, store: Any) -> Iterator[Any]:
    """A stand-in for the compiler behind the calls: both kernels are in the store."""
    from standing_bench import CHOSEN, OTHER, Compiler

    from shared_builds import build_once
    from tilewright.loader import Loader

    build_once([(CHOSEN, "sm_90"), (OTHER, "sm_90")], store).raise_if_failed()
    made = Compiler()
    monkeypatch.setattr(Loader, "has", lambda *given, **how: made.has(*given, **how))
    monkeypatch.setattr(Loader, "build", lambda *given, **how: made.build(*given, **how))
    yield made
    made.go.set()


@pytest.fixture
def over(compiler: Any, store: Any) -> Any:
    """Dispatchers that prefer `CHOSEN` of standing_bench."""
    from standing_bench import CHOSEN, OTHER

    from tilewright.dispatch import Dispatcher
    from tilewright.registry import Registry

    def made(**options: Any) -> Any:
        registry = Registry("both").register_all([CHOSEN, OTHER])
        options = {"waits": False, "selector": "first_fit", "store": store} | options
        return Dispatcher(registry, **options)

    return made


@pytest.fixture(params=["compiled", "python"])
def native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The launcher, compiled and in Python: launches are bound to it."""
    from tilewright.runtime import bound, python_launcher
    from tilewright.runtime.launcher import compiled

    module = compiled() if request.param == "compiled" else python_launcher
    monkeypatch.setattr(bound, "launcher", lambda: module)
    return module


@pytest.fixture(params=["compiled", "python"])
def gpu(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, library: Any
) -> Iterator[SimpleNamespace]:
    """A stand-in for a GPU, the test file's `GPU`, whose library computes in memory of the host: by
    the compiled launcher, and by its twin in Python."""
    import stand_in_gpu
    import torch

    from tilewright import loader
    from tilewright.arch import device
    from tilewright.dispatch import Dispatcher
    from tilewright.runtime import bound, python_launcher
    from tilewright.runtime.launcher import compiled

    named = getattr(request.module, "GPU", "h200_sxm")
    module = compiled() if request.param == "compiled" else python_launcher
    monkeypatch.setattr(bound, "launcher", lambda: module)
    monkeypatch.setattr("tilewright.ready.launcher", lambda: module)
    driver = stand_in_gpu.install(monkeypatch, torch, named)
    monkeypatch.setattr(loader, "opened_library", lambda name: library)
    stream = SimpleNamespace(now=stand_in_gpu.CURRENT_STREAM)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: stream.now, raising=False)
    loader._lacking.cache_clear()
    yield SimpleNamespace(driver=driver, dispatcher=Dispatcher(device=device(named)), stream=stream)
    loader._lacking.cache_clear()


@pytest.fixture(scope="module")
def cpu() -> Iterator[Any]:
    """An interpreter that knows interp_kernels."""
    from interpreting import ENV

    from tilewright.runtime.interpreter import Interpreter

    with pytest.MonkeyPatch.context() as patch, Interpreter() as interpreter:
        for name, value in ENV.items():
            patch.setenv(name, value)
        yield interpreter
