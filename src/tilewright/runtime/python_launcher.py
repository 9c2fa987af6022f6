"""The launcher in Python, for machines without a C compiler: `launcher.c`, function by function.

The functions have the names, arguments and codes of the compiled module, which its first comment
states. A launch takes some microseconds more. Nothing is compiled, and no file is written.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from tilewright.parameters import TENSOR_MAP_BYTES
from tilewright.runtime import cudnn, cudnn_graphs, miopen
from tilewright.runtime.blaslt import Context, Handles
from tilewright.runtime.driver import address_of
from tilewright.runtime.prepared import NOT_POSITIVE, STATUS

NEEDS_MAPS, OVERLAPS, NOT_KNOWN, UNSUITABLE, NEEDS_HANDLE = -1, -2, -3, -4, -5
"""Codes of `launch` and `call` that are no driver's status; see launcher.c."""

MAPS_KEPT = 256
"""Tensor maps kept for each descriptor, by address."""
WORKSPACES_KEPT = 8
_ALIGNED = 64
"""Bytes that the driver wants a tensor map aligned to."""

_FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *([ctypes.c_uint] * 7), *([ctypes.c_void_p] * 3)
)
"""`cuLaunchKernel` and `hipModuleLaunchKernel`: function, grid, block, shared bytes, stream,
parameters, extra."""

_EXTENDED = ctypes.CFUNCTYPE(ctypes.c_int, *([ctypes.c_void_p] * 4))
"""`cuLaunchKernelEx`: configuration, function, parameters, extra."""

_FILL = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p
)
"""`cuMemsetD8Async` and `hipMemsetD8Async`: address, byte, count, stream."""

_SET = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
)
_MATMUL = ctypes.CFUNCTYPE(
    ctypes.c_int, *([ctypes.c_void_p] * 14), ctypes.c_size_t, ctypes.c_void_p
)
_matmuls = threading.Lock()
"""Held while a product's description is changed, and used as it was changed."""

_ATTRIBUTE_BYTES = 72
_pack_address = struct.Struct("<Q").pack_into
_uses = itertools.count(1)


class _Config(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_char_p),
        ("count", ctypes.c_uint),
    )


def _handle(m: Context | miopen.Context, stream: int | None) -> int | None:
    """The library's handle for a stream; None if it has none yet."""
    return Handles.from_address(m.handles).on(stream)


def _matmul_step(
    function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int,
    stream: int | None, parameters: int, extra: int | None,
) -> int:  # fmt: skip
    """See matmul.h."""
    m = Context.from_address(function)
    beside = [attribute for attribute in m.attributes if attribute >= 0]
    count = 3 + (m.workspace > 0) + len(beside)
    places = (ctypes.c_void_p * count).from_address(parameters)
    address = [ctypes.c_void_p.from_address(place) for place in places]
    with _matmuls if beside else nullcontext():
        status: int = 0
        for attribute, place in zip(beside, address[count - len(beside) :], strict=True):
            size = ctypes.sizeof(ctypes.c_void_p)
            status = status or _SET(m.set)(m.description, attribute, ctypes.addressof(place), size)
        if not status:
            a, b, c = address[:3]
            one, zero, algorithm = (
                function + field.offset for field in (Context.one, Context.zero, Context.algorithm)
            )
            status = _MATMUL(m.matmul)(
                _handle(m, stream), m.description, one, a, m.first, b, m.second, zero, c, m.result,
                c, m.result, algorithm, address[3] if m.workspace else None, m.workspace, stream,
            )  # fmt: skip
    return STATUS + status if status else 0


_kept_matmul_step = _FUNCTION(_matmul_step)
matmul_step = address_of(_kept_matmul_step)
"""The address of the function that computes a step by the vendor's library for products."""


_STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_CREATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_ATTRIBUTE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
)
_ONE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_EXECUTE = ctypes.CFUNCTYPE(ctypes.c_int, *([ctypes.c_void_p] * 3))
_graphs = threading.Lock()
"""Held while a handle of cuDNN has the stream of a call that is being made."""


