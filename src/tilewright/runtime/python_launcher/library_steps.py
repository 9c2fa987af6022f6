"""Steps that a vendor's library computes: `matmul.h`, `graph.h` and `solution.h`."""

from __future__ import annotations

import ctypes
import threading
from contextlib import nullcontext
from typing import Any

from tilewright.runtime import cudnn, cudnn_graphs, miopen
from tilewright.runtime.blaslt import Context, Handles
from tilewright.runtime.driver import address_of
from tilewright.runtime.prepared import NOT_POSITIVE, STATUS

FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *([ctypes.c_uint] * 7), *([ctypes.c_void_p] * 3)
)
"""`cuLaunchKernel` and `hipModuleLaunchKernel`: function, grid, block, shared bytes, stream,
parameters, extra."""

_SET = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
)
_MATMUL = ctypes.CFUNCTYPE(
    ctypes.c_int, *([ctypes.c_void_p] * 14), ctypes.c_size_t, ctypes.c_void_p
)
_matmuls = threading.Lock()
"""Held while a product's description is changed, and used as it was changed."""


def handle_of(m: Context | miopen.Context, stream: int | None) -> int | None:
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
                handle_of(m, stream), m.description, one, a, m.first, b, m.second, zero, c,
                m.result, c, m.result, algorithm, address[3] if m.workspace else None,
                m.workspace, stream,
            )  # fmt: skip
    return STATUS + status if status else 0


_kept_matmul_step = FUNCTION(_matmul_step)
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


_kept_graph_step = FUNCTION(_graph_step)
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
            handle_of(s, stream), s.first, first, s.second, second, s.convolution, s.made, made,
            workspace[0] if workspace else None, s.workspace, s.number,
        )  # fmt: skip
    finally:
        miopen.unlock(s.used)
    return STATUS + status if status else 0


_kept_solution_step = FUNCTION(_solution_step)
solution_step = address_of(_kept_solution_step)
"""The address of the function that computes a step by MIOpen."""

WITH_HANDLES: dict[int, Any] = {matmul_step: Context, solution_step: miopen.Context}
"""The functions of steps that need a handle of a stream, each with its context."""
