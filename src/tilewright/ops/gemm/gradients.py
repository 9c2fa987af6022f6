"""Gradients of a GEMM: dA = dS·Bᵀ and dB = Aᵀ·dS, where S = A·B, and those of its epilogue.

Transposed operands are views, which GEMM's layouts read as they lie. An operation of the epilogue
whose derivative needs its input has that computed anew: by a GEMM with the epilogue up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.ops.gemm import epilogues, operands
from tilewright.ops.gemm.derivatives import Derivative
from tilewright.verdict import Verdict, no

if TYPE_CHECKING:
    from tilewright.ops.gemm.problem import GemmProblem

DTYPES = {"fp32": "float", "fp16": "half", "bf16": "bfloat16"}
"""Operands that have gradients, with the tensor's method that makes them."""


def gradients(problem: GemmProblem, wanted: Sequence[str]) -> Backward | Verdict:
    """See `tilewright.ops.protocols.Differentiation`."""
    refused = _refused(problem, wanted)
    return _Steps(problem, wanted).backward() if refused is None else refused


def _refused(p: GemmProblem, wanted: Sequence[str]) -> Verdict | None:
    types = dict.fromkeys((p.dtype_a, p.dtype_b, p.dtype_c))
    if len(types) > 1 or p.dtype_a not in DTYPES:
        return no(
            "gradients_dtype",
            f"a gemm of {'→'.join(types)} has no gradients; those of one dtype of "
            f"{', '.join(DTYPES)} throughout do",
        )
    for field in ("scale_a", "scale_b", "pre_a", "pre_b"):
        if getattr(p, field):
            return no(f"gradients_{field}", f"a gemm with {field} has no gradients")
    if p.layout[1] == "s":
        return no("gradients_shuffled", "a gemm with a shuffled B has no gradients")
    if p.batching in ("pointers", "nested"):
        return no("gradients_batching", f"a gemm with batching {p.batching} has no gradients")
    names = iter(operands.chain_names(p.epilogue))
    for one in epilogues.parse(p.epilogue):
        if one.gradient is None:
            return no("gradients_epilogue", f"the operation {one.name} has no gradient")
        for made in one.gradient.to_operands:
            name = next(names)
            if made is None and name in wanted:
                return no("gradients_operand", f"{one.name} has no gradient for {name}")
    return None


