"""Words of the families for the help: examples of problems, sets and conditions, and Tilewright's
words beside CK Tile's."""

from __future__ import annotations

from tilewright.ops.help import helps

FAMILY, _HELP = next((name, said) for name, said in helps().items() if said.usual)
"""The family of the examples."""

PROFILE = f"{FAMILY}:{_HELP.profile}"
"""An example of a profile."""

LARGE, SMALL, TINY, FEW, ODD = (
    f"{FAMILY} {_HELP.problems[size]}" for size in ("large", "small", "tiny", "few", "odd")
)
"""Examples of a family and a problem, as arguments."""

OTHERS = tuple(
    f"{name} {said.problems['tiny']}" for name, said in helps().items() if not said.usual
)
"""A tiny problem of each other family, as arguments."""

WORDS = _HELP.problems["small"]
"""An example of a problem without its family."""

PROBLEM = "KEY=VALUE…"
"""How help shows the words of a problem."""

WHERE = _HELP.where
"""An example of a condition on kernels."""


def as_text() -> str:
    """All families' words beside CK Tile's, as lines for a terminal of 80 columns."""
    said = sorted(helps().values(), key=lambda one: not one.usual)
    words = dict.fromkeys(row for one in said for row in one.vocabulary)
    rows = [("here", "CK Tile", "meaning"), *words]
    return "\n".join(f"{here:<11}{theirs:<22}{meaning}" for here, theirs, meaning in rows)
