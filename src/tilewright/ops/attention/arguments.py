"""The catalogue of what attention kernels take: each argument's type and value, and each constant.

A pipeline's record names, in order, the arguments and constants that its kernel declares. An
argument of a feature that the config lacks is a constant 0 there, so that one signature serves all
configs. Tuples arrive as tuples.

Rows are numbered as in LSE: ``(b * heads + h) * q_len + i``, and ``h * total_q + start + i`` for
packed Q (see `operands.lse_shape`). Partial results of splits lie by row: [splits, rows] and
[splits, rows, head_dim_v].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.features import FEATURES
from tilewright.ops.attention.mask import NO_BOUND
from tilewright.ops.attention.operands import bias_of, lse_shape, strides_of
from tilewright.ops.attention.problem import FP8, AttentionProblem
from tilewright.ops.nouns import Argument as Passed
from tilewright.ops.nouns import Given, Pointer, Scalar

Value = int | bool | str
Types = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """What an argument's value may depend on. splits: of the launch; 1 without."""

    config: AttentionConfig
    problem: AttentionProblem
    device: Device
    splits: int = 1


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a kernel.

    types: Triton's, of its elements; one where it is no tuple.
    values: what is passed for each.
    words: features, of which a config must have one for the argument to be passed; (): always.
    is_tuple: whether the kernel sees a tuple.
    of_splits: whether only scheduler ``split`` has it.
    """

    types: Callable[[AttentionConfig], Types]
    values: Callable[[Context], tuple[Passed, ...]]
    words: tuple[str, ...] = ()
    is_tuple: bool = False
    of_splits: bool = False

    def passed(self, config: AttentionConfig) -> bool:
        """Whether `config`'s kernel gets it."""
        if self.of_splits and config.scheduler != "split":
            return False
        return not self.words or bool(config.words.intersection(self.words))


def _pointer(name: str, dtype: Callable[[AttentionConfig], str], *words: str) -> Argument:
    return Argument(lambda c: (f"*{DTYPES[dtype(c)].triton}",), lambda _: (Pointer(name),), words)


def _typed(dtype: str) -> Callable[[AttentionConfig], str]:
    return lambda _: dtype


def _int(value: Callable[[Context], int], *words: str) -> Argument:
    return Argument(lambda _: ("i32",), lambda x: (Scalar("i32", value(x)),), words)


def _ints(types: Types, values: Callable[[Context], tuple[int, ...]], *words: str) -> Argument:
    def passed(x: Context) -> tuple[Passed, ...]:
        return tuple(Scalar(t, v) for t, v in zip(types, values(x), strict=True))

    return Argument(lambda _: types, passed, words, is_tuple=True)


def _number(value: Callable[[Context], float], *words: str) -> Argument:
    return Argument(lambda _: ("fp32",), lambda x: (Scalar("fp32", value(x)),), words)


def of_q(c: AttentionConfig) -> str:
    """The dtype of Q."""
    return c.dtype


def of_kv(c: AttentionConfig) -> str:
    """The dtype of K and V."""
    return c.dtype_kv


def of_o(c: AttentionConfig) -> str:
    """The dtype of O."""
    return c.dtype_o


def float_of(c: AttentionConfig) -> str:
    """The dtype of rotary tables, and of a bias that has none of its own."""
    return "bf16" if c.dtype in FP8 else c.dtype


def bias_type(c: AttentionConfig) -> str:
    """The dtype of a bias."""
    if "biasbool" in c.words:
        return "bool"
    return "fp32" if "bias32" in c.words else float_of(c)


def _bias_strides(x: Context) -> tuple[int, ...]:
    """Of (batch, head, query); 0 for a dimension of one element."""
    shape, strides = bias_of(x.problem)
    return tuple(s if n > 1 else 0 for n, s in zip(shape[:3], strides[:3], strict=True))


