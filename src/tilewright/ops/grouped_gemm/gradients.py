"""Gradients of grouped GEMM, which are grouped GEMMs of the other forms.

    C_g = A_g·B_g, rows of A sorted by group     dA = dC·Bᵀ, likewise; dB_g = A_gᵀ·dC_g, ``weights``
    C_g = A_g·B_g, groups along the sum          rows or columns of dA and of dB, sorted by group
    C_g = A_g·B_g, columns of B sorted by group  dA_g = dC_g·B_gᵀ, ``weights``; dB = Aᵀ·dC, likewise

Transposed operands are views. Rows and columns of no group have gradients of 0, whatever arrives
there: the products leave them out, and write zeros (`zero_rest`). Each gradient is itself an
operation with gradients, so there are second derivatives.

Of an epilogue, operations without operands and a bias have gradients. A bias is summed over each
group's rows by a product with a row of ones, since only the device knows where groups end.

Of ``masked``, dB is a batch of products over the whole capacity, of copies with zeros for rows that
are not used.

Gathered rows are those of A that the map names: dA adds up what arrives for each, and dB is of a
copy of them in the groups' order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from tilewright.ops import derivatives, epilogues
from tilewright.ops.backward import Backward
from tilewright.ops.epilogues import Takes
from tilewright.ops.gemm import gradients as gemm
from tilewright.ops.grouped_gemm import scales
from tilewright.ops.grouped_gemm.operands import ROWS
from tilewright.ops.recording import DTYPES, Recording, mixed, refused
from tilewright.verdict import Verdict, no

if TYPE_CHECKING:
    from tilewright.ops.grouped_gemm.problem import GroupedGemmProblem


def gradients(problem: GroupedGemmProblem, wanted: Sequence[str]) -> Backward | Verdict:
    """See `tilewright.ops.protocols.Differentiation`."""
    verdict = _refused(problem, wanted)
    return _Steps(problem, wanted).backward() if verdict is None else verdict


def _refused(p: GroupedGemmProblem, wanted: Sequence[str]) -> Verdict | None:
    if (verdict := mixed("grouped_gemm", p.dtype_a, p.dtype_b, p.dtype_c)) is not None:
        return verdict
    if p.form == "list":
        return no("gradients_form", "a list writes where its table says, and has no gradients")
    if scales.of(p):
        return no("gradients_scales", "a grouped_gemm with block scales has no gradients")
    if p.quant:
        return no("gradients_quant", "a grouped_gemm that rounds its result has no gradients")
    if p.form == "weights" and p.epilogue:
        return no("gradients_epilogue", "form weights has no gradients with an epilogue")
    if (found := refused(p.epilogue, wanted)) is not None:
        return found
    for taken, name in zip(
        epilogues.takes(p.epilogue), epilogues.chain_names(p.epilogue), strict=True
    ):
        if name in wanted and taken.name != "bias":
            return no(
                "gradients_operand",
                f"a grouped_gemm has no gradient for {name}, only for A, B and a bias",
            )
    for one in epilogues.parse(p.epilogue):
        if one.gradient and one.gradient.to_input and any(t.kind == "n" for t in one.takes):
            return no("gradients_epilogue", f"{one.name} of groups has no gradient")
    return None


class _Steps(Recording):
    """The backward pass of one problem."""

    spread_kind = "m"
    option = "epilogue"
    elementwise = False  # rows have their group's operands, which the device alone knows

    def __init__(self, problem: GroupedGemmProblem, wanted: Sequence[str]) -> None:
        super().__init__(problem.epilogue, ("A", "B"), "C", problem.dtype_a, wanted)
        self._p = problem
        self._sizes = "counts" if problem.form == "masked" else "offsets"

    def readable(self, x: Any) -> Any:
        if self._p.form in ("weights", "columns"):
            return gemm.readable(x)
        apart = x.dim() == 2 and x.stride(-1) == 1 and x.stride(0) >= x.shape[-1]
        return x if apart else x.contiguous()

    def summed(self, taken: Takes) -> Callable[[Any], Any]:
        raise NotImplementedError  # only a bias has a gradient: `_find_operands`

    def spread(self, x: Any) -> Any:
        return x.unsqueeze(-1)

    def again(self, makes: str, chain: str, names: Sequence[str]) -> None:
        said: dict[str, Any] = {"epilogue": chain} if chain else {}
        keywords = {}
        if self._p.form == "gathered":
            keywords = {ROWS: ROWS}
            said |= {"per_row": self._p.per_row} if self._p.per_row > 1 else {}
        self._grouped(makes, "A", "B", *names, keywords=keywords, **said)

    def _find_operands(self, place: int, dz: str) -> None:
        """The gradient of a bias."""
        for name in self._names[place]:
            if name in self._wanted:
                each = self.add(f"d{name}", methodcaller(DTYPES[self._dtype]), dz)
                if self._p.form == "masked":
                    used = self.add(f"used d{name}", _used, each, "counts")
                    self._found[name] = self.add(f"grad {name}", methodcaller("sum", 1), used)
                    continue
                ones = self.add(f"ones for {name}", _ones, each)
                made = self._weights(f"sums for {name}", ones, each)
                self._found[name] = self.add_view(f"grad {name}", methodcaller("squeeze", 1), made)

    def _input(self, place: int, dz: str) -> str:
        slopes = self._derivative(place).slopes
        if self._p.gates_apart and slopes is not None:
            of_apart = partial(derivatives.of_halves, slopes, True)
            return self.add(f"dz{place}", of_apart, dz, self._before(place), *self._names[place])
        return super()._input(place, dz)

    def from_sums(self, dz: str) -> None:
        find = {"weights": self._of_weights, "columns": self._of_columns}
        find.get(self._p.form, self._of_rows)(dz)

    def _of_rows(self, dz: str) -> None:
        mapped = (self._p.rows_a, self._p.per_row) if self._p.form == "gathered" else None
        if "A" in self._wanted:
            made = self._rest_is_0("grad rows", dz, self._transposed("B"))
            if mapped:
                made = self.add("grad A", partial(_added, *mapped), made, ROWS)
            self._found["A"] = made
        if "B" in self._wanted:  # as B lies: by columns, as a layer keeps its weight, or by rows
            a = self.add("gathered A", partial(_gathered, *mapped), "A", ROWS) if mapped else "A"
            if self._p.form == "masked":
                a = self.add("used A", _used, a, "counts")
                dz = self.add("used dC", _used, dz, "counts")
            if self._p.layout[1] == "c":
                made = self._weights("grad Bᵀ", self._transposed(dz), a)
                self._found["B"] = self._transposed(made)
            else:
                self._found["B"] = self._weights("grad B", self._transposed(a), dz)

    def _of_weights(self, dz: str) -> None:
        """Rows of an operand sorted by group, where its counterpart lies by rows; else columns."""
        a, b, _ = tuple(self._p.layout)
        if "A" in self._wanted:
            if b == "r":
                made = self._rest_is_0("grad Aᵀ", "B", self._transposed(dz))
                self._found["A"] = self._transposed(made)
            else:
                self._found["A"] = self._rest_is_0("grad A", dz, self._transposed("B"))
        if "B" in self._wanted:
            if a == "c":
                self._found["B"] = self._rest_is_0("grad B", self._transposed("A"), dz)
            else:
                made = self._rest_is_0("grad Bᵀ", self._transposed(dz), "A")
                self._found["B"] = self._transposed(made)

    def _of_columns(self, dz: str) -> None:
        if "A" in self._wanted:
            if self._p.layout[0] == "c":
                made = self._weights("grad Aᵀ", "B", self._transposed(dz))
                self._found["A"] = self._transposed(made)
            else:
                self._found["A"] = self._weights("grad A", dz, self._transposed("B"))
        if "B" in self._wanted:
            self._found["B"] = self._rest_is_0("grad B", self._transposed("A"), dz)

    def _transposed(self, name: str) -> str:
        made = f"{name}ᵀ"
        if any(step.makes == made for step in self._steps):
            return made
        return self.add_view(made, gemm.transposed, name)

    def _rest_is_0(self, makes: str, a: str, b: str) -> str:
        return self._grouped(makes, a, b, zero_rest=True)

    def _weights(self, makes: str, a: str, b: str) -> str:
        """The products of the groups' parts of a and b, for each group a matrix."""
        said: dict[str, Any] = {}
        if self._p.form == "masked":  # each lies in a matrix of its own
            said |= {"precision": self._p.precision} if self._p.precision != "ieee" else {}
            return self.add(makes, "gemm", a, b, **said)
        said |= {"bounds": True} if self._p.bounds else {}
        return self._grouped(makes, a, b, **said)

    def _grouped(
        self, makes: str, a: str, b: str, *operands: str,
        keywords: Mapping[str, str] | None = None, **options: Any,
    ) -> str:  # fmt: skip
        if self._p.precision != "ieee":
            options["precision"] = self._p.precision
        given = (a, b, self._sizes, *operands)
        return self.add(makes, self._p.family, *given, keywords=keywords, **options)