def _graph_step(
    function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int,
    stream: int | None, parameters: int, extra: int | None,
) -> int:  # fmt: skip
    """See graph.h."""
    g = cudnn.Context.from_address(function)
    places = (ctypes.c_void_p * (g.given + (g.workspace > 0))).from_address(parameters)
    numbers = [i for i in range(g.given) if g.positive >> i & 1]
    if any(ctypes.c_float.from_address(places[i]).value <= 0 for i in numbers):
        return STATUS + NOT_POSITIVE
    address = (ctypes.c_void_p * g.given)(*(
        place if g.values >> i & 1 else ctypes.c_void_p.from_address(place).value
        for i, place in enumerate(places[: g.given])
    ))  # fmt: skip
    uids = (ctypes.c_int64 * g.given)(*range(1, g.given + 1))
    workspace = ctypes.c_void_p()
    if g.workspace:
        workspace = ctypes.c_void_p.from_address(places[g.given])
    pack, set_attribute = ctypes.c_void_p(), _ATTRIBUTE(g.set)
    status: int = _CREATE(g.create)(cudnn.PACK, ctypes.addressof(pack))
    for number, kind, many, value in (
        (1000, cudnn_graphs.INT64, g.given, uids),
        (1001, cudnn.POINTERS, g.given, address),
        (1003, cudnn.POINTERS, 1, workspace),
    ):
        status = status or set_attribute(pack, number, kind, many, ctypes.addressof(value))
    status = status or _ONE(g.finalize)(pack)
    if not status:
        handle = cudnn.Shared.from_address(g.shared).handle
        with _graphs:
            status = _STREAM(g.set_stream)(handle, stream)
            status = status or _EXECUTE(g.execute)(handle, g.plan, pack)
    if pack:
        _ONE(g.destroy)(pack)
    return STATUS + status if status else 0


_kept_graph_step = _FUNCTION(_graph_step)
graph_step = address_of(_kept_graph_step)
"""The address of the function that computes a step by cuDNN."""

_COMPUTE = ctypes.CFUNCTYPE(
    ctypes.c_int, *([ctypes.c_void_p] * 9), ctypes.c_size_t, ctypes.c_uint64
)


def _solution_step(
    function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int,
    stream: int | None, parameters: int, extra: int | None,
) -> int:  # fmt: skip
    """See solution.h."""
    s = miopen.Context.from_address(function)
    places = (ctypes.c_void_p * (3 + (s.workspace > 0))).from_address(parameters)
    first, second, made, *workspace = (ctypes.c_void_p.from_address(at).value for at in places)
    miopen.lock(s.used)
    try:
        status: int = _COMPUTE(s.compute)(
            _handle(s, stream), s.first, first, s.second, second, s.convolution, s.made, made,
            workspace[0] if workspace else None, s.workspace, s.number,
        )  # fmt: skip
    finally:
        miopen.unlock(s.used)
    return STATUS + status if status else 0


_kept_solution_step = _FUNCTION(_solution_step)
solution_step = address_of(_kept_solution_step)
"""The address of the function that computes a step by MIOpen."""

_WITH_HANDLES: dict[int, Any] = {matmul_step: Context, solution_step: miopen.Context}
"""The functions of steps that need a handle of a stream, each with its context."""


@dataclass(slots=True)
class _Step:
    """One kernel; see `read_step` in launcher.c."""

    call: Any
    function: int
    attributes: bytes
    grid: tuple[int, int, int]
    block: int
    shared: int
    offsets: tuple[int, ...]
    context: Any = None

    def __post_init__(self) -> None:
        self.context = _WITH_HANDLES.get(self.call)
        self.call = (_EXTENDED if self.attributes else _FUNCTION)(self.call)

    def lacks_handle(self, stream: int) -> bool:
        """Whether a library computes it that has no handle for a stream yet."""
        of = self.context
        return of is not None and _handle(of.from_address(self.function), stream) is None

    def launch(self, stream: int, places: Any) -> int:
        block = (self.block, 1, 1)
        status: int
        if self.attributes:
            count = len(self.attributes) // _ATTRIBUTE_BYTES
            config = _Config(self.grid, block, self.shared, stream, self.attributes, count)
            status = self.call(ctypes.addressof(config), self.function, places, None)
        else:
            status = self.call(self.function, *self.grid, *block, self.shared, stream, places, None)
        return status


class _Parameters:
    """A launch's parameters in memory of their own, and for each step the pointers to its."""

    __slots__ = ("content", "places", "start")

    def __init__(self, content: bytes, steps: Sequence[_Step]) -> None:
        memory = ctypes.create_string_buffer(len(content) + _ALIGNED)
        base = ctypes.addressof(memory)
        self.content = memoryview(memory).cast("B")
        self.start = -base % _ALIGNED
        self.content[self.start : self.start + len(content)] = content
        here = base + self.start
        self.places = [
            (ctypes.c_void_p * len(step.offsets))(*(here + at for at in step.offsets))
            for step in steps
        ]


