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


def prefers(problem: Any, config: Any) -> float:
    """As of other tiles. A lane that rounds by row, without smooth scales, has little else in
    registers than the row, and takes twice as much of it: of 36 such problems that were tuned on an
    H200 (the shipped tables) the fewest warps that hold a row were best in 35. Pieces are read
    twice, by as many lanes as there are."""
    usual = _tiles.USUAL_ELEMENTS
    if not config.HELD:
        usual //= 2
    elif problem.quant == "row" and not problem.has_smooth and config.ROWS == 1:
        usual *= 2
    return _tiles.prefers_held(problem, config, usual)


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
        prefers=prefers,
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
