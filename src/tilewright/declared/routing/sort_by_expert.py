"""Rows in the order of their experts, as maps: no row is moved.

Row t · k + j is the j-th choice of token t. Rows of an expert keep their order, and each expert's
begin at a multiple of `block`. A row whose id is none of the experts', or which the map of experts
sends to -1, goes nowhere; nor do, with a `capacity`, an expert's rows behind its first so many.

    order           the row of each slot; tokens · k where a slot is padding or beyond the total
    block_experts   the expert of each block of slots; -1 beyond the total
    counts, ends    of each expert: how many rows it has, and the slot after its last, with padding
    total           the slots that are used, padding included
    places          the slot of each row; -1 if it goes nowhere
    sorted_weights  the weight of each slot; 0 where a slot has no row

Counts are known on the device alone, so `order` and `block_experts` are as long as they can have to
be: min(rows, experts) blocks may be begun by one row each, and the other rows fill whole blocks.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, Scratch, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.routing import _ck, _references, _tiles
from tilewright.ops.powers import power_of_two

MOST_EXPERTS = 1024
CHUNKS = (0, 256, 512, 1024, 2048)
"""Rows of a workgroup that sorts a chunk; 0: one launch, whose workgroups count all rows."""
MOST_ALONE = 2048
"""Rows that one launch may sort."""
USUAL_ALONE = 512
"""Rows up to which one launch may be preferred to three until a measurement decides."""
USUAL_COUNTED = 1 << 15
"""Rows times counters up to which it is: its workgroups count all rows. On an H200 256 rows of 128
experts took 5.2 µs in one launch; 512 of 128 and 384 took 7.9 and 22.3, in three 6.4 and 7.2."""
USUAL_CHUNK = 1024
"""Rows of a chunk that are preferred: a longer one takes more steps to sort, and the runs of one
expert that a shorter one has fill less of what a store writes at once."""
FILLED = 528
"""Chunks that are wanted at least: four for each of 132 SMs; one waits while others sort."""
SCAN_BINS = 8
"""Experts of a workgroup that sums over chunks; as in the kernel."""
MOST_CHUNKS = 4096
"""Chunks that are preferred to longer ones, at most: they are summed over one after another."""

_ROWS = "tokens * k"
BLOCKS = f"min({_ROWS}, experts) + ({_ROWS} - min({_ROWS}, experts)) // block"
WHOLE = ("int32", "int64")


def blocks(problem: Any, config: Any = None) -> int:
    """The most blocks that a problem can take."""
    rows = problem.tokens * problem.k
    begun = min(rows, problem.experts)
    return int(begun + (rows - begun) // problem.block)


def slots(problem: Any, config: Any = None) -> int:
    """The most slots that a problem can take."""
    return blocks(problem) * int(problem.block)


def bins(problem: Any) -> int:
    """Counters of a tile; as in the kernel."""
    return max(16, power_of_two(problem.experts))


def chunks(problem: Any, config: Any) -> int:
    """Workgroups that have a chunk of rows each."""
    return int(-(-problem.tokens * problem.k // config.CHUNK))


def counts_of_chunks(problem: Any, config: Any) -> tuple[int, int]:
    """The shape of what is counted of each chunk."""
    return chunks(problem, config), bins(problem)


def alone(config: Any) -> bool:
    """Whether a config has one kernel."""
    return bool(config.CHUNK == 0)


def together(config: Any) -> bool:
    """Whether it has three, and counts chunk by chunk."""
    return not alone(config)


def reference(ids: Any, expert_map: Any, weights: Any, problem: Any) -> tuple[Any, ...]:
    f, p, found = functions(ids), problem, ids.reshape(-1)
    rows, none = p.tokens * p.k, p.experts
    if expert_map is not None:
        known = (found >= 0) & (found < p.global_experts)
        found = f.where(known, expert_map[f.where(known, found, 0 * found)], 0 * found - 1)
    found = f.where((found >= 0) & (found < none), found, 0 * found + none)
    if p.capacity:
        one_hot = _references.one_hot(found[:, None], none + 1)[:, 0]
        found = f.where(((one_hot.cumsum(0) * one_hot).sum(-1) > p.capacity), none, found)
    counts = f.bincount(found, minlength=none + 1)[:none]
    padded = (counts + p.block - 1) // p.block * p.block
    ends = padded.cumsum(0)
    sorted_rows = _references.stable_order(found)[: int(counts.sum())]
    expert = found[sorted_rows]
    within = _references.numbers(ids, len(sorted_rows)) - (counts.cumsum(0) - counts)[expert]
    at = (ends - padded)[expert] + within
    order = _references.filled(ids, slots(p), rows)
    order[at] = sorted_rows
    places = _references.filled(ids, rows, -1)
    places[sorted_rows] = at
    first = _references.numbers(ids, blocks(p)) * p.block
    of_blocks = f.searchsorted(ends, first, side="right")
    of_blocks = f.where(first < ends[-1], of_blocks, 0 * of_blocks - 1)
    made = (order, of_blocks, counts, ends, ends[-1:], places.reshape(ids.shape))
    if weights is None:
        return made
    sorted_weights = _references.filled(weights, slots(p), 0)
    sorted_weights[at] = weights.reshape(-1)[sorted_rows]
    return (*made, sorted_weights)


def refused(problem: Any) -> str:
    """Why a problem cannot be computed; "" if it can."""
    p = problem
    if not 1 <= p.experts <= MOST_EXPERTS:
        return f"experts = {p.experts}; state experts=, at most {MOST_EXPERTS}"
    if p.capacity < 0:
        return f"capacity = {p.capacity}; 0 is none"
    if p.block < 1:
        return f"block = {p.block}; a block has 1 slot at least"
    if p.id_dtype not in WHOLE:
        return f"ids are {p.id_dtype}; id_dtype may be {', '.join(WHOLE)}"
    if slots(p) >= 2**31:
        return f"{slots(p)} slots; places are int32"
    return ""


def supports(problem: Any, config: Any) -> bool | str:
    """Whether a config's kernels are for a problem's number of rows."""
    if config.CHUNK not in narrows(problem)["CHUNK"]:
        return f"CHUNK = {config.CHUNK} for {problem.tokens * problem.k} rows"
    return True


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The values of CHUNK that a problem is served with."""
    rows = problem.tokens * problem.k
    one = CHUNKS[:1] if rows <= MOST_ALONE else ()
    least, *longer = CHUNKS[1:]
    return {"CHUNK": (*one, least, *(n for n in longer if rows > n // 2))}


def prefers(problem: Any, config: Any) -> tuple[bool, float, bool]:
    """One launch for few rows, three for many, of chunks of about `USUAL_CHUNK` rows, shorter if
    there would be too few of them, and longer if too many; 8 elements for each lane."""
    rows = problem.tokens * problem.k
    few: bool = rows <= USUAL_ALONE and rows * bins(problem) <= USUAL_COUNTED
    if alone(config):
        return not few, 0.0, config.num_warps > 4
    wanted = min(max(USUAL_CHUNK, rows / MOST_CHUNKS), max(CHUNKS[1], rows / FILLED))
    apart = max(wanted / config.CHUNK, config.CHUNK / wanted)
    return few, apart, (config.num_warps == 8) != (config.CHUNK >= 2048)


def drawn(problem: Any, rng: Any) -> Any:
    """Ids [tokens, k]; without a map of experts, one of 32 is none's."""
    shape = (problem.tokens, problem.k)
    if problem.has_expert_map:
        return rng.integers(0, max(1, problem.global_experts), shape)
    made = rng.integers(0, problem.experts, shape)
    made[rng.random(shape) < 1 / 32] = -1
    return made


def map_of(problem: Any, rng: Any) -> Any:
    """A map that has each expert once, and -1 for the rest."""
    import numpy as np

    made = np.full(problem.global_experts, -1)
    here = rng.permutation(problem.global_experts)[: problem.experts]
    made[here] = np.arange(len(here))
    return made


def gathered(weights: Any, places: Any, arrived: Any) -> Any:
    """The gradient of the weights: what arrived at their slots."""
    return arrived[places.clamp(min=0).long()] * (places >= 0)


_PLACE = f"{__package__}.kernels.sort_by_expert"

declare(
    Declaration(
        name="sort_by_expert",
        module=__name__,
        operands={
            "ids": In("*tokens", "k", dtype="id_dtype", values=drawn),
            "expert_map": In("global_experts", dtype="int32", optional=True, values=map_of),
            "weights": In("*tokens", "k", dtype="fp32", optional=True),
            "order": Out(f"({BLOCKS}) * block", dtype="int32", exact=True),
            "block_experts": Out(BLOCKS, dtype="int32", exact=True),
            "counts": Out("experts", dtype="int32", exact=True),
            "ends": Out("experts", dtype="int32", exact=True),
            "total": Out(1, dtype="int32", exact=True),
            "places": Out("*tokens", "k", dtype="int32", exact=True),
            "sorted_weights": Out(
                f"({BLOCKS}) * block", dtype="fp32", when="has_weights", exact=True
            ),
        },
        options={"experts": 0, "block": 1, "capacity": 0},
        axes={"CHUNK": CHUNKS, "num_warps": (4, 8)},
        parts=(
            kernel("alone", f"{_PLACE}:alone", lambda p, c: (p.experts,), alone),
            kernel("count", f"{_PLACE}:count", lambda p, c: (chunks(p, c),), together),
            kernel(
                "scan",
                f"{_PLACE}:scan",
                lambda p, c: (bins(p) // SCAN_BINS,),
                together,
                dependent=True,
            ),
            kernel(
                "place",
                f"{_PLACE}:place",
                lambda p, c: (chunks(p, c) + p.experts,),
                together,
                dependent=True,
            ),
        ),
        values={
            "rows": lambda problem, config: problem.tokens * problem.k,
            "slots": slots,
            "blocks": blocks,
            "chunks": chunks,
        },
        temporaries={
            "chunk_counts": Scratch(counts_of_chunks, dtype="int32", there=together),
            "before": Scratch(counts_of_chunks, dtype="int32", there=together),
        },
        refuses=refused,
        supports=supports,
        narrows=narrows,
        prefers=prefers,
        reference=reference,
        gradients=(Gradient("weights", gathered, ("weights", "places", "grad sorted_weights")),),
        drivers=(_ck.MOE_SORTING,),
        problems=tuple(
            {"tokens": tokens, "k": k, "experts": experts, "block": 64, "id_dtype": "int32"}
            # Mixtral, Qwen3, gpt-oss, DeepSeek-V3, Kimi-K2.
            for experts, k in ((8, 2), (128, 8), (32, 4), (128, 4), (256, 8), (384, 8))
            for tokens in _tiles.TOKENS
        ),
    )
)
