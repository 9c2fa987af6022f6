"""A driver that writes down what a launch would hand it, and launches bound to it."""

from __future__ import annotations

import ctypes
import struct
from contextlib import contextmanager

from tilewright.compile.kernel import Kernel, TensorMap
from tilewright.compile.resources import Resources
from tilewright.ops.nouns import (
    Launch,
    Step,
)
from tilewright.runtime.bound import Bound, BoundLaunch, Loaded
from tilewright.runtime.driver import Entry
from tilewright.runtime.python_launcher.launching import Config

LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *([ctypes.c_uint] * 7),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
MAP = TensorMap(swizzle=3, elem_size=2, elem_type=10, block_size=(8, 8), fp4_padded=False)


EXTENDED = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(Config),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
FILL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p
)


class StandIn:
    """A driver that writes down what it was asked; `parameters` are read as 8 bytes each, or as
    `formats` says. `by_function`: the formats of single functions. `queued`: launches and fills, in
    order."""

    backend = "cuda"

    def __init__(self, *formats: str, status: int = 0, attributes: bytes = b"") -> None:
        self.formats, self.status, self.attributes = formats, status, attributes
        self.by_function: dict[int, tuple[str, ...]] = {}
        self.launches: list[dict] = []
        self.queued: list[dict] = []
        self.encoded: list[int] = []
        self.entered: list[int] = []
        self.launch_function = LAUNCH(self._launch)
        self._extended = EXTENDED(self._launch_extended)
        self._fill = FILL(self._note_fill)
        self.fill_function = address_of(self._fill)
        self.encode_function = self.exchange_function = 0

    def entry(self, kernel, function):
        called = self._extended if self.attributes else self.launch_function
        return Entry(address_of(called), self.attributes)

    def _launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        formats = self.by_function.get(function, self.formats)
        values = [
            struct.unpack(f, ctypes.string_at(parameters[i], struct.calcsize(f)))[0]
            for i, f in enumerate(formats)
        ]
        self.launches.append(
            {
                "function": function,
                "grid": (gx, gy, gz),
                "block": (bx, by, bz),
                "shared": shared,
                "stream": stream,
                "values": values,
                "addresses": [parameters[i] for i in range(len(formats))],
            }
        )
        self.queued.append(self.launches[-1])
        return self.status if not self.entered else 0

    def _launch_extended(self, config, function, parameters, extra):
        c = config.contents
        grid, block = tuple(c.grid), tuple(c.block)
        status = self._launch(function, *grid, *block, c.shared, c.stream, parameters, extra)
        at = ctypes.cast(ctypes.addressof(c) + 40, ctypes.POINTER(ctypes.c_void_p))[0]
        self.launches[-1]["attributes"] = ctypes.string_at(at, 72 * c.count)
        return status

    def _note_fill(self, address, byte, count, stream):
        self.queued.append({"fill": (address, byte, count), "stream": stream})
        return self.status if not self.entered else 0

    @contextmanager
    def current(self, device):
        self.entered.append(device)
        yield

    def keep_current(self, device):
        self.entered.append(device)

    def tensor_map(self, descriptor, layout, address):
        self.encoded.append(address)
        return struct.pack("<Q", address) * 16

    def error(self, status):
        return f"STAND_IN ({status})"


def kernel(*tensor_maps: TensorMap) -> Kernel:
    return Kernel(
        name="k",
        arch="sm_90",
        key="0" * 64,
        triton="3.9.0",
        binary="cubin",
        entry="k",
        num_warps=4,
        num_ctas=1,
        shared=1000,
        global_scratch=0,
        global_scratch_align=1,
        profile_scratch=0,
        profile_scratch_align=1,
        cooperative=False,
        pdl=False,
        arguments=(),
        tensor_maps=tensor_maps,
        resources=Resources(32, 0, 0, 0, 0, 0),
        blobs={},
    )


def address_of(function) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value


A_OUT = (Bound("a", "in", 64), Bound("out", "out", 64))
LARGE = (Bound("a", "in", 1024), Bound("out", "out", 1024))


def bound(driver, launch, operands=A_OUT, built=None, **scalars) -> BoundLaunch:
    """Of the arguments of one kernel, or of a launch whose steps run the parts of `built`."""
    if not isinstance(launch, Launch):
        launch = Launch((Step((1, 1, 1), launch),))
    if not isinstance(built, dict):
        built = {"main": built or kernel()}
    parts = {
        name: Loaded(one, ctypes.c_void_p(77 + i)) for i, (name, one) in enumerate(built.items())
    }
    return BoundLaunch(driver, 0, parts, 32, launch, operands, **scalars)


def torch_says(stream=5, grad=False, capturing=False, transform=None):
    """What a known call asks torch for (see `call` of launcher.c)."""
    import torch

    written = torch._C._increment_version
    return (
        lambda device: stream, None, lambda: grad, lambda: capturing, written, lambda: transform
    )  # fmt: skip
