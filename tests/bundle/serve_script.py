"""Serves from a bundle where there is no Triton, no torch and no C compiler: run with the bundle's
path and a kernel's name, under any supported Python."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace


class Blocked:
    """Imports of what a serving machine has not fail."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("triton", "torch"):
            raise ImportError(f"{name} must not be imported here")


sys.meta_path.insert(0, Blocked())

from tilewright import arch, dispatch, loader  # noqa: E402
from tilewright.bundle import Bundle  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.runtime.bound import Bound, BoundLaunch  # noqa: E402
from tilewright.runtime.driver import Entry  # noqa: E402

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *([ctypes.c_uint] * 7), *([ctypes.c_void_p] * 3)
)


class StandIn:
    """A driver that writes down what it was given."""

    backend = "cuda"

    def __init__(self):
        self.loaded, self.launched = [], []
        self.fill_function = 0
        self._function = LAUNCH(self._launch)

    def entry(self, kernel, function):
        return Entry(ctypes.cast(self._function, ctypes.c_void_p).value)

    def load(self, device, binary, entry, shared):
        self.loaded.append(binary)
        return ctypes.c_void_p(77)

    def tensor_map(self, view, layout, address):
        return bytes(128)

    def _launch(self, function, gx, gy, gz, bx, *rest):
        self.launched.append((function, gx, bx))
        return 0


driver = StandIn()
loader.driver = lambda backend: driver
device = arch.device("h200_sxm")
dispatcher = dispatch.Dispatcher(device=device, bundle=Bundle(sys.argv[1], trusted=True))
plan = dispatcher.select(GemmProblem(64, 512, 512))
loaded = dispatcher.loader.functions(plan.config, device, 0)["main"]
# The bundle's kernel is made up, and has a tensor map that its launch has no use for.
parts = {"main": replace(loaded, kernel=replace(loaded.kernel, tensor_maps=()))}
operands = [Bound("A", "in", 2), Bound("B", "in", 2), Bound("C", "out", 2)]
launch = BoundLaunch(driver, 0, parts, 32, plan.launch, operands)
launch(0, (0x1000, 0x2000, 0x3000))
assert len(driver.launched) == 1, driver.launched
print(plan.config.name, len(driver.loaded[0]))
