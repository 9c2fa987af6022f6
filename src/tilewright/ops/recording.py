"""How the gradients of an operation with an epilogue are put together, last operation first: the
same for a GEMM and for a convolution, which stands on this.

An operation of the epilogue whose derivative needs its input has that computed anew: by the
operation itself with the epilogue up to there. A forward pass may keep the first such input
(`Backward.kept`), rounded to the result's dtype. Those further on follow from it, element by
element.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from tilewright.ops import epilogues
from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.ops.derivatives import Derivative, unchanged
from tilewright.ops.epilogues import Takes, chain_names
from tilewright.verdict import Verdict, no

DTYPES = {"fp32": "float", "fp16": "half", "bf16": "bfloat16"}
"""Operands that have gradients, with the tensor's method that makes them."""


def mixed(family: str, *dtypes: str) -> Verdict | None:
    """Why a product of these dtypes has no gradients, if so: all must be one of `DTYPES`."""
    types = dict.fromkeys(dtypes)
    if len(types) == 1 and dtypes[0] in DTYPES:
        return None
    return no(
        "gradients_dtype",
        f"a {family} of {'→'.join(types)} has no gradients; those of one dtype of "
        f"{', '.join(DTYPES)} throughout do",
    )


def refused(epilogue: str, wanted: Sequence[str]) -> Verdict | None:
    """Why an epilogue has no gradients for the operands that are wanted, if so."""
    names = iter(chain_names(epilogue))
    for one in epilogues.parse(epilogue):
        if one.gradient is None:
            return no("gradients_epilogue", f"the operation {one.name} has no gradient")
        for made in one.gradient.to_operands:
            name = next(names)
            if made is None and name in wanted:
                return no("gradients_operand", f"{one.name} has no gradient for {name}")
    return None


