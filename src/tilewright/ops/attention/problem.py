"""`AttentionProblem`: O = softmax(mask(scale · Q·Kᵀ))·V, as the caller states it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tilewright import checks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.attention import features, stated
from tilewright.ops.attention.mask import CORNERS, Mask
from tilewright.ops.problem import Problem

LAYOUTS = ("bshd", "bhsd")
"""Order of the dimensions: batch, sequence, heads, head dim. Pages: ``bshd`` is FlashInfer's NHD,
[pages, page, heads, dim], and ``bhsd`` its HND."""

FP8 = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")

MOST_HEAD_DIM = 576
MAX_SIZE = 2**30
"""Most tokens, heads, pages."""

LEAST_BLOCK = 16
"""Rows of the smallest tile: a tile lies within a block of a mask of blocks."""

VECTOR_BYTES = 16
"""Bytes of a group of elements in vectorised pages."""

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionProblem(Problem):
    """Attention of `batch` sequences, forward. A sequence's queries and keys are its rows.

    Sizes:

    batch: sequences.
    heads, kv_heads: of Q and O, and of K and V; `heads` is a multiple of `kv_heads`, and
        neighbouring query heads share one. 0: as many as `heads`.
    q_len, kv_len: rows of Q and of K, of each sequence. Where sequences have their own, the most
        that one may have.
    head_dim, head_dim_v: elements of a row of Q and K, and of V and O. 0: as `head_dim`.
    total_q, total_kv: rows of packed Q and of packed K, all sequences'.
    pages, page_size: pages of the cache, and rows of a page.
    page_entries: entries of the page list, or of a row of the page table.
    new_kv: rows of keys and values that are appended to each sequence.

    Types: dtype of Q; dtype_kv of K and V; dtype_o of O. ``""``: `dtype`, and of O bf16 where
    `dtype` is an fp8.

    What is computed:

    left, right, first, corner: see `mask`.
    softcap: the cap; 0 for none.
    bias_shape: batch and heads of the bias, each 1 or all; a third number, 1, says that it has one
        row for all queries.
    bias_dtype: ``""`` for `dtype`, or bf16 where that is an fp8; or fp32; or bool: True for a key
        that takes part.
    blocks_shape: batch and heads of the mask of blocks, each 1 or all.
    block_size: queries, and keys, of a block of that mask: a multiple of `LEAST_BLOCK`.
    density: the share of its blocks that are seen, as far as is known, for estimates and inputs; 0
        where it is not.
    slopes_batched: whether ALiBi's slopes are [batch, heads] and not [heads].
    dropout: the share of weights that become zero: a multiple of 1/256.
    scale_block: rows that share a scale, with feature ``bscale``.
    rotary_dim: elements of a row that are rotated.
    rotary_len: places that the tables of angles have.
    others: features that no other field says, by their words (`features.FEATURES`), joined by
        ``+``.
    deterministic: whether gradients must have the same bits in every run. O always has.
    batch_invariant: whether O must have the same bits whatever is computed beside a sequence.

    How it lies in memory:

    layout: of Q and O; kv_layout: of K and V. Packed rows are [rows, heads, dim].
    bias_strides: in elements, of (batch, head, query, key); () of a contiguous one.
    q_strides, k_strides, v_strides, o_strides: in elements, of (batch or page, row, head, dim); ()
        for contiguous arrays, and always of vectorised pages.
    alignment: bytes that all addresses are multiples of, and all strides but the innermost.
    """

    family: ClassVar[str] = "attention"

    batch: int
    heads: int
    q_len: int
    kv_len: int
    head_dim: int
    kv_heads: int = 0
    head_dim_v: int = 0
    dtype: str = "bf16"
    dtype_kv: str = ""
    dtype_o: str = ""
    left: int | None = None
    right: int | None = None
    first: int = 0
    corner: str = "bottom_right"
    softcap: float = 0.0
    bias_shape: tuple[int, ...] = ()
    bias_dtype: str = ""
    blocks_shape: tuple[int, ...] = ()
    block_size: int = 0
    density: float = 0.0
    slopes_batched: bool = False
    dropout: float = 0.0
    scale_block: int = 0
    rotary_dim: int = 0
    rotary_len: int = 0
    total_q: int = 0
    total_kv: int = 0
    pages: int = 0
    page_size: int = 0
    page_entries: int = 0
    new_kv: int = 0
    others: str = ""
    layout: str = "bshd"
    kv_layout: str = "bshd"
    q_strides: Strides = ()
    k_strides: Strides = ()
    v_strides: Strides = ()
    o_strides: Strides = ()
    bias_strides: Strides = ()
    alignment: int = 16
    deterministic: bool = False
    batch_invariant: bool = False

    def _complete(self) -> None:
        for name, default in (
            ("kv_heads", self.heads),
            ("head_dim_v", self.head_dim),
            ("dtype_kv", self.dtype),
            ("dtype_o", stated.usual_o(self.dtype) if self.dtype in DTYPES else ""),
        ):
            if not getattr(self, name):
                object.__setattr__(self, name, default)
        for name in ("heads", "kv_heads"):
            checks.whole(name, getattr(self, name), 1, MAX_SIZE)
        for name in ("head_dim", "head_dim_v"):
            checks.whole(name, getattr(self, name), 1, MOST_HEAD_DIM)
        for name in _COUNTS:
            checks.whole(name, getattr(self, name), 0, MAX_SIZE)
        self._check_bounds()
        if self.heads % self.kv_heads:
            raise BadArgument(
                f"{self.heads} query heads cannot share {self.kv_heads} heads of keys equally; "
                "heads must be a multiple of kv_heads"
            )
        self._check_dtypes()
        for name in _STRIDES:
            if (strides := getattr(self, name)) and len(strides) != 4:
                raise BadArgument(f"{name} = {strides} are not of (batch or page, row, head, dim)")
        self._check_words()
        checks.number("softcap", self.softcap, 0.0, 1e4)
        checks.number("dropout", self.dropout, 0.0, 255 / 256)
        if self.dropout * 256 % 1:
            raise BadArgument(f"dropout = {self.dropout} is not a multiple of 1/256")
        if self.first and self.left is None:
            raise BadArgument(f"first = {self.first} keeps keys from a left bound; give left too")
        if self._last_query_alone:
            object.__setattr__(self, "right", None)  # the last query sees every key
        if self.mask.kind == "none" and self.corner != CORNERS[0] and "alibi" not in self.words:
            object.__setattr__(self, "corner", CORNERS[0])  # it says nothing

    def _check_bounds(self) -> None:
        """A bound beyond every place is none; one that leaves no place says no more if it is
        farther."""
        for name in ("left", "right"):
            if (bound := getattr(self, name)) is None:
                continue
            checks.whole(name, bound, -checks.MOST_WHOLE, checks.MOST_WHOLE)
            if bound >= MAX_SIZE:
                object.__setattr__(self, name, None)
                if name == "left":  # which hides no keys, of which to keep the first
                    object.__setattr__(self, "first", 0)
            elif bound < -MAX_SIZE:
                object.__setattr__(self, name, -MAX_SIZE)

    @property
    def _last_query_alone(self) -> bool:
        """Whether a causal mask hides nothing: of one query in the place of the last key. Where
        sequences have their own numbers of queries, the mask stays, so that a sequence's kernel
        does not depend on the longest one."""
        if self.q_len != 1 or self.left is not None or self.right is None or self.right < 0:
            return False
        own = {"packedq", "usedq"} & features.listed(self.others)
        return self.corner == CORNERS[0] and not own

    def _check_dtypes(self) -> None:
        for name in ("dtype", "dtype_kv", "dtype_o"):
            if (given := getattr(self, name)) not in OUTPUTS:
                raise BadArgument(f"{name} = {given!r} is not one of {', '.join(OUTPUTS)}")
        cache = self.dtype in ("bf16", "fp16") and self.dtype_kv in FP8
        if self.dtype_kv != self.dtype and not cache:
            raise BadArgument(
                f"K and V are {self.dtype_kv} but Q is {self.dtype}; they must be of one dtype, or "
                "fp8 under bf16 or fp16"
            )
        outputs = OUTPUTS[self.dtype]
        if self.dtype_o not in outputs:
            raise BadArgument(
                f"attention of {self.dtype} does not write {self.dtype_o}; it writes "
                f"{', '.join(outputs)}"
            )

    def _check_words(self) -> None:
        words = features.listed(self.others)
        said = {word for word in words if word in _SAID}
        if said:
            raise BadArgument(f"'{min(said)}' is said by a field of its own, not in others")
        every = features.split(self.features)
        if self.corner not in CORNERS:
            raise BadArgument(
                f"corner = {self.corner!r}{nearest(self.corner, CORNERS)} is not one of "
                f"{', '.join(CORNERS)}"
            )
        for name in ("layout", "kv_layout"):
            if getattr(self, name) not in LAYOUTS:
                raise BadArgument(
                    f"{name} = {getattr(self, name)!r} is not one of {', '.join(LAYOUTS)}"
                )
        self._check_bias()
        self._check_blocks()
        if self.paged != (self.page_size > 0):
            raise BadArgument("page_size, and a page table or a page list, are said together")
        if "vectorised" in words and any(
            size % self.vector for size in (self.head_dim, self.head_dim_v, self.page_size)
        ):
            raise BadArgument(
                f"vectorised pages of {self.dtype_kv} have groups of {self.vector} elements, of "
                "which head_dim, head_dim_v and page_size must be multiples, not "
                f"{self.head_dim}, {self.head_dim_v} and {self.page_size}"
            )
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise BadArgument(
                f"rotary_dim = {self.rotary_dim} is not an even number up to {self.head_dim}"
            )
        if (self.rotary_dim > 0) != bool(every & {"rotaryi", "rotaryh"}):
            raise BadArgument("rotary_dim, and rotaryi or rotaryh, are said together")
        if "latent" in every and (self.kv_heads != 1 or self.head_dim_v > self.head_dim):
            raise BadArgument(
                "latent attention has one head of keys, and values no longer than them; not "
                f"{self.kv_heads} heads with {self.head_dim} and {self.head_dim_v} elements"
            )
        if ("bscale" in every) != (self.scale_block > 0):
            raise BadArgument("scale_block and bscale are said together")

    def _check_bias(self) -> None:
        shape = self.bias_shape
        if shape[2:] == (self.q_len,):  # one row, and one query
            object.__setattr__(self, "bias_shape", shape := shape[:2])
        if shape and (
            len(shape) not in (2, 3)
            or shape[0] not in (1, self.batch)
            or shape[1] not in (1, self.heads)
            or shape[2:] not in ((), (1,))
        ):
            raise BadArgument(
                f"bias_shape = {shape} must be 1 or {self.batch} sequences, 1 or {self.heads} "
                "heads, and 1 if it has one row for all queries"
            )
        usual = "bf16" if self.dtype in FP8 else self.dtype
        if self.bias_dtype == usual:
            object.__setattr__(self, "bias_dtype", "")
        if self.bias_dtype not in ("", "fp32", "bool"):
            raise BadArgument(f"bias is {self.bias_dtype}, but must be {usual}, fp32 or bool")
        if not shape and (self.bias_dtype or self.bias_strides):
            raise BadArgument("bias_dtype and bias_strides are of a bias, which is not there")
        if self.bias_strides and (len(self.bias_strides) != 4 or self.bias_strides[3] != 1):
            raise BadArgument(
                f"bias_strides = {self.bias_strides} are not of (batch, head, query, key), with "
                "keys that are neighbours"
            )

    def _check_blocks(self) -> None:
        shape = self.blocks_shape
        if bool(shape) != (self.block_size > 0):
            raise BadArgument("blocks and block_size are said together")
        if shape and (
            len(shape) != 2 or shape[0] not in (1, self.batch) or shape[1] not in (1, self.heads)
        ):
            raise BadArgument(
                f"blocks_shape = {shape} must be 1 or {self.batch} sequences, and 1 or "
                f"{self.heads} heads"
            )
        if self.block_size % LEAST_BLOCK:
            raise BadArgument(
                f"block_size = {self.block_size} is not a multiple of {LEAST_BLOCK}, the rows of "
                "the smallest tile"
            )
        checks.number("density", self.density, 0.0, 1.0)
        if self.density and not shape:
            raise BadArgument(f"density = {self.density} is of a mask of blocks; give blocks too")

    def __str__(self) -> str:
        return stated.in_short(self)

    @property
    def one_kernel(self) -> bool:
        """Also where the bits of gradients have to repeat."""
        return self.deterministic or self.batch_invariant

    @property
    def mask(self) -> Mask:
        """Which keys a query sees."""
        return self.once(_mask)

    @property
    def words(self) -> frozenset[str]:
        """Its features, as a set."""
        return self.once(_words)

    @property
    def features(self) -> str:
        """The words of `features.FEATURES` that hold of it, joined."""
        return self.once(_features)

    @property
    def paged(self) -> bool:
        """Whether keys and values lie in pages."""
        return "pagetable" in self.others or "pagelist" in self.others

    @property
    def vector(self) -> int:
        """Elements of a group in vectorised pages."""
        return VECTOR_BYTES // DTYPES[self.dtype_kv].bytes

    @property
    def group(self) -> int:
        """Query heads that share a head of keys."""
        return self.heads // self.kv_heads

    @property
    def lengths(self) -> tuple[int, int]:
        """Queries and keys that a sequence has on average, as far as the sizes say."""
        return self.once(_lengths)

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head of all sequences, on average."""
        return round(self.batch * self.mask.pairs(*self.lengths) * self.share_seen)

    @property
    def share_seen(self) -> float:
        """The share of blocks that are seen; 1 where it is not known."""
        return self.density or 1.0

    @property
    def block_counts(self) -> tuple[int, int]:
        """Blocks of queries and of keys that the mask of blocks has for a sequence."""
        return -(-self.q_len // self.block_size), -(-self.kv_len // self.block_size)

    @property
    def flops(self) -> int:
        """Operations of both products, for the pairs that a query sees."""
        return 2 * self.heads * self.pairs * (self.head_dim + self.head_dim_v)

    @property
    def work(self) -> Mapping[str, int]:
        """Operations by unit: the type that the matrix units multiply, and exponentials."""
        return {self.dtype: self.flops, "exp": self.heads * self.pairs}

    @property
    def min_bytes(self) -> int:
        """Bytes to read Q, K, V, the bias and the mask of blocks once, and to write O once."""
        n_q, n_kv = (self.batch * n for n in self.lengths)
        kv = self.head_dim + (0 if "latent" in self.words else self.head_dim_v)
        moved = n_q * self.heads * self.head_dim * DTYPES[self.dtype].bytes
        moved += n_q * self.heads * self.head_dim_v * DTYPES[self.dtype_o].bytes
        moved += n_kv * self.kv_heads * kv * DTYPES[self.dtype_kv].bytes
        if self.bias_shape:
            rows = self.bias_shape[0] * self.bias_shape[1]
            rows *= 1 if self.bias_shape[2:] else self.lengths[0]
            moved += rows * self.lengths[1] * DTYPES[self.bias_dtype or self.dtype].bytes
        if self.blocks_shape:
            moved += math.prod((*self.blocks_shape, *self.block_counts))
        return moved


def _features(p: AttentionProblem) -> str:
    said = tuple(word for word, says in _SAID.items() if says(p))
    return features.also(p.others, said)


def _words(p: AttentionProblem) -> frozenset[str]:
    return features.split(p.features)


def _mask(p: AttentionProblem) -> Mask:
    return Mask(p.left, p.right, p.first, p.corner == CORNERS[0])


def _lengths(p: AttentionProblem) -> tuple[int, int]:
    n_q, n_kv = p.q_len, p.kv_len
    if "packedq" in p.words and p.batch:
        n_q = min(n_q, -(-p.total_q // p.batch))
    if "packedkv" in p.words and p.batch:
        n_kv = min(n_kv, -(-p.total_kv // p.batch))
    return n_q, n_kv


_STRIDES = ("q_strides", "k_strides", "v_strides", "o_strides")
_COUNTS = (
    "batch", "q_len", "kv_len", "total_q", "total_kv", "pages", "page_size", "page_entries",
    "new_kv", "first", "scale_block", "block_size", "rotary_dim", "rotary_len",
)  # fmt: skip

_SAID: dict[str, Callable[[AttentionProblem], bool]] = {
    "softcap": lambda p: p.softcap > 0,
    "bias": lambda p: bool(p.bias_shape),
    "bias32": lambda p: p.bias_dtype == "fp32",
    "biasbool": lambda p: p.bias_dtype == "bool",
    "blocks": lambda p: bool(p.blocks_shape),
    "dropout": lambda p: p.dropout > 0,
    "append": lambda p: p.new_kv > 0,
}
"""Words that fields say."""

OUTPUTS: dict[str, tuple[str, ...]] = {
    "bf16": ("bf16", "fp32"),
    "fp16": ("fp16", "fp32"),
    "fp32": ("fp32",),
    **{d: ("bf16", "fp16", "fp32", d) for d in FP8},
}
"""Dtypes of O for each dtype of Q, the default first."""
