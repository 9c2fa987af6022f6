"""The steps of one call of a layer: operations, one behind the other.

On a GPU, a later call with such arrays launches all of them by one native call
(`Dispatcher.repeat`), for which the steps are written down here. A step reads arrays of the call or
results of earlier steps, or views of these; each is known by the array whose memory it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright import operation
from tilewright.calls import spoken
from tilewright.ready import Launched, Repeatable

OPERATIONS = {
    name: operation.operation(name)
    for name in (
        "topk_routing",
        "sort_by_expert",
        "sorted_routing",
        "take_rows",
        "strided_copy",
        "quantise_rows",
        "grouped_gemm",
        "gemm",
        "gated_activation",
        "sum_of_experts",
    )
}

Scalars = tuple[int | float | None, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a layer, as it is repeated: no form, problem or plan is looked at.

    words: what decides it besides its arrays.
    arrays: None for one that is not there.
    weights: the arrays whose shapes and strides decide which step takes the words' numbers; () if
        all numbers are the usual ones.
    """

    words: tuple[Any, ...]
    arrays: tuple[Any, ...]
    weights: tuple[Any, ...]

    @property
    def repeats(self) -> bool:
        """Whether its words say the same whenever they are equal."""
        return operation.alike(*self.words) is not None

    def again(self) -> Any:
        """What the call returns, launched as an earlier one was: () if it has an array for the
        result; None if nothing was launched."""
        what = operation.alike(*self.words)
        if what is None or not self.weights:
            return operation.again(what, self.arrays)
        beside = _beside.get(self._numbered(what))
        if beside is None:
            return None
        return operation.again(what, (*self.arrays, *beside.numbers), beside.scalars)

    def _numbered(self, what: Any) -> Any:
        torch_s = (x if hasattr(x, "stride") else None for x in self.weights)
        laid = [None if x is None else (x.shape, x.stride(), x.device) for x in torch_s]
        return (what, *laid)

    def remember(self, steps: Steps, y: Any, out: Any) -> None:
        """Let `again` launch calls like this one.

        y: what the steps have made in the end. out: the array that was passed for it, or None.
        """
        what = operation.alike(*self.words)
        call = None if what is None else steps.repeatable(y, out)
        if call is None or (steps.numbers and _is_captured(steps.numbers[0])):
            return
        if self.weights:
            if len(_beside) >= _MOST:
                _beside.clear()
            _beside[self._numbered(what)] = Beside(steps.numbers, steps.scalars)
        operation.remember_steps(what, call)


def _is_captured(x: Any) -> bool:
    """Whether a graph is captured, whose memory an array made meanwhile is in."""
    if not getattr(x, "is_cuda", False):
        return False
    import torch

    return torch.cuda.is_current_stream_capturing()


def _has_one_twice(arrays: tuple[Any, ...]) -> bool:
    there = [id(x) for x in arrays if x is not None]
    return len(set(there)) < len(there)


@dataclass(frozen=True, slots=True)
class Beside:
    """What a repeated call passes beside its arrays: those of the numbers that an epilogue takes,
    and the scalars of all steps."""

    numbers: tuple[Any, ...]
    scalars: Scalars


_beside: dict[Any, Beside] = {}
_MOST = 4096


class Steps:
    """Runs steps, and writes them down where the call's arrays are given.

    given: the call's arrays; None for a call that is not to be repeated. One that is there twice is
        none either: nothing says which of the two a step reads.
    numbers: arrays of the numbers that epilogues take.
    """

    def __init__(self, given: tuple[Any, ...] | None = None, numbers: tuple[Any, ...] = ()) -> None:
        self.numbers = numbers
        self._given: tuple[Any, ...] | None = None
        if given is not None and not _has_one_twice(given):
            self._given = (*given, *numbers)
        self._launches: list[tuple[Any, tuple[Any, ...]]] = []
        self._made: list[Any] = []
        self._scalars: list[int | float | None] = []
        self._kept: list[Any] = []
        self._roots: dict[int, int] = {}
        for place, x in enumerate(self._given or ()):
            if x is not None:
                self._roots[id(x)] = place

    def run(self, op: str, *operands: Any, **said: Any) -> Any:
        """The operation's result."""
        made = OPERATIONS[op](*operands, **said)
        if self._given is None:
            return made
        outputs = made if isinstance(made, tuple) else (made,)
        passed = said.pop("out", None) is not None
        words = spoken(op, said, passed)
        for x in outputs:
            if id(x) not in self._roots:  # else it was passed
                self._made.append(x)
                self._roots[id(x)] = -len(self._made)
        self._launches.append((words.what, (*operands, *words.named.values(), *outputs)))
        self._scalars += words.scalars
        return made

    def view(self, base: Any, view: Any) -> Any:
        """`view`, which shows elements of `base`, or copies them."""
        if self._given is not None and id(base) in self._roots:
            self._roots.setdefault(id(view), self._roots[id(base)])
            self._kept.append(view)  # so that no other array has its number
        return view

    @property
    def scalars(self) -> Scalars:
        """Those of all steps; () if none is said."""
        said = any(x is not None for x in self._scalars)
        return tuple(self._scalars) if said else ()

    def repeatable(self, y: Any, out: Any) -> Repeatable | None:
        """The call, to be repeated; None if it is not to be, or if a step read an array of unknown
        origin.

        y: the result. out: the array that was passed for it; None for none.
        """
        if self._given is None:
            return None
        order = sorted(self._made, key=lambda x: x is not y)  # what is returned comes first
        places = {id(x): -1 - place for place, x in enumerate(order)}
        launches = []
        for what, operands in self._launches:
            roots = []
            for x in operands:
                root = self._roots.get(id(x))
                if what is None or root is None:
                    return None
                roots.append(root if root >= 0 else places[id(self._made[-1 - root])])
            launches.append(Launched(what, operands, tuple(roots)))
        returned = 1 if out is None else 0
        return Repeatable(self._given, tuple(launches), tuple(order), returned)
