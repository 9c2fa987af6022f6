"""Gradients of a GEMM: dA = dS·Bᵀ and dB = Aᵀ·dS, where S = A·B, and those of its epilogue.

Transposed operands are views, which GEMM's layouts read as they lie. An operation of the epilogue
whose derivative needs its input has that computed anew: by a GEMM with the epilogue up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.ops.backward import Backward
from tilewright.ops.epilogues import Takes
from tilewright.ops.gemm.column_sums import column_sums
from tilewright.ops.recording import Recording, mixed, refused
from tilewright.verdict import Verdict, no

if TYPE_CHECKING:
    from tilewright.ops.gemm.problem import GemmProblem


def gradients(problem: GemmProblem, wanted: Sequence[str]) -> Backward | Verdict:
    """See `tilewright.ops.protocols.Differentiation`."""
    verdict = _refused(problem, wanted)
    return _Steps(problem, wanted).backward() if verdict is None else verdict


def _refused(p: GemmProblem, wanted: Sequence[str]) -> Verdict | None:
    if (verdict := mixed("gemm", p.dtype_a, p.dtype_b, p.dtype_c)) is not None:
        return verdict
    for field in ("scale_a", "scale_b", "pre_a", "pre_b"):
        if getattr(p, field):
            return no(f"gradients_{field}", f"a gemm with {field} has no gradients")
    if p.layout[1] == "s":
        return no("gradients_shuffled", "a gemm with a shuffled B has no gradients")
    if p.batching in ("pointers", "summed"):
        return no("gradients_batching", f"a gemm with batching {p.batching} has no gradients")
    if p.batching == "nested" and p.epilogue:
        return no("gradients_batching", "a gemm of batches in batches has none with an epilogue")
    return refused(p.epilogue, wanted)


class _Steps(Recording):
    """The backward pass of one problem."""

    spread_kind = "m"
    option = "epilogue"

    def __init__(self, problem: GemmProblem, wanted: Sequence[str]) -> None:
        super().__init__(problem.epilogue, ("A", "B"), "C", problem.dtype_a, wanted)
        self._p = problem

    def readable(self, x: Any) -> Any:
        return readable(x)

    def summed(self, taken: Takes) -> Callable[[Any], Any]:
        alone = taken.kind == "d" and self._p.stride_d == 0
        batched = self._p.batching == "strided" and (alone or taken.kind != "d")
        batch = (0,) if batched else ()
        sums = {"n": (*batch, -2), "m": (*batch, -1), "s": (*batch, -2, -1), "d": batch}
        dims = sums[taken.kind]
        return column_sums(dims) if dims else _as_it_is

    def spread(self, x: Any) -> Any:
        return x.reshape(-1, 1)

    def again(self, makes: str, chain: str, names: Sequence[str]) -> None:
        self._gemm(makes, "A", "B", *names, **({"epilogue": chain} if chain else {}))

    def from_sums(self, dz: str) -> None:
        batched = self._p.batching == "strided"
        shared_a, shared_b = batched and not self._p.stride_a, batched and not self._p.stride_b
        if shared_a and shared_b:  # every matrix of C is the same product
            dz = self.add("sum of dS", _sum_of_batch, dz)
            shared_a = shared_b = False
        if "A" in self._wanted:
            left, right = dz, self.add("Bᵀ", transposed, "B")
            if shared_a:  # the batch becomes part of the sum: [m, batch·n] · [batch·n, k]
                left = self.add("dS side by side", _side_by_side, dz)
                right = self.add("Bᵀ on top of each other", _stacked, right)
            self._found["A"] = self._gemm("grad A", left, right)
        if "B" in self._wanted:
            left, right = "A", dz
            if shared_b:  # [k, batch·m] · [batch·m, n]
                left = self.add("A on top of each other", _stacked, "A")
                right = self.add("dS on top of each other", _stacked, dz)
            self._found["B"] = self._gradient_of_b(left, right)

    def _gradient_of_b(self, a: str, dz: str) -> str:
        """Aᵀ·dS, which lies as B does: of a B by columns, as a layer keeps its weight, dSᵀ·A is
        computed."""
        if self._p.layout[1] == "c":
            made = self._gemm("grad Bᵀ", self.add_view("dSᵀ", transposed, dz), a)
            return self.add_view("grad B", transposed, made)
        return self._gemm("grad B", self.add_view("Aᵀ", transposed, a), dz)

    def _gemm(self, makes: str, *names: str, **options: Any) -> str:
        if self._p.precision != "ieee":
            options["precision"] = self._p.precision
        return self.add(makes, self._p.family, *names, **options)


def readable(x: Any) -> Any:
    """`x`, or a copy where neither its rows nor its columns are contiguous and apart (the gradient
    of a sum has strides of 0)."""
    if x.is_contiguous():
        return x
    rows, columns = x.shape[-2:]
    down, along = x.stride()[-2:]
    apart = (along == 1 and down >= columns) or (down == 1 and along >= rows)
    whole = x.dim() == 2 or x.stride(0) >= rows * columns
    return x if apart and whole else x.contiguous()


def transposed(x: Any) -> Any:
    return x.transpose(-1, -2)


def _stacked(x: Any) -> Any:
    """[batch, rows, columns] as [batch·rows, columns]: a view where the strides allow one."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2])


def _side_by_side(x: Any) -> Any:
    """[batch, rows, columns] as [rows, batch·columns]."""
    return x.transpose(0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2])


def _sum_of_batch(x: Any) -> Any:
    return x.sum(0)


def _as_it_is(x: Any) -> Any:
    return x
