"""Gradients of `sum_of_experts`: of the rows, and of the routing's weights."""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, Out, Scratch, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.routing import _pieces, _references, _tiles
from tilewright.dtypes import DTYPES

CHOICES = 1024
"""Choices of a workgroup that writes owners down; as in the kernel."""


def reference(
    rows: Any,
    places: Any,
    dy: Any,
    weights: Any,
    routed_scaling_factor: float,
    problem: Any,
) -> tuple[Any, ...]:
    f, count = functions(rows), len(rows)
    k = places.shape[-1]
    there = (places >= 0) & (places < count)
    flat = f.where(there, places, 0 * places + count).reshape(-1)
    terms = (dy * routed_scaling_factor)[..., None, :]
    each = terms * weights[..., None] if problem.has_weights else terms
    made = _references.filled(rows, (count + 1) * problem.width, 0).reshape(count + 1, -1)
    made[flat] = (each + 0 * there[..., None]).reshape(-1, problem.width)
    if not problem.has_weights:
        return (made[:count],)
    none = _references.filled(rows, problem.width, 0).reshape(1, -1)
    chosen = f.concatenate([rows, none])[flat].reshape(-1, k, problem.width)
    dweights = (chosen * terms.reshape(-1, 1, problem.width)).sum(-1)
    return made[:count], dweights.reshape(places.shape)


def refused(problem: Any) -> str:
    """Why a problem cannot be computed; "" if it can."""
    if problem.k < 1:
        return "a token has 1 choice at least"
    return ""


def least(problem: Any) -> int:
    """The fewest bytes: rows, with weights, their gradients, what arrives, and the maps."""
    p = problem
    of_rows = p.slots * p.width * DTYPES[p.dtype].bytes * (1 + p.has_weights)
    arrived = p.tokens * p.width * DTYPES[p.out_dtype].bytes
    return int(of_rows + arrived + p.tokens * p.k * 4 * (1 + 2 * p.has_weights))


_KERNELS = f"{__package__}.kernels.sum_of_experts_backward"

declare(
    Declaration(
        name="sum_of_experts_backward",
        module=__name__,
        operands={
            "rows": In("slots", "width", strides=("rows_stride", 1)),
            "places": In("*tokens", "k", dtype="int32", values=_references.places),
            "dy": In("*tokens", "width", dtype="out_dtype"),
            "weights": In("*tokens", "k", dtype="weight_dtype", optional=True),
            "drows": Out("slots", "width"),
            "dweights": Out("*tokens", "k", dtype="weight_dtype", when="has_weights"),
        },
        scalars={"routed_scaling_factor": ("fp32", 1.0)},
        dtypes={"weight_dtype": "fp32"},
        axes=_pieces.AXES,
        temporaries={"owner": Scratch(lambda p, _: (p.slots,), "int32", "kept_zero")},
        parts=(
            kernel("owners", f"{_KERNELS}:owners", lambda p, _: (-(-p.tokens * p.k // CHOICES),)),
            kernel("spread", f"{_KERNELS}:spread", lambda p, _: (p.slots,)),
        ),
        values={"choices": lambda p, _: p.tokens * p.k},
        refuses=refused,
        supports=_pieces.fits,
        narrows=_pieces.narrows,
        prefers=_pieces.prefers,
        multiples=("width", "rows_stride"),
        least=least,
        reference=reference,
        terms="width",
        amplifies=2.0,
        problems=tuple(
            {"tokens": tokens, "k": k, "slots": tokens * k, "width": width, "has_weights": True}
            # Mixtral, Qwen3, gpt-oss, DeepSeek-V3.
            for k, width in ((2, 4096), (8, 2048), (4, 2880), (8, 7168))
            for tokens in _tiles.TOKENS
        ),
    )
)
