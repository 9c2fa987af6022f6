"""What tests of calls that do not wait have in common: two kernels for a problem, a call of it,
and a compiler that waits until it is told to build."""

from __future__ import annotations

import threading

import torch
from gemm_cases import config

from patience import LIMIT_SECONDS, until
from tilewright.arch import arch
from tilewright.compile import BuildReport, BuildResult
from tilewright.ops.gemm import GemmProblem

CHOSEN = config(layout="rrr")
OTHER = config(layout="rrr", scheduler="split_k", split_k=2, reduction="linear")
PROBLEM = GemmProblem(16, 32, 256, layout="rrr")
A, B = (torch.ones(size, dtype=torch.bfloat16) for size in ((16, 256), (256, 32)))


class Compiler:
    """Builds nothing, when the test says so.

    there: the kernels that are built. asked: those that were to be built behind the calls.
    error: what a build raises. broken: whether it fails.
    """

    def __init__(self):
        self.there, self.asked = {OTHER}, []
        self.go, self.broken, self.error = threading.Event(), False, None

    def has(self, this, config, target, index, look_up=True):
        return config in self.there if look_up else (config.name, index) in this._functions

    def was_asked(self):
        """Wait until the thread behind the calls has asked for something: it may start late."""
        until(lambda: self.asked)
        return self.asked

    def build(self, this, configs, target, progress):
        self.asked += configs
        assert self.go.wait(LIMIT_SECONDS)
        if self.error:
            raise self.error
        status = "failed" if self.broken else "built"
        if not self.broken:
            self.there.update(configs)
        results = [BuildResult(c, c.name, arch(target.arch), status) for c in configs]
        for number, result in enumerate(results, 1):
            progress(result, number, len(results))
        return BuildReport(tuple(results), 0.0)


def call(dispatcher, **options):
    dispatcher.run("gemm", A, B, out=torch.zeros(16, 32, dtype=torch.bfloat16), **options)


def loaded(dispatcher) -> list[str]:
    """The kernels that were loaded, in order."""
    return [name for name, _ in dispatcher.loader._functions]