def _scale_strides(name: str) -> Callable[[Context], tuple[int, ...]]:
    """Strides of (sequence, head, block of rows). With ``hscale`` the head is that of the keys."""

    def found(x: Context) -> tuple[int, ...]:
        p = x.problem
        if "tscale" in p.words:
            return (0, 0, 0)
        if "hscale" in p.words:
            return (p.kv_heads, 1, 0)
        heads, rows = (p.heads, p.q_len) if name == "q" else (p.kv_heads, p.kv_len)
        blocks = -(-rows // p.scale_block)
        return (heads * blocks, blocks, 1)

    return found


L2_SHARE = 0.64
"""Of a device's L2 that K and V may fill: 32 MB of an H200's 50."""


def _section(x: Context) -> int:
    """Heads whose tiles follow one another: those whose K and V fit into L2 together."""
    p = x.problem
    size = p.kv_len * (p.head_dim + p.head_dim_v) * DTYPES[p.dtype_kv].bytes
    fit = int(L2_SHARE * x.device.l2_bytes) // max(1, size)
    ragged = p.words & {"packedq", "usedq"}
    return min(max(1, fit) * p.group, p.heads * (1 if ragged else max(1, p.batch)))


_STRIDES: Types = ("i64", "i32", "i32", "i32")
_SCALED = ("tscale", "hscale", "bscale")
_PAGED = ("pagetable", "pagelist")

ARGUMENTS: dict[str, Argument] = {
    "q": _pointer("q", of_q),
    "rotated_q": _pointer("rotated_q", of_q, "rotaryi", "rotaryh"),
    "k": _pointer("k", of_kv),
    "v": Argument(
        lambda c: (f"*{DTYPES[c.dtype_kv].triton}",),
        lambda x: (Pointer("k" if "latent" in x.config.words else "v"),),
    ),
    "o": _pointer("o", of_o),
    "o_rows": _pointer("o", of_o),  # for a kernel that also has a descriptor of O
    "lse": _pointer("lse", _typed("fp32"), "lse"),
    "random": _pointer("random", _typed("uint8"), "random"),
    "bias": _pointer("bias", bias_type, "bias"),
    "slopes": _pointer("slopes", _typed("fp32"), "alibi"),
    "sinks": _pointer("sinks", _typed("fp32"), "sinks"),
    "q_offsets": _pointer("q_offsets", _typed("int32"), "packedq"),
    "kv_offsets": _pointer("kv_offsets", _typed("int32"), "packedkv"),
    "q_used": _pointer("q_used", _typed("int32"), "usedq"),
    "kv_used": _pointer("kv_used", _typed("int32"), "usedkv"),
    "left_pad": _pointer("left_pad", _typed("int32"), "leftpad"),
    "page_table": _pointer("page_table", _typed("int32"), "pagetable"),
    "page_list": _pointer("page_list", _typed("int32"), "pagelist"),
    "page_starts": _pointer("page_starts", _typed("int32"), "pagelist"),
    "q_scale": Argument(  # no kernel reads it where Q has none
        lambda _: ("*fp32",),
        lambda x: (Pointer("q_scale" if x.config.dtype in FP8 else "k_scale"),),
        _SCALED,
    ),
    "k_scale": _pointer("k_scale", _typed("fp32"), *_SCALED),
    "v_scale": Argument(
        lambda _: ("*fp32",),
        lambda x: (Pointer("k_scale" if "latent" in x.config.words else "v_scale"),),
        _SCALED,
    ),
    "o_scale": _pointer("o_scale", _typed("fp32"), "oscale"),
    "new_k": _pointer("new_k", of_q, "append"),
    "new_v": Argument(
        lambda c: (f"*{DTYPES[c.dtype].triton}",),
        lambda x: (Pointer("new_k" if "latent" in x.config.words else "new_v"),),
        ("append",),
    ),
    "rotary_cos": _pointer("rotary_cos", float_of, "rotaryi", "rotaryh"),
    "rotary_sin": _pointer("rotary_sin", float_of, "rotaryi", "rotaryh"),
    # Temporaries.
    "partial_o": replace(_pointer("partial_o", _typed("fp32")), of_splits=True),
    "partial_lse": replace(_pointer("partial_lse", _typed("fp32")), of_splits=True),
    "counter": _pointer("counter", _typed("int32")),
    "turned_v": _pointer("turned_v", of_kv),
    # Strides in elements of (batch or page, row, head, dim).
    "q_strides": _ints(_STRIDES, lambda x: q_strides(x.problem)),
    "given_q_strides": _ints(_STRIDES, lambda x: strides_of(x.problem, "q")),
    "k_strides": _ints(_STRIDES, lambda x: _kv_strides(x.problem, "k")),
    "v_strides": _ints(_STRIDES, lambda x: _kv_strides(x.problem, "v")),
    "o_strides": _ints(_STRIDES, lambda x: strides_of(x.problem, "o")),
    "bias_batch": _int(lambda x: x.problem.bias_shape[0], "bias"),
    "bias_heads": _int(lambda x: x.problem.bias_shape[1], "bias"),
    "bias_strides": _ints(("i64",) * 3, _bias_strides, "bias"),
    "q_scale_strides": _ints(("i32",) * 3, _scale_strides("q"), *_SCALED),
    "kv_scale_strides": _ints(("i32",) * 3, _scale_strides("kv"), *_SCALED),
    # Sizes.
    "batch": _int(lambda x: x.problem.batch),
    "heads": _int(lambda x: x.problem.heads),
    "kv_heads": _int(lambda x: x.problem.kv_heads),
    "group": _int(lambda x: x.problem.group),
    "q_len": _int(lambda x: x.problem.q_len),
    "kv_len": _int(lambda x: x.problem.kv_len),
    "turned_len": _int(lambda x: turned_len(x.problem)),
    "total_q": _int(lambda x: x.problem.total_q, "packedq"),
    "total_kv": _int(lambda x: x.problem.total_kv, "packedkv"),
    "rows": _int(lambda x: math.prod(lse_shape(x.problem))),
    "section": _int(lambda x: _section(x)),
    "pages": _int(lambda x: x.problem.pages, *_PAGED),
    # Entries name no page if there is none.
    "page_entries": _int(lambda x: x.problem.page_entries if x.problem.pages else 0, *_PAGED),
    "slopes_stride": _int(lambda x: x.problem.heads * x.problem.slopes_batched, "alibi"),
    "scale_block": _int(lambda x: x.problem.scale_block, "bscale"),
    "new_kv": _int(lambda x: x.problem.new_kv, "append"),
    "rotary_dim": _int(lambda x: x.problem.rotary_dim, "rotaryi", "rotaryh"),
    "rotary_len": _int(lambda x: x.problem.rotary_len, "rotaryi", "rotaryh"),
    "splits": replace(_int(lambda x: x.splits), of_splits=True),
    "split_len": replace(_int(lambda x: x.config.split_len), of_splits=True),
    # The mask (see `mask`).
    "left": _int(lambda x: NO_BOUND if x.problem.left is None else x.problem.left),
    "right": _int(lambda x: NO_BOUND if x.problem.right is None else x.problem.right),
    "first": _int(lambda x: x.problem.first),
    "bottom_right": _int(lambda x: int(x.problem.mask.bottom_right)),
    # Numbers. dropped: a weight whose random byte is under it becomes 0.
    "softcap": _number(lambda x: x.problem.softcap, "softcap"),
    "dropped": _int(lambda x: int(x.problem.dropout * 256), "dropout"),
    # Given at the call.
    "scale": Argument(lambda _: ("fp32",), lambda _: (Given("fp32", "scale"),)),
    "seed": Argument(lambda _: ("i64",), lambda _: (Given("i64", "seed"),), ("dropout",)),
    "offset": Argument(lambda _: ("i64",), lambda _: (Given("i64", "offset"),), ("dropout",)),
}
"""Every argument by the name that kernels give it."""


def turned_len(p: AttentionProblem) -> int:
    """Keys of a column of values that were turned: the copy engine wants columns 16 bytes apart,
    or a multiple."""
    count = 16 // DTYPES[p.dtype_kv].bytes
    return -(-p.kv_len // count) * count


def rotates(c: AttentionConfig) -> bool:
    """Whether Q is rotated into a temporary before it is read."""
    return bool(c.words & {"rotaryi", "rotaryh"})


def q_strides(p: AttentionProblem) -> tuple[int, ...]:
    """Strides of Q as the attention kernel reads it: rotated Q is contiguous."""
    if p.rotary_dim:
        outer = 0 if "packedq" in p.words else p.q_len * p.heads * p.head_dim
        return (outer, p.heads * p.head_dim, p.head_dim, 1)
    return strides_of(p, "q")


def _kv_strides(p: AttentionProblem, name: str) -> tuple[int, ...]:
    return (0, 0, 0, 0) if "vectorised" in p.words else strides_of(p, name)


def _has(word: str) -> Callable[[AttentionConfig], Value]:
    return lambda c: word in c.words


CONSTANTS: dict[str, Callable[[AttentionConfig], Value]] = {
    "TILE_Q": lambda c: c.tile_q,
    "TILE_KV": lambda c: c.tile_kv,
    "HEAD_DIM": lambda c: c.head_dim,
    "HEAD_DIM_V": lambda c: c.head_dim_v,
    "MASK": lambda c: c.mask,
    "PAGE": lambda c: c.page_size,
    "PACK": lambda c: c.pack,
    "SPLIT": lambda c: c.scheduler == "split",
    "SCHEDULER": lambda c: c.scheduler,
    "STAGES": lambda c: c.num_stages,
    "UNIT": lambda c: c.alignment > 1,  # neighbours in a row are neighbours in memory
    "LARGEST_KV": lambda c: int(DTYPES[c.dtype_kv].largest),
    "LARGEST_O": lambda c: int(DTYPES[c.dtype_o].largest),
    **{word.upper(): _has(word) for word in FEATURES},
}
"""Every constant by the name that kernels give it; a feature's says whether the config has it."""
