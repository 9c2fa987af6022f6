"""What the kernels of the backward pass take: attention's catalogue, and what is added to it.

Temporaries: `delta`, and `distances`, the sums of a row that the gradient of its head's slope adds
up; `tops` and `logs`, under a bias (see `kernels.logarithms`; without one `logs` is LSE). They lie
as LSE does. `log_sums`, `row_tops` and `deltas`: see `kernels.around`. `dq_sums`: dQ in fp32, not
yet scaled: for each 64 of the padded rows of `log_sums`, tiles of 64 columns, in the order of
`gluon_ws`. `turns`: of each block of dQ, the tiles of keys that have been added, if they add in
order. `order`: see `kernels.order`. `query_list`, `query_counts`: see `kernels.blocks`.
`ds`: the gradients of scores as bias and mask leave them, [batch, heads, q_len, kv_len], where some
query sees some key.
"""

from __future__ import annotations

from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.catalogue import (
    CATALOGUE as FORWARD,
)
from tilewright.ops.attention.catalogue import (
    L2_SHARE,
    array,
    bias_type,
    float_of,
    having,
    integer,
    strides,
    temporary,
)
from tilewright.ops.attention.operands import lse_shape
from tilewright.ops.attention_backward.problem import GRADIENTS
from tilewright.ops.binder import Array, Catalogue, Constant, Context, Numbers
from tilewright.ops.nouns import TEMPORARY_ALIGNMENT

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
    fit = int(L2_SHARE * x.device.l2_bytes) // max(1, size)
    found = int(min(max(1, fit), max(1, most)))
    return int(-(-lines // -(-lines // found))) if c.ordered else found


GROUPS = 2
"""Groups of warps of the kernels in Gluon that multiply."""


def lines(p: Any) -> int:
    """Lines of rows: heads of sequences; of packed ones, heads."""
    return int(p.heads if "packedq" in p.words else p.batch * p.heads)


def terms(p: Any) -> int:
    """Rows of all lines of rows' terms."""
    return lines(p) * padded(p)


def scores(p: Any) -> tuple[int, ...]:
    """The shape of gradients of scores."""
    return p.batch, p.heads, p.q_len, p.kv_len


def _inside_dq(x: Context) -> str:
    """dQ, which is written last, if it has room for two terms of each row until then."""
    p = x.problem
    count = p.total_q if "packedq" in p.words else p.batch * p.q_len
    room = count * p.heads * p.head_dim * DTYPES[p.dtype].bytes
    fits = not p.accumulate and not p.dq_strides
    return "dq" if fits and room >= 2 * (4 * terms(p) + TEMPORARY_ALIGNMENT) else ""


def _blocks(x: Context) -> tuple[int, ...]:
    """Blocks of dQ that tiles of keys add to in turn."""
    count = terms(x.problem) // x.config.step_rows
    return (int(count) if x.config.pipeline == "gluon_ws" else int(count) * GROUPS,)


def _term(**said: Any) -> Array:
    """A number for each row of rows' terms."""
    return Array("fp32", shape=lambda x: (terms(x.problem),), **said)


def _gradient(name: str, dtype: str = "dtype") -> Catalogue:
    """The gradient of an operand of rows, and its strides. dO has no word."""
    words = (name,) if name in GRADIENTS else ()
    return {
        name: array(dtype, *words, aligned=True),
        f"{name}_strides": strides(lambda p: p.strides_of(name), *words, dtype=dtype),
    }


def _has(word: str) -> Constant:
    return lambda c, _: word in c.words


def rolls(arch: Arch) -> bool:
    """Whether products along the head dim are loops (`kernels.steps.products_of`): on AMD's waves
    of 32, whose matrix instructions take whole rows of both operands from each wave's registers."""
    return arch.backend == "hip" and arch.warp_size == 32


CATALOGUE: Catalogue = {
    **FORWARD,
    "lse": array("fp32"),
    "dlse": array("fp32", "dlse"),
    **_gradient("do", "dtype_o"),
    **_gradient("dq"),
    **_gradient("dk"),
    **_gradient("dv"),
    "dbias": array(bias_type, "dbias", aligned=True),
    "dsinks": array("fp32", "dsinks"),
    "dslopes": array("fp32", "dslopes"),
    "logs": Array(
        "fp32",
        lambda x: "logs" if x.problem.bias_shape else "lse",
        shape=lambda x: lse_shape(x.problem),
    ),
    "tops": temporary(lse_shape, "bias"),
    "delta": temporary(lse_shape),
    "distances": temporary(lse_shape, "dslopes"),
    "log_sums": _term(inside=_inside_dq),
    "deltas": _term(inside=_inside_dq),
    "row_tops": _term(there=having("bias")),
    "dq_sums": Array(
        "fp32",
        shape=lambda x: (terms(x.problem), sums_width(x.config)),
        initial=lambda c: "anything" if c.ordered else "zero",
    ),
    "turns": Array("int32", there=having("ordered"), shape=_blocks, initial=lambda _: "zero"),
    "ds": temporary(scores, "dbias", dtype=float_of),
    "order": temporary(lambda p: (2, p.batch), *OWN_LENGTHS, dtype="int32"),
    "query_list": temporary(
        lambda p: (p.batch, p.blocks_shape[1], *p.block_counts[::-1]), "blocks", dtype="int32"
    ),
    "query_counts": temporary(
        lambda p: (p.batch, p.blocks_shape[1], p.block_counts[1], 2), "blocks", dtype="int32"
    ),
    "padded": integer(padded),
    "kv_section": Numbers("i32", _section),
    "accumulate": integer(lambda p: int(p.accumulate)),
    "TILE": lambda c, _: c.tile_rows,
    "STEP": lambda c, _: c.step_rows,
    "PAD": lambda c, _: PAD,
    "ROLLED": lambda _, arch: rolls(arch),
    "SUMS": lambda c, _: sums_width(c),
    "BY_LENGTH": lambda c, _: not c.words.isdisjoint(OWN_LENGTHS),
    **{word.upper(): _has(word) for word in GRADIENTS},
}
