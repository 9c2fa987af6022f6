"""Gradients of `layer_norm`: dx, which is the residual's too, dw and db."""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, Out, declare
from tilewright.declared.rows import _gradients, _sizes

EPS = 1e-5
"""Unless a call says another."""


def reference(
    x: Any, dy: Any, w: Any, b: Any, residual: Any, dtotal: Any, eps: float, offset: float
) -> tuple[Any, ...]:
    total = x if residual is None else x + residual
    centred = total - total.mean(-1)[:, None]
    rstd = 1 / ((centred * centred).mean(-1)[:, None] + eps) ** 0.5
    normed = centred * rstd
    through = dy if w is None else dy * (w + offset)
    shared = through.mean(-1)[:, None] + normed * (through * normed).mean(-1)[:, None]
    dx = (through - shared) * rstd
    dx = dx if dtotal is None else dx + dtotal
    dw = () if w is None else ((dy * normed).sum(0),)
    db = () if b is None else (dy.sum(0),)
    return (dx, *dw, *db)


def has_weights(config: Any) -> bool:
    return bool(config.has_w)


def has_bias(config: Any) -> bool:
    return bool(config.has_b)


declare(
    Declaration(
        name="layer_norm_backward",
        module=__name__,
        operands={
            "x": In("*rows", "columns", strides=("x_stride", 1)),
            "dy": In("*rows", "columns", dtype="dy_dtype"),
            "w": In("columns", dtype="w_dtype", optional=True),
            "b": In("columns", dtype="b_dtype", optional=True, read=False),
            "residual": In("*rows", "columns", strides=("residual_stride", 1), optional=True),
            "dtotal": In("*rows", "columns", optional=True),
            "dx": Out("*rows", "columns"),
            "dw": Out("columns", dtype="w_dtype", when="has_w"),
            "db": Out("columns", dtype="b_dtype", when="has_b"),
        },
        scalars={"eps": ("fp32", EPS), "offset": ("fp32", 0.0)},
        axes=_gradients.AXES,
        parts=_gradients.parts(
            f"{__package__}.kernels.layer_norm_backward:layer_norm_backward",
            "weights_and_bias",
            lambda config: has_weights(config) or has_bias(config),
        ),
        values={"programs": _gradients.programs},
        temporaries={
            "dw_parts": _gradients.sums(has_weights),
            "db_parts": _gradients.sums(has_bias),
        },
        supports=_gradients.fits,
        narrows=_gradients.narrows,
        prefers=_gradients.prefers,
        multiples=("columns", "x_stride", "residual_stride"),
        reference=reference,
        terms="rows",
        amplifies=_gradients.AMPLIFIES,
        tolerances=_gradients.tolerances(EPS, 1),
        problems=_sizes.problems(has_w=True, has_b=True),
    )
)
