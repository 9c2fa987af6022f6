"""HSTU's attention (Zhai et al., arXiv:2402.17152) of jagged sequences, forward.

    O = (SiLU(alpha · Q·Kᵀ) / max_seq_len, masked) · V

A row sees itself. Beside itself it sees rows of the history alone, which is all before the targets:
rows of the prefix (`contextual_seq_len`) all of it, other rows what is before them and no farther
than `max_attn_len` places; the last `min_full_attn_seq_len` rows, and the targets, any distance.
Without `causal`, every row sees all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.custom import Declaration, Gradient, Out, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.attention import _masks, _tiles
from tilewright.ops.attention.pipelines.basic import rolls, tiles_of


def reference(
    q: Any, k: Any, v: Any, offsets: Any, num_targets: Any, max_seq_len: int, alpha: float,
    problem: Any,
) -> Any:  # fmt: skip
    o = functions(v).zeros_like(v)
    for rows, h, s, share, mask in _masks.tiles(q, k, offsets, num_targets, alpha, problem):
        o[rows, h] = (s * share * mask) @ v[rows, h] / max_seq_len
    return o


SQUARE = (64, 64, 4)
"""A tile for head dims of up to 128 in 16 bits, where matrix units multiply on their own: it has
room for as large a step, without a softmax's running sums."""


def together(problem: Any, arch: Arch) -> Sequence[Mapping[str, Any]]:
    """Attention's tiles and `SQUARE`, in the stages that attention's spaces have by default."""
    most = max(problem.head_dim, problem.head_dim_v)
    square = arch.async_mma and problem.dtype != "fp32" and most <= 128
    return _tiles.rows_of(
        dict.fromkeys((*tiles_of(problem.dtype, most, arch), *[SQUARE] * square)),
        (2,) if arch.backend == "cuda" else (1,),
        rolls(problem.dtype, problem.head_dim, arch),
    )


declare(
    Declaration(
        name="hstu_attention",
        module=__name__,
        operands={
            **_tiles.OPERANDS,
            "num_targets": _tiles.NUM_TARGETS,
            "o": Out("rows", "heads", "head_dim_v"),
        },
        scalars=_tiles.SCALARS,
        options=_tiles.OPTIONS,
        axes=_tiles.AXES,
        parts=(
            _tiles.ORDERED,
            kernel("main", f"{__package__}.kernels.hstu_attention:hstu_attention", _tiles.programs),
        ),
        temporaries={"order": _tiles.ORDER},
        refuses=_tiles.refused,
        supports=_tiles.fits,
        narrows=_tiles.narrows,
        together=together,
        prefers=_tiles.prefers,
        multiples=_tiles.STRIDES,
        reference=reference,
        tolerances=_tiles.tolerances("o"),
        flops=lambda problem: 2 * _tiles.pairs(problem) * (problem.head_dim + problem.head_dim_v),
        gradients=(
            Gradient(
                ("q", "k", "v"),
                "hstu_attention_backward",
                ("q", "k", "v", "offsets", "grad o"),
                keywords={
                    "num_targets": "num_targets",
                    "max_seq_len": "max_seq_len",
                    "alpha": "alpha",
                },
                passes=tuple(_tiles.OPTIONS),
            ),
        ),
        problems=_tiles.benchmark(),
    )
)
