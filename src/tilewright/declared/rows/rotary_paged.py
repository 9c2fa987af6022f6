"""Rotary embedding of q, where it lies, and of k, which goes with v into the pages of a cache.

The key and the value of a token are written to slot `slots[token]`, which is the place
slot % page_size of page slot // page_size; pairs turn as those of `rotary`. A token whose slot is
negative, or beyond the last page, is not written: serving engines pad with -1. No two tokens may
have the same slot. Caches of 8 bits hold elements divided by `k_scale` and `v_scale`, or as they
are; larger ones saturate.

Pages are [pages, page_size, heads, head_dim], as of vLLM and FlashInfer ("NHD"), with any strides:
of caches that have heads first ("HND"), pass ``cache.transpose(1, 2)``.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, In, InOut, declare, kernel
from tilewright.declared._arrays import clipped, functions
from tilewright.declared._quotients import divisors
from tilewright.declared.rows import _rotations as rotations
from tilewright.dtypes import DTYPES

CACHE = ("pages", "page_size", "k_heads", "head_dim")
CACHE_STRIDES = ("page_stride", "slot_stride", "cache_head_stride", 1)


def reference(
    q: Any,
    k: Any,
    v: Any,
    cos: Any,
    sin: Any,
    key_cache: Any,
    value_cache: Any,
    slots: Any,
    positions: Any,
    k_scale: Any,
    v_scale: Any,
    problem: Any,
) -> tuple[Any, Any, Any]:
    q, k = (rotations.turned(x, cos, sin, positions, problem) for x in (q, k))
    written = (slots >= 0) & (slots < problem.pages * problem.page_size)
    to = slots[written]
    made = []
    for new, cache, scale in ((k, key_cache, k_scale), (v, value_cache, v_scale)):
        after = functions(cache).zeros_like(cache, dtype=new.dtype) + cache
        new = new[written] if scale is None else new[written] / scale
        new = clipped(new, problem.cache_dtype)
        after[to // problem.page_size, to % problem.page_size] = new
        made.append(after)
    return q, *made


def slots(problem: Any, rng: Any) -> Any:
    """Slots of which no two are alike, in any order; every fifth token is padding."""
    import numpy as np

    found = np.full(problem.tokens, -1, np.int64)
    every = rng.permutation(problem.pages * problem.page_size)[: problem.tokens]
    found[: len(every)] = every
    found[4::5] = -1
    return found


def refused(problem: Any) -> str:
    narrow = DTYPES[problem.cache_dtype].bytes == 1
    if not narrow and problem.cache_dtype != problem.dtype:
        return f"a cache is {problem.dtype}, as k is, or has 8 bits, and not {problem.cache_dtype}"
    if not narrow and (problem.has_k_scale or problem.has_v_scale):
        return f"k_scale= and v_scale= are for caches of 8 bits, not {problem.cache_dtype}"
    if problem.tokens and not problem.page_size:
        return "pages have no slots"
    return rotations.refused(problem)


def kinds(problem: Any) -> tuple[int, int, int]:
    """Heads of q, k and v."""
    return problem.q_heads, problem.k_heads, problem.k_heads


def programs(problem: Any, config: Any) -> tuple[int]:
    """The grid: the tiles of q, then those of k, then those of v, of every TOKENS tokens."""
    return (rotations.tiles(problem, config, *kinds(problem)),)


def least(problem: Any) -> int:
    """Bytes: q in place, k and v once, and once their slots in the caches."""
    new = problem.k_heads * problem.head_dim
    read = rotations.least(problem, 4 * problem.half * problem.q_heads + 2 * new)
    written = 2 * new * DTYPES[problem.cache_dtype].bytes
    return int(read + problem.tokens * (written + DTYPES["int64"].bytes))


def problems(**fields: Any) -> tuple[dict[str, Any], ...]:
    """Pages of 16 tokens, as many as there are tokens."""
    return tuple(
        {**one, "page_size": 16, "pages": max(64, -(-one["tokens"] // 16)), **fields}
        for one in rotations.problems(*rotations.TOKENS)
    )


declare(
    Declaration(
        name="rotary_paged",
        module=__name__,
        operands={
            "q": InOut(*rotations.Q, strides=rotations.Q_STRIDES),
            "k": In(*rotations.K, strides=rotations.K_STRIDES),
            "v": In(*rotations.K, strides=("v_stride", "v_head_stride", 1)),
            **rotations.ANGLES,
            "key_cache": InOut(*CACHE, dtype="cache_dtype", strides=CACHE_STRIDES),
            "value_cache": InOut(*CACHE, dtype="cache_dtype", strides=CACHE_STRIDES),
            "slots": In("*tokens", dtype="int64", values=slots),
            "positions": rotations.POSITIONS,
            "k_scale": In(1, dtype="fp32", optional=True, values=(0.01, 0.02)),
            "v_scale": In(1, dtype="fp32", optional=True, values=(0.01, 0.02)),
        },
        options={"form": "half"},
        choices=rotations.CHOICES,
        dtypes=rotations.DTYPES,
        axes=rotations.AXES,
        parts=(kernel("main", f"{__package__}.kernels.rotary_paged:rotary_paged", programs),),
        values=divisors(tiles=lambda p, config: rotations.tiles_of_token(config, *kinds(p))),
        refuses=refused,
        supports=rotations.fits,
        narrows=rotations.narrows,
        prefers=rotations.prefers,
        multiples=(
            *rotations.MULTIPLES,
            "v_stride",
            "v_head_stride",
            "page_stride",
            "slot_stride",
            "cache_head_stride",
        ),
        reference=reference,
        amplifies=4.0,
        least=least,
        problems=(*problems(), *problems(cache_dtype="e4m3fn", has_k_scale=True, has_v_scale=True)),
    )
)
