"""Block scales of groups: those of a GEMM (`tilewright.ops.gemm.scales`) for every group.

    scale_a    contiguous [m, ⌈k/c⌉], gathered [rows_a, ⌈k/c⌉], masked [groups, m, ⌈k/c⌉], of blocks
               1xc: a group begins at any row, so each row has scales of its own
    scale_b    [groups, ⌈k/r⌉, ⌈n/c⌉], of blocks rxc in each group's B [k, n]

The other forms have none.

int4 weights may have a zero point beside each scale of B: an element then means (q - zero)·scale.
They are an array of int8, behind the scales, of the shape of B's. int4 is signed: of weights that
count from 0 to 15, both q and zero are less 8.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.blocks import parse
from tilewright.errors import BadArgument
from tilewright.ops.gemm import scales as gemm
from tilewright.ops.gemm.operands import SCALES
from tilewright.ops.gemm.scales import Scaled, Scales
from tilewright.ops.nouns import Operand, View

ZEROS = "zero_b"
_STRIDES = {"scale_a": "strides_sa", "scale_b": "strides_sb"}
"""The problem's strides of each operand's scales."""


def check_blocks(of: Scaled) -> None:
    """Raise `BadArgument` unless A's blocks are within a row. `of` may be a problem or a config."""
    block = parse(of.scale_a)
    parse(of.scale_b)
    if block is not None and block.rows != 1:
        raise BadArgument(
            f"scale_a = {of.scale_a}: a group begins at any row, so A's blocks are of one row, as "
            f"in 1x{block.columns}"
        )


def check_zeros(of: Any) -> None:
    """Raise `BadArgument` unless zero points belong to int4 weights with scales. `of` may be a
    problem or a config."""
    if not isinstance(of.zero_b, bool):
        raise BadArgument(f"zero_b = {of.zero_b!r} is not true or false")
    if of.zero_b and (of.dtype_b != "int4" or not of.scale_b):
        raise BadArgument(
            "zero_b is for int4 weights with scales, one zero point beside each of scale_b; here "
            f"B is {of.dtype_b or of.dtype_a} and scale_b = '{of.scale_b}'"
        )


def complete(problem: Any) -> None:
    """Check the blocks of a problem with stacked groups, and fill in the strides that are left
    out. Raises `BadArgument`."""
    p = problem
    check_blocks(p)
    check_zeros(p)
    for name, field in (*_STRIDES.items(), (ZEROS, "strides_zb")):
        strides, shape = getattr(p, field), _shape(p, name)
        if not strides:
            object.__setattr__(p, field, packed(shape))
        elif not shape:
            raise BadArgument(f"{field} = {strides}, but there is no {name}")
        elif len(strides) != len(shape) or any(type(s) is not int or s < 0 for s in strides):
            raise BadArgument(f"{field} = {strides!r} is not {len(shape)} strides, 0 or more")


def refuse(of: Scaled) -> None:
    """Raise `BadArgument` if a problem or a kernel of a form without scales has any."""
    for name in SCALES:
        if getattr(of, name):
            raise BadArgument(
                f"{name}: the forms with block scales are contiguous, gathered and masked; "
                "epilogue 'scale' is one factor for all groups"
            )


def of(problem: Any) -> tuple[Scales, ...]:
    """The scales of A and of B, as far as the problem has them, in the order of its operands."""
    found = []
    for name, field in _STRIDES.items():
        block = parse(getattr(problem, name))
        if block is not None:
            strides = getattr(problem, field)
            found.append(Scales(name, block, _shape(problem, name), strides))
    return tuple(found)


def zeros_of(problem: Any) -> tuple[Operand, ...]:
    """The zero points of B, if the problem has them, with random values of 4 bits."""
    p = problem
    shape = _shape(p, ZEROS)

    def drawn(seed: int) -> list[Any]:
        rng, (groups, down, across) = random.Random(seed), shape
        return [
            [[rng.randrange(-8, 8) for _ in range(across)] for _ in range(down)]
            for _ in range(groups)
        ]

    return (Operand(ZEROS, shape, p.strides_zb, "int8", values=drawn),) if p.zero_b else ()


def group_steps(problem: Any) -> tuple[int, ...]:
    """Elements from one group's scales to the next, of A (0 where rows follow one another) and of
    B, as far as the problem has them."""
    return tuple(s.strides[0] if len(s.shape) == 3 else 0 for s in of(problem))


def with_rows(problem: Any, m: int) -> tuple[int, ...]:
    """The strides of A's scales with `m` rows of A: () packed by rows, packed by columns, or
    unchanged."""
    p = problem
    shape = _shape(p, "scale_a")
    if p.strides_sa == packed(shape):
        return ()
    *_, rows, across = shape
    by_columns = (1, rows) if len(shape) == 2 else (rows * across, 1, rows)
    if p.strides_sa == by_columns:
        return (1, m) if len(shape) == 2 else (m * across, 1, m)
    return tuple(p.strides_sa)


def read(
    views: Sequence[View], options: Mapping[str, Any], rows: tuple[int, ...], groups: int, n: int,
    k: int,
) -> dict[str, Any]:  # fmt: skip
    """Check the arrays that a call passes as scales. Returns the problem's fields for them.

    rows: A's dimensions before K. Raises `BadArgument`.
    """
    found: dict[str, Any] = {}
    given = iter(views)
    for name in SCALES:
        word = options.get(name, "")
        block = parse(word)
        if block is None:
            continue
        outer, (down, across) = rows[:-1], (rows[-1], k)
        if name == "scale_b":
            outer, (down, across) = (groups,), (k, n)
        view = next(given)
        shape = (*outer, *block.shape(down, across))
        gemm.fits(name, word, view, shape, f"{down}×{across} operand of {groups} groups")
        found |= {name: word, _STRIDES[name]: view.strides}
    if options.get(ZEROS):
        block = parse(options.get("scale_b", ""))
        view = next(given)
        if block is None:
            raise BadArgument("zero_b is for weights with scales: say scale_b")
        shape = (groups, *block.shape(k, n))
        if view.shape != shape or view.dtype != "int8" or min(view.strides) < 0:
            raise BadArgument(
                f"zero_b is {view.dtype} of shape {view.shape} with strides {view.strides}; it is "
                f"int8 of the shape of B's scales, {shape}, and runs forward"
            )
        found |= {ZEROS: True, "strides_zb": view.strides}
    return found


def _shape(p: Any, name: str) -> tuple[int, ...]:
    """The shape of an operand's scales, or of B's zero points; () without any."""
    if name == ZEROS:
        return _shape(p, "scale_b") if p.zero_b else ()
    block = parse(getattr(p, name))
    if block is None:
        return ()
    if name == "scale_b":
        return (p.groups, *block.shape(p.k, p.n))
    of_rows = block.shape(p.rows_a or p.m, p.k)
    return (p.groups, *of_rows) if p.form == "masked" else of_rows


def packed(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The strides of an array without gaps; () of no dimensions."""
    strides: list[Any] = [1] * bool(shape)
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)
