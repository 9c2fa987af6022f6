"""What a plan leaves on the device: lengths and places of sequences, int32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from tilewright.errors import BadArgument, shown
from tilewright.flash_attn import checked


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most that the plans of a captured graph have.

    batch: sequences. A plan may have fewer; those that are missing are empty.
    max_kv: keys of a sequence.
    max_q: queries of a sequence.
    pages: pages of all sequences together; 0 where keys do not lie in pages.
    rows: queries of all sequences together, the rows of what `run` takes; 0: batch * max_q.

    Raises `BadArgument` unless they are whole numbers, of which the first three are over 0.
    """

    batch: int
    max_kv: int
    max_q: int = 1
    pages: int = 0
    rows: int = 0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = checked.count(
                one.name, getattr(self, one.name), one.name not in ("pages", "rows")
            )
            object.__setattr__(self, one.name, value)


class Buffers:
    """Arrays on one device. With a capacity they are made once, and each plan fills them; without,
    each plan makes them anew.

    device: a torch device, or its name.
    """

    def __init__(self, device: Any, capacity: Capacity | None) -> None:
        if capacity is not None and not isinstance(capacity, Capacity):
            raise BadArgument(f"capacity = {shown(capacity)} is not a Capacity")
        _check_device(device)
        self.device, self.capacity = device, capacity
        self._lengths: Any = None
        self._pages: Any = None
        self._bias: Any = None

    def lengths(self, named: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Arrays of these numbers, by name. One copy brings all to the device."""
        import torch

        host = torch.tensor([n for numbers in named.values() for n in numbers], dtype=torch.int32)
        if self._lengths is None or self.capacity is None:
            self._lengths = host.to(self.device)
        else:
            self._lengths.copy_(host)
        parts = self._lengths.split([len(numbers) for numbers in named.values()])
        return dict(zip(named, parts, strict=True))

    def pages(self, indices: Any) -> Any:
        """The page list, and room behind it. Raises `BadArgument` if it is over the capacity."""
        import torch

        room = max(1, rounded_up(len(indices)))
        if self.capacity is not None:
            room = self.within("pages", len(indices), self.capacity.pages)
        if self._pages is None or self.capacity is None:
            self._pages = torch.zeros(room, dtype=torch.int32, device=self.device)
        self._pages[: len(indices)].copy_(indices)
        return self._pages

    def bias(self, batch: int, most: tuple[int, int]) -> Any:
        """An fp32 array [batch, 1, most queries, most keys], of any values."""
        import torch

        shape = (self.batch(batch), 1, *most)
        if self._bias is None or self.capacity is None:
            self._bias = torch.empty(shape, dtype=torch.float32, device=self.device)
        return self._bias

    def batch(self, needed: int) -> int:
        """Sequences that arrays are for. Raises `BadArgument` over the capacity."""
        if self.capacity is None:
            return needed
        return self.within("batch", needed, self.capacity.batch)

    def rows(self, needed: int) -> int:
        """Rows of queries that `run` must be given. Raises `BadArgument` over the capacity."""
        if self.capacity is None:
            return needed
        room = self.capacity.rows or self.capacity.batch * self.capacity.max_q
        return self.within("rows", needed, room)

    def most(self, field: str, lengths: Sequence[int]) -> int:
        """The bound of a length: the capacity's, or a round number, so that the plans of one step
        after another state one problem. Raises `BadArgument` over the capacity."""
        needed = max(1, *lengths, 1)
        if self.capacity is None:
            return rounded_up(needed)
        return self.within(field, needed, getattr(self.capacity, field))

    def within(self, field: str, needed: int, room: int) -> int:
        """`room`, if a plan fits. Raises `BadArgument`."""
        if needed > room:
            raise BadArgument(f"{field} = {room} of the capacity is under the plan's {needed}")
        return room

    def padded(self, starts: list[int]) -> list[int]:
        """Offsets of sequences; those that the capacity has besides are empty."""
        batch = self.batch(len(starts) - 1)
        return starts + starts[-1:] * (batch + 1 - len(starts))


def _check_device(device: Any) -> None:
    import torch

    try:
        torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise BadArgument(
            f"device = {shown(device)} is not a torch device or the name of one, such as 'cuda:0'"
        ) from None


def rounded_up(n: int) -> int:
    """`n` rounded up to three leading binary digits: at most a quarter more."""
    unit = 1 << max(0, n.bit_length() - 3)
    return -(-n // unit) * unit


def host_offsets(name: str, indptr: Any) -> list[int]:
    """Offsets as numbers. Raises `BadArgument` unless they begin at 0 and never decrease."""
    starts = host_numbers(name, indptr, "batch + 1")
    if starts[:1] != [0] or any(n < 0 for n in between(starts)):
        raise BadArgument(f"{name} must be offsets from 0 on, [batch + 1], that never decrease")
    return starts


def host_numbers(name: str, x: Any, length: str = "batch") -> list[int]:
    """The numbers of an array of integers, [length]. Raises `BadArgument` for anything else."""
    checked.tensor(name, x, length, kinds=checked.INTEGERS)
    numbers: list[int] = x.tolist()
    return numbers


def between(starts: Sequence[int]) -> list[int]:
    """Lengths from offsets."""
    return [end - start for start, end in pairwise(starts)]
