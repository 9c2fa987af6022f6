"""What a plan leaves on the device: lengths and places of sequences, int32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most that the plans of a captured graph have.

    batch: sequences. A plan may have fewer; those that are missing are empty.
    max_kv: keys of a sequence.
    max_q: queries of a sequence.
    pages: pages of all sequences together; 0 where keys do not lie in pages.
    rows: queries of all sequences together, the rows of what `run` takes; 0: batch * max_q.
    """

    batch: int
    max_kv: int
    max_q: int = 1
    pages: int = 0
    rows: int = 0


class Buffers:
    """Arrays on one device, by name. With a capacity they are made once, and each plan fills them;
    without, each plan makes them anew.

    device: a torch device, or its name.
    """

    def __init__(self, device: Any, capacity: Capacity | None) -> None:
        self.device, self.capacity = device, capacity
        self._kept: dict[str, Any] = {}

    def fill(self, name: str, values: Any, size: int, rest: int = 0) -> Any:
        """An array of `size` elements: `values` (a tensor on any device), then `rest`."""
        import torch

        if len(values) > size:
            raise BadArgument(f"{name} has {len(values)} entries, over the capacity of {size}")
        array = self._kept.get(name)
        if array is None:
            array = torch.empty(size, dtype=torch.int32, device=self.device)
            if self.capacity is not None:
                self._kept[name] = array
        array[: len(values)].copy_(values)
        if len(values) < size:
            array[len(values) :] = rest
        return array

    def offsets(self, name: str, starts: Any) -> Any:
        """Offsets of sequences; those that the capacity has besides are empty."""
        batch = len(starts) - 1
        return self.fill(name, starts, self.batch(batch) + 1, int(starts[-1]))

    def batch(self, batch: int) -> int:
        """Sequences that arrays have room for."""
        return batch if self.capacity is None else self.capacity.batch

    def most(self, field: str, needed: int) -> int:
        """The bound of a length: the capacity's, or a round number, so that the plans of one step
        after another state one problem. Raises `BadArgument` where `needed` is over the
        capacity."""
        if self.capacity is None:
            return rounded_up(needed)
        bound: int = getattr(self.capacity, field)
        if needed > bound:
            raise BadArgument(f"{field} = {bound} of the capacity is under the plan's {needed}")
        return bound


def rows_of(capacity: Capacity | None, needed: int) -> int:
    """Rows of queries that `run` must be given. Raises `BadArgument` where a plan needs more than
    the capacity."""
    if capacity is None:
        return needed
    rows = capacity.rows or capacity.batch * capacity.max_q
    if needed > rows:
        raise BadArgument(f"rows = {rows} of the capacity is under the plan's {needed}")
    return rows


def rounded_up(n: int) -> int:
    """`n` rounded up to three leading binary digits: at most a quarter more."""
    unit = 1 << max(0, n.bit_length() - 3)
    return -(-n // unit) * unit


def host_offsets(name: str, indptr: Any) -> Any:
    """Offsets as a tensor on the host. Raises `BadArgument` unless they begin at 0 and never
    decrease."""
    starts = indptr.cpu()
    right = starts.ndim == 1 and len(starts) > 0 and int(starts[0]) == 0
    if not right or bool((starts.diff() < 0).any()):
        raise BadArgument(f"{name} must be offsets from 0 on, [batch + 1], that never decrease")
    return starts


def longest(lengths: Any) -> int:
    """The most of a tensor of lengths, and at least 1."""
    return max(1, int(lengths.max())) if len(lengths) else 1
