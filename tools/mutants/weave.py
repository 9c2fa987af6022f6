"""The text of a file that holds many mutants, each behind a switch.

    return a < b        becomes        return (a <= b if _p.on(7) else (a < b))
    total += n          becomes        if not _p.on(8): total += n

No line is added or moved, so that tracebacks and tests of the source see the lines of before. What
stands in a file stays there: texts are only put between, so places may lie in each other.
"""

from __future__ import annotations

from collections.abc import Iterable

from .changes import Mutant
from .places import Place

FUTURE = b"from __future__ import annotations\n"
PROBE = b"from __future__ import annotations; import tilewright_probe as _p\n"


def can_be_woven(text: bytes) -> bool:
    """Whether the file has the line that the import of the probe is put on."""
    return FUTURE in text


def woven(
    text: bytes, mutants: Iterable[tuple[int, Mutant]], uses: Iterable[tuple[int, Place]]
) -> bytes:
    """The text with these mutants, and notes of these uses, by number."""
    inserted: list[tuple[tuple[int, int, int], bytes]] = []  # where, in which order there, what

    def around(start: int, end: int, depth: int, before: str, behind: str) -> None:
        # At one byte: first what ends there, the inner before the outer; then what begins there,
        # the outer before the inner.
        inserted.append(((start, 1, -end * 2 + depth), before.encode()))
        inserted.append(((end, 0, -start * 2 - depth), behind.encode()))

    for number, one in mutants:
        if one.kind == "statement":
            around(one.start, one.end, 0, f"if not _p.on({number}): ", "")
        else:
            around(one.start, one.end, 1, f"(({_line(one.new)}) if _p.on({number}) else (", "))")
    for number, (_, start, end) in uses:
        around(start, end, 1, f"(_p.used({number}) or (", "))")
    made, last = [], 0
    for (place, *_), new in sorted(inserted, key=lambda one: one[0]):
        made += [text[last:place], new]
        last = place
    return b"".join([*made, text[last:]]).replace(FUTURE, PROBE, 1)


def _line(text: str) -> str:
    assert "\n" not in text, text
    return text
