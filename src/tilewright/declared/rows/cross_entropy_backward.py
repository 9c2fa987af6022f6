"""Gradient of `cross_entropy`, from the logits, their rows' lse and what arrives for each loss."""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, Out, declare, kernel
from tilewright.declared._quotients import divisors
from tilewright.declared.rows import _entropy, _tiles

PIECE = 4096
"""Classes of a workgroup, at most."""
USUAL_ELEMENTS = 16
"""Elements for each lane that are preferred until a measurement decides: what a workgroup reads of
its rows beside them, and waits for, is then little."""


def reference(
    logits: Any,
    target: Any,
    lse: Any,
    dloss: Any,
    weight: Any,
    ignore_index: int,
    label_smoothing: float,
    lse_square_scale: float,
    factor: float,
) -> Any:
    rows = _entropy.Rows(logits, target, weight, ignore_index, label_smoothing)
    made = rows.gradient(logits, lse, lse_square_scale) * dloss[:, None] * factor
    return rows.only(made)


def block(problem: Any) -> int:
    """The smallest block that holds a row, or `PIECE`."""
    return min(_tiles.block(problem.classes), PIECE)


def fits(problem: Any, config: Any) -> bool | str:
    if block(problem) != config.BLOCK:
        return f"BLOCK = {config.BLOCK} for {problem.classes} classes"
    if config.ROWS > 1 and problem.classes > config.BLOCK:
        return f"ROWS = {config.ROWS} for rows in pieces"
    if _each(config) > _tiles.LANE_ELEMENTS:
        return f"{_each(config):.0f} elements for each lane"
    return True


def narrows(problem: Any) -> dict[str, tuple[int, ...]]:
    rows = {"ROWS": (1,)} if problem.classes > PIECE else {}
    return {"BLOCK": (block(problem),), **rows}


def _each(config: Any) -> float:
    """Elements of a tile for each lane."""
    each: float = config.BLOCK * config.ROWS / (32 * config.num_warps)
    return each


def prefers(problem: Any, config: Any) -> float:
    """How many times a tile has more or fewer than `USUAL_ELEMENTS` for each lane."""
    return max(_each(config) / USUAL_ELEMENTS, USUAL_ELEMENTS / _each(config))


def programs(problem: Any, config: Any) -> tuple[int]:
    """The grid: a workgroup for every ROWS rows, of each piece."""
    return (-(-problem.rows // config.ROWS) * -(-problem.classes // config.BLOCK),)


declare(
    Declaration(
        name="cross_entropy_backward",
        module=__name__,
        operands={
            "logits": In("*rows", "classes", strides=("logits_stride", 1)),
            "target": _entropy.TARGET,
            "lse": In("*rows", dtype="fp32", values=(8.0, 12.0)),
            "dloss": In("*rows", dtype="fp32"),
            "weight": In("classes", dtype="fp32", optional=True, values=(0.5, 2.0)),
            "dlogits": Out("*rows", "classes"),
        },
        scalars=_entropy.SCALARS,
        limits=_entropy.LIMITS,
        dtypes=_entropy.DTYPES,
        axes={name: values for name, values in _tiles.AXES.items() if name != "HELD"},
        parts=(
            kernel(
                "main",
                f"{__package__}.kernels.cross_entropy_backward:cross_entropy_backward",
                programs,
            ),
        ),
        values=divisors(pieces=lambda problem, config: -(-problem.classes // config.BLOCK)),
        refuses=_entropy.refused,
        supports=fits,
        narrows=narrows,
        prefers=prefers,
        multiples=("classes", "logits_stride"),
        reference=reference,
        amplifies=8.0,
        problems=_entropy.PROBLEMS,
    )
)
