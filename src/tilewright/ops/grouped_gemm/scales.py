"""Block scales of groups: those of a GEMM (`tilewright.ops.gemm.scales`) for every group.

    scale_a    contiguous [m, ⌈k/c⌉], gathered [rows_a, ⌈k/c⌉], masked [groups, m, ⌈k/c⌉], of blocks
               1xc: a group begins at any row, so each row has scales of its own
    scale_b    [groups, ⌈k/r⌉, ⌈n/c⌉], of blocks rxc in each group's B [k, n]

The other forms have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.blocks import parse
from tilewright.errors import BadArgument
from tilewright.ops.gemm import scales as gemm
from tilewright.ops.gemm.operands import SCALES
from tilewright.ops.gemm.scales import Scaled, Scales
from tilewright.ops.nouns import View

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


def complete(problem: Any) -> None:
    """Check the blocks of a problem with stacked groups, and fill in the strides that are left
    out. Raises `BadArgument`."""
    p = problem
    check_blocks(p)
    for name, field in _STRIDES.items():
        strides, shape = getattr(p, field), _shape(p, name)
        if not strides:
            object.__setattr__(p, field, _packed(shape))
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


def group_steps(problem: Any) -> tuple[int, ...]:
    """Elements from one group's scales to the next, of A (0 where rows follow one another) and of
    B, as far as the problem has them."""
    return tuple(s.strides[0] if len(s.shape) == 3 else 0 for s in of(problem))


def with_rows(problem: Any, m: int) -> tuple[int, ...]:
    """The strides of A's scales with `m` rows of A: () packed by rows, packed by columns, or
    unchanged."""
    p = problem
    shape = _shape(p, "scale_a")
    if p.strides_sa == _packed(shape):
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
    return found


def _shape(p: Any, name: str) -> tuple[int, ...]:
    """The shape of an operand's scales; () without scales."""
    block = parse(getattr(p, name))
    if block is None:
        return ()
    if name == "scale_b":
        return (p.groups, *block.shape(p.k, p.n))
    of_rows = block.shape(p.rows_a or p.m, p.k)
    return (p.groups, *of_rows) if p.form == "masked" else of_rows


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * bool(shape)
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)