def _named(rows_a: int, per_row: int, rows: Any) -> tuple[Any, Any]:
    """Which row of A each number of a map means, and whether it means one."""
    there = (rows >= 0) & (rows < rows_a * per_row)
    return rows.div(per_row, rounding_mode="floor").clamp(0, rows_a - 1).long(), there


def _gathered(rows_a: int, per_row: int, a: Any, rows: Any) -> Any:
    """The rows of A that a map names, zeros where it names none."""
    places, there = _named(rows_a, per_row, rows)
    return a.index_select(0, places).masked_fill(~there.unsqueeze(-1), 0)


def _added(rows_a: int, per_row: int, gradients: Any, rows: Any) -> Any:
    """The gradient of A: for each row the sum, in fp32, of those of all its numbers in the map."""
    places, there = _named(rows_a, per_row, rows)
    kept = gradients.float().masked_fill(~there.unsqueeze(-1), 0)
    found = kept.new_zeros((rows_a, kept.shape[-1])).index_add(0, places, kept)
    return found.to(gradients.dtype)


def _used(x: Any, counts: Any) -> Any:
    """`x` [groups, capacity, columns] with zeros for rows that a group does not use."""
    row = counts.new_ones(x.shape[1]).cumsum(0)
    return x.masked_fill((row > counts.unsqueeze(1)).unsqueeze(-1), 0)


def _ones(x: Any) -> Any:
    """[1, rows] of `x`."""
    return x.new_ones((1, x.shape[0]))
