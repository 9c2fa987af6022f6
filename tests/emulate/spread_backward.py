"""The axes of attention's backward pass, and the problems that its kernels are executed on."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any

from spread import Axes, Values
from spread_attention import BATCH, BLOCK, DIMS, GROUP, bias_type, bounds

from tilewright.arch.model import Arch
from tilewright.ops import family
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.config import ALIGNMENTS
from tilewright.ops.attention.features import FEATURES, join
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.attention.problem import OUTPUTS
from tilewright.ops.attention_backward import AttentionBackwardConfig, AttentionBackwardProblem
from tilewright.ops.attention_backward.problem import GRADIENTS, USUAL

FAMILY: Any = family("attention_backward")
HEADS = 2
"""Of keys."""

TILES: tuple[dict[str, int], ...] = (
    {"tile_rows": 32, "step_rows": 32, "num_warps": 4, "num_stages": 1},
    {"tile_rows": 16, "step_rows": 16, "num_warps": 4, "num_stages": 1},
)

TOGETHER = (
    "softcap+bias",
    "alibi+sinks+packedq+packedkv",
    "dropout",
    "sinks+dropout+usedq+usedkv",
    "bias+packedq+packedkv+usedkv",
    "softcap+alibi+usedkv",
    "softcap+bias+bias32",
    "bias+biasbool+usedkv",
    "blocks+sinks+usedkv",
)
"""Features that are executed together; each is in one of them at least."""


def axes(arch: Arch) -> Axes:
    """The axes on an architecture."""
    each: dict[str, Values] = {
        "dtypes": {f"{d}/{o}": {"dtype": d, "dtype_o": o} for d, o in _signatures(arch)},
        "head dims": {f"{k}x{v}": {"head_dim": k, "head_dim_v": v} for k, v in DIMS},
        "mask": {mask: {"mask": mask} for mask in MASKS},
        "features": {word: {"features": word} for word in ("", *TOGETHER)},
        "grads": {
            **{grads: {"grads": grads} for grads in (USUAL, "dq", "dk", "dv", "dq+dv")},
            **{
                word: {"grads": f"{USUAL}+{word}", "features": needs}
                for word, needs in GRADIENTS.items()
                if needs
            },
        },
        **{
            axis: {str(value): {axis: value} for value in values}
            for axis, values in (
                ("dlse", (False, True)),
                ("alignment", ALIGNMENTS),
                ("num_warps", (4, 8, 2, 1)),
                ("num_stages", (1, 2)),
                ("tile_rows", (16, 32, 64)),
                ("step_rows", (16, 32, 64)),
            )
        },
    }
    problems = {
        "ragged": partial(_problem, q_len=39, kv_len=75),
        "one query": partial(_problem, q_len=1, kv_len=70),
        "one key": partial(_problem, q_len=33, kv_len=1),
        "no keys": partial(_problem, q_len=3, kv_len=0),
        "added to": partial(_problem, q_len=18, kv_len=40, accumulate=True),
        "apart": partial(_problem, q_len=18, kv_len=40, apart=True),
    }
    return Axes(FAMILY, FAMILY.pipelines(arch), "dtypes", each, {}, TILES, problems, {})


def _signatures(arch: Arch) -> list[tuple[str, str]]:
    """Dtypes of Q and of O, the usual ones first. Without fp32 on vector units, of which attention
    has no forward pass (its rule vector_products)."""
    wide = ("fp32",) if arch.dtypes["fp32"].via != "fma" else ()
    return [(d, OUTPUTS[d][0]) for d in ("bf16", "fp16", *wide)] + [("bf16", "fp32")]


def _problem(
    config: AttentionBackwardConfig,
    q_len: int,
    kv_len: int,
    accumulate: bool = False,
    apart: bool = False,
) -> AttentionBackwardProblem:
    """Sequences with these rows at most.

    apart: rows of dQ, dK and dV have room for one more head.
    """
    c, words = config, config.words & {*FEATURES}
    said: dict[str, Any] = bounds(c.mask)
    if "softcap" in words:
        said["softcap"] = 15.0
    if "bias" in words:
        said["bias_shape"] = (1, HEADS * GROUP)
        said |= bias_type(words)
    if "dropout" in words:
        said["dropout"] = 0.25
    if "blocks" in words:
        said |= {"blocks_shape": (BATCH, HEADS * GROUP), "block_size": BLOCK}
    if "packedq" in words:
        said["total_q"] = BATCH * q_len - q_len // 3
    if "packedkv" in words:
        said["total_kv"] = BATCH * kv_len - kv_len // 3
    forward = AttentionProblem(
        BATCH, HEADS * GROUP, q_len, kv_len, c.head_dim, HEADS, c.head_dim_v, dtype=c.dtype,
        dtype_o=c.dtype_o, alignment=c.alignment,
        others=join(words - {"softcap", "bias", "bias32", "biasbool", "blocks", "dropout"}), **said,
    )  # fmt: skip
    own = {f.name: getattr(forward, f.name) for f in fields(AttentionProblem)}
    made = AttentionBackwardProblem(**own, grads=c.grads, dlse=c.dlse, accumulate=accumulate)
    if not apart:
        return made
    strides = {}
    for name in ("dq", "dk", "dv"):
        if name in made.computed:
            outer, row, head, _ = made.strides_of(name)
            rows = outer // row if outer else 0
            strides[f"{name}_strides"] = (rows * (row + head), row + head, head, 1)
    return replace(made, **strides)
