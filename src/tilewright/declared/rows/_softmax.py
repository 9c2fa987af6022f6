"""What softmax, its logarithm and their gradients have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.custom.declaration import Array
from tilewright.declared._arrays import functions
from tilewright.declared.rows import _long, _tiles

TILES = _long.Long()
FLOATS = ("fp32", "bf16", "fp16")
"""Element types of operands and results."""

PROBLEMS = (
    *({"rows": 16384, "columns": columns} for columns in (1024, 2048, 4096, 8192)),
    *({"rows": 2048, "columns": columns} for columns in (16384, 32768, 65536)),
    *({"rows": rows, "columns": 128256} for rows in (1, 64, 256, 2048)),
    {"rows": 64, "columns": 151936},
    {"rows": 64, "columns": 262144},
)
"""Rows of attention's scores, of 1k to 64k keys; and of logits that tokens are drawn from: the
vocabularies that Llama 3, Qwen 3 and Gemma 3 state in their config.json."""


def not_floats(*fields: str) -> Callable[[Any], str]:
    """Refuses problems whose fields name other element types."""

    def refused(problem: Any) -> str:
        for field in fields:
            if getattr(problem, field) not in FLOATS:
                return f"{field} = {getattr(problem, field)}; it takes {', '.join(FLOATS)}"
        return ""

    return refused


def below(values: Any) -> tuple[Any, Any]:
    """Values less the largest of their row, and the logarithm of the sum of their exponentials."""
    f = functions(values)
    less = values - f.amax(values, axis=-1)[:, None]
    return less, f.log(f.exp(less).sum(-1))[:, None]


def forward(name: str, reference: Callable[..., Any], amplifies: float) -> None:
    """Declare softmax, or its logarithm."""
    declare_on_rows(
        name,
        "softmax",
        "parts_of_rows",
        2,
        {
            "x": In("*rows", "columns", strides=("x_stride", 1)),
            "y": Out("*rows", "columns", dtype="out_dtype"),
        },
        reference,
        multiples=("columns", "x_stride"),
        amplifies=amplifies,
        gradients=lambda problem: (
            Gradient(
                "x",
                f"{name}_backward",
                ("y", "grad y"),
                keywords={"scale": "scale"},
                options={"out_dtype": problem.dtype},
            ),
        ),
    )


def backward(name: str, reference: Callable[..., Any], values: tuple[float, float]) -> None:
    """Declare the gradient of softmax, or of its logarithm, whose results lie between `values`."""
    declare_on_rows(
        name,
        "softmax_backward",
        f"{name}_parts",
        1,
        {
            "y": In("*rows", "columns", values=values),
            "dy": In("*rows", "columns"),
            "dx": Out("*rows", "columns", dtype="out_dtype"),
        },
        reference,
        multiples=("columns",),
        terms="columns",
        amplifies=4.0,
    )


def declare_on_rows(
    name: str,
    file: str,
    parts: str,
    values: int,
    operands: dict[str, Array],
    reference: Callable[..., Any],
    **more: Any,
) -> None:
    """Declare an operation of one kernel, or of two where several workgroups share a row. It has a
    scale.

    file: of the kernels. parts: the kernel that leaves so many `values` of each share.
    """
    place = f"{__package__}.kernels.{file}"
    declare(
        Declaration(
            name=name,
            module=f"{__package__}.{name}",
            operands=operands,
            scalars={"scale": ("fp32", 1.0)},
            axes=_long.AXES,
            parts=(
                kernel("main", f"{place}:{name}", _tiles.programs, _long.alone),
                kernel("parts", f"{place}:{parts}", _long.workgroups, _long.shared),
                kernel(
                    "finish",
                    f"{place}:{name}_finish",
                    _long.workgroups,
                    _long.shared,
                    dependent=True,
                ),
            ),
            temporaries={"parts": _long.parts(values)},
            refuses=not_floats("dtype", "out_dtype"),
            supports=TILES.fits,
            narrows=TILES.narrows,
            prefers=TILES.prefers,
            reference=reference,
            problems=PROBLEMS,
            **more,
        )
    )
