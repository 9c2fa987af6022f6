"""Gated activations of rows (Shazeer, arXiv:2002.05202): SwiGLU, GeGLU, ReGLU and GLU.

    y = act(alpha · a) / alpha · (b + shift),  a ≤ limit,  -limit ≤ b ≤ limit

a and b are the halves of each row of x, one behind the other or element by element (`interleaved`);
or x and `up`. y may be rounded to 8 bits (`quant`). gpt-oss has limit = 7, alpha = 1.702 and
shift = 1 with interleaved halves (openai/gpt-oss, ``swiglu``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared.rows import _gates, _quantised, _tiles

FEW_ELEMENTS = 4
"""Elements for each lane where not all lanes of the GPU get four times as many: more lanes begin at
once. Of 22 such problems without rounding that were tuned on an H200 (the shipped tables) they were
best in 21."""

LANES = 132 * 2048
"""Of an H200 (its data sheet)."""


def reference(
    x: Any, up: Any, scale: Any, limit: float, alpha: float, shift: float, problem: Any
) -> tuple[Any, ...]:
    a, b = _gates.clamped(*_gates.halves(x, up, problem.interleaved), limit, shift)
    value, _ = _gates.activation(alpha * a, problem.gate)
    return _quantised.reference(value / alpha * b, problem, scale)


def fits(problem: Any, config: Any) -> bool | str:
    """Rounding by row takes tiles of whole rows, or reads them twice; all else takes pieces."""
    if problem.quant == "row":
        return _tiles.fits(problem, config)
    return config.HELD is True and _gates.fits(problem, config)


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    if problem.quant == "row":
        return _tiles.narrows(problem)
    return {**_gates.narrows(problem), "HELD": (True,)}


def programs(problem: Any, config: Any) -> tuple[int]:
    if problem.quant == "row":
        return _tiles.programs(problem, config)
    return _gates.programs(problem, config)


def prefers(problem: Any, config: Any) -> float:
    """Where both halves of a long row lie together, holding them takes twice the registers. Lanes
    that find the largest of 128 elements too have twice as many."""
    if problem.quant == "row" and not problem.interleaved:
        return _tiles.prefers_held(problem, config)
    full = problem.rows * problem.columns >= 4 * FEW_ELEMENTS * LANES
    usual = _gates.USUAL_ELEMENTS if full else FEW_ELEMENTS
    return _gates.prefers(problem, config, usual * 2 if problem.quant == "block" else usual)


def refused(problem: Any) -> str:
    return _quantised.refused(problem) or _gates.refused(problem)


def gradients(problem: Any) -> Sequence[Gradient] | str:
    if problem.quant:
        return "results rounded to 8 bits have no gradients"
    keywords = {name: name for name in ("up", *_gates.SCALARS)}
    return (
        Gradient(
            ("x", "up"),
            "gated_activation_backward",
            ("x", "grad y"),
            keywords=keywords,
            passes=("gate", "interleaved"),
        ),
    )


declare(
    Declaration(
        name="gated_activation",
        module=__name__,
        operands={
            "x": In("*rows", "columns * (2 - has_up)", strides=("x_stride", 1)),
            "up": In("*rows", "columns", strides=("up_stride", 1), optional=True),
            "scale": In(1, dtype="fp32", optional=True, values=(0.01, 0.02)),
            "y": Out("*rows", "columns", dtype="out_dtype"),
            **_quantised.SCALES,
        },
        scalars=_gates.SCALARS,
        options={"gate": "silu", "interleaved": False, "quant": ""},
        choices={"gate": _gates.GATES, "quant": _quantised.QUANT},
        axes=_tiles.AXES,
        parts=(
            kernel("main", f"{__package__}.kernels.gated_activation:gated_activation", programs),
        ),
        values=_gates.DIVISORS,
        refuses=refused,
        supports=fits,
        narrows=narrows,
        prefers=prefers,
        multiples=("columns", "x_stride", "up_stride"),
        reference=reference,
        amplifies=4.0,
        gradients=gradients,
        problems=(
            *_gates.problems(1, 16, 256, 4096, 16384),
            *_gates.problems(4096, quant="row", out_dtype="e4m3fn"),
            *_gates.problems(4096, quant="block", out_dtype="e4m3fn"),
            {"rows": 4096, "columns": 2880, "interleaved": True},  # gpt-oss
            *_gates.GEMMA,
        ),
    )
)
