"""`GemmProblem`: C = A·B, as the caller states it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from tilewright.dtypes import DTYPES, dtype
from tilewright.errors import BadArgument, nearest
from tilewright.ops import epilogues
from tilewright.ops.gemm import batch as batches
from tilewright.ops.gemm import lowbit, pre, scales, shuffle
from tilewright.ops.gemm.operand_types import name_types, takes_dtype
from tilewright.ops.problem import Problem
from tilewright.ops.products import (
    OUTPUTS,
    PRECISIONS,
    QUANTISED,
    WIDENED,
    accumulator,
    natural_alignment,
    outputs,
)

LAYOUTS = ("rcr", "rrr", "ccr", "crr", "rcc", "rrc", "ccc", "crc")
"""Row or column major of A, B, C; ``rcr`` is a Linear layer's x·Wᵀ."""

SHUFFLED_LAYOUTS = ("rsr", "csr", "rsc", "csc")
"""Layouts with B shuffled into blocks (see `shuffle`)."""

MAX_SIZE = 2**31 - 512
"""Largest M, N, K or leading dimension: indexes up to one tile past the end must fit in 32 bits."""


@lru_cache(maxsize=1024)
def check_types(
    dtype_a: str,
    dtype_b: str,
    dtype_c: str,
    dtype_acc: str,
    precision: str,
    epilogue: str = "",
    scaled: bool = False,
) -> None:
    """Raise `BadArgument` unless some GEMM has these dtypes; the message gives those that would
    do."""
    if dtype(dtype_a).name not in OUTPUTS:
        raise BadArgument(f"no GEMM takes {dtype_a} operands; these do: {', '.join(OUTPUTS)}")
    for name in (dtype_b, dtype_c, dtype_acc):
        dtype(name)
    mixed = None if scaled else lowbit.MIXED.get(dtype_a)
    others = (*lowbit.PARTNERS.get(dtype_a, ()), *WIDENED.get(dtype_a, ()))
    if dtype_b not in (dtype_a, mixed, *others):
        raise BadArgument(f"A is {dtype_a} but B is {dtype_b}; convert one to the other's dtype")
    if dtype_c not in outputs(dtype_a, epilogue, scaled):
        allowed = ", ".join(outputs(dtype_a, epilogue, scaled))
        after = " times their scales" * scaled + f" after epilogue {epilogue}" * bool(epilogue)
        hint = "; end the epilogue with a scale for an 8-bit C" if dtype_c in QUANTISED else ""
        raise BadArgument(f"{dtype_a} operands give C as {allowed}{after}, not {dtype_c}{hint}")
    if dtype_acc != accumulator(dtype_a):
        raise BadArgument(f"{dtype_a} is accumulated in {accumulator(dtype_a)}, not {dtype_acc}")
    if precision not in PRECISIONS:
        hint = nearest(precision, PRECISIONS)
        raise BadArgument(f"unknown precision '{precision}'{hint}; known: {', '.join(PRECISIONS)}")
    if precision == "tf32" and dtype_a != "fp32":
        raise BadArgument(f"precision tf32 is a way to multiply fp32, not {dtype_a}")


def check_layout(layout: str) -> None:
    """Raise `BadArgument` unless `layout` is three letters of ``r`` and ``c``, or ``s`` for B."""
    if layout not in LAYOUTS and layout not in SHUFFLED_LAYOUTS:
        raise BadArgument(
            f"layout '{layout}' is not one of {', '.join((*LAYOUTS, *SHUFFLED_LAYOUTS))}"
            " (row or column major of A, B and C; s: B is shuffled)"
        )


