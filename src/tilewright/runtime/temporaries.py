"""Where a launch's temporaries lie: in a buffer that is kept zero, or in a scratch buffer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ops.nouns import TEMPORARY_ALIGNMENT, Temporary


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes of each temporary, by name, and the sizes of the two buffers.

    kept_zero: offsets in the kept-zero buffer. scratch: offsets in the scratch buffer.
    zeroed_bytes: how much of the scratch buffer, from its start, is zeroed before each launch.
    """

    kept_zero: dict[str, int]
    scratch: dict[str, int]
    kept_zero_bytes: int
    scratch_bytes: int
    zeroed_bytes: int


def layout(temporaries: Sequence[Temporary]) -> Layout:
    """Place temporaries one after another. Those that must be zero come first in the scratch
    buffer, so that one fill zeroes them all."""
    kept, kept_bytes = _placed([t for t in temporaries if t.initial == "kept_zero"], 0)
    zeroed, zeroed_bytes = _placed([t for t in temporaries if t.initial == "zero"], 0)
    others = [t for t in temporaries if t.initial == "anything"]
    rest, scratch_bytes = _placed(others, zeroed_bytes)
    return Layout(kept, zeroed | rest, kept_bytes, scratch_bytes, zeroed_bytes)


def _placed(temporaries: Sequence[Temporary], end: int) -> tuple[dict[str, int], int]:
    """Offsets behind the first `end` bytes, and where the last temporary ends."""
    offsets = {}
    for t in temporaries:
        offsets[t.name] = end + -end % TEMPORARY_ALIGNMENT
        end = offsets[t.name] + t.bytes
    return offsets, end
