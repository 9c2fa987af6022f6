"""A stand-in for MIOpen: descriptors and handles as it has them, and convolutions computed in
memory of the host from what it is told alone."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from host_convolution import array, compute

from tilewright.runtime.miopen import Miopen

BAD_PARAMETER, NOT_IMPLEMENTED = 3, 6
TYPES = {0: np.float16, 1: np.float32}
DIRECTIONS = {
    "Forward": ("forward", "wxy"), "BackwardData": ("data", "ywx"),
    "BackwardWeights": ("weights", "yxw"),
}  # fmt: skip


@dataclass
class Offer:
    """A solver as the library lists it. repeats: also where deterministic ones are asked for.
    compiles: whether its kernels can be built."""

    number: int
    algorithm: int = 5
    workspace: int = 0
    repeats: bool = True
    compiles: bool = True


@dataclass
class Descriptor:
    """What it was told, by the function that told it."""

    said: dict[Any, tuple[int, ...]] = field(default_factory=dict)


class FakeMiopen:
    """Its attributes are the library's functions."""

    def __init__(self, *offers: Offer) -> None:
        self.offers = list(offers)
        self.version, self.status = (3, 4, 0), 0
        self.living: dict[int, Descriptor] = {}
        self.streams: list[int] = []
        """Of each handle."""
        self.compiled: list[tuple[int, int]] = []
        """Handles and solvers."""
        self.calls: list[dict[str, Any]] = []
        self.mixed = 0
        """Uses of a handle by two threads at a time."""
        self._busy: set[int] = set()
        self._next = 1000
        of, int_, at, size = ctypes.CFUNCTYPE, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
        number = ctypes.c_uint64
        self.miopenGetVersion = of(int_, at, at, at)(self._get_version)
        self._text = ctypes.create_string_buffer(b"miopenStatusBadParm")
        self.miopenGetErrorString = of(at, int_)(lambda _: ctypes.addressof(self._text))
        self.miopenCreateWithStream = of(int_, at, at)(self._create_handle)
        self.miopenCreateTensorDescriptor = of(int_, at)(self._create)
        self.miopenCreateConvolutionDescriptor = of(int_, at)(self._create)
        self.miopenDestroyTensorDescriptor = of(int_, at)(self._destroy)
        self.miopenDestroyConvolutionDescriptor = of(int_, at)(self._destroy)
        self.miopenSetTensorDescriptor = of(int_, at, int_, int_, at, at)(self._set_tensor)
        self.miopenInitConvolutionNdDescriptor = of(int_, at, int_, at, at, at, int_)(self._init)
        self.miopenSetConvolutionGroupCount = of(int_, at, int_)(self._set_groups)
        self.miopenSetConvolutionAttribute = of(int_, at, int_, int_)(self._set_attribute)
        for words, (direction, order) in DIRECTIONS.items():
            for name, function, more in (
                ("GetSolutionCount", self._count, (at,)),
                ("GetSolution", self._list, (size, at, at)),
                ("GetSolutionWorkspaceSize", self._need, (number, at)),
                ("CompileSolution", self._compile, (number,)),
            ):
                made = of(int_, *([at] * 5), *more)(function)
                setattr(self, f"miopenConvolution{words}{name}", made)

            def run(*given: Any, direction: str = direction, order: str = order) -> int:
                return self._run(direction, order, *given)

            made = of(int_, *([at] * 9), size, number)(run)
            setattr(self, f"miopenConvolution{words}Immediate", made)

    def opened(self, name: str = "miopen3") -> Miopen:
        return Miopen(self, name)

    def _get_version(self, *places: int) -> int:
        for place, number in zip(places, self.version, strict=True):
            ctypes.c_size_t.from_address(place).value = number
        return 0

    def _create_handle(self, out: int, stream: int | None) -> int:
        self.streams.append(stream or 0)
        ctypes.c_void_p.from_address(out).value = len(self.streams)
        return 0

    def _create(self, out: int) -> int:
        self._next += 8
        self.living[self._next] = Descriptor()
        ctypes.c_void_p.from_address(out).value = self._next
        return 0

    def _destroy(self, made: int) -> int:
        del self.living[made]
        return 0

    def _set_tensor(self, made: int, dtype: int, rank: int, shape: int, strides: int) -> int:
        said = self.living[made].said
        said["dtype"] = (dtype,)
        said["shape"], said["strides"] = _ints(shape, rank), _ints(strides, rank)
        return 0

    def _init(self, made: int, rank: int, pad: int, stride: int, dilation: int, mode: int) -> int:
        said = self.living[made].said
        said["pad"], said["stride"] = _ints(pad, rank), _ints(stride, rank)
        said["dilation"], said["mode"] = _ints(dilation, rank), (mode,)
        return 0

    def _set_groups(self, made: int, groups: int) -> int:
        self.living[made].said["groups"] = (groups,)
        return 0

    def _set_attribute(self, made: int, attribute: int, value: int) -> int:
        assert attribute in (0, 1)
        self.living[made].said[attribute] = (value,)
        return 0

    # --- solvers -------------------------------------------------------------------------------

    def _offered(self, convolution: int) -> list[Offer]:
        (deterministic,) = self.living[convolution].said[1]
        return [one for one in self.offers if one.repeats or not deterministic]

    def _count(self, handle: int, a: int, b: int, convolution: int, c: int, out: int) -> int:
        found = self._offered(convolution)
        ctypes.c_size_t.from_address(out).value = len(found)
        return 0 if found else NOT_IMPLEMENTED

    def _list(
        self, handle: int, a: int, b: int, convolution: int, c: int, most: int, out: int, into: int
    ) -> int:
        found = self._offered(convolution)[:most]
        ctypes.c_size_t.from_address(out).value = len(found)
        for i, one in enumerate(found):
            at = into + 32 * i
            ctypes.c_float.from_address(at).value = 0.5
            ctypes.c_size_t.from_address(
                at + 8
            ).value = 1  # of a database: what is asked for counts
            ctypes.c_uint64.from_address(at + 16).value = one.number
            ctypes.c_int.from_address(at + 24).value = one.algorithm
        return 0

    def _need(self, handle: int, a: int, b: int, conv: int, c: int, number: int, out: int) -> int:
        (found,) = (one for one in self._offered(conv) if one.number == number)
        ctypes.c_size_t.from_address(out).value = found.workspace
        return 0

    def _compile(self, handle: int, a: int, b: int, convolution: int, c: int, number: int) -> int:
        (found,) = (one for one in self._offered(convolution) if one.number == number)
        self.compiled.append((handle, number))
        return 0 if found.compiles else BAD_PARAMETER

    def _run(
        self, direction: str, order: str, handle: int, first: int, one: int, second: int, two: int,
        convolution: int, made: int, three: int, workspace: int | None, size: int, number: int,
    ) -> int:  # fmt: skip
        if self.status:
            return self.status
        self.mixed += handle in self._busy
        self._busy.add(handle)
        time.sleep(0)  # so that another thread comes between, if it may
        assert (handle, number) in self.compiled and bool(workspace) == bool(size)
        given = zip(order, ((first, one), (second, two), (made, three)), strict=True)
        said = {name: (self.living[of].said, at) for name, (of, at) in given}
        conv = self.living[convolution].said
        assert conv["mode"] == (0,) and conv["groups"] == self._groups(said)
        self.calls.append({"handle": handle, "workspace": size, "convolution": conv})
        arrays = [
            array(at, TYPES[of["dtype"][0]], of["shape"], of["strides"])
            for of, at in map(said.get, "xwy")  # type: ignore[misc]
        ]
        how = {name: conv[name] for name in ("stride", "dilation", "pad")}
        compute(direction, arrays, **how)
        self._busy.discard(handle)
        return 0

    def _groups(self, said: dict[str, Any]) -> tuple[int]:
        return (said["x"][0]["shape"][1] // said["w"][0]["shape"][1],)


def _ints(address: int, count: int) -> tuple[int, ...]:
    return tuple((ctypes.c_int * count).from_address(address))