@dataclass(slots=True)
class _Launch:
    """Everything about a launch except addresses, stream and scalars; see `prepare` in launcher.c.

    maps: for each descriptor, the tensor maps by address. workspaces: (stream, kept-zero buffer,
    scratch buffer), by the stream's slot. free: parameters that no thread is using."""

    device: int
    operands: Sequence[tuple[int, bool]]
    optional: Sequence[bool]
    content: bytes
    steps: Sequence[_Step]
    pointers: Sequence[tuple[int, int, int]]
    descriptors: Sequence[tuple[int, int, int]]
    scalars: Sequence[tuple[int, int, str]]
    fill: Any
    fill_bytes: int
    kept_zero: bool
    scratch: bool
    kept: Any
    maps: list[dict[int, bytes]]
    workspaces: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    free: list[_Parameters] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    used: int = 0

    def parameters(self) -> _Parameters:
        try:
            return self.free.pop()
        except IndexError:
            return _Parameters(self.content, self.steps)


def prepare(
    device: int,
    operands: tuple[tuple[int, bool], ...],
    optional: tuple[bool, ...],
    content: bytes,
    steps: tuple[tuple[Any, ...], ...],
    pointers: tuple[tuple[int, int, int], ...],
    descriptors: tuple[tuple[int, int, int, bytes], ...],
    scalars: tuple[tuple[int, int, str], ...],
    fill: int,
    fill_bytes: int,
    encode: int,
    kept_zero: bool,
    scratch: bool,
    kept: Any,
) -> _Launch:
    """A launch, packed; see launcher.c. Tensor maps are left to the caller."""
    made = [_Step(*step) for step in steps]
    maps: list[dict[int, bytes]] = [{} for _ in descriptors]
    places = tuple((at, source, offset) for at, source, offset, _ in descriptors)
    return _Launch(
        device, operands, optional, content, made, pointers, places, scalars, _FILL(fill),
        fill_bytes, kept_zero, scratch, kept, maps,
    )  # fmt: skip


def launch(
    launch: _Launch,
    stream: int,
    addresses: tuple[int, ...],
    workspaces: tuple[int, int],
    scalars: tuple[Any, ...],
    apart: bool,
) -> int:
    """Launch it. Returns a driver's status, or one of the codes above."""
    if len(addresses) != len(launch.operands) or len(scalars) != len(launch.optional):
        raise TypeError(
            f"this launch takes {len(launch.operands)} addresses and {len(launch.optional)} "
            f"scalars, and was given {len(addresses)} and {len(scalars)}"
        )
    if (launch.kept_zero and not workspaces[0]) or (launch.scratch and not workspaces[1]):
        raise TypeError("this launch has temporaries, and no buffer was given for them")
    if not apart and _overlap(launch, addresses):
        return OVERLAPS
    values = _scalars(launch, scalars)
    if values is None:
        return UNSUITABLE
    sources = (*addresses, *workspaces)
    maps = []
    for (at, source, offset), known in zip(launch.descriptors, launch.maps, strict=True):
        encoded = known.get(sources[source] + offset)
        if encoded is None:
            return NEEDS_MAPS
        maps.append((at, encoded))
    if any(step.lacks_handle(stream) for step in launch.steps):
        return NEEDS_HANDLE
    given = launch.parameters()
    start, content = given.start, given.content
    for at, source, offset in launch.pointers:
        _pack_address(content, start + at, sources[source] + offset)
    for at, encoded in maps:
        content[start + at : start + at + TENSOR_MAP_BYTES] = encoded
    for at, value in values:
        content[start + at : start + at + len(value)] = value
    with launch.lock:
        launch.used = next(_uses)
    status: int = 0
    if launch.fill_bytes:
        status = launch.fill(workspaces[1], 0, launch.fill_bytes, stream)
    for step, places in zip(launch.steps, given.places, strict=True):
        status = status or step.launch(stream, places)
    if not status:
        with launch.lock:
            launch.count += 1
    launch.free.append(given)  # the driver has copied them
    return status


def _overlap(launch: _Launch, addresses: tuple[int, ...]) -> bool:
    """Whether the bytes that a written operand spans touch those of another operand."""
    spans = [(at, at + size) for at, (size, _) in zip(addresses, launch.operands, strict=True)]
    return any(
        written and i != j and spans[i][0] < spans[j][1] and spans[j][0] < spans[i][1]
        for j, (_, written) in enumerate(launch.operands)
        for i in range(len(spans))
    )


