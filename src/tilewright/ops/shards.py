"""`Shards`: how a call can be split over several devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shards:
    """The dimensions of a call's arrays by label. Along a label the call can be split: a device has
    its part of each array with the label, and the other arrays whole, and computes its part of
    outputs with the label. Sizes of one label may differ, as those of query heads and of the heads
    that they share do: each is split evenly.

    inputs: for each operand, by position and then by keyword, a label for each dimension; ``""``
        for one that is not split.
    outputs: likewise.
    summed: labels of sums: the parts that devices compute of all outputs add up.
    added: places of operands that are added to sums. Of these a device adds a part.
    """

    inputs: tuple[Labels, ...]
    outputs: tuple[Labels, ...]
    summed: frozenset[str] = frozenset()
    added: frozenset[int] = frozenset()

    @property
    def labels(self) -> Iterator[str]:
        """The labels along which the call can be split: all outputs have them, or none has and they
        are summed."""
        every = dict.fromkeys(label for one in (*self.inputs, *self.outputs) for label in one)
        for label in every:
            held = {label in one for one in self.outputs}
            if label and (held == {True} or (held == {False} and label in self.summed)):
                yield label
