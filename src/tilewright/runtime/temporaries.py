"""Where a launch's temporaries lie: in a buffer that is kept zero, in a scratch buffer, or in the
memory of an output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ops.nouns import TEMPORARY_ALIGNMENT, Temporary


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes of each temporary, by name, and the sizes of the two buffers.

    kept_zero: offsets in the kept-zero buffer. scratch: offsets in the scratch buffer.
    inside: the output, and the offset in it.
    zeroed_bytes: how much of the scratch buffer, from its start, is zeroed before each launch.
    """

    kept_zero: dict[str, int]
    scratch: dict[str, int]
    inside: dict[str, tuple[str, int]]
    kept_zero_bytes: int
    scratch_bytes: int
    zeroed_bytes: int


def layout(temporaries: Sequence[Temporary]) -> Layout:
    """Place temporaries one after another. Those that must be zero come first in the scratch
    buffer, so that one fill zeroes them all."""
    own = [t for t in temporaries if not t.inside]
    kept, kept_bytes = _placed([t for t in own if t.initial == "kept_zero"], 0)
    zeroed, zeroed_bytes = _placed([t for t in own if t.initial == "zero"], 0)
    rest, scratch_bytes = _placed([t for t in own if t.initial == "anything"], zeroed_bytes)
    inside: dict[str, tuple[str, int]] = {}
    for output in dict.fromkeys(t.inside for t in temporaries if t.inside):
        offsets, _ = _placed([t for t in temporaries if t.inside == output], 0)
        inside |= {name: (output, at) for name, at in offsets.items()}
    return Layout(kept, zeroed | rest, inside, kept_bytes, scratch_bytes, zeroed_bytes)


def _placed(temporaries: Sequence[Temporary], end: int) -> tuple[dict[str, int], int]:
    """Offsets behind the first `end` bytes, and where the last temporary ends."""
    offsets = {}
    for t in temporaries:
        offsets[t.name] = end + -end % TEMPORARY_ALIGNMENT
        end = offsets[t.name] + t.bytes
    return offsets, end
