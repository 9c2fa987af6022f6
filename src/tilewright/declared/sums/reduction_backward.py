"""The gradient of `reduction`: of sums, means, L2 norms, the largest and the smallest.

Each element gets what arrives for its result: of a norm times element / norm, where the norm is not
0; of a largest or smallest only the element at its place. Of several results the sum.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, Out, declare, kernel
from tilewright.custom.declaration import Array
from tilewright.declared._arrays import functions
from tilewright.declared.sums import _tiles
from tilewright.dtypes import DTYPES


def made(dtype: str, **values: Any) -> Array:
    """Something of each result."""
    return In("outer", "middle", "inner", dtype=dtype, optional=True, **values)


PLACES = (0, "far * near")


def reference(
    x: Any,
    d_sum: Any,
    d_mean: Any,
    d_norm: Any,
    norm: Any,
    d_max: Any,
    max_at: Any,
    d_min: Any,
    min_at: Any,
    problem: Any,
) -> Any:
    f = functions(x)

    def spread(one: Any) -> Any:
        return one[:, None, :, None, :]

    dx = x * 0
    dx = dx if d_sum is None else dx + spread(d_sum)
    dx = dx if d_mean is None else dx + spread(d_mean) / (problem.far * problem.near)
    if d_norm is not None:
        share = d_norm / f.where(norm == 0, f.ones_like(norm), norm)
        dx = dx + x * spread(f.where(norm == 0, f.zeros_like(norm), share))
    for arrived, at in ((d_max, max_at), (d_min, min_at)):
        if arrived is not None:
            near = problem.near
            for place in range(problem.far * near):
                hit = f.where(at == place, arrived, f.zeros_like(arrived))
                dx[:, place // near, :, place % near, :] += hit
    return dx


def refused(problem: Any) -> str:
    if DTYPES[problem.dtype].kind != "float" or DTYPES[problem.dtype].bits < 16:
        return f"elements are {problem.dtype}; gradients are of floats of 16 bits or more"
    for arrived, other, option in (
        ("d_norm", "norm", "norm"),
        ("d_max", "max_at", "argmax"),
        ("d_min", "min_at", "argmin"),
    ):
        if getattr(problem, f"has_{arrived}") and not getattr(problem, f"has_{other}"):
            return f"{arrived}= goes with {other}=: ask the reduction for {option} too"
    return _tiles.refused(problem)


def programs(problem: Any, config: Any) -> tuple[int]:
    return (_tiles.tiles(problem, config) * _tiles.pieces(problem, config),)


declare(
    Declaration(
        name="reduction_backward",
        module=__name__,
        operands={
            "x": In(
                "outer",
                "far",
                "middle",
                "near",
                "inner",
                strides=("outer_stride", "far_stride", "middle_stride", "near_stride", 1),
                read="has_d_norm",
            ),
            "d_sum": made("out_dtype"),
            "d_mean": made("out_dtype"),
            "d_norm": made("out_dtype"),
            "norm": made("out_dtype", values=(0.5, 2.0)),
            "d_max": made("dtype"),
            "max_at": made("int64", values=PLACES),
            "d_min": made("dtype"),
            "min_at": made("int64", values=PLACES),
            "dx": Out("outer", "far", "middle", "near", "inner"),
        },
        axes=_tiles.AXES,
        parts=(
            kernel(
                "main", f"{__package__}.kernels.reduction_backward:reduction_backward", programs
            ),
        ),
        refuses=refused,
        supports=_tiles.fits,
        narrows=_tiles.narrows,
        prefers=_tiles.prefers,
        multiples=_tiles.multiples,
        reference=reference,
        problems=(
            # Llama 3 8B (arXiv:2407.21783): hidden states [4096 tokens, 4096], along both.
            {"outer": 4096, "far": 1, "middle": 1, "near": 4096, "inner": 1, "has_d_mean": True},
            {"outer": 1, "far": 1, "middle": 1, "near": 4096, "inner": 4096, "has_d_sum": True},
            # ResNet-50 (arXiv:1512.03385), 64 images: means of whole images.
            {"outer": 131072, "far": 1, "middle": 1, "near": 49, "inner": 1, "has_d_mean": True},
            {"outer": 64, "far": 1, "middle": 1, "near": 49, "inner": 2048, "has_d_mean": True},
        ),
    )
)
