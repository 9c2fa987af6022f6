"""For each token, the weighted sum of its experts' rows: what ends a mixture of experts.

    y[t] = routed_scaling_factor · Σ_j weights[t, j] · rows[places[t, j]] + shared[t]

`places` are those of `sort_by_expert`; a choice whose place is -1, or beyond the rows, adds 0, and
its row is not read. Terms are added in fp32, in an order that the choices alone decide, so that a
sum has the same bits in every run. `shared` is what experts that serve every token have computed.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.routing import _pieces, _references, _tiles
from tilewright.dtypes import DTYPES
from tilewright.ops.powers import power_of_two

AXES: dict[str, tuple[Any, ...]] = {**_pieces.AXES, "TERMS": (1, 2, 4, 8)}
"""TERMS: rows that a workgroup has under way at once."""

MOST_TERMS = AXES["TERMS"][-1]


def reference(
    rows: Any,
    places: Any,
    weights: Any,
    shared: Any,
    routed_scaling_factor: float,
    problem: Any,
) -> Any:
    f = functions(rows)
    there = (places >= 0) & (places < len(rows))
    none = _references.filled(rows, rows.shape[1], 0).reshape(1, -1)
    terms = f.concatenate([rows, none])[f.where(there, places, 0 * places + len(rows))]
    if weights is not None:
        terms = terms * weights[..., None]
    y = terms.sum(-2) * routed_scaling_factor
    return y if shared is None else y + shared


def refused(problem: Any) -> str:
    """Why a problem cannot be computed; "" if it can."""
    if problem.k < 1:
        return "a token has 1 choice at least"
    return ""


def supports(problem: Any, config: Any) -> bool | str:
    """Whether a config's tile is one for rows of this length, and for so many choices."""
    if config.TERMS not in (wanted := narrows(problem)["TERMS"]):
        return f"TERMS = {config.TERMS}, where it may be {wanted}"
    return _pieces.fits(problem, config)


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The values of the axes that a problem is served with."""
    terms = min(MOST_TERMS, power_of_two(problem.k))
    return {**_pieces.narrows(problem), "TERMS": tuple(n for n in (terms // 2, terms) if n)}


def programs(problem: Any, config: Any) -> tuple[int, int]:
    """The grid: a workgroup for each token and each BLOCK columns."""
    return problem.tokens, -(-problem.width // config.BLOCK)


def prefers(problem: Any, config: Any) -> tuple[bool, int]:
    """All choices under way at once; then as `_pieces`."""
    few: bool = config.TERMS < min(int(MOST_TERMS), problem.k)  # noqa: SIM300
    return few, _pieces.prefers(problem, config)


def least(problem: Any) -> int:
    """The fewest bytes: each choice's row, the maps and the result."""
    p = problem
    chosen = p.tokens * p.k
    read = min(chosen, p.slots) * p.width * DTYPES[p.dtype].bytes
    written = p.tokens * p.width * DTYPES[p.out_dtype].bytes
    beside = p.tokens * p.width * DTYPES[p.dtype].bytes * p.has_shared
    maps = chosen * 4 * (1 + p.has_weights)
    return int(read + written + beside + maps)


def gradients(problem: Any) -> tuple[Gradient, ...]:
    weights = {"weights": "weights"} if problem.has_weights else {}
    of = ("rows", "weights") if problem.has_weights else ("rows",)
    said = {**weights, "routed_scaling_factor": "routed_scaling_factor"}
    return (
        Gradient(of, "sum_of_experts_backward", ("rows", "places", "grad y"), said),
        *(Gradient("shared", passed, ("shared", "grad y")),) * problem.has_shared,
    )


def passed(shared: Any, arrived: Any) -> Any:
    """The gradient of what is added."""
    return arrived.to(shared.dtype)


declare(
    Declaration(
        name="sum_of_experts",
        module=__name__,
        operands={
            "rows": In("slots", "width", strides=("rows_stride", 1)),
            "places": In("*tokens", "k", dtype="int32", values=_references.places),
            "weights": In("*tokens", "k", dtype="weight_dtype", optional=True),
            "shared": In("*tokens", "width", optional=True),
            "y": Out("*tokens", "width", dtype="out_dtype"),
        },
        scalars={"routed_scaling_factor": ("fp32", 1.0)},
        dtypes={"weight_dtype": "fp32"},
        axes=AXES,
        parts=(kernel("main", f"{__package__}.kernels.sum_of_experts:sum_of_experts", programs),),
        refuses=refused,
        supports=supports,
        narrows=narrows,
        prefers=prefers,
        multiples=("width", "rows_stride"),
        least=least,
        reference=reference,
        terms="k",
        amplifies=2.0,
        gradients=gradients,
        problems=tuple(
            {
                "tokens": tokens,
                "k": k,
                "slots": tokens * k,
                "width": width,
                "has_weights": True,
                "has_shared": shared,
            }
            # Mixtral, Qwen3, gpt-oss, DeepSeek-V3 and its shared expert.
            for k, width, shared in (
                (2, 4096, False),
                (8, 2048, False),
                (4, 2880, False),
                (8, 7168, False),
                (8, 7168, True),
            )
            for tokens in _tiles.TOKENS
        ),
    )
)
