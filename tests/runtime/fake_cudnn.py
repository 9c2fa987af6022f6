"""A stand-in for cuDNN: descriptors as it has them, and graphs computed in memory of the host from
what descriptors say alone."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from host_convolution import array, compute

from tilewright.runtime.cudnn import Cudnn

BAD_PARAM, NOT_SUPPORTED = 2000, 3000
_C = {
    0: ctypes.c_void_p, 1: ctypes.c_int, 2: ctypes.c_bool, 3: ctypes.c_int64, 4: ctypes.c_float,
    6: ctypes.c_void_p, 15: ctypes.c_void_p,
    **dict.fromkeys((7, 8, 9, 11, 14, 18), ctypes.c_int),
}  # fmt: skip
"""C's type of an attribute's type."""
DIRECTIONS = {10: ("forward", 700), 12: ("data", 706), 11: ("weights", 712)}
PLACES = {"forward": (704, 703, 705), "data": (710, 709, 711), "weights": (716, 715, 717)}
TYPES = {
    0: np.float32, 2: np.float16, 4: np.int32, 9: ml_dtypes.bfloat16, 11: np.bool_,
    12: ml_dtypes.float8_e4m3fn, 13: ml_dtypes.float8_e5m2,
}  # fmt: skip
FLOATS = (0, 2, 9, 12, 13)
POINTWISE = {
    0: np.add, 1: np.multiply, 6: np.divide, 9: np.subtract, 13: np.exp, 15: np.log,
    21: np.positive, 303: np.greater_equal, 601: lambda x, b, t: np.where(t, x, b),
}  # fmt: skip
REDUCTIONS = {0: np.sum, 3: np.max}


@dataclass
class Descriptor:
    kind: int
    said: dict[int, list[Any]] = field(default_factory=dict)
    finished: bool = False


@dataclass
class Offer:
    """An engine as the heuristic names it. refused: no plan can be made."""

    number: int
    knobs: tuple[tuple[int, int], ...] = ()
    notes: tuple[int, ...] = ()
    workspace: int = 0
    refused: bool = False


class FakeCudnn:
    """Its attributes are the library's functions."""

    def __init__(self, *offers: Offer) -> None:
        self.offers = {one.number: one for one in offers}
        self.living: dict[int, Descriptor] = {}
        self.version, self.status, self.opened_handles = 91900, 0, 0
        self.calls: list[dict[str, Any]] = []
        self.streams: list[int] = []
        self._next = 1000
        of, int_, at = ctypes.CFUNCTYPE, ctypes.c_int, ctypes.c_void_p
        self.cudnnGetVersion = of(ctypes.c_size_t)(lambda: self.version)
        self._text = ctypes.create_string_buffer(b"CUDNN_STATUS_NOT_SUPPORTED")
        self.cudnnGetErrorString = of(ctypes.c_void_p, int_)(lambda _: ctypes.addressof(self._text))
        self.cudnnCreate = of(int_, at)(self._create_handle)
        self.cudnnSetStream = of(int_, at, at)(self._set_stream)
        self.cudnnBackendCreateDescriptor = of(int_, int_, at)(self._create)
        six = (at, int_, int_, ctypes.c_int64)
        self.cudnnBackendSetAttribute = of(int_, *six, at)(self._set)
        self.cudnnBackendGetAttribute = of(int_, *six, at, at)(self._get)
        self.cudnnBackendFinalize = of(int_, at)(self._finalize)
        self.cudnnBackendExecute = of(int_, at, at, at)(self._execute)
        self.cudnnBackendDestroyDescriptor = of(int_, at)(self._destroy)

    def opened(self, name: str = "cudnn9") -> Cudnn:
        return Cudnn(self, name)

    def _create_handle(self, out: int) -> int:
        self.opened_handles += 1
        ctypes.c_void_p.from_address(out).value = 7
        return 0

    def _set_stream(self, handle: int, stream: int | None) -> int:
        self.streams.append(stream or 0)
        return 0 if handle == 7 else BAD_PARAM

    def _create(self, kind: int, out: int) -> int:
        self._next += 8
        self.living[self._next] = Descriptor(kind)
        ctypes.c_void_p.from_address(out).value = self._next
        return 0

    def _set(self, made: int, number: int, of: int, count: int, values: int) -> int:
        if self.living[made].finished or number in self.living[made].said:
            return BAD_PARAM
        self.living[made].said[number] = list((_C[of] * count).from_address(values))
        return 0

    def _finalize(self, made: int) -> int:
        one = self.living[made]
        if one.finished or not all(self.living[d].finished for d in self._below(one)):
            return BAD_PARAM
        if one.kind == 5:
            (config,) = one.said[401]
            offer = self._offer(config)
            if offer is None or offer.refused:
                return NOT_SUPPORTED
            one.said[402] = [offer.workspace]
        one.finished = True
        return 0

    def _below(self, one: Descriptor) -> list[int]:
        found = [v for values in one.said.values() for v in values]
        return [v for v in found if isinstance(v, int) and v in self.living and v >= 1000]

    def _offer(self, config: int) -> Offer | None:
        """The offer that a config asks for, if its engine and knobs are one."""
        said = self.living[config].said
        (engine,) = said[300]
        knobs = [self.living[one].said for one in said.get(302, [])]
        turned = {(one[600][0], one[601][0]) for one in knobs}
        offer = self.offers.get(self.living[engine].said[1301][0])
        return offer if offer and set(offer.knobs) == turned else None

    def _get(
        self, made: int, number: int, of: int, most: int, count: int, values: int | None
    ) -> int:
        one, given = self.living[made], None
        if values is not None and of == 15:
            given = list((ctypes.c_void_p * most).from_address(values))
        found = self._listed(one, number, given)
        ctypes.c_int64.from_address(count).value = len(found)
        if values is not None and of != 15:
            (_C[of] * len(found)).from_address(values)[:] = found
        return 0

    def _listed(self, one: Descriptor, number: int, given: list[int] | None) -> list[Any]:
        """An attribute's values; descriptors are written into those that are `given`."""
        if number == 202:
            return self._fill(given, [{"offer": offer} for offer in self.offers.values()])
        if "offer" not in one.said:
            return one.said[number]
        offer: Offer = one.said["offer"]  # type: ignore[index]
        if number == 300:
            return self._fill(given, [{"offer": offer, 1301: [offer.number]}])
        if number == 302 and given is None:
            return []  # cuDNN 9.19 counts knobs only where there is room for them
        if number == 302:
            return self._fill(given, [{"offer": offer, 600: [k], 601: [v]} for k, v in offer.knobs])
        return list(offer.notes) if number == 1303 else one.said[number]

    def _fill(self, given: list[int] | None, said: list[dict[Any, Any]]) -> list[int]:
        for made, words in zip(given or [], said, strict=False):
            self.living[made].said.update(words)
        return list(range(len(said)))

    def _destroy(self, made: int) -> int:
        del self.living[made]
        return 0

    # --- execution -----------------------------------------------------------------------------

    def _execute(self, handle: int, plan: int, pack: int) -> int:
        if self.status:
            return self.status
        said, of_plan = self.living[pack].said, self.living[plan].said
        addresses = dict(zip(said[1000], said[1001], strict=True))
        (config,) = of_plan[401]
        (engine,) = self.living[config].said[300]
        (graph,) = self.living[engine].said[1300]
        operations = [self.living[one] for one in self.living[graph].said[801]]
        direction, *_ = DIRECTIONS.get(operations[0].kind, ("attention",))
        self.calls.append({"direction": direction, "workspace": said[1003][0]})
        if direction == "attention":
            Interpreter(self.living, addresses).run(operations)
            return 0
        (one,) = operations
        _, first = DIRECTIONS[one.kind]
        assert (one.said[first], one.said[first + 1]) == ([1.0], [0.0])
        conv = self.living[one.said[first + 2][0]].said
        self.calls[-1]["conv"] = conv
        arrays = [
            _array(self.living[one.said[place][0]].said, addresses) for place in PLACES[direction]
        ]
        assert conv[101] == [1] and conv[100] == [0] and conv[106] == [len(conv[104])]
        assert conv[104] == conv[105]
        compute(direction, arrays, stride=conv[103], dilation=conv[102], pad=conv[104])
        return 0