class Recording(ABC):
    """The backward pass of one problem as it is put together.

    epilogue: of the problem. inputs: names of the operands that its sums are of. output: the name
        of its result. dtype: of all of these. wanted: see `Differentiation.gradients`.
    """

    def __init__(
        self, epilogue: str, inputs: Sequence[str], output: str, dtype: str, wanted: Sequence[str]
    ) -> None:
        self._inputs, self._output, self._dtype, self._wanted = inputs, output, dtype, wanted
        self._steps: list[Computation] = []
        self._found: dict[str, str] = {}
        self._chain = epilogues.parse(epilogue)
        names = iter(chain_names(epilogue))
        self._names = [tuple(next(names) for _ in one.takes) for one in self._chain]
        self._kept = self._place_to_keep() if self.elementwise else None

    # --- what the operation says ------------------------------------------------------------------

    @abstractmethod
    def readable(self, x: Any) -> Any:
        """An incoming gradient, or a copy where the operation could not read it."""

    @abstractmethod
    def summed(self, taken: Takes) -> Callable[[Any], Any]:
        """What sums a gradient of the result's shape to the shape of an epilogue's operand."""

    @abstractmethod
    def spread(self, x: Any) -> Any:
        """A vector of the epilogue in a shape that broadcasts to the result's."""

    spread_kind: str
    """The kind of such vectors that need it (`epilogues.KINDS`)."""

    option: str
    """The call's option that says the chain."""

    elementwise: bool = True
    """Whether the epilogue's operations can be applied to a result that has been written."""

    @abstractmethod
    def again(self, makes: str, chain: str, names: Sequence[str]) -> None:
        """Record the operation itself with the epilogue `chain`, whose operands are `names`."""

    @abstractmethod
    def from_sums(self, dz: str) -> None:
        """Record the gradients of the inputs that are wanted, from that of the sums."""

    # --- what is the same -------------------------------------------------------------------------

    def backward(self) -> Backward:
        """The whole backward pass."""
        dz = self.add(f"d{self._output}", self.readable, incoming(self._output))
        first = next((i for i in range(len(self._chain)) if self._derivative(i).to_input), None)
        for place in reversed(range(len(self._chain))):
            self._find_operands(place, dz)
            before = {*self._inputs}.union(*self._names[:place])
            if not before & set(self._wanted):
                return self._made()
            dz = self._input(place, dz)
            if place == first:
                # What was added to the sums has this gradient too, rounded as the products read it:
                # XLA would write a matrix in fp32 for what sums it, which takes twice the memory.
                dz = self.add("of the sums", methodcaller(DTYPES[self._dtype]), dz)
        self.from_sums(dz)
        return self._made()

    def _made(self) -> Backward:
        steps, made = tuple(self._steps), "" if self._kept is None else f"z{self._kept}"
        if all(step.makes != made for step in steps):
            return Backward(steps, self._found, differentiable=True)
        assert self._kept is not None
        self._steps = []
        for place in range(self._kept, len(self._chain)):
            made = self._applied(place, made)
        self.add(self._output, methodcaller(DTYPES[self._dtype]), made)
        return Backward(
            steps,
            self._found,
            differentiable=True,
            kept=f"z{self._kept}",
            finish=tuple(self._steps),
            said=(self.option, "+".join(one.name for one in self._chain[: self._kept])),
            ending=tuple(one.name for one in self._chain[self._kept :]),
        )

    def _place_to_keep(self) -> int | None:
        """The first operation whose input is worth keeping; None if there is none. The input of a
        scale is not: fp16 may not hold sums before they are scaled."""
        before, needed = {*self._inputs}, []
        for place, (one, names) in enumerate(zip(self._chain, self._names, strict=True)):
            if (derivative := one.gradient) is None:
                return None
            if derivative.operands_read and {*names} & {*self._wanted}:
                needed.append(place)
            if before & {*self._wanted}:
                if derivative.reads == "x":
                    needed.append(place)
                if derivative.reads == "z" and one is not self._chain[-1]:
                    needed.append(place + 1)
            before.update(names)
        place = min((i for i in needed if not self._chain[i].scales), default=len(self._chain))
        rest = {one.name for one in self._chain[place:]}
        return place if rest and epilogues.OWN.issuperset(rest) else None

    def add(
        self,
        makes: str,
        op: str | Callable[..., Any],
        *operands: str,
        keywords: Mapping[str, str] | None = None,
        **options: Any,
    ) -> str:
        """Record a computation; returns the name of its result."""
        self._steps.append(Computation(makes, op, operands, keywords or {}, options))
        return makes

    def add_view(self, makes: str, op: Callable[..., Any], operand: str) -> str:
        """Record a view of an operand; returns the name of its result."""
        self._steps.append(Computation(makes, op, (operand,), view=True))
        return makes

    def _derivative(self, place: int) -> Derivative:
        derivative = self._chain[place].gradient
        assert derivative is not None
        return derivative

    def _find_operands(self, place: int, dz: str) -> None:
        """Find the gradients of an operation's operands from that of its result."""
        takes, derivative = self._chain[place].takes, self._derivative(place)
        for name, taken, to in zip(self._names[place], takes, derivative.to_operands, strict=True):
            if name in self._wanted:
                assert to is not None
                x = self._before(place) if derivative.operands_read else dz
                each = dz if to is unchanged else self.add(f"d{name}", to, dz, x)
                self._found[name] = self.add(f"grad {name}", self.summed(taken), each)

    def _input(self, place: int, dz: str) -> str:
        """The gradient of an operation's input from that of its result."""
        derivative = self._derivative(place)
        if derivative.to_input is None:
            return dz
        x = dz
        if derivative.reads == "x":
            x = self._before(place)
        elif derivative.reads == "z":
            last = place == len(self._chain) - 1
            x = self._output if last else self._before(place + 1)
        return self.add(f"dz{place}", derivative.to_input, dz, x, *self._given(place))

    def _before(self, place: int) -> str:
        """The input of an operation, computed anew (once)."""
        made = f"z{place}"
        if any(step.makes == made for step in self._steps):
            return made
        if self._kept is not None and place > self._kept:
            return self._applied(place - 1, self._before(place - 1))
        chain = "+".join(one.name for one in self._chain[:place])
        names = [name for named in self._names[:place] for name in named]
        self.again(made, chain, names)
        return made

    def _applied(self, place: int, x: str) -> str:
        """The result of an operation on `x`, in fp32."""
        apply = partial(_in_fp32, self._chain[place].reference)
        return self.add(f"z{place + 1}", apply, x, *self._given(place))

    def _given(self, place: int) -> list[str]:
        """The operands of an operation, in shapes that broadcast to its input's."""
        takes, found = self._chain[place].takes, []
        for name, taken in zip(self._names[place], takes, strict=True):
            spread = f"{name} spread"
            if taken.kind != self.spread_kind:
                found.append(name)
            elif any(step.makes == spread for step in self._steps):
                found.append(spread)
            else:
                found.append(self.add(spread, self.spread, name))
        return found


def _in_fp32(function: Callable[..., Any], *operands: Any) -> Any:
    return function(*(x.float() for x in operands))