def _scalars(launch: _Launch, scalars: tuple[Any, ...]) -> list[tuple[int, bytes]] | None:
    """(offset, value) of each scalar that is not left at its default; None if one is missing or is
    no value of its type. Parameters that are used again must not keep an earlier call's value, so
    a default is written too."""
    values = []
    for at, number, form in launch.scalars:
        value = scalars[number]
        width = 1 if form == "1" else struct.calcsize(f"<{form}")
        if value is None:
            if not launch.optional[number]:
                return None
            values.append((at, launch.content[at : at + width]))
            continue
        try:
            if form == "1" and value not in (0, 1):
                return None
            values.append((at, struct.pack("<b" if form == "1" else f"<{form}", value)))
        except (struct.error, OverflowError, TypeError, ValueError):
            return None
    return values


def launches(launch: _Launch) -> int:
    """How often it was launched."""
    return launch.count


def last_used(launch: _Launch) -> int:
    """When it was launched last, as a count of all launches."""
    return launch.used


def keep_workspace(launch: _Launch, stream: int, kept_zero: int, scratch: int) -> None:
    """The buffers that `call` may use on a stream; two zeros: forget those of every stream."""
    if kept_zero or scratch:
        launch.workspaces[_slot(stream)] = stream, kept_zero, scratch
    else:
        launch.workspaces.clear()


def _slot(stream: int) -> int:
    return (stream >> 8) % WORKSPACES_KEPT


def write_map(launch: _Launch, number: int, address: int, encoded: bytes) -> None:
    """Set the tensor map of a descriptor at an address."""
    known = launch.maps[number]
    if len(known) >= MAPS_KEPT:
        known.clear()
    known[address] = encoded


Torch = tuple[Any, Any, Any, Any, Any, Any]
"""What torch is asked by; see `call` of launcher.c."""


