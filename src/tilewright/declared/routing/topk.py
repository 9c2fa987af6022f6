"""The k largest of each row, the largest first, and where they are.

Of equal values the one with the lower index comes first (torch leaves this open). NaN is above all,
as for torch.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Declaration, Gradient, In, Out, declare, kernel
from tilewright.declared.routing import _references, _tiles
from tilewright.ops.powers import power_of_two

FLOATS = ("fp32", "fp16", "bf16")
WHOLE = ("int32", "int64")

ROUND, SIFTED, SORTED = (40, 5), (1000, 8), (200, 9)
"""Instructions of a warp, and for each element of a lane, counted in builds for sm_90: of a round,
of sifting a row, with eight steps of halving, and of sorting, for each step."""
MOST_SORTED = 16
"""Elements of a lane that sorts, at most: each takes two registers, and as many while it moves."""


def reference(x: Any, problem: Any) -> tuple[Any, Any]:
    indices = _references.largest(x, problem.k)
    return _references.taken(x, indices), indices


def refused(problem: Any) -> str:
    """Why a problem cannot be computed; "" if it can."""
    if not 1 <= problem.k <= problem.columns:
        return f"k = {problem.k}; state k=, from 1 to the {problem.columns} columns of a row"
    if problem.columns > _tiles.MOST_COLUMNS:
        return f"{problem.columns} columns; registers hold rows of up to {_tiles.MOST_COLUMNS}"
    if problem.dtype not in FLOATS:
        return f"elements are {problem.dtype}; they may be {', '.join(FLOATS)}"
    if problem.index_dtype not in WHOLE:
        return f"index_dtype = {problem.index_dtype}; it may be {', '.join(WHOLE)}"
    return ""


def block(problem: Any) -> int:
    """Elements of a row with padding."""
    return max(8, power_of_two(problem.columns))


def groups(config: Any) -> int:
    """Lanes of a workgroup, each with a group of a row's elements where rows are sifted."""
    return int(32 * config.num_warps)


def room(config: Any) -> int:
    """Elements that may be left when a row was sifted: twice as many as are wanted, and a warp's
    lanes at least."""
    return max(32, 2 * power_of_two(config.k))


def sifts(config: Any) -> bool:
    """Whether rows are sifted: where k rounds take more instructions than that. A group's elements
    have a bit each in 32; and there are no fewer groups than elements may be left, so that the
    largest elements are mostly in different groups."""
    each = config.BLOCK // groups(config)
    if config.ROWS > 1 or each not in (1, 2, 4, 8, 16, 32) or groups(config) < room(config):
        return False
    rounds = config.k * (ROUND[0] + ROUND[1] * each)
    return bool(rounds > SIFTED[0] + SIFTED[1] * each)


def sorting(config: Any) -> float:
    """Instructions of a warp that sorts its rows: of each step, for each element that still takes
    part. Sequences of k are sorted; then of two the larger half goes on, and is sorted again."""
    each: float = config.BLOCK * config.ROWS / groups(config)
    row, slots = config.BLOCK, power_of_two(config.k)
    steps = slots.bit_length() - 1
    count = each * steps * (steps + 1) / 2
    while row > slots:
        row, each = row // 2, each / 2
        count += each * (steps + 1)
    return SORTED[0] + SORTED[1] * count


def sorts(config: Any) -> bool:
    """Whether rows are sorted: where each lies in one warp, so that none waits for others, and k
    rounds take more instructions than that."""
    each: float = config.BLOCK * config.ROWS / groups(config)
    if sifts(config) or config.num_warps > config.ROWS or each > MOST_SORTED:
        return False
    return bool(sorting(config) < config.k * (ROUND[0] + ROUND[1] * each))


def prefers(problem: Any, config: Any) -> tuple[float, int]:
    """As of other rows that tiles hold; of those that sort, times their instructions for each row
    beside those of rounds with as many elements for each lane as are preferred."""
    apart, _ = _tiles.prefers(problem, config)
    if sorts(config):
        usual = _tiles.USUAL_ELEMENTS
        rounds = config.k * (ROUND[0] + ROUND[1] * usual) * config.BLOCK / (32 * usual)
        apart *= sorting(config) * config.num_warps / config.ROWS / rounds
    return apart, -min(4, config.num_warps)


def spread(x: Any, indices: Any, arrived: Any) -> Any:
    """The gradient of x: what arrived, where the values came from."""
    return arrived.new_zeros(x.shape).scatter_(-1, indices.long(), arrived)


declare(
    Declaration(
        name="topk",
        module=__name__,
        operands={
            "x": In("*rows", "columns", strides=("x_stride", 1)),
            "values": Out("*rows", "k", exact=True),
            "indices": Out("*rows", "k", dtype="index_dtype", differentiable=False, exact=True),
        },
        options={"k": 0},
        dtypes={"index_dtype": "int32"},
        axes=_tiles.AXES,
        parts=(kernel("main", f"{__package__}.kernels.topk:topk", _tiles.programs),),
        refuses=refused,
        supports=lambda problem, config: _tiles.fits(block(problem), problem, config),
        narrows=lambda problem: _tiles.narrows(block(problem), problem),
        prefers=prefers,
        multiples=("columns", "x_stride"),
        constants={"SIFT": sifts, "SORT": sorts, "GROUPS": groups, "ROOM": room},
        reference=reference,
        gradients=(Gradient("x", spread, ("x", "indices", "grad values")),),
        problems=(
            {"rows": 4096, "columns": 1024, "k": 8},
            {"rows": 4096, "columns": 4096, "k": 32, "dtype": "fp32"},
            {"rows": 256, "columns": 8192, "k": 64, "dtype": "fp32"},
        ),
    )
)
