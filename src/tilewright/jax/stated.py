"""`Stated`: all that a call says but what is in its arrays, and the text that XLA carries it as."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright import arrays, calls, ops
from tilewright.canonical import canonical
from tilewright.errors import BadArgument
from tilewright.ops.nouns import Call, Operand, View
from tilewright.runtime.bound import Bound


@dataclass(frozen=True, slots=True)
class Stated:
    """A call.

    op: the operation.
    views: the operands, by position and then by keyword, as if their memory began at address 0.
    named: names of those by keyword.
    options: the other keywords, with their values.
    scalars: the numbers that the call gives (`Launching.scalars`).
    """

    op: str
    views: tuple[View, ...]
    named: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    scalars: tuple[tuple[str, int | float], ...] = ()

    @property
    def call(self) -> Call:
        """As the family takes it."""
        first = len(self.views) - len(self.named)
        named = dict(zip(self.named, self.views[first:], strict=True))
        return Call(self.views[:first], named, None, dict(self.options))

    @property
    def problem(self) -> Any:
        """The problem that it states. Raises `BadArgument`."""
        return _problem(self)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The outputs to make. Raises `BadArgument`."""
        return _outputs(self)

    @property
    def names(self) -> tuple[str, ...]:
        """The operand that each array is, inputs first."""
        return calls.operand_names(
            self.op,
            ops.family(self.op).operands(self.problem),
            len(self.views) - len(self.named),
            self.named,
            len(self.outputs),
        )

    @property
    def bound(self) -> tuple[Bound, ...]:
        """Its arrays, as a launch takes their addresses."""
        inputs = [(view, "in") for view in self.views]
        made = [(View(o.shape, o.strides, o.dtype, 0, "cpu"), "out") for o in self.outputs]
        found = []
        for name, (view, role) in zip(self.names, (*inputs, *made), strict=True):
            low, high = arrays.span(view)
            found.append(Bound(name, "out" if role == "out" else "in", high - low))
        return tuple(found)

    def text(self, kernel: str = "") -> str:
        """Canonical JSON.

        kernel: the name of the kernel that computes it.
        """
        said = {
            "op": self.op,
            "operands": [[v.shape, v.strides, v.dtype] for v in self.views],
            "named": self.named,
            "options": dict(self.options),
            "scalars": dict(self.scalars),
            "kernel": kernel,
        }
        return canonical(said).decode()


def read(text: str) -> tuple[Stated, str]:
    """The call and the kernel that `Stated.text` says."""
    found: Mapping[str, Any] = json.loads(text)
    views = tuple(
        View(tuple(shape), tuple(strides), dtype, 0, "cpu")
        for shape, strides, dtype in found["operands"]
    )
    options = tuple(sorted((name, _tuples(value)) for name, value in found["options"].items()))
    scalars = tuple(sorted(found["scalars"].items()))
    return Stated(found["op"], views, tuple(found["named"]), options, scalars), found["kernel"]


def key_of(text: str) -> int:
    """A digest of a call's text, of 64 bits."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@lru_cache(maxsize=4096)
def _problem(stated: Stated) -> Any:
    family = ops.family(stated.op)
    problem = family.problem_of(stated.call)
    for one in family.operands(problem):
        if one.role == "inout":
            raise BadArgument(
                f"{stated.op} writes to {one.name} in place, and JAX's arrays cannot be written to"
            )
    return problem


@lru_cache(maxsize=4096)
def _outputs(stated: Stated) -> tuple[Operand, ...]:
    _problem(stated)
    made: tuple[Operand, ...] = ops.family(stated.op).outputs(stated.call)
    return made