class _Steps:
    """The backward pass of one problem as it is put together, last operation first."""

    def __init__(self, problem: GemmProblem, wanted: Sequence[str]) -> None:
        self._p, self._wanted = problem, wanted
        self._steps: list[Computation] = []
        self._found: dict[str, str] = {}
        self._chain = epilogues.parse(problem.epilogue)
        names = iter(operands.chain_names(problem.epilogue))
        self._names = [tuple(next(names) for _ in one.takes) for one in self._chain]

    def backward(self) -> Backward:
        dz = self._add("dC", _readable, incoming("C"))
        for place in reversed(range(len(self._chain))):
            self._find_operands(place, dz)
            if not self._anything_before(place):
                return Backward(tuple(self._steps), self._found)
            dz = self._input(place, dz)
        self._find_matrices(dz)
        return Backward(tuple(self._steps), self._found)

    def _anything_before(self, place: int) -> bool:
        """Whether the product, or an operand of an earlier operation, wants a gradient."""
        before = {"A", "B"}.union(*self._names[:place])
        return bool(before & set(self._wanted))

    def _add(self, makes: str, op: str | Callable[..., Any], *names: str, **options: Any) -> str:
        self._steps.append(Computation(makes, op, names, options=options))
        return makes

    def _derivative(self, place: int) -> Derivative:
        derivative = self._chain[place].gradient
        assert derivative is not None
        return derivative

    def _find_operands(self, place: int, dz: str) -> None:
        """Find the gradients of an operation's operands from that of its result."""
        takes, derivative = self._chain[place].takes, self._derivative(place)
        for name, taken, to in zip(self._names[place], takes, derivative.to_operands, strict=True):
            if name not in self._wanted:
                continue
            assert to is not None
            x = self._before(place) if derivative.operands_read else dz
            each = self._add(f"d{name}", to, dz, x)
            matrices = self._p.batching == "strided"
            alone = taken.kind == "d" and self._p.stride_d == 0
            summed = partial(_summed, taken.kind, matrices and (alone or taken.kind != "d"))
            self._found[name] = self._add(f"grad {name}", summed, each)

    def _input(self, place: int, dz: str) -> str:
        """The gradient of an operation's input from that of its result."""
        takes, derivative = self._chain[place].takes, self._derivative(place)
        if derivative.to_input is None:
            return dz
        x = dz
        if derivative.reads == "x":
            x = self._before(place)
        elif derivative.reads == "z":
            last = place == len(self._chain) - 1
            x = "C" if last else self._before(place + 1)
        given = [
            self._add(f"{name} as a column", _column, name) if taken.kind == "m" else name
            for name, taken in zip(self._names[place], takes, strict=True)
        ]
        return self._add(f"dz{place}", derivative.to_input, dz, x, *given)

    def _before(self, place: int) -> str:
        """The input of an operation, computed anew (once) from the product on."""
        made = f"z{place}"
        if all(step.makes != made for step in self._steps):
            chain = "+".join(one.name for one in self._chain[:place])
            names = [name for named in self._names[:place] for name in named]
            epilogue = {"epilogue": chain} if chain else {}
            self._gemm(made, "A", "B", *names, **epilogue)
        return made

    def _find_matrices(self, dz: str) -> None:
        p = self._p
        to_dtype = methodcaller(DTYPES[p.dtype_a])
        if any(one.gradient.to_input for one in self._chain if one.gradient):
            dz = self._add("dS", to_dtype, dz)
        batched = p.batching == "strided"
        shared_a, shared_b = batched and not p.stride_a, batched and not p.stride_b
        if shared_a and shared_b:  # every matrix of C is the same product
            dz = self._add("sum of dS", _sum_of_batch, dz)
            shared_a = shared_b = False
        if "A" in self._wanted:
            left, right = dz, self._add("Bᵀ", _transposed, "B")
            if shared_a:  # the batch becomes part of the sum: [m, batch·n] · [batch·n, k]
                left = self._add("dS side by side", _side_by_side, dz)
                right = self._add("Bᵀ on top of each other", _stacked, right)
            self._found["A"] = self._gemm("grad A", left, right)
        if "B" in self._wanted:
            left, right = "A", dz
            if shared_b:  # [k, batch·m] · [batch·m, n]
                left = self._add("A on top of each other", _stacked, "A")
                right = self._add("dS on top of each other", _stacked, dz)
            self._found["B"] = self._gemm("grad B", self._add("Aᵀ", _transposed, left), right)

    def _gemm(self, makes: str, *names: str, **options: Any) -> str:
        if self._p.precision != "ieee":
            options["precision"] = self._p.precision
        return self._add(makes, self._p.family, *names, **options)


def _readable(x: Any) -> Any:
    """`x`, or a copy where neither its rows nor its columns are contiguous and apart (the gradient
    of a sum has strides of 0)."""
    if x.is_contiguous():
        return x
    rows, columns = x.shape[-2:]
    down, along = x.stride()[-2:]
    apart = (along == 1 and down >= columns) or (down == 1 and along >= rows)
    whole = x.dim() == 2 or x.stride(0) >= rows * columns
    return x if apart and whole else x.contiguous()


def _transposed(x: Any) -> Any:
    return x.transpose(-1, -2)


def _column(x: Any) -> Any:
    return x.reshape(-1, 1)


def _stacked(x: Any) -> Any:
    """[batch, rows, columns] as [batch·rows, columns]: a view where the strides allow one."""
    return x.reshape(x.shape[0] * x.shape[1], x.shape[2])


def _side_by_side(x: Any) -> Any:
    """[batch, rows, columns] as [rows, batch·columns]."""
    return x.transpose(0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2])


def _sum_of_batch(x: Any) -> Any:
    return x.sum(0)


def _summed(kind: str, batched: bool, x: Any) -> Any:
    """`x`, of C's shape, summed to the shape of an operand of a letter of `epilogues.KINDS`.

    batched: whether the batch, which is the first dimension, is summed too.
    """
    batch = (0,) if batched else ()
    sums = {"n": (*batch, -2), "m": (*batch, -1), "s": (*batch, -2, -1), "d": batch}[kind]
    return x.sum(sums) if sums else x
