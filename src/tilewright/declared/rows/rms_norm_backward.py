"""Gradients of `rms_norm`: dx, which is the residual's too, and dw."""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, Out, declare
from tilewright.declared.rows import _gradients, _sizes

EPS = 1e-6
"""Unless a call says another."""


def reference(
    x: Any, dy: Any, w: Any, residual: Any, dtotal: Any, eps: float, offset: float
) -> tuple[Any, ...]:
    total = x if residual is None else x + residual
    rstd = 1 / ((total * total).mean(-1)[:, None] + eps) ** 0.5
    normed = total * rstd
    through = dy if w is None else dy * (w + offset)
    dx = (through - normed * (through * normed).mean(-1)[:, None]) * rstd
    dx = dx if dtotal is None else dx + dtotal
    return dx if w is None else (dx, (dy * normed).sum(0))


def has_weights(config: Any) -> bool:
    return bool(config.has_w)


declare(
    Declaration(
        name="rms_norm_backward",
        module=__name__,
        operands={
            "x": In("*rows", "columns", strides=("x_stride", 1)),
            "dy": In("*rows", "columns", dtype="dy_dtype"),
            "w": In("columns", dtype="w_dtype", optional=True),
            "residual": In("*rows", "columns", strides=("residual_stride", 1), optional=True),
            "dtotal": In("*rows", "columns", optional=True),
            "dx": Out("*rows", "columns"),
            "dw": Out("columns", dtype="w_dtype", when="has_w"),
        },
        scalars={"eps": ("fp32", EPS), "offset": ("fp32", 0.0)},
        axes=_gradients.AXES,
        parts=_gradients.parts(
            f"{__package__}.kernels.rms_norm_backward:rms_norm_backward",
            "weights",
            has_weights,
        ),
        values={"programs": _gradients.programs},
        temporaries={"dw_parts": _gradients.sums(has_weights)},
        supports=_gradients.fits,
        narrows=_gradients.narrows,
        prefers=_gradients.prefers,
        multiples=("columns", "x_stride", "residual_stride"),
        reference=reference,
        terms="rows",
        amplifies=_gradients.AMPLIFIES,
        tolerances=_gradients.tolerances(EPS, 0),
        problems=_sizes.problems(has_w=True),
    )
)
