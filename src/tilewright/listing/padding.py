"""Listings with the wait states that the compiler left out."""

from __future__ import annotations

from tilewright.listing.effects import effects
from tilewright.listing.hazards import shortages
from tilewright.listing.text import parse

_ROUNDS = 8
"""How often a listing is looked at again: an inserted wait may end one danger and not another."""


def padded(listing: str) -> str:
    """A kernel's listing with an instruction that waits in front of each that may come too soon.
    A listing without such is returned as it is; what has no remedy stays.

    Raises what `text.parse` raises.
    """
    for _ in range(_ROUNDS):
        program = parse(listing)
        touched = [effects(ins, program.target) for ins in program.instructions]
        remedies: dict[int, tuple[str, ...]] = {}
        for each in shortages(program, touched):
            longest = remedies.get(each.ins.line, ())
            remedies[each.ins.line] = max(longest, each.remedy, key=_length)
        if not any(remedies.values()):
            break
        lines = listing.splitlines()
        for line in sorted(remedies, reverse=True):
            lines[line - 1 : line - 1] = [f"\t{each}" for each in remedies[line]]
        listing = "\n".join(lines) + "\n"
    return listing


def _length(remedy: tuple[str, ...]) -> int:
    """How much a remedy waits; of two kinds, the second is inserted in a later round."""
    return sum(1 + int(each.split()[1]) if each.startswith("s_nop") else 1 for each in remedy)
