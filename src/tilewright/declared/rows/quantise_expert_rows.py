"""Rows of tokens rounded to 8 bits, once for each expert that a token goes to.

    y[token, slot] = x[token] · smooth[expert[token, slot]] / scale

`smooth` has SmoothQuant's scales of columns (arXiv:2211.10438) for each expert of a mixture. A slot
whose expert is none of them, such as -1, gets zeros and the scale 1.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, Out, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.rows import _ck, _quantised, _sizes, _tiles


def reference(x: Any, smooth: Any, expert: Any, scale: Any, problem: Any) -> tuple[Any, ...]:
    f = functions(x)
    known = ((expert >= 0) & (expert < len(smooth)))[..., None]
    values = f.where(known, x[:, None] * smooth[f.where(known[..., 0], expert, 0)], 0.0)
    values = f.swapaxes(values, 0, 1) if problem.slots_first else values
    return _quantised.reference(values.reshape(-1, x.shape[-1]), problem, scale)


def programs(problem: Any, config: Any) -> tuple[int]:
    return (-(-problem.tokens // config.ROWS),)


# DeepSeek-V3: 256 experts, 8 of them for each token, rows of 7168; Mixtral and Qwen3.
SIZES = (
    {"columns": 7168, "experts": 256, "slots": 8},
    {"columns": 4096, "experts": 8, "slots": 2},
    {"columns": 2048, "experts": 128, "slots": 8},
)


def prefers(problem: Any, config: Any) -> float:
    """As of rows that are read once, of which each slot's result is made."""
    held = 0.0 if config.HELD else 16.0
    return _tiles.far(config, _tiles.USUAL_ELEMENTS) + held


declare(
    Declaration(
        name="quantise_expert_rows",
        module=__name__,
        operands={
            "x": In("tokens", "columns", strides=("x_stride", 1)),
            "smooth": In("experts", "columns", dtype="fp32", values=(0.5, 2.0)),
            "expert": In("tokens", "slots", dtype="int32", values=(0, "experts")),
            "scale": In(1, dtype="fp32", optional=True, values=(0.01, 0.02)),
            "y": Out("tokens * slots", "columns", dtype="out_dtype", differentiable=False),
            "row_scales": Out(
                "tokens * slots", dtype="fp32", when="quant=row", differentiable=False
            ),
            "block_scales": Out(
                "tokens * slots",
                f"columns // {_quantised.BLOCK}",
                dtype="fp32",
                when="quant=block",
                differentiable=False,
            ),
        },
        dtypes={"out_dtype": "int8"},
        options={"quant": "row", "slots_first": False},
        choices={"quant": _quantised.QUANT[1:]},
        axes=_tiles.AXES,
        parts=(
            kernel("main", f"{__package__}.kernels.quantise_rows:quantise_expert_rows", programs),
        ),
        refuses=_quantised.refused,
        supports=_tiles.fits,
        narrows=_tiles.narrows,
        prefers=prefers,
        multiples=("columns", "x_stride"),
        reference=reference,
        amplifies=4.0,
        drivers=(_ck.QUANTISE_EXPERTS,),
        problems=tuple(
            {"tokens": tokens, **sizes} for sizes in SIZES for tokens in _sizes.ROWS[:-1]
        ),
    )
)
