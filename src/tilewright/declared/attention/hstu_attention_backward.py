"""Gradients of `hstu_attention`: dQ, dK and dV, with the same bits in every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.custom import Declaration, In, Out, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.attention import _masks, _tiles
from tilewright.ops.attention_backward.catalogue import rolls
from tilewright.ops.attention_backward.pipelines.basic import tiles_of

KERNELS = f"{__package__}.kernels.hstu_attention_backward"


def reference(
    q: Any, k: Any, v: Any, offsets: Any, do: Any, num_targets: Any, max_seq_len: int,
    alpha: float, problem: Any,
) -> tuple[Any, ...]:  # fmt: skip
    dq, dk, dv = map(functions(q).zeros_like, (q, k, v))
    for rows, h, s, share, mask in _masks.tiles(q, k, offsets, num_targets, alpha, problem):
        slope = share * (1.0 + s * (1.0 - share))
        ds = (do[rows, h] @ v[rows, h].T) * slope * mask * (alpha / max_seq_len)
        dq[rows, h] = ds @ k[rows, h]
        dk[rows, h] = ds.T @ q[rows, h]
        dv[rows, h] = (s * share * mask).T @ do[rows, h] / max_seq_len
    return dq, dk, dv


LARGE: tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...] = (
    (64, ((128, 64, 8), (64, 64, 4), (64, 32, 4))),
    (128, ((128, 64, 8), (64, 32, 4))),
)
"""Up to a head dim, in 16 bits, where matrix units multiply on their own. They take products of few
columns no faster than of many, and two stages overlap with loads. Attention's gradients have no
registers for steps as large."""


def together(problem: Any, arch: Arch) -> Sequence[Mapping[str, Any]]:
    """`LARGE` tiles, or the tiles and stages of attention's gradients."""
    most = max(problem.head_dim, problem.head_dim_v)
    if arch.async_mma and problem.dtype != "fp32":
        for longest, tiles in LARGE:
            if most <= longest:
                return _tiles.rows_of(tiles, (2,), False)
    stages = (1, 2) if arch.backend == "cuda" else (1,)
    return _tiles.rows_of(tiles_of(problem.dtype, most, arch), stages, rolls(arch))


declare(
    Declaration(
        name="hstu_attention_backward",
        module=__name__,
        operands={
            **_tiles.OPERANDS,
            "do": In("rows", "heads", "head_dim_v"),
            "num_targets": _tiles.NUM_TARGETS,
            "dq": Out("rows", "heads", "head_dim"),
            "dk": Out("rows", "heads", "head_dim"),
            "dv": Out("rows", "heads", "head_dim_v"),
        },
        scalars=_tiles.SCALARS,
        options=_tiles.OPTIONS,
        axes={**_tiles.AXES, "num_stages": (1, 2)},
        parts=(
            _tiles.ORDERED,
            kernel("queries", f"{KERNELS}:gradients_of_queries", _tiles.programs),
            kernel("keys", f"{KERNELS}:gradients_of_keys", _tiles.programs),
        ),
        temporaries={"order": _tiles.ORDER},
        refuses=_tiles.refused,
        supports=_tiles.fits,
        narrows=_tiles.narrows,
        together=together,
        prefers=_tiles.prefers,
        multiples=_tiles.STRIDES,
        reference=reference,
        tolerances=_tiles.tolerances("dq", "dk", "dv"),
        flops=lambda problem: (
            2 * _tiles.pairs(problem) * (3 * problem.head_dim + 2 * problem.head_dim_v)
        ),
        problems=_tiles.benchmark(),
    )
)
