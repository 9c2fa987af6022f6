"""What rotary embeddings have in common: operands, tiles, and what is right.

A pair (a, b) of a head's elements at position p turns by an angle, the same for all heads:

    a' = a · cos[p, i] - b · sin[p, i];  b' = b · cos[p, i] + a · sin[p, i],  i < half

Of the form "half" (GPT-NeoX, Llama), pair i is elements i and half + i; of "interleaved" (GPT-J),
2 · i and 2 · i + 1. Elements behind the first 2 · half of a head do not turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright import dtypes
from tilewright.custom import In
from tilewright.custom.declaration import Array
from tilewright.declared._arrays import functions
from tilewright.declared._quotients import divisors

FORMS = ("half", "interleaved")

Q = ("*tokens", "q_heads", "head_dim")
K = ("*tokens", "k_heads", "head_dim")
Q_STRIDES = ("q_stride", "q_head_stride", 1)
K_STRIDES = ("k_stride", "k_head_stride", 1)

ANGLES: Mapping[str, Array] = {
    "cos": In("length", "half", dtype="cos_dtype", values=(-1.0, 1.0), strides=("cos_stride", 1)),
    "sin": In("length", "half", dtype="cos_dtype", values=(-1.0, 1.0), strides=("cos_stride", 1)),
}
"""A row for each position."""
POSITIONS = In("*tokens", dtype="position_dtype", optional=True, values=(0, "length"))
"""Each token's row of cos and sin. Without them tokens take the rows in order, over again after the
last. A token whose position is no row becomes NaN: nothing beyond the rows is read."""
OPTIONS: dict[str, bool | int | str] = {"form": "half", "inverse": False}
CHOICES = {"form": FORMS}
DTYPES = {"position_dtype": "int64"}
MULTIPLES = (
    "half", "head_dim", "cos_stride", "q_stride", "q_head_stride", "k_stride", "k_head_stride",
)  # fmt: skip

AXES: dict[str, tuple[Any, ...]] = {
    "HALF": (16, 32, 64, 128, 256),
    "HEADS": (8, 16, 4, 1),
    "TOKENS": (1, 2, 4, 8),
    "num_warps": (4, 8),
}
"""HALF: pairs of a head, or more. HEADS, TOKENS: of a workgroup."""

LANE_PAIRS = 32
"""Pairs for each lane, at most."""
MOST_LANES = 64
"""Lanes of a warp, at most. Each has a pair of its own: where q turns in place, a lane that shared
one with another could read it after that one has written it."""
USUAL_PAIRS = 8
"""Pairs for each lane that are preferred until a measurement decides: two loads of 16 bytes of
bf16, of q or k."""

MODELS = {
    "Llama-3-8B, Mixtral-8x7B, Qwen3-8B": {"q_heads": 32, "k_heads": 8, "head_dim": 128},
    "Llama-3-70B": {"q_heads": 64, "k_heads": 8, "head_dim": 128},
    "Qwen3-30B-A3B": {"q_heads": 32, "k_heads": 4, "head_dim": 128},
    "Mixtral-8x22B": {"q_heads": 48, "k_heads": 8, "head_dim": 128},
}
"""Heads of published models, by their config.json: ``num_attention_heads``,
``num_key_value_heads``, ``head_dim``."""
DEEPSEEK = {"q_heads": 128, "k_heads": 1, "head_dim": 64, "q_stride": 24576, "q_head_stride": 192}
"""DeepSeek-V3 turns the last 64 elements of each head of 192 (``qk_rope_head_dim``) of q, and one
key for all heads, in pairs of neighbours."""
POSITIONS_OF_MODELS = 8192
TOKENS = (1, 16, 256, 4096, 16384)


def problems(*tokens: int, **fields: Any) -> tuple[dict[str, Any], ...]:
    """Problems of models, whose heads turn whole."""
    angles = {"length": POSITIONS_OF_MODELS, "cos_dtype": "fp32", "has_positions": True}
    return tuple(
        {"tokens": count, "half": int(heads["head_dim"]) // 2, **heads, **angles, **fields}
        for heads in MODELS.values()
        for count in tokens
    )


def deepseek(*tokens: int, **fields: Any) -> tuple[dict[str, Any], ...]:
    """Problems of DeepSeek-V3."""
    angles = {"length": POSITIONS_OF_MODELS, "cos_dtype": "fp32", "has_positions": True}
    form = {"half": 32, "form": "interleaved"}
    return tuple({"tokens": count, **DEEPSEEK, **angles, **form, **fields} for count in tokens)


def refused(problem: Any) -> str:
    """Why the fields of a problem do not fit together; "" if they do."""
    most = AXES["HALF"][-1]
    if not 0 < problem.half <= most:
        return f"half = {problem.half}; cos and sin have from 1 to {most} columns"
    if 2 * problem.half > problem.head_dim:
        return f"cos has {problem.half} columns, more than half of heads of {problem.head_dim}"
    if problem.position_dtype not in ("int32", "int64"):
        return f"positions are int32 or int64, not {problem.position_dtype}"
    rows, tokens = problem.length, problem.tokens
    if not problem.has_positions and tokens > rows and (not rows or tokens % rows):
        return f"{tokens} tokens without positions= take {rows} rows of cos over and over"
    return ""


def least(problem: Any, elements: int) -> int:
    """Bytes of so many elements of each token, read or written, and of its row of cos and sin."""
    kinds = (problem.dtype, problem.cos_dtype, problem.position_dtype)
    each, angle, position = (dtypes.DTYPES[kind].bytes for kind in kinds)
    rows = 2 * min(problem.tokens, problem.length) * problem.half
    places = problem.tokens if problem.has_positions else 0
    return int(problem.tokens * elements * each + rows * angle + places * position)


def half(problem: Any) -> int:
    """The value of HALF for a problem."""
    sizes: tuple[int, ...] = AXES["HALF"]
    return next(size for size in sizes if size >= problem.half)


def heads(most: int) -> tuple[int, ...]:
    """The values of HEADS that come near so many heads."""
    return (8, 16, 4) if most >= 8 else (4, 1)


def fits(problem: Any, config: Any) -> bool | str:
    """Whether a config's tile is one for a problem."""
    if half(problem) != config.HALF:
        return f"HALF = {config.HALF}, where {problem.half} pairs take {half(problem)}"
    if config.HEADS not in heads(max(problem.q_heads, problem.k_heads)):
        return f"HEADS = {config.HEADS} for {problem.q_heads} and {problem.k_heads} heads"
    pairs = config.TOKENS * config.HEADS * config.HALF
    if pairs < MOST_LANES * config.num_warps:
        return f"{pairs} pairs for up to {MOST_LANES * config.num_warps} lanes"
    each = pairs / (32 * config.num_warps)
    if each > LANE_PAIRS:
        return f"{each:.0f} pairs for each lane"
    return True


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The only values of HALF and HEADS that `fits` takes."""
    return {
        "HALF": (half(problem),),
        "HEADS": heads(max(problem.q_heads, problem.k_heads)),
    }


def tiles_of_token(config: Any, *kinds: int) -> int:
    """Workgroups for one token's heads, of operands of so many heads each."""
    return sum(-(-count // config.HEADS) for count in kinds)


def tiles(problem: Any, config: Any, *kinds: int) -> int:
    """Workgroups for operands of so many heads each."""
    return int(-(-problem.tokens // config.TOKENS) * tiles_of_token(config, *kinds))


DIVISORS = divisors(tiles=lambda p, config: tiles_of_token(config, p.q_heads, p.k_heads))
"""What kernels of q and k divide by."""


def programs(problem: Any, config: Any) -> tuple[int]:
    """The grid: the tiles of q, then those of k, of every TOKENS tokens."""
    return (tiles(problem, config, problem.q_heads, problem.k_heads),)


def prefers(problem: Any, config: Any) -> float:
    """How many times a tile has more or fewer than `USUAL_PAIRS` for each lane, times how many
    heads tiles have for each head of a token that there is."""
    each = config.TOKENS * config.HEADS * config.HALF / (32 * config.num_warps)
    counts = (problem.q_heads, problem.k_heads)
    tiled = tiles(problem, config, *counts) * config.HEADS * config.TOKENS
    padded = tiled / max(1, sum(counts) * problem.tokens)
    return float(max(each / USUAL_PAIRS, USUAL_PAIRS / each) * padded)


def turned(x: Any, cos: Any, sin: Any, positions: Any, problem: Any, inverse: bool = False) -> Any:
    """`x` [tokens, heads, head_dim], turned."""
    f, pairs = functions(x), problem.half
    if positions is None:
        positions = f.arange(len(x)) % max(1, problem.length)
    c, s = cos[positions][:, None, :], sin[positions][:, None, :]
    s = -s if inverse else s
    front, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if problem.form == "half":
        a, b = front[..., :pairs], front[..., pairs:]
        return f.concatenate((a * c - b * s, b * c + a * s, rest), -1)
    a, b = front[..., ::2], front[..., 1::2]
    made = f.stack((a * c - b * s, b * c + a * s), -1)
    return f.concatenate((made.reshape(front.shape), rest), -1)
