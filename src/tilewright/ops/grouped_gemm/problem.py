"""`GroupedGemmProblem`: many products in one launch, as the caller states them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops import epilogues
from tilewright.ops.gemm import lowbit
from tilewright.ops.gemm.operand_types import name_types, takes_dtype
from tilewright.ops.gemm.problem import LAYOUTS, GemmProblem
from tilewright.ops.grouped_gemm import scales
from tilewright.ops.problem import Problem
from tilewright.ops.products import QUANTISED, natural_alignment

FORMS = ("contiguous", "gathered", "masked", "list", "weights", "columns")
"""The layout of groups in memory, and the place of their sizes; see `GroupedGemmProblem`."""

TURNED = "columns"
"""The form that kernels compute turned round: as Cᵀ = Bᵀ·Aᵀ, which is ``contiguous``."""

WALKED = tuple(form for form in FORMS if form != TURNED)
"""The forms of kernels."""

STACKED = ("contiguous", "gathered", "masked")
"""The forms with rows of A and a B for each group: those with block scales and operands of few
bits."""

DEALT = {"contiguous": "m", "gathered": "m", "weights": "k", "columns": "n"}
"""The size that is dealt out to the groups of a form: offsets run along it."""

QUANTS = ("", "block")
"""How a result is rounded to 8 bits by scales that the product makes: not at all, or by blocks."""

BLOCK = 128
"""Columns of C that share a scale."""

SCALES = "block_scales"
"""The output with these scales."""

Sizes = tuple[tuple[int, int, int], ...]

LIST_SPAN = 2**31
"""Each matrix of a list is smaller than this many bytes: kernels count in 32 bits inside one."""


@takes_dtype
@dataclass(frozen=True, slots=True, eq=False)
class GroupedGemmProblem(Problem):
    """C_g = A_g · B_g for every group g, after the operations of `epilogue`.

    form: the layout of the groups, one of these six.

    ``contiguous``: mixture of experts, rows sorted by expert. A is m × k, B is groups × k × n, C is
    m × n. An int32 vector on the device holds the end of each group's rows (``offs`` of
    ``torch._grouped_mm``).
    ``gathered``: as ``contiguous``, but A is `rows_a` × k, its rows in any order, and an int32 map
    [m] on the device says which one stands in each place: map[i] // `per_row`. A place whose map
    is below 0, or beyond A, has a row of zeros.
    ``masked``: fixed capacity. A is groups × m × k, B is groups × k × n, C is groups × m × n. An
    int32 vector on the device holds how many of each group's m rows are used.
    ``list``: products of different sizes, at addresses in a table on the device (see `pack`).
    ``weights``: the gradient of a ``contiguous`` product's weights. Groups lie along the sum: A is
    m × k, B is k × n, C is groups × m × n. An int32 vector on the device holds the end of each
    group's part of k. A group without a part is 0.
    ``columns``: groups lie along the columns. A is groups × m × k, B is k × n, C is m × n. An int32
    vector on the device holds the end of each group's columns of B and C. No epilogue.

    m: under ``contiguous`` and ``gathered``, rows of all groups; under ``masked``, rows of each
    group. Likewise n under ``columns``, and k under ``weights``, of all groups.
    rows_a: under ``gathered``, rows of A.
    per_row: under ``gathered``, how many numbers of the map mean one row of A: k of a router that
    chooses k experts for each token.
    gates_apart: where the epilogue makes one column of two, whether B's columns are all gates and
    then all ups; else they take turns. Of a column-major B alone.
    bounds: where groups end at offsets, the vector begins with the start of the first group, so it
    is one longer.
    zero_rest: whether rows (of ``columns``: columns) of C that belong to no group become 0. Else
    they are left unchanged. A list and ``weights`` have none.
    sizes: under ``list``, (m, n, k) of each product; `groups`, `m`, `n` and `k` follow from it and
    are left out.
    stride_b: elements from one group's B (of ``columns``: A) to the next; 0 means packed.
    scale_a, scale_b: the blocks of A and of B that share one scale (see `scales`). Of groups of
    rows alone, and not for a list.
    zero_b: whether int4 weights have a zero point beside each scale (see `scales`).
    strides_sa, strides_sb, strides_zb: strides of the scales and zero points, in elements; () means
    packed.
    quant: ``block``: C is rounded to 8 bits, and a second output has the scale of each row's
    `BLOCK` columns: block_scales, fp32 ``[*rows, columns / 128]``, the largest value over the
    largest of `dtype_c` (1 for zeros). Of groups of rows alone. Rows of no group have none.
    alignment: under ``list``, all addresses and leading dimensions in the table are multiples of
    it; by default 16, as `pack` allocates.

    Groups may have no rows. Fields from `dtype_a` on are as in `GemmProblem`, for every group. For
    a ``list``, leading dimensions are in the table.

    Raises `BadArgument` for an invalid problem.
    """

    family: ClassVar[str] = "grouped_gemm"

    form: str
    groups: int = 0
    m: int = 0
    n: int = 0
    k: int = 0
    sizes: Sizes = ()
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
    stride_b: int = 0
    bounds: bool = False
    zero_rest: bool = False
    rows_a: int = 0
    per_row: int = 1
    gates_apart: bool = False
    scale_a: str = ""
    scale_b: str = ""
    strides_sa: tuple[int, ...] = ()
    strides_sb: tuple[int, ...] = ()
    zero_b: bool = False
    strides_zb: tuple[int, ...] = ()
    quant: str = ""

    def _complete(self) -> None:
        name_types(self)
        if self.form not in FORMS:
            known = ", ".join(FORMS)
            raise BadArgument(
                f"form '{self.form}'{nearest(self.form, FORMS)} is not one of {known}"
            )
        default = object.__setattr__
        check_quant(self)
        if self.quant and not self.dtype_c and self.dtype_a in QUANTISED:
            default(self, "dtype_c", self.dtype_a)
        if self.form not in STACKED:
            scales.refuse(self)
            self._check_whole()
        if self.form == "list":
            self._check_list()
            default(self, "groups", len(self.sizes))
            default(self, "alignment", self.alignment or 16)
        else:
            self._check_stacked()
            scales.complete(self)
        self._check_gathered()
        given, one = self.alignment, _one(self)
        self._check_blocks()
        for field in ("dtype_b", "dtype_c", "dtype_acc", "alignment"):
            default(self, field, getattr(one, field))
        if self.form == "list":
            return
        for field in ("lda", "ldb", "ldc", "ldd"):
            default(self, field, getattr(one, self.as_walked(field)))
        if not self.stride_b:
            default(self, "stride_b", self.packed_b)
        elif self.stride_b < self.packed_b or self.form == "weights":
            stacked = {"weights": "no operand", TURNED: "A"}.get(self.form, "B")
            raise BadArgument(
                f"stride_b = {self.stride_b}, but one group's {stacked} takes {self.packed_b} "
                "elements"
            )
        elif self.stride_b % DTYPES[self.dtype_b].packed:
            raise BadArgument(
                f"stride_b = {self.stride_b} is no whole number of bytes of 4-bit elements"
            )
        apart = natural_alignment((DTYPES[self.dtype_b].size(self.stride_b),))
        if given > apart:
            raise BadArgument(
                f"alignment = {given} bytes, but stride_b = {self.stride_b} is only a multiple of "
                f"{apart}"
            )
        default(self, "alignment", min(self.alignment, apart))

    def _check_whole(self) -> None:
        """Refuse operands of few bits, and of two dtypes; a list may have a B of 8 beside 16."""
        if self.form == "list" and lowbit.widens(self):
            return
        if self.dtype_b not in ("", self.dtype_a):
            raise BadArgument(
                f"A is {self.dtype_a} but B is {self.dtype_b}, which forms {', '.join(STACKED)} "
                f"may have, not {self.form}; convert one to the other's dtype"
            )
        if self.dtype_a in DTYPES and DTYPES[self.dtype_a].packed > 1:
            raise BadArgument(f"form {self.form} has whole elements, not {self.dtype_a}")

    def _check_list(self) -> None:
        if not isinstance(self.sizes, tuple) or not self.sizes:
            raise BadArgument("a list needs sizes: a tuple of one (m, n, k) or more")
        counted = self.groups in (0, len(self.sizes))
        stated = (self.m, self.n, self.k, self.lda, self.ldb, self.ldc, self.ldd)
        told = (
            *self.strides_sa,
            *self.strides_sb,
            *self.strides_zb,
            self.zero_b,
            self.bounds,
            self.zero_rest,
        )
        if not counted or any(stated) or self.stride_b or any(told):
            raise BadArgument("a list has sizes, and no other field that says how large groups are")
        folded = epilogues.fold(self.epilogue)
        for place, size in enumerate(self.sizes):
            if not (
                isinstance(size, tuple)
                and len(size) == 3
                and all(type(x) is int and x >= 0 for x in size)
            ):
                raise BadArgument(f"sizes[{place}] = {size!r} is not (m, n, k), each 0 or more")
            m, n, k = size
            if max(m * k, k * n, m * n) * 4 >= LIST_SPAN:
                raise BadArgument(
                    f"sizes[{place}] = {m}×{n}×{k}: a matrix of a list spans under 2 GiB"
                )
            if n % folded:
                raise BadArgument(
                    f"sizes[{place}]: epilogue {self.epilogue} takes columns in twos, but n = {n}"
                )
        for t in epilogues.takes(self.epilogue):
            if t.kind != "s":
                raise BadArgument(
                    f"epilogue {self.epilogue}: groups of a list have no {t.name} of their own; "
                    "operations without operands and with scalars can follow a list"
                )

    def _check_stacked(self) -> None:
        if self.sizes:
            raise BadArgument(f"sizes are for form list; form {self.form} has groups, m, n and k")
        may_be_empty = DEALT.get(self.form, "m")
        for field in ("groups", "m", "n", "k"):
            size, least = getattr(self, field), 0 if field == may_be_empty else 1
            if not isinstance(size, int) or isinstance(size, bool) or size < least:
                raise BadArgument(f"{field} = {size!r} is not a whole number from {least}")
        if not isinstance(self.stride_b, int) or isinstance(self.stride_b, bool):
            raise BadArgument(f"stride_b must be an integer, not {self.stride_b!r}")
        if not isinstance(self.zero_rest, bool):
            raise BadArgument(f"zero_rest = {self.zero_rest!r} is not true or false")
        if self.bounds and self.form not in DEALT:
            raise BadArgument(f"bounds are for forms {', '.join(DEALT)}, not {self.form}")
        if self.form == "weights" and self.zero_rest:
            raise BadArgument("form weights writes all of C: leave zero_rest out")
        if self.form == TURNED and self.epilogue:
            raise BadArgument(f"form {TURNED} has no epilogue, and so no {self.epilogue}")
        if self.form in ("weights", TURNED):
            taken = [layout for layout in LAYOUTS if layout[2] == "r"]
            if self.layout not in taken:
                raise BadArgument(
                    f"layout '{self.layout}': form {self.form} has {', '.join(taken)}"
                )
        elif self.layout in LAYOUTS and self.layout[0::2] != "rr":
            raise BadArgument(
                f"layout {self.layout}: form {self.form} has rows sorted by group, so A and C are "
                "row-major (rcr or rrr)"
            )

    def _check_gathered(self) -> None:
        """Check `rows_a`, `per_row` and `gates_apart`."""
        gathered = self.form == "gathered"
        for field, least in (("rows_a", int(gathered)), ("per_row", 1)):
            size = getattr(self, field)
            if type(size) is not int or size < least:
                raise BadArgument(f"{field} = {size!r} is not a whole number from {least}")
        if not gathered and (self.rows_a, self.per_row) != (0, 1):
            raise BadArgument(f"rows_a and per_row are for form gathered, not {self.form}")
        if self.rows_a * self.per_row >= 2**31:
            raise BadArgument(
                f"{self.rows_a} rows of A, {self.per_row} times: the map's numbers are int32"
            )
        if not isinstance(self.gates_apart, bool):
            raise BadArgument(f"gates_apart = {self.gates_apart!r} is not true or false")
        if not self.gates_apart:
            return
        of_rows = self.form not in ("list", "weights")
        if epilogues.fold(self.epilogue) != 2 or not of_rows or self.layout[1:2] == "r":
            raise BadArgument(
                "gates_apart is for an epilogue that makes one column of two (swiglu), of a "
                f"column-major B, and of groups of rows; here it is form {self.form}, layout "
                f"{self.layout}, epilogue '{self.epilogue}'"
            )
        if epilogues.before_fold(self.epilogue):
            raise BadArgument(
                f"epilogue {self.epilogue}: operands before the columns are halved take them by "
                "turns; with gates_apart there may be none"
            )

    def _check_blocks(self) -> None:
        if self.quant and self.columns % BLOCK:
            raise BadArgument(f"quant = 'block': {self.columns} columns are no whole {BLOCK}s")
        if self.quant and self.zero_rest:
            raise BadArgument("a result with scales of blocks has no zero_rest: leave it out")

    def __str__(self) -> str:
        types = dict.fromkeys((self.dtype_a, self.dtype_b, self.dtype_c))
        if self.form == "list":
            largest = "×".join(str(max(s[i] for s in self.sizes)) for i in range(3))
            what = f"list of {self.groups}, up to {largest}"
        elif self.form == "gathered":
            what = f"gathered {self.m}×{self.n}×{self.k} in {self.groups} groups, "
            what += f"of {self.rows_a} rows" + f" {self.per_row} times" * (self.per_row > 1)
        elif self.form == "masked":
            what = f"masked {self.groups} of {self.m}×{self.n}×{self.k}"
        else:
            what = f"{self.form} {self.m}×{self.n}×{self.k} in {self.groups} groups"
        words = [f"grouped_gemm {what}", "→".join(types), self.layout]
        words += [f"{s.name} {getattr(self, s.name)}" for s in scales.of(self)]
        words += ["zero_b"] * self.zero_b
        words += [word for word in (self.precision, self.epilogue) if word not in ("ieee", "")]
        if self.form != "list":
            inner = dict(zip(("lda", "ldb", "ldc"), self.one.inner, strict=True))
            if any(getattr(self, f) != max(1, inner[self.as_walked(f)]) for f in inner):
                words.append(f"ld {self.lda},{self.ldb},{self.ldc}")
            if self.stride_b != self.packed_b:
                words.append(f"stride_b {self.stride_b}")
        words += [f"quant {self.quant}"] * (self.quant != "")
        words += ["gates_apart"] * self.gates_apart + ["zero_rest"] * self.zero_rest
        if self.alignment != 16:
            words.append(f"aligned to {self.alignment}")
        return " ".join(words)

    @property
    def walked(self) -> str:
        """The form of the kernels that compute it."""
        return "contiguous" if self.form == TURNED else self.form

    def as_walked(self, field: str) -> str:
        """What a size or a leading dimension is called where kernels compute it."""
        turned = {"m": "n", "n": "m", "lda": "ldb", "ldb": "lda"}
        return turned.get(field, field) if self.form == TURNED else field

    @property
    def c_shape(self) -> tuple[int, ...]:
        """C's dimensions. Not for a list."""
        stacked = self.form in ("masked", "weights")
        return (self.groups,) * stacked + (self.m, self.columns)

    @property
    def dealt(self) -> int:
        """Rows, columns or K that are dealt out to the groups. Not for ``masked`` and a list."""
        return int(getattr(self, DEALT[self.form]))

    @property
    def rows(self) -> int:
        """Rows of C in all groups together, used or not; but for ``weights`` and ``columns``, also
        of A."""
        if self.form == "list":
            return sum(m for m, _, _ in self.sizes)
        return self.m * self.groups if self.form in ("masked", "weights") else self.m

    @property
    def read_rows(self) -> int:
        """Rows of A that lie in memory and are read, once each."""
        return min(self.rows_a, self.m) if self.form == "gathered" else self.rows

    @property
    def columns(self) -> int:
        """Columns of C: n, unless the epilogue halves them. Not for a list."""
        return self.n // epilogues.fold(self.epilogue)

    @property
    def packed_b(self) -> int:
        """Elements from one group's B (of ``columns``: A) to the next if it is packed. Not for a
        list."""
        if self.form == "weights":
            return 0
        if self.form == TURNED:
            return (self.m if self.layout[0] == "r" else self.k) * self.lda
        return (self.k if self.layout[1] == "r" else self.n) * self.ldb

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """The dimensions of the scales that are made."""
        return (*self.c_shape[:-1], self.columns // BLOCK)

    @property
    def one(self) -> GemmProblem:
        """The GEMM that the rules judge: all rows with one group's B; for ``weights``, all of K;
        for a list, a GEMM with sizes that divide those of every group."""
        return _cached_one(self)

    @property
    def flops(self) -> int:
        """2·M·N·K over the groups, with every row counted."""
        if self.form == "list":
            return sum(2 * m * n * k for m, n, k in self.sizes)
        return 2 * (self.m if self.form == "weights" else self.rows) * self.n * self.k

    @property
    def work(self) -> dict[str, int]:
        """Operations, by the type that the matrix units multiply."""
        return {"tf32" if self.precision == "tf32" else self.dtype_a: self.flops}

    @property
    def min_bytes(self) -> int:
        """Bytes to move A, B, C, scales and the groups' sizes once; of the matrices of a stack, as
        many as can have rows."""
        a, b, c = (DTYPES[d] for d in (self.dtype_a, self.dtype_b, self.dtype_c))
        if self.form == "list":
            fold = epilogues.fold(self.epilogue)
            each = ((a.size(m * k), b.size(k * n), c.size(m * n // fold)) for m, n, k in self.sizes)
            return sum(map(sum, each))
        of_a, of_b = a.size(self.m * self.k), b.size(self.k * self.n)
        of_c = c.size(self.m * self.columns)
        used = self.groups if self.form == "masked" else min(self.groups, self.dealt)
        if self.form == "weights":
            size = of_a + of_b + self.groups * of_c
        elif self.form == TURNED:
            size = used * of_a + of_b + of_c
        else:
            size = a.size(self.read_rows * self.k) + c.size(self.rows * self.columns)
            size += used * of_b + 4 * self.m * (self.form == "gathered")
        if self.quant:
            size += 4 * math.prod(self.scales_shape)
        for shape, dtype_e in self.extra_shapes:
            size += math.prod(shape) * DTYPES[dtype_e].bytes
        for s in scales.of(self):
            of_groups = used / self.groups if s.name == "scale_b" else 1
            zeros = self.zero_b and s.name == "scale_b"
            size += int(math.prod(s.shape) * of_groups) * (DTYPES[s.block.dtype].bytes + zeros)
        return size + 4 * self.groups

    @property
    def extra_shapes(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and dtype of each operand of the epilogue, in order. Every group has its own vector
        over columns; vectors over rows, and matrices, have the layout of C's rows."""
        taken = epilogues.takes(self.epilogue)
        rows = self.c_shape[:-1]
        found: list[tuple[tuple[int, ...], str]] = []
        for t, n in zip(taken, epilogues.columns(self.epilogue, self.n), strict=True):
            shapes = {"n": (self.groups, n), "m": rows, "d": (*rows, n), "s": (1,)}
            found.append((shapes[t.kind], epilogues.operand_dtype(t, self.dtype_c)))
        return tuple(found)


def check_quant(of: Any) -> None:
    """Raise `BadArgument` unless `quant` is one of `QUANTS` and goes with the form and C's dtype.
    `of` may be a problem or a config."""
    if of.quant not in QUANTS:
        raise BadArgument(f"quant = {of.quant!r} is neither '' nor 'block'")
    if not of.quant:
        return
    if of.form not in STACKED:
        raise BadArgument(f"quant is for forms {', '.join(STACKED)}, not {of.form}")
    made = of.dtype_c or of.dtype_a
    if made not in QUANTISED:
        raise BadArgument(
            f"quant = '{of.quant}' makes 8 bits, not {made}: say dtype_c, or pass out"
        )


def of_gemm(epilogue: str, quant: str) -> str:
    """The epilogue of the GEMM that stands for a group: the scales that a product makes are one
    that its GEMM is given."""
    return "+".join(filter(None, (epilogue, "scale"))) if quant else epilogue


def turned(layout: str) -> str:
    """The layout of Cᵀ = Bᵀ·Aᵀ."""
    other = {"r": "c", "c": "r"}
    return "".join(other[layout[i]] for i in (1, 0, 2))


def _one(problem: GroupedGemmProblem) -> GemmProblem:
    p = problem
    same: dict[str, Any] = {
        field: getattr(p, field)
        for field in ("dtype_a", "dtype_b", "dtype_c", "dtype_acc", "layout", "precision")
    }
    if p.form != "list":
        lds = ("lda", "ldb", "ldc", "ldd", "alignment")
        same |= {p.as_walked(field): getattr(p, field) for field in lds}
    if p.form == TURNED:
        same["layout"] = turned(p.layout)
        return GemmProblem(max(1, p.n), p.m, p.k, **same)
    if p.form != "list":
        same |= {name: getattr(p, name) for name in ("scale_a", "scale_b")}
        same |= {name: getattr(p, name)[-2:] for name in ("strides_sa", "strides_sb")}
        rows = p.m if p.form == "weights" else max(1, p.rows)
        return GemmProblem(rows, p.n, p.k, **same, epilogue=of_gemm(p.epilogue, p.quant))
    fold = epilogues.fold(p.epilogue)
    m, n, k = (math.gcd(*(s[i] for s in p.sizes)) or least for i, least in enumerate((1, fold, 1)))
    tight = GemmProblem(m, n, k, **same, epilogue=p.epilogue)
    a, b, c = (-(-inner // 16) * 16 for inner in tight.inner)
    return GemmProblem(
        m, n, k, **same, lda=a, ldb=b, ldc=c, alignment=p.alignment, epilogue=p.epilogue
    )


_cached_one = lru_cache(maxsize=1024)(_one)
