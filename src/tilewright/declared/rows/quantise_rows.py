"""Rows rounded to 8 bits: y = x · smooth / scale.

`smooth` is SmoothQuant's scale of columns (arXiv:2211.10438). The scale is made for each row or for
each 128 elements, or given. `quantise_expert_rows` chooses smooth scales by a row's expert.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, Out, declare, kernel
from tilewright.declared.rows import _ck, _quantised, _sizes, _tiles


def reference(x: Any, smooth: Any, scale: Any, problem: Any) -> tuple[Any, ...]:
    return _quantised.reference(x if smooth is None else x * smooth, problem, scale)


declare(
    Declaration(
        name="quantise_rows",
        module=__name__,
        operands={
            "x": In("*rows", "columns", strides=("x_stride", 1)),
            "smooth": In("columns", dtype="fp32", optional=True, values=(0.5, 2.0)),
            "scale": In(1, dtype="fp32", optional=True, values=(0.01, 0.02)),
            "y": Out("*rows", "columns", dtype="out_dtype", differentiable=False),
            **_quantised.SCALES,
        },
        dtypes={"out_dtype": "int8"},
        options={"quant": "row"},
        choices={"quant": _quantised.QUANT[1:]},
        axes=_tiles.AXES,
        parts=(
            kernel("main", f"{__package__}.kernels.quantise_rows:quantise_rows", _tiles.programs),
        ),
        refuses=_quantised.refused,
        supports=_tiles.fits,
        narrows=_tiles.narrows,
        prefers=_tiles.prefers_held,
        multiples=("columns", "x_stride"),
        reference=reference,
        amplifies=4.0,
        drivers=(_ck.QUANTISE,),
        problems=(
            *_sizes.problems(out_dtype="e4m3fn"),
            *_sizes.few(has_smooth=True),
            *_sizes.few(out_dtype="e4m3fn", quant="block"),
            *_sizes.few(out_dtype="e4m3fn", quant="tensor", has_scale=True),
        ),
    )
)
