"""What a gated activation and its gradient have in common: which tiles, and what is right."""

from __future__ import annotations

from typing import Any

from tilewright.declared._arrays import functions
from tilewright.declared._quotients import divisors
from tilewright.declared.rows import _sizes, _tiles
from tilewright.ops.epilogues import erf

INNER = {
    "Llama-3-8B, Mixtral-8x7B": 14336,
    "Llama-3-70B": 28672,
    "Qwen3-8B": 12288,
    "Qwen3-32B": 25600,
    "Qwen3-30B-A3B, each expert": 768,
    "DeepSeek-V3, first layers": 18432,
    "DeepSeek-V3, each expert": 2048,
    "Mixtral-8x22B": 16384,
}
"""Columns of the inner layers of models: ``intermediate_size``, of experts
``moe_intermediate_size``, in each one's published config.json."""

GATES = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid")

SCALARS: dict[str, tuple[str, int | float | None]] = {
    "limit": ("fp32", float("inf")),
    "alpha": ("fp32", 1.0),
    "shift": ("fp32", 0.0),
}
USUAL_ELEMENTS = 8
"""Elements for each lane that are preferred until a measurement decides. No lane waits for another,
so there are more lanes than where rows are summed."""

PIECES = (512, 1024, 2048)
"""Elements of a row that a workgroup takes, where it need not see the row whole."""
_MOST_COLUMNS = 2**30
"""Kernels count the columns of both halves in 32 bits."""


def problems(*tokens: int, **fields: Any) -> tuple[dict[str, Any], ...]:
    """Problems of the inner layers of models, for so many tokens."""
    return tuple(
        {"rows": t, "columns": n, **fields}
        for n in INNER.values()
        for t in tokens
        if t * n <= _sizes.MOST_ELEMENTS
    )


GEMMA = tuple(
    {"rows": rows, "columns": columns, "gate": "gelu_tanh"}
    for columns in (10240, 21504)
    for rows in (4096, 8192)
)
"""Inner layers of Gemma 3 4B and 27B."""


def pieces(columns: int) -> tuple[int, ...]:
    """The values of BLOCK for rows that are cut into pieces."""
    whole = _tiles.block(columns)
    return tuple(size for size in PIECES if size <= whole) or (whole,)


def fits(problem: Any, config: Any) -> bool | str:
    """Whether a tile is a piece of a long row, or has one or several short rows."""
    if problem.columns > _MOST_COLUMNS:
        return f"{problem.columns} columns, where kernels count up to {_MOST_COLUMNS}"
    wanted = pieces(problem.columns)
    if config.BLOCK not in wanted:
        return f"BLOCK = {config.BLOCK}, where rows of {problem.columns} take {wanted}"
    if config.ROWS > 1 and problem.columns > PIECES[0]:
        return f"ROWS = {config.ROWS} for rows of {problem.columns}"
    each = config.BLOCK * config.ROWS / (32 * config.num_warps)
    if each > _tiles.LANE_ELEMENTS and config.ROWS > 1:
        return f"{each:.0f} elements for each lane"
    return True


def narrows(problem: Any) -> dict[str, tuple[Any, ...]]:
    """The only values of BLOCK and ROWS that `fits` takes."""
    one = {"ROWS": (1,)} if problem.columns > PIECES[0] else {}
    return {"BLOCK": pieces(problem.columns), **one}


def pieces_of_row(problem: Any, config: Any) -> int:
    """Workgroups that share a row."""
    return -(-int(problem.columns) // int(config.BLOCK))


DIVISORS = divisors(pieces=pieces_of_row)
"""What kernels divide by: they begin with it, and load nothing before."""


def programs(problem: Any, config: Any) -> tuple[int]:
    """The grid: a workgroup for each piece of every ROWS rows; the pieces of a row come one after
    another."""
    return (-(-problem.rows // config.ROWS) * pieces_of_row(problem, config),)


def prefers(problem: Any, config: Any, usual: int = USUAL_ELEMENTS) -> float:
    """As of other tiles, times what share of the lanes beyond the last column idles."""
    padded = -(-problem.columns // config.BLOCK) * config.BLOCK
    return _tiles.prefers(problem, config, usual) * float(padded) / max(1, int(problem.columns))


def refused(problem: Any) -> str:
    """Why the fields of a problem do not fit together; "" if they do."""
    if problem.interleaved and problem.has_up:
        return "interleaved = True is for both halves in one array, and up= was given"
    return ""


def halves(x: Any, up: Any, interleaved: bool) -> tuple[Any, Any]:
    """What is activated, and what it gates."""
    if up is not None:
        return x, up
    if interleaved:
        return x[:, ::2], x[:, 1::2]
    half = x.shape[1] // 2
    return x[:, :half], x[:, half:]


def joined(one: Any, other: Any, interleaved: bool) -> Any:
    """Two halves in one array."""
    f = functions(one)
    if interleaved:
        return f.stack((one, other), -1).reshape(len(one), 2 * one.shape[1])
    return f.concatenate((one, other), -1)


def activation(z: Any, gate: str) -> tuple[Any, Any]:
    """The activation of `z`, and its slope there."""
    f = functions(z)
    if gate == "relu":
        return f.where(z > 0, z, 0.0 * z), f.where(z > 0, 1.0, 0.0)
    if gate == "gelu":
        share = 0.5 * (1.0 + erf(z / 2**0.5))
        return z * share, share + z * f.exp(-0.5 * z * z) * 0.3989422804014327
    if gate == "gelu_tanh":
        inner = 0.7978845608028654 * (z + 0.044715 * z**3)
        share = 0.5 * (1.0 + f.tanh(inner))
        steep = 2 * 0.7978845608028654 * (1.0 + 3 * 0.044715 * z**2)
        return z * share, share + z * share * (1.0 - share) * steep
    share = 0.5 * (1.0 + f.tanh(0.5 * z))
    if gate == "sigmoid":
        return share, share * (1.0 - share)
    return z * share, share * (1.0 + z * (1.0 - share))


def clamped(a: Any, b: Any, limit: float, shift: float) -> tuple[Any, Any]:
    """Both halves within their limits, the second one shifted."""
    f = functions(a)
    return f.where(a > limit, limit, a), f.clip(b, -limit, limit) + shift
