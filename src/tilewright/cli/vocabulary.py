"""Words of the families for the help: examples of problems, sets and conditions, and Tilewright's
words beside CK Tile's."""

from __future__ import annotations

from tilewright.ops.help import helps

FAMILY, _HELP = next(iter(helps().items()))
"""The family of the examples."""

LARGE, SMALL, TINY, FEW, ODD = (
    f"{FAMILY} {_HELP.problems[size]}" for size in ("large", "small", "tiny", "few", "odd")
)
"""Examples of a family and a problem, as arguments."""

WORDS = _HELP.problems["small"]
"""An example of a problem without its family."""

WHERE = _HELP.where
"""An example of a condition on kernels."""


def as_text() -> str:
    """All families' words beside CK Tile's, as lines for a terminal of 80 columns."""
    words = dict.fromkeys(row for one in helps().values() for row in one.vocabulary)
    rows = [("here", "CK Tile", "meaning"), *words]
    return "\n".join(f"{here:<11}{theirs:<22}{meaning}" for here, theirs, meaning in rows)