class Interpreter:
    """Operations, one after another: products of matrices, on elements, reductions."""

    def __init__(self, living: dict[int, Descriptor], addresses: dict[int, int]) -> None:
        self.living, self.addresses = living, addresses
        self.between: dict[int, np.ndarray] = {}

    def run(self, operations: list[Descriptor]) -> None:
        for one in operations:
            how = {13: self._pointwise, 19: self._matmul, 22: self._reduce, 31: self._turn}
            how[one.kind](one.said)

    def _read(self, said: dict[int, list[Any]], place: int) -> np.ndarray:
        tensor = self.living[said[place][0]].said
        if 907 in tensor:
            return self.between[tensor[906][0]]
        found = _array(tensor, self.addresses)
        return found.astype(np.float64) if tensor[901][0] in FLOATS else found

    def _write(self, said: dict[int, list[Any]], place: int, value: np.ndarray) -> None:
        tensor = self.living[said[place][0]].said
        assert tuple(tensor[902]) == value.shape
        value = value.astype(TYPES[tensor[901][0]])
        if 907 in tensor:
            self.between[tensor[906][0]] = value
        else:
            _array(tensor, self.addresses)[...] = value

    def _matmul(self, said: dict[int, list[Any]]) -> None:
        assert self.living[said[1523][0]].said[1500] == [0]
        a, b = self._read(said, 1520), self._read(said, 1521)
        b = np.repeat(b, a.shape[1] // b.shape[1], axis=1)  # heads that share keys
        self._write(said, 1522, a.astype(np.float64) @ b)

    def _pointwise(self, said: dict[int, list[Any]]) -> None:
        how = self.living[said[750][0]].said
        operands = [self._read(said, place) for place in (751, 752, 758) if place in said]
        (mode,) = how[0]
        if mode == 501:  # indices along a dimension
            found = np.indices(operands[0].shape)[how[9][0]]
        else:
            found = POINTWISE[mode](*operands)
        self._write(said, 753, found)

    def _reduce(self, said: dict[int, list[Any]]) -> None:
        how = self.living[said[1612][0]].said
        if how[1600] == [4]:  # the largest magnitude of all
            self._write(said, 1611, np.abs(self._read(said, 1610)).max(keepdims=True))
            return
        x, heads = self._read(said, 1610), self.living[said[1611][0]].said[902][1]
        axis = -1
        if heads < x.shape[1]:  # of the heads that share keys
            x, axis = x.reshape(x.shape[0], heads, -1, *x.shape[2:]), 2
        found = REDUCTIONS[how[1600][0]](x, axis=axis, keepdims=axis < 0)
        self._write(said, 1611, found)

    def _turn(self, said: dict[int, list[Any]]) -> None:
        (x,), (into,) = said[2200], said[2201]
        strides = self.living[x].said[903], self.living[into].said[903]
        assert strides[1] == [*strides[0][:2], strides[0][3], strides[0][2]]
        self._write(said, 2201, self._read(said, 2200).swapaxes(2, 3))


def _array(said: dict[int, list[Any]], addresses: dict[int, int]) -> np.ndarray:
    return array(addresses[said[906][0]], TYPES[said[901][0]], said[902], said[903])