@takes_dtype
@dataclass(frozen=True, slots=True, eq=False)
class GemmProblem(Problem):
    """C[m, n] = A[m, k] · B[k, n], after the operations of `epilogue`; or a batch of such products.

    Sizes are in elements, each from 0 to `MAX_SIZE`; a sum over k = 0 is 0. Element types are
    names, or torch's or NumPy's types.

    m, n, k: sizes.
    dtype_a: element type of A; ``dtype=…`` is another name for it.
    dtype_b: by default `dtype_a`; 8 bits beside an A in 16, ``int4`` and ``e2m1`` may go with other
    types (see `lowbit`).
    dtype_c: by default the usual output of `dtype_a`.
    dtype_acc: by default the accumulator of `dtype_a`.
    layout: see `LAYOUTS` and `SHUFFLED_LAYOUTS`.
    lda, ldb, ldc: elements between consecutive rows (between columns for a column-major matrix,
    between rows of blocks for a shuffled one); 0 means packed.
    alignment: bytes, a power of two up to 16. Every base address and every leading dimension is a
    multiple of it, except those of the chains' vectors and scalars.
    precision: ``ieee``, or ``tf32`` for fp32.
    epilogue: operations in order, as in ``"bias+gelu"`` (see `epilogues`). An operation that halves
    the columns makes C m × n/2.
    ldd: the leading dimension of the epilogue's matrices, which have C's layout; 0 without
    matrices.
    pre_a, pre_b: operations on A and on B before the product (see `pre`).
    ldpa, ldpb: the leading dimensions of their matrices, which have A's and B's layout.
    scale_a, scale_b: the block of A and of B that one scale covers, ``"1x128"`` (see `scales`).
    strides_sa, strides_sb: strides of the scales, in elements; () means packed, row-major.
    batch: number of GEMMs, from 0.
    batching: ``none``, ``strided``, ``pointers``, ``nested`` or ``summed`` (see `batch`); by
    default ``none`` for a batch of 1, else ``strided``. Under ``summed``, C is the sum of all
    products.
    stride_a, stride_b, stride_c, stride_d: elements from one matrix to the next, of A, B, C and the
    epilogue's matrices; -1 means packed, 0 one matrix for all (never for C). The whole batch shares
    an epilogue's vectors and scalars.
    batch_inner: under ``nested``, the number of matrices that these strides walk.
    outer_strides: under ``nested``, elements from one such inner batch to the next, of A, B, C and
    D; () means packed, 0 shared.
    constant_b: a promise: nothing that may still be running when the call is queued writes B, as
    of weights that were loaded long ago. A kernel may then load B before the kernel before it on
    the stream has ended (`GemmConfig.dependent_launch`). Not with `pre_b`, `scale_b` or a shuffled
    B, which no such kernel reads.

    Raises `BadArgument` for an invalid problem.
    """

    family: ClassVar[str] = "gemm"

    m: int
    n: int
    k: int
    dtype_a: str = "bf16"
    dtype_b: str = ""
    dtype_c: str = ""
    dtype_acc: str = ""
    layout: str = "rcr"
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    alignment: int = 0
    precision: str = "ieee"
    epilogue: str = ""
    ldd: int = 0
    batch: int = 1
    batching: str = ""
    stride_a: int = batches.PACKED
    stride_b: int = batches.PACKED
    stride_c: int = batches.PACKED
    stride_d: int = batches.PACKED
    scale_a: str = ""
    scale_b: str = ""
    strides_sa: tuple[int, ...] = ()
    strides_sb: tuple[int, ...] = ()
    pre_a: str = ""
    pre_b: str = ""
    ldpa: int = 0
    ldpb: int = 0
    batch_inner: int = 0
    outer_strides: tuple[int, ...] = ()
    constant_b: bool = False

    def _complete(self) -> None:
        name_types(self)
        default = object.__setattr__
        for field in ("m", "n", "k", "batch"):
            size = getattr(self, field)
            if not isinstance(size, int) or isinstance(size, bool):
                raise BadArgument(f"{field} must be an integer, not {size!r}")
            if not 0 <= size <= MAX_SIZE:
                raise BadArgument(f"{field} = {size} is outside 0 … {MAX_SIZE}")
        check_layout(self.layout)
        dtype(self.dtype_a)
        pre.check(self.layout, self.dtype_a, self.pre_a, self.pre_b, self.epilogue)
        if self.layout[1] == "s":
            shuffle.check(self.n, self.k, self.dtype_a)
        scales.check(self)
        scaled = scales.count(self) > 0
        if not self.strides_sa:
            default(self, "strides_sa", scales.packed(self.scale_a, self.m, self.k))
        if not self.strides_sb:
            default(self, "strides_sb", scales.packed(self.scale_b, self.k, self.n))
        if self.n % epilogues.fold(self.epilogue):
            raise BadArgument(f"epilogue {self.epilogue} takes columns in twos, but n = {self.n}")
        if not self.dtype_b:
            default(self, "dtype_b", self.dtype_a)
        if not self.dtype_c and self.dtype_a in OUTPUTS:
            default(self, "dtype_c", outputs(self.dtype_a, self.epilogue, scaled)[0])
        if not self.dtype_acc and self.dtype_a in OUTPUTS:
            default(self, "dtype_acc", accumulator(self.dtype_a))
        types = (self.dtype_a, self.dtype_b, self.dtype_c, self.dtype_acc)
        check_types(*types, self.precision, self.epilogue, scaled)
        lowbit.check(self)
        leading = [*zip(("lda", "ldb", "ldc"), self.inner, strict=True)]
        optional = (("ldd", "epilogue", 2), ("ldpa", "pre_a", 0), ("ldpb", "pre_b", 1))
        for field, chain, beside in optional:
            if epilogues.has_matrix(getattr(self, chain)):
                leading.append((field, self.inner[beside]))
            elif getattr(self, field) != 0:
                raise BadArgument(f"{field} = {getattr(self, field)}, but {chain} has no matrix")
        for field, inner in leading:
            ld = getattr(self, field)
            if not isinstance(ld, int) or isinstance(ld, bool):
                raise BadArgument(f"{field} must be an integer, not {ld!r}")
            least = max(1, inner)
            if ld == 0:
                default(self, field, least)
            elif not least <= ld <= MAX_SIZE:
                raise BadArgument(f"{field} = {ld} is outside {least} … {MAX_SIZE}")
            elif ld % lowbit.stored_as(self, field):
                raise BadArgument(f"{field} = {ld} is no whole number of bytes of 4-bit elements")
        self._complete_batch()
        self._check_alone()
        self._check_promise()
        rows = natural_alignment(self.strides_bytes)
        if self.alignment == 0:
            default(self, "alignment", rows)
        elif self.alignment not in (1, 2, 4, 8, 16):
            raise BadArgument(f"alignment = {self.alignment} is not one of 1, 2, 4, 8, 16 bytes")
        elif self.alignment > rows:
            raise BadArgument(
                f"alignment = {self.alignment} bytes, but the leading dimensions "
                f"{', '.join(str(getattr(self, field)) for field, _ in leading)}"
                f"{' and batch strides' if self.batching in batches.STRIDED else ''}"
                f" are only multiples of {rows} bytes"
            )

    def _complete_batch(self) -> None:
        default = object.__setattr__
        if self.batching == "":
            default(self, "batching", "none" if self.batch == 1 else "strided")
        batches.check_batching(self.batching)
        pre.check_alone(self)
        if self.batching == "none" and self.batch != 1:
            raise BadArgument(f"batch = {self.batch} with batching none, which is a batch of 1")
        fields, packed = ("stride_a", "stride_b", "stride_c", "stride_d"), self._packed
        for field, stride in zip(fields, batches.strides(self, packed), strict=True):
            default(self, field, stride)
        default(self, "outer_strides", batches.outer_strides(self, packed))

    def _check_alone(self) -> None:
        """Raise `BadArgument` if operands with scales, or of 4 bits, are batched or empty."""
        if not scales.count(self) and not lowbit.concerns(self):
            return
        if self.batching != "none":
            raise BadArgument("operands with block scales or of 4 bits have no batches")
        if 0 in (self.m, self.n, self.k):
            raise BadArgument(
                f"{self.m}×{self.n}×{self.k}: operands with block scales or of 4 bits are not empty"
            )

    def _check_promise(self) -> None:
        """Raise `BadArgument` for a `constant_b` that is no flag, or that no kernel can use."""
        if not isinstance(self.constant_b, bool):
            raise BadArgument(f"constant_b = {self.constant_b!r} is not true or false")
        of_b = self.pre_b or self.scale_b or self.dtype_b != self.dtype_a
        if self.constant_b and (of_b or self.layout[1] == "s"):
            raise BadArgument(
                "constant_b lets kernels load a plain B early; leave it out where B has other "
                "dtypes than A, scales, operations (pre_b) or a shuffled layout"
            )

    def __str__(self) -> str:
        types = dict.fromkeys((self.dtype_a, self.dtype_b, self.dtype_c))
        words = [f"gemm {self.m}×{self.n}×{self.k}", "→".join(types), self.layout]
        if self.precision != "ieee":
            words.append(self.precision)
        words += [f"{s.name} {getattr(self, s.name)}" for s in scales.of(self)]
        chains = (("A: ", self.pre_a), ("B: ", self.pre_b), ("", self.epilogue))
        words += [f"{of}{chain}" for of, chain in chains if chain]
        if (self.lda, self.ldb, self.ldc) != tuple(max(1, inner) for inner in self.inner):
            words.append(f"ld {self.lda},{self.ldb},{self.ldc}")
        for field, beside in (("ldd", 2), ("ldpa", 0), ("ldpb", 1)):
            if getattr(self, field) not in (0, self.inner[beside]):
                words.append(f"{field} {getattr(self, field)}")
        if self.batching != "none":
            words.append(f"{'sum of' if self.batching == 'summed' else 'batch'} {self.batch}")
        if self.batching == "pointers":
            words.append("by pointers")
        elif self.batching in ("strided", "summed") and self.batch_strides[:3] != self._packed[:3]:
            words.append(f"strides {','.join(map(str, self.batch_strides[:3]))}")
        elif self.batching == "nested":
            strides = zip(self.outer_strides[:3], self.batch_strides, strict=False)
            words.append(f"of {self.batch_inner} each")
            words.append("strides " + ",".join(f"{outer}+{inner}" for outer, inner in strides))
        if self.alignment != 16:
            words.append(f"aligned to {self.alignment}")
        if self.constant_b:
            words.append("B constant")
        return " ".join(words)

    @property
    def columns(self) -> int:
        """Columns of C: n, unless the epilogue halves them."""
        return self.n // epilogues.fold(self.epilogue)

    @property
    def inner(self) -> tuple[int, int, int]:
        """Extent of the innermost (unit-stride) dimension of A, B and C; for a shuffled B, a row of
        blocks."""
        a, b, c = tuple(self.layout)
        return (
            self.k if a == "r" else self.m,
            {"r": self.n, "c": self.k, "s": self.k * shuffle.COLUMNS}[b],
            self.columns if c == "r" else self.m,
        )

    @property
    def outer(self) -> tuple[int, int, int]:
        """Extent of the strided dimension of A, B and C."""
        a, b, c = tuple(self.layout)
        return (
            self.m if a == "r" else self.k,
            {"r": self.k, "c": self.n, "s": self.n // shuffle.COLUMNS}[b],
            self.m if c == "r" else self.columns,
        )

    @property
    def addends(self) -> int:
        """How many products each element of C is a sum of."""
        return self.batch if self.batching == "summed" else 1

    @property
    def matrices_of_c(self) -> int:
        """How many matrices C has."""
        return 1 if self.batching == "summed" else self.batch

    @property
    def batch_strides(self) -> tuple[int, int, int, int]:
        """Elements from one matrix to the next, of A, B, C and the epilogue's matrices."""
        return self.stride_a, self.stride_b, self.stride_c, self.stride_d

    @property
    def _packed(self) -> tuple[int, ...]:
        """The batch strides of matrices without gaps; 0 for matrices that the problem does not
        have, or has one of."""
        rows_a, rows_b, rows_c = (max(1, rows) for rows in self.outer)
        several = self.batching != "summed"
        of_c = rows_c * several
        return rows_a * self.lda, rows_b * self.ldb, of_c * self.ldc, of_c * self.ldd

    @property
    def matrices(self) -> tuple[int, int, int, int]:
        """The number of matrices of A, of B, of C and of each matrix of the epilogue: the batch, or
        1 if shared."""
        if self.batching == "pointers":
            return self.batch, self.batch, self.batch, self.batch if self.stride_d else 1
        a, b, _, d = (math.prod(count for count, _ in self._levels(i)) for i in range(4))
        return a, b, self.matrices_of_c, d

    def _levels(self, place: int) -> tuple[tuple[int, int], ...]:
        """The batch's steps through A, B, C or D (0, 1, 2, 3), for each of its dimensions: how
        many, and of how many elements. A dimension that shares the matrix has no step."""
        found = [(self.batch_inner or self.batch, self.batch_strides[place])]
        if self.batching == "nested":
            found.append((self.batch // self.batch_inner, self.outer_strides[place]))
        return tuple((count, stride) for count, stride in found if stride)

    @property
    def dtype_d(self) -> str:
        """The dtype of the epilogue's matrices: C's, or bf16 if C is 8-bit."""
        return _of_matrix(self.dtype_c)

    @property
    def in_memory(self) -> tuple[tuple[str, int, int, tuple[tuple[int, int], ...], str], ...]:
        """All operands that are matrices in memory; the matrices of one chain count as one. For
        each: its name, the place of the operand (A, B, C: 0, 1, 2) with the same layout, its
        leading dimension, the batch's steps (how many, and of how many elements) and its dtype."""
        found = [
            ("A", 0, self.lda, self._levels(0), self.dtype_a),
            ("B", 1, self.ldb, self._levels(1), self.dtype_b),
            ("C", 2, self.ldc, self._levels(2), self.dtype_c),
        ]
        if self.ldd:
            found.append(("D", 2, self.ldd, self._levels(3), _of_matrix(self.dtype_c)))
        if self.ldpa:
            found.append(("a matrix of pre_a", 0, self.ldpa, (), _of_matrix(self.dtype_a)))
        if self.ldpb:
            found.append(("a matrix of pre_b", 1, self.ldpb, (), _of_matrix(self.dtype_b)))
        return tuple(found)

    @property
    def strides_bytes(self) -> tuple[int, ...]:
        """The leading dimensions, and the batch strides if any, of all `in_memory`, in bytes."""
        return tuple(
            DTYPES[d].size(stride)
            for _, _, ld, levels, d in self.in_memory
            for stride in (ld, *(stride for _, stride in levels))
        )

    @property
    def extent_alignment(self) -> int:
        """Bytes (a power of two up to 16) that every innermost extent is a multiple of."""
        types = (self.dtype_a, self.dtype_b, self.dtype_c)
        inner = zip(self.inner, types, strict=True)
        return natural_alignment(tuple(DTYPES[d].size(extent) for extent, d in inner))

    @property
    def spans_bytes(self) -> tuple[int, ...]:
        """Bytes from the first to past the last element of all `in_memory`; of the whole batch,
        unless it is a batch of pointers."""
        outer, inner = self.outer, self.inner
        return tuple(
            DTYPES[d].size(sum((n - 1) * s for n, s in (*levels, (outer[i], ld))) + inner[i])
            for _, i, ld, levels, d in self.in_memory
        )

    @property
    def flops(self) -> int:
        """2·M·N·K for the whole batch."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def work(self) -> dict[str, int]:
        """Operations, by the type that the matrix units multiply."""
        return {"tf32" if self.precision == "tf32" else self.dtype_a: self.flops}

    @property
    def min_bytes(self) -> int:
        """Bytes to read A, B, their scales and the operands of all chains once, and to write C
        once. Shared operands of a batch count once."""
        types = (self.dtype_a, self.dtype_b, self.dtype_c)
        counts = (self.m * self.k, self.k * self.n, self.m * self.columns)
        parts = zip(self.matrices, types, counts, strict=False)
        size = sum(of * DTYPES[d].size(count) for of, d, count in parts)
        for shape, dtype_e in self.extra_shapes:
            each = math.prod(shape) * DTYPES[dtype_e].bytes
            size += each * (self.matrices[3] if len(shape) == 2 else 1)
        for shape, dtype_e in (*self.pre_a_shapes, *self.pre_b_shapes):
            size += math.prod(shape) * DTYPES[dtype_e].bytes
        for s in scales.of(self):
            size += math.prod(s.shape) * DTYPES[s.block.dtype].bytes
        return size

    @property
    def pre_a_shapes(self) -> pre.Shapes:
        """Shape and dtype of each operand of `pre_a`, in order."""
        return pre.shapes(self.pre_a, self.m, self.k, self.dtype_a)

    @property
    def pre_b_shapes(self) -> pre.Shapes:
        """Shape and dtype of each operand of `pre_b`, in order."""
        return pre.shapes(self.pre_b, self.k, self.n, self.dtype_b)

    @property
    def extra_shapes(self) -> pre.Shapes:
        """Shape and dtype of each operand of the epilogue, in order."""
        taken = epilogues.takes(self.epilogue)
        found = []
        for t, n in zip(taken, epilogues.columns(self.epilogue, self.n), strict=True):
            shapes = {"n": (n,), "m": (self.m,), "d": (self.m, n), "s": (1,)}
            found.append((shapes[t.kind], epilogues.operand_dtype(t, self.dtype_c)))
        return tuple(found)


def _of_matrix(dtype: str) -> str:
    """The dtype of a chain's matrix beside one of `dtype`."""
    return epilogues.operand_dtype(epilogues.Takes("", "d"), dtype)
