"""What the kernels of the backward pass take: attention's catalogue, and what is added to it.

Temporaries: `delta`, and `distances`, the sums of a row that the gradient of its head's slope adds
up; `tops` and `logs`, under a bias (see `kernels.logarithms`; without one `logs` is LSE). They lie
as LSE does. `log_sums`, `row_tops` and `deltas`: see `kernels.around`. `dq_sums`: dQ in fp32, not
yet scaled: for each 64 of the padded rows of `log_sums`, tiles of 64 columns, in the order of
`gluon_ws`. `turns`: of each block of dQ, the tiles of keys that have been added, if they add in
order. `order`: see `kernels.order`.
`ds`: the gradients of scores as bias and mask leave them, [batch, heads, q_len, kv_len], where some
query sees some key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.ops.attention import arguments as forward
from tilewright.ops.attention.arguments import Argument, Context, Value
from tilewright.ops.attention_backward.problem import GRADIENTS
from tilewright.ops.nouns import Argument as Passed
from tilewright.ops.nouns import Pointer, Scalar


def _pointer(name: str, dtype: Callable[[Any], str], *words: str) -> Argument:
    return Argument(lambda c: (f"*{DTYPES[dtype(c)].triton}",), lambda _: (Pointer(name),), words)


def _fp32(name: str, *words: str) -> Argument:
    return _pointer(name, lambda _: "fp32", *words)


def _strides(name: str, *words: str) -> Argument:
    types = ("i64", "i32", "i32", "i32")

    def values(x: Context) -> tuple[Passed, ...]:
        problem: Any = x.problem
        return tuple(Scalar(t, v) for t, v in zip(types, problem.strides_of(name), strict=True))

    return Argument(lambda _: types, values, words, is_tuple=True)


def _int(value: Callable[[Any], int], *words: str) -> Argument:
    return Argument(lambda _: ("i32",), lambda x: (Scalar("i32", value(x.problem)),), words)


OWN_LENGTHS = ("packedq", "packedkv", "usedq", "usedkv")
"""Features by which sequences differ in length."""

PAD = 128
"""Rows of the longest block that is read of rows' terms at once."""


def padded(p: Any) -> int:
    """Rows of a line of rows' terms (see `kernels.around`)."""
    if "packedq" in p.words:
        return int((p.total_q // PAD + p.batch) * PAD)
    return int(-(-p.q_len // PAD) * PAD)


BLOCK = 128 * 64
"""Elements of a block of dQ that the two groups of `gluon_ws` share."""


def sums_width(c: Any) -> int:
    """Columns of dQ's sums: whole tiles; of `gluon_ws` as many as a step's rows leave."""
    if c.pipeline == "gluon_ws":
        return BLOCK // int(c.step_rows)
    return -(-int(c.head_dim) // 64) * 64


SIDE_BY_SIDE = 32
"""Heads of keys that add in turns side by side at most: more were slower wherever it was timed."""


def _section(x: Context) -> int:
    """How many heads of keys are computed side by side: as many as have their queries, gradients
    and sums of dQ in L2 together.

    If they add in turns, more heads mean fewer tiles that wait for one another; at most a half of
    all (see `gluon_steps.turn_of`). Tiles of a head follow each other along its queries, so about
    half of these are in use at a time. Causal tiles differ in length: each may be at another of the
    heads that share keys. `gluon_ws` has the figures.
    """
    c: Any = x.config
    p: Any = x.problem
    size = p.q_len * (DTYPES[p.dtype].bytes * (p.head_dim + p.head_dim_v) + 4 * p.head_dim)
    lines = p.kv_heads * (1 if "packedkv" in p.words else max(1, p.batch))
    most = lines
    if c.ordered:
        size = size * (p.group + 1) // 2 if p.mask.kind == "causal" else size // 2
        most = min(SIDE_BY_SIDE, -(-lines // 2))
    fit = int(forward.L2_SHARE * x.device.l2_bytes) // max(1, size)
    found = int(min(max(1, fit), max(1, most)))
    return int(-(-lines // -(-lines // found))) if c.ordered else found


ARGUMENTS: dict[str, Argument] = {
    **forward.ARGUMENTS,
    "lse": _fp32("lse"),
    "logs": Argument(
        lambda _: ("*fp32",), lambda x: (Pointer("logs" if x.problem.bias_shape else "lse"),)
    ),
    "tops": _fp32("tops", "bias"),
    "do": _pointer("do", forward.of_o),
    "dlse": _fp32("dlse", "dlse"),
    "dq": _pointer("dq", forward.of_q, "dq"),
    "dk": _pointer("dk", forward.of_q, "dk"),
    "dv": _pointer("dv", forward.of_q, "dv"),
    "dbias": _pointer("dbias", forward.bias_type, "dbias"),
    "dsinks": _fp32("dsinks", "dsinks"),
    "dslopes": _fp32("dslopes", "dslopes"),
    "delta": _fp32("delta"),
    "distances": _fp32("distances", "dslopes"),
    "log_sums": _fp32("log_sums"),
    "row_tops": _fp32("row_tops", "bias"),
    "deltas": _fp32("deltas"),
    "dq_sums": _fp32("dq_sums"),
    "turns": _pointer("turns", lambda _: "int32", "ordered"),
    "ds": _pointer("ds", forward.float_of, "dbias"),
    "order": _pointer("order", lambda _: "int32", *OWN_LENGTHS),
    "do_strides": _strides("do"),
    "dq_strides": _strides("dq", "dq"),
    "dk_strides": _strides("dk", "dk"),
    "dv_strides": _strides("dv", "dv"),
    "padded": _int(padded),
    "kv_section": Argument(lambda _: ("i32",), lambda x: (Scalar("i32", _section(x)),)),
    "accumulate": _int(lambda p: int(p.accumulate)),
}
"""Every argument by the name that kernels give it."""


def _has(word: str) -> Callable[[Any], Value]:
    return lambda c: word in c.words


CONSTANTS: Mapping[str, Callable[[Any], Value]] = {
    **forward.CONSTANTS,
    "TILE": lambda c: c.tile_rows,
    "STEP": lambda c: c.step_rows,
    "PAD": lambda c: PAD,
    "SUMS": sums_width,
    "ORDERED": lambda c: c.ordered,
    "BY_LENGTH": lambda c: not c.words.isdisjoint(OWN_LENGTHS),
    **{word.upper(): _has(word) for word in ("dlse", *GRADIENTS)},
}
"""Every constant by the name that kernels give it."""


def described_type(c: Any, name: str) -> str:
    """The dtype of an argument that a kernel reaches by a descriptor."""
    if name in ("bias", "ds"):
        return forward.float_of(c)
    return (
        "fp32" if name in ("log_sums", "row_tops", "deltas", "dq_sums") else str(aligned(c)[name])
    )


def aligned(c: Any) -> dict[str, str]:
    """Pointers whose alignment a config promises, with their strides, and their dtypes."""
    same = dict.fromkeys(("q", "k", "v", "dq", "dk", "dv", "dbias"), c.dtype)
    return same | {"o": c.dtype_o, "do": c.dtype_o}
