"""Gradients of `gated_activation`: of both halves in one array laid out like x, or of x and up."""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, Out, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.rows import _gates, _tiles


def reference(
    x: Any, dy: Any, up: Any, limit: float, alpha: float, shift: float, problem: Any
) -> tuple[Any, ...]:
    a, b = _gates.halves(x, up, problem.interleaved)
    low, lifted = _gates.clamped(a, b, limit, shift)
    value, slope = _gates.activation(alpha * low, problem.gate)
    f = functions(x)
    da = f.where(a > limit, 0.0 * dy, dy * slope * lifted)
    db = f.where(abs(b) > limit, 0.0 * dy, dy * value / alpha)
    return (da, db) if problem.has_up else (_gates.joined(da, db, problem.interleaved),)


declare(
    Declaration(
        name="gated_activation_backward",
        module=__name__,
        operands={
            "x": In("*rows", "columns * (2 - has_up)", strides=("x_stride", 1)),
            "dy": In("*rows", "columns", dtype="out_dtype"),
            "up": In("*rows", "columns", strides=("up_stride", 1), optional=True),
            "dx": Out("*rows", "columns * (2 - has_up)"),
            "dup": Out("*rows", "columns", when="has_up"),
        },
        scalars=_gates.SCALARS,
        options={"gate": "silu", "interleaved": False},
        choices={"gate": _gates.GATES},
        axes={name: values for name, values in _tiles.AXES.items() if name != "HELD"},
        parts=(
            kernel(
                "main",
                f"{__package__}.kernels.gated_activation_backward:gated_activation_backward",
                _gates.programs,
            ),
        ),
        values=_gates.DIVISORS,
        refuses=_gates.refused,
        supports=_gates.fits,
        narrows=_gates.narrows,
        prefers=_gates.prefers,
        multiples=("columns", "x_stride", "up_stride"),
        reference=reference,
        amplifies=4.0,
        problems=(*_gates.problems(4096, 16384), *_gates.GEMMA),
    )
)