def describe(op: Any, tensors: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """A key that differs for calls that differ, and the operands' addresses."""
    key: list[Any] = [op]
    addresses = []
    for tensor in tensors:
        address = tensor.data_ptr()
        addresses.append(address)
        key += (
            _alignment(address),
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.get_device(),
        )
    return tuple(key), tuple(addresses)


def _alignment(address: int) -> int:
    """Bytes that an address is a multiple of, 0 for 16 and more."""
    low = address & 15
    return low & -low


def call(
    torch: Torch,
    known: Mapping[Any, _Launch],
    op: Any,
    tensors: tuple[Any, ...],
    scalars: tuple[Any, ...],
) -> int:
    """A cached call, whole."""
    try:
        key, addresses = describe(op, tensors)
    except AttributeError:  # not torch's tensors: the caller sorts it out
        return NOT_KNOWN
    found = known.get(key)
    if found is None or not _may_launch(found, torch, tensors, scalars):
        return NOT_KNOWN
    code = _launch_here(found, torch, addresses, scalars)
    if code == 0:
        _note_writes(torch, [tensors[place] for place in _written(found)])
    return code


def _written(launch: _Launch) -> list[int]:
    """Places of the operands that a launch writes."""
    return [place for place, (_, written) in enumerate(launch.operands) if written]


def _note_writes(torch: Torch, written: Sequence[Any]) -> None:
    """See launcher.c."""
    for array in written:
        torch[4](getattr(array, "arrays", (array,)))


def _may_launch(
    found: _Launch,
    torch: Torch,
    tensors: Sequence[Any],
    scalars: tuple[Any, ...],
) -> bool:
    _, current_device, grad_enabled, *_ = torch
    if scalars and len(scalars) != len(found.optional):
        return False
    if grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    return current_device is None or current_device() == found.device


def _launch_here(
    found: _Launch,
    torch: Torch,
    addresses: tuple[int, ...],
    scalars: tuple[Any, ...],
) -> int:
    """See launcher.c."""
    stream = torch[0](found.device)
    workspaces = _workspaces(found, torch, stream)
    if workspaces is None:
        return NOT_KNOWN
    scalars = scalars or (None,) * len(found.optional)
    code = launch(found, stream, addresses, workspaces, scalars, False)
    return NOT_KNOWN if code == UNSUITABLE else code


def _workspaces(found: _Launch, torch: Torch, stream: int) -> tuple[int, int] | None:
    """The addresses of a launch's buffers; None if there are none that it may use."""
    if not found.kept_zero and not found.scratch:
        return 0, 0
    kept = found.workspaces.get(_slot(stream))
    if kept is None or kept[0] != stream or torch[3]():
        return None
    return kept[1:]


def _lacking(found: _Launch, torch: Torch, addresses: tuple[int, ...]) -> bool:
    """Whether a launch could not be queued as it is."""
    stream = torch[0](found.device)
    workspaces = _workspaces(found, torch, stream)
    if workspaces is None:
        return True
    at = (*addresses, *workspaces)
    return (
        _overlap(found, addresses)
        or any(step.lacks_handle(stream) for step in found.steps)
        or any(
            at[source] + offset not in known
            for (_, source, offset), known in zip(found.descriptors, found.maps, strict=True)
        )
    )


Sources = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Recipe:
    """See repeat.h."""

    launches: tuple[tuple[_Launch, Sources], ...]
    makers: tuple[tuple[Any, tuple[Any, ...]], ...]
    returned: int


def recipe(
    launches: tuple[tuple[_Launch, Sources], ...],
    makers: tuple[tuple[Any, tuple[Any, ...]], ...],
    returned: int,
) -> _Recipe:
    """How the arrays of a call become the operands of its launches; see repeat.h."""
    return _Recipe(launches, makers, returned)


def signature(what: Any, arrays: tuple[Any, ...], recorded: bool = False) -> Any:
    """The key of a call that may be repeated; None for one that may not be."""
    torch = sys.modules.get("torch")
    plain = () if torch is None else (torch.Tensor, torch.nn.Parameter, type(None))
    if any(type(x) not in plain for x in arrays):
        return None
    there = tuple([x for x in arrays if x is not None])
    try:
        key, _ = describe(what, there)
    except RuntimeError:  # a tensor without memory, as in a transform of torch.func
        return None
    absent = tuple([i for i, x in enumerate(arrays) if x is None])
    return key, absent, tuple([recorded and x.requires_grad for x in there])


def repeat(
    torch: Torch,
    recipes: Mapping[Any, Any],
    what: Any,
    arrays: tuple[Any, ...],
    scalars: tuple[Any, ...],
) -> Any:
    """A cached call that makes its outputs, whole; see repeat.h."""
    key = signature(what, arrays, torch[2]())
    found = recipes.get(key)
    recorded = key is not None and True in key[2]
    recipe, function = found if recorded and found else (found, None)
    if recipe is None or (function is not None and torch[5]() is not None):
        return None
    outputs = _carried_out(recipe, torch, arrays, scalars)
    if outputs is None:
        return None
    if function is not None:
        made = function(scalars, outputs, *[x for x in arrays if x is not None])
        return made[0] if isinstance(made, tuple) and len(made) == 1 else made
    returned = outputs[: recipe.returned]
    return returned[0] if len(returned) == 1 else returned


def _carried_out(
    found: _Recipe,
    torch: Torch,
    arrays: tuple[Any, ...],
    scalars: tuple[Any, ...],
) -> tuple[Any, ...] | None:
    """All outputs that were made; None where the call is left to the caller."""
    if scalars and len(scalars) != sum(len(one.optional) for one, _ in found.launches):
        return None
    if torch[1] is not None and torch[1]() != found.launches[0][0].device:
        return None
    outputs = tuple([function(*arguments) for function, arguments in found.makers])
    parts = []
    for one, sources in found.launches:
        addresses = []
        for array, offset, example in sources:
            tensor = outputs[-array - 1] if array < 0 else arrays[array]
            address = tensor.data_ptr() + offset
            if _alignment(address) != _alignment(example):
                return None
            addresses.append(address)
        parts.append((one, sources, (*addresses,)))
    if any(_lacking(one, torch, at) for one, _, at in parts):
        return None
    first = 0
    for one, sources, at in parts:
        own = scalars[first : first + len(one.optional)]
        first += len(one.optional)
        if _launch_here(one, torch, at, own):
            return None
        roots = [sources[place][0] for place in _written(one)]
        _note_writes(torch, [arrays[root] for root in roots if root >= 0])
    return outputs


_WORDS = frozenset({str, int, type(None)})


def split(name: str, given: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]] | None:
    """See repeat.h."""
    torch = sys.modules.get("torch")
    plain = () if torch is None else (torch.Tensor, torch.nn.Parameter)
    what: list[Any] = [name]
    arrays = []
    for x in given:
        kind = type(x)
        if kind in plain:
            arrays.append(x)
            what.append(...)
        elif kind in _WORDS or (kind is tuple and all(type(part) is int for part in x)):
            what.append(x)
        else:
            return None
    return tuple(what), tuple(arrays)


def passing(
    switch: Callable[[], bool],
    kind: Callable[[tuple[Any, ...], Mapping[str, Any]], Hashable],
    passed: Set[Hashable],
    original: Callable[..., Any],
    ours: Callable[..., Any],
) -> Callable[..., Any]:
    """See passing.h. Every key is `kind`'s, which has the switch in it."""

    def function(keys: Any, *given: Any, **named: Any) -> Any:
        key = kind(given, named)
        if key is None or key in passed:
            return original(keys, *given, **named)
        return ours(key, keys, *given, **named)

    return function
