"""A kernel's parameters as its compiler lays them out: what each argument becomes, and how large.

The launcher packs parameters by these rules; the compile step uses them to refuse a kernel whose
parameters no launch can take.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from functools import cache

from tilewright.errors import BadArgument

MAX_PARAMETER_BYTES = 4096
"""Bytes that the parameters of one kernel may take, on every architecture here."""

SCALARS = {
    "i1": "<b",
    "i8": "<b",
    "i16": "<h",
    "i32": "<i",
    "i64": "<q",
    "u8": "<B",
    "u16": "<H",
    "u32": "<I",
    "u64": "<Q",
    "fp32": "<f",
    "fp64": "<d",
}
"""Scalar types by Triton's name, each with its `struct` format."""

POINTER = "pointer"
TENSOR_MAP = "tensor map"
TENSOR_MAP_BYTES = 128
SCRATCH = ("i64", "i64")
"""Parameters that every kernel has behind its arguments: addresses of two scratch buffers, global
and profile, which no kernel here uses."""

_DESCRIPTOR = re.compile(r"tensordesc<[^\[]*\[([^\]]*)\]")


def pack(kind: str, value: float) -> bytes:
    """`value` as a parameter of the scalar type `kind`.

    Raises `BadArgument` for an unknown type, and for a value that the type does not hold.
    """
    form = SCALARS.get(kind)
    if form is None:
        raise BadArgument(f"no scalar parameter has type {kind!r}; known: {', '.join(SCALARS)}")
    try:
        if kind == "i1" and value not in (0, 1):
            raise ValueError
        return struct.pack(form, value)
    except (struct.error, OverflowError, TypeError, ValueError):
        raise BadArgument(f"{value!r} is not a value of type {kind}") from None


@cache
def limits(kind: str) -> tuple[int, int]:
    """The least and the largest value of an integer type."""
    bits = int(kind[1:])
    if kind[0] == "u" or bits == 1:
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def pieces(kind: str, maps: bool, flags: int) -> tuple[str, ...]:
    """The parameters that an argument of Triton type `kind` becomes.

    Each is `POINTER`, `TENSOR_MAP` or a scalar type. maps: whether descriptors are tensor maps; if
    not, a descriptor is a pointer, its sizes and strides, and `flags` bytes of flags. Both kinds
    are followed by the sizes and strides once more, as kernels use them.
    """
    if kind.startswith("*"):
        return (POINTER,)
    found = _DESCRIPTOR.match(kind)
    if found is None:
        return (kind,)
    return descriptor_pieces(found[1].count(",") + 1, maps, flags)


def descriptor_pieces(rank: int, maps: bool, flags: int) -> tuple[str, ...]:
    """`pieces` of a descriptor of `rank` dimensions."""
    extents = ("i32",) * rank + ("i64",) * rank
    if maps:
        return (TENSOR_MAP, *extents)
    return (POINTER, *("i64",) * (2 * rank), *("i1",) * flags, *extents)


@cache
def size(piece: str) -> tuple[int, int]:
    """Bytes and alignment of one parameter. Raises `BadArgument` for an unknown type."""
    if piece == TENSOR_MAP:
        return TENSOR_MAP_BYTES, 64
    if piece == POINTER:
        return 8, 8
    width = len(pack(piece, 0))
    return width, width


def parameter_bytes(arguments: Iterable[tuple[str, str]], maps: bool, flags: int) -> int:
    """Bytes that the parameters of a kernel take, the scratch addresses behind them included.

    arguments: (name, Triton type) in order, as `KernelSource.arguments` gives them. maps, flags: as
    for `pieces`. Raises `BadArgument` for an argument whose type is unknown.
    """
    total = 0
    for kind in (*(kind for _, kind in arguments), *SCRATCH):
        for piece in pieces(kind, maps, flags):
            width, align = size(piece)
            total += -total % align + width
    return total
