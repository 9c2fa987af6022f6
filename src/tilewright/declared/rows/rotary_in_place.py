"""Rotary embedding of q and k where they lie: `rotary` without gradients, which writes nothing but
what turns."""

from __future__ import annotations

from tilewright.custom import Declaration, InOut, declare, kernel
from tilewright.declared.rows import _rotations as rotations
from tilewright.declared.rows.rotary import reference

declare(
    Declaration(
        name="rotary_in_place",
        module=__name__,
        operands={
            "q": InOut(*rotations.Q, strides=rotations.Q_STRIDES),
            "k": InOut(*rotations.K, strides=rotations.K_STRIDES),
            **rotations.ANGLES,
            "positions": rotations.POSITIONS,
        },
        options=rotations.OPTIONS,
        choices=rotations.CHOICES,
        dtypes=rotations.DTYPES,
        axes=rotations.AXES,
        parts=(
            kernel(
                "main",
                f"{__package__}.kernels.rotary_in_place:rotary_in_place",
                rotations.programs,
            ),
        ),
        values=rotations.DIVISORS,
        refuses=rotations.refused,
        supports=rotations.fits,
        narrows=rotations.narrows,
        prefers=rotations.prefers,
        multiples=rotations.MULTIPLES,
        reference=reference,
        least=lambda p: rotations.least(p, 4 * p.half * (p.q_heads + p.k_heads)),
        amplifies=4.0,
        problems=(
            *rotations.problems(*rotations.TOKENS),
            *rotations.deepseek(*rotations.TOKENS),
        ),
    )
)
