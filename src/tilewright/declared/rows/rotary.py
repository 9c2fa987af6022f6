"""Rotary embedding (Su et al., arXiv:2104.09864) of q and k at once.

    a' = a · cos[p, i] - b · sin[p, i];  b' = b · cos[p, i] + a · sin[p, i],  i < half

A pair (a, b) of a head's elements at position p turns by an angle, the same for all heads: elements
i and half + i under ``half``, as in Llama; 2 · i and 2 · i + 1 under ``interleaved``, as in GPT-J.
`inverse` turns the other way, which is the gradient. Strides are for slices of one array of q, k
and v. A k without heads (``k[:, :0]``) leaves q alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared.rows import _rotations as rotations


def reference(q: Any, k: Any, cos: Any, sin: Any, positions: Any, problem: Any) -> tuple[Any, Any]:
    q_out, k_out = (
        rotations.turned(x, cos, sin, positions, problem, problem.inverse) for x in (q, k)
    )
    return q_out, k_out


def gradients(problem: Any) -> Sequence[Gradient]:
    return (
        Gradient(
            ("q", "k"),
            "rotary",
            ("grad q_out", "grad k_out", "cos", "sin"),
            keywords={"positions": "positions"},
            options={"inverse": not problem.inverse},
            passes=("form",),
        ),
    )


declare(
    Declaration(
        name="rotary",
        module=__name__,
        operands={
            "q": In(*rotations.Q, strides=rotations.Q_STRIDES),
            "k": In(*rotations.K, strides=rotations.K_STRIDES),
            **rotations.ANGLES,
            "positions": rotations.POSITIONS,
            "q_out": Out(*rotations.Q),
            "k_out": Out(*rotations.K),
        },
        options=rotations.OPTIONS,
        choices=rotations.CHOICES,
        dtypes=rotations.DTYPES,
        axes=rotations.AXES,
        parts=(kernel("main", f"{__package__}.kernels.rotary:rotary", rotations.programs),),
        values=rotations.DIVISORS,
        refuses=rotations.refused,
        supports=rotations.fits,
        narrows=rotations.narrows,
        prefers=rotations.prefers,
        multiples=rotations.MULTIPLES,
        reference=reference,
        least=lambda p: rotations.least(p, 2 * p.head_dim * (p.q_heads + p.k_heads)),
        amplifies=4.0,
        gradients=gradients,
        problems=(
            *rotations.problems(4096, 16384),
            *rotations.problems(4096, inverse=True),
            *rotations.deepseek(4096, 16384),
        ),
    )
)
