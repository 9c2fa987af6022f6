"""RMS norm (Zhang and Sennrich, arXiv:1910.07467) of rows, with a residual added before it.

    t = x + residual;  y = t / sqrt(mean(t²) + eps) · (w + offset) · smooth

`smooth` is SmoothQuant's scale of columns (arXiv:2211.10438). y may be rounded to 8 bits (`quant`).
With `statistics`, 1 / sqrt(mean(t²) + eps) is an output too.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared.rows import _ck, _norm_tiles, _quantised, _sizes, _tiles


def reference(
    x: Any, w: Any, residual: Any, smooth: Any, scale: Any, eps: float, offset: float, problem: Any
) -> tuple[Any, ...]:
    total = x if residual is None else x + residual
    rstd = 1 / ((total * total).mean(-1) + eps) ** 0.5
    y = total * rstd[:, None]
    y = y if w is None else y * (w + offset)
    y = y if smooth is None else y * smooth
    made, *scales = _quantised.reference(y, problem, scale)
    totals = () if residual is None else (total,)
    return (made, *totals, *((rstd,) if problem.statistics else ()), *scales)


GRADIENTS = (
    Gradient(
        ("x", "w"),
        "rms_norm_backward",
        ("x", "grad y"),
        keywords={
            "w": "w",
            "residual": "residual",
            "dtotal": "grad total",
            "eps": "eps",
            "offset": "offset",
        },
    ),
    Gradient("residual", lambda dx: dx, ("gradient of x",)),
)


def gradients(problem: Any) -> tuple[Gradient, ...] | str:
    return _quantised.without_gradients(problem) or GRADIENTS


declare(
    Declaration(
        name="rms_norm",
        module=__name__,
        operands={
            "x": In("*rows", "columns", strides=("x_stride", 1)),
            "w": In("columns", dtype="w_dtype", optional=True),
            "residual": In("*rows", "columns", strides=("residual_stride", 1), optional=True),
            "smooth": In("columns", dtype="fp32", optional=True, values=(0.5, 2.0)),
            "scale": In(1, dtype="fp32", optional=True, values=(0.01, 0.02)),
            "y": Out("*rows", "columns", dtype="out_dtype"),
            "total": Out("*rows", "columns", when="has_residual"),
            "rstd": Out("*rows", dtype="fp32", when="statistics", differentiable=False),
            **_quantised.SCALES,
        },
        scalars={"eps": ("fp32", 1e-6), "offset": ("fp32", 0.0)},
        options={"quant": "", "statistics": False},
        choices={"quant": _quantised.QUANT},
        axes=_norm_tiles.AXES,
        parts=(
            kernel(
                "main",
                f"{__package__}.kernels.rms_norm:rms_norm",
                _tiles.programs,
                each_unit=_norm_tiles.each_unit,
            ),
        ),
        refuses=_quantised.refused,
        supports=_norm_tiles.fits,
        narrows=_norm_tiles.narrows,
        together=_norm_tiles.together,
        prefers=_norm_tiles.prefers,
        multiples=("columns", "x_stride", "residual_stride"),
        reference=reference,
        terms="columns",
        amplifies=4.0,
        gradients=gradients,
        drivers=(_ck.RMS_NORM,),
        problems=(
            *_sizes.problems(has_w=True),
            *_sizes.few(has_w=True, has_residual=True),
            *_sizes.few(has_w=True, has_residual=True, quant="row", out_dtype="e4m3fn"),
        ),
    )
)
