"""Operands in few bits: weights in int4 or e2m1 (fp4), the MX formats, and weights in 8 bits beside
activations in 16.

Two neighbours along K share a byte; the one with the lower k is in the lower four bits (see
`tilewright.packing`). So A [m, k] is an array of bytes [m, k/2], and B [k, n] an array [k/2, n].
The bytes of a row of A or a column of B are neighbours: K is the contiguous dimension. Such an
array does not say which type it holds; the call says it: ``dtype_b="int4"``. Sizes and leading
dimensions of a problem count elements, as everywhere.

int4    two's complement, -8 … 7; only as B, with floats as A
e2m1    ±0, 0.5, 1, 1.5, 2, 3, 4, 6; as B with floats as A, or as both

The MX formats (OCP Microscaling Formats specification v1.0) are e4m3fn, e5m2 or e2m1 elements with
one e8m0 scale for every 32 along K: scale_a=1x32-e8m0, scale_b=32x1-e8m0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright import packing
from tilewright.dtypes import DTYPES, dtype
from tilewright.errors import BadArgument
from tilewright.ops.nouns import Operand, View
from tilewright.ops.products import WIDENED

PARTNERS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("fp16", "bf16", "e4m3fn", "e5m2"), ("int4", "e2m1")
)
"""The dtypes of B in few bits besides A's own dtype, by A's dtype."""

MIXED: dict[str, str] = {
    "e4m3fn": "e5m2",
    "e5m2": "e4m3fn",
    "e4m3fnuz": "e5m2fnuz",
    "e5m2fnuz": "e4m3fnuz",
}
"""The other dtype of 8 bits that B may have, by A's dtype: activations and gradients of a training
step in fp8 differ so."""

BYTES = "uint8"
"""The dtype of arrays of 4-bit elements (apart from torch's float4_e2m1fn_x2)."""

MX_SCALES = ("1x32-e8m0", "32x1-e8m0")
"""Scales of A and of B in the MX formats."""

WORD = 32
"""Bits of the widest word that kernels unpack."""

_K_CONTIGUOUS = {"A": ("r", "row"), "B": ("c", "column")}


def concerns(problem: Any) -> bool:
    """Whether a problem or config has operands of 4 bits or in an MX format."""
    p = problem
    packed = any(DTYPES[d].packed > 1 for d in (p.dtype_a, p.dtype_b))
    return packed or (p.scale_a, p.scale_b) == MX_SCALES


def widens(of: Any) -> bool:
    """Whether a problem or config has a B in 8 bits beside an A in 16."""
    return of.dtype_b in WIDENED.get(of.dtype_a, ())


def converts(of: Any) -> bool:
    """Whether the kernels of a problem or config convert elements of B: those of 4 bits, and those
    beside a wider A."""
    return DTYPES[of.dtype_b].packed > 1 or widens(of)


def check(problem: Any) -> None:
    """Raise `BadArgument` unless a problem's 4-bit operands fill whole bytes along K."""
    p = problem
    for name, d, letter in zip("AB", (p.dtype_a, p.dtype_b), p.layout, strict=False):
        if DTYPES[d].packed == 1:
            continue
        needed, order = _K_CONTIGUOUS[name]
        if letter != needed:
            raise BadArgument(
                f"{name} is {d}, packed along K, so it must be {order}-major; layout {p.layout} "
                "says otherwise"
            )
        if p.k % 2:
            raise BadArgument(f"{name} is {d}, two to a byte along K, but k = {p.k} is odd")


def stored_as(problem: Any, field: str) -> int:
    """Number of elements in one stored element of the operand with leading dimension `field`."""
    d = {"lda": problem.dtype_a, "ldb": problem.dtype_b}.get(field)
    return DTYPES[d].packed if d else 1


def stored(
    name: str, shape: tuple[int, ...], strides: tuple[int, ...], d: str, k_axis: int
) -> Operand:
    """The operand `name` as stored: elements of 4 bits in bytes along the axis of K.

    shape, strides: in elements.
    """
    each = DTYPES[d].packed
    if each == 1:
        return Operand(name, shape, strides, d)
    k_axis %= len(shape)
    sizes = (n // each if i == k_axis else n for i, n in enumerate(shape))
    steps = (s if i == k_axis else s // each for i, s in enumerate(strides))
    return Operand(name, (*sizes,), (*steps,), BYTES)


def read(a: View, b: View, options: Mapping[str, Any]) -> tuple[View, View]:
    """A and B with the shapes, strides and dtypes of their elements, where `options` gives the type
    in their bytes. Raises `BadArgument`."""
    return _elements("A", a, options.get("dtype_a")), _elements("B", b, options.get("dtype_b"))


def _elements(name: str, view: View, said: str | None) -> View:
    option = f"dtype_{name.lower()}"
    if said is None:
        if view.dtype == BYTES:
            raise BadArgument(f"{name} is bytes; say what is packed in them, as {option}='int4'")
        said = view.dtype
    elif DTYPES[dtype(said).name].packed == 1 and view.dtype != said:
        raise BadArgument(f"{option} is {said}, but {name} is {view.dtype}")
    if DTYPES[said].packed == 1:
        return view
    if view.dtype not in (BYTES, said):
        raise BadArgument(f"{name} is {view.dtype}; {said} comes in bytes ({BYTES}), two in each")
    axis = len(view.shape) - (1 if name == "A" else 2)
    if view.shape[axis] > 1 and view.strides[axis] != 1:
        raise BadArgument(
            f"{name} is {said} in bytes of shape {view.shape} with strides {view.strides}; K, "
            f"which is packed, must be contiguous: the strides of axis {axis} must be 1"
        )
    shape, strides = list(view.shape), [2 * stride for stride in view.strides]
    shape[axis] *= 2
    strides[axis] = 1
    return replace(view, shape=(*shape,), strides=(*strides,), dtype=said)


def decoded(a: Any, b: Any, problem: Any) -> tuple[Any, Any]:
    """Float64 operands for a reference, or stacks of them: packed bytes become their elements."""
    if DTYPES[problem.dtype_a].packed > 1:
        a = packing.decode(a, problem.dtype_a, -1)
    if DTYPES[problem.dtype_b].packed > 1:
        b = packing.decode(b, problem.dtype_b, -2)
    return a, b
