"""Calls that are planned and launched, on a stand-in for a GPU, with kernels that nobody built."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import stand_in_gpu
from stand_in_driver import kernel
from torch import Tensor

from tilewright import operation, ops, parameters
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.nouns import Given, Pointer, Scalar
from tilewright.runtime.bound import Loaded
from tilewright.torch import backward_pass, eager, gradients, operators

PORTABLE = ("basic", "weights", "implicit", "depthwise", "stream", "custom")


class Unbuilt(Dispatcher):
    """Launches kernels of portable pipelines that nobody built."""

    def __init__(self, driver: Any) -> None:
        super().__init__(selector=self._portable, build_missing=True)
        self.seen_by, self._numbers = driver, {}
        self.loader.functions = self._functions
        self._made_ready = self._launchable.ready
        self._launchable.ready = self._ready

    @staticmethod
    def _portable(problem, configs, gpu):
        return [c for c in configs if c.pipeline in PORTABLE]

    def _functions(self, config, target, index):
        parts = ops.family_of(config.name).sources(config, arch(target.arch))
        for part in parts:
            self._numbers.setdefault((config.name, part), 100 + len(self._numbers))
        return {
            part: Loaded(kernel(), ctypes.c_void_p(self._numbers[config.name, part]))
            for part in parts
        }

    def _ready(self, *given, **named):
        ready = self._made_ready(*given, **named)
        for step in ready.plan.launch.steps:
            number = self._numbers[ready.plan.config.name, step.part]
            self.seen_by.by_function[number] = tuple(map(_format, step.arguments))
        return ready


def _format(argument: Any) -> str:
    assert isinstance(argument, Pointer | Scalar | Given)
    return "<Q" if isinstance(argument, Pointer) else f"<{parameters.size(argument.type)[0]}s"


def install(patch: pytest.MonkeyPatch, torch: Any) -> Any:
    """The stand-in's driver, whose `dispatcher` is the process's until the patches are undone."""
    driver = stand_in_gpu.install(patch, torch)
    dispatcher = Unbuilt(driver)
    operation._look_for_torch()
    for module in (operation, eager, operators, gradients, backward_pass):
        patch.setattr(module, "default_dispatcher", lambda: dispatcher)
    driver.dispatcher = dispatcher
    return driver


class Shown:
    """What a call launches, with the names of tensors for their addresses."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def __call__(self, call: Any, tensors: dict[str, Any]) -> Any:
        begin = len(self.driver.launches)
        try:
            made = call(**tensors)
        except (BadArgument, TypeError) as error:
            assert len(self.driver.launches) == begin
            return type(error), str(error)
        results = made if isinstance(made, tuple) else (made,)
        named = tensors | {f"made {i}": x for i, x in enumerate(results) if x is not None}
        launches = self.driver.launches[begin:]
        shown = [
            (one["function"], one["grid"], [self._value(value, named) for value in one["values"]])
            for one in launches
        ]
        assert shown
        layouts = [None if x is None else (x.shape, x.stride(), x.dtype) for x in results]
        return shown, layouts

    @staticmethod
    def _value(value: Any, named: dict[str, Any]) -> Any:
        for name, x in named.items():
            if isinstance(value, int) and isinstance(x, Tensor):
                storage = x.untyped_storage()
                if 0 <= value - storage.data_ptr() < storage.nbytes():
                    return name, value - x.data_ptr()
        return "a copy" if isinstance(value, int) and value else value
