"""Selectors from what a caller gives: names, functions, or a list of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilewright.errors import BadArgument, nearest
from tilewright.select import ByFunction, Chain, FirstFit, Offers, Selector
from tilewright.select.analytical import Analytical
from tilewright.select.shipped import Shipped
from tilewright.select.tuned import Tuned
from tilewright.tables.merge import Several, Tables, gather
from tilewright.tables.table import Table

NAMES = ("tuned", "shipped", "analytical", "first_fit")
"""Names of selectors, in the order of the default chain."""

Wanted = Selector | Callable[..., Sequence[Any]] | str | Sequence[Selector | str]


def configured(
    wanted: Wanted | None = None,
    tables: Tables | None = None,
    usual: Table | Several | None = None,
    offers: Offers | None = None,
) -> Selector:
    """The selector that a caller wants.

    wanted: a selector, a function that ranks, a name of `NAMES`, or several of these for a chain;
        None for the default chain, which has ``tuned`` only where there are tables.
    tables: the tables that ``tuned`` reads; None for the files that ``TILEWRIGHT_TABLES`` names,
        and for `usual` where it names none.
    offers: what the vendor's library offers, for ``analytical`` and rows of nearby sizes.

    Raises `BadArgument` for an unknown name, for tables that no selector reads and for ``tuned``
    without tables, and `BadFile`.
    """
    if wanted is not None and not isinstance(wanted, str | Sequence):
        if tables is not None:
            raise _unread()
        return ByFunction(wanted) if callable(wanted) else wanted
    listed = NAMES if wanted is None else (wanted,) if isinstance(wanted, str) else tuple(wanted)
    if "tuned" not in listed and tables is not None:
        raise _unread()
    table = (gather(tables) or usual) if "tuned" in listed else None
    if wanted is None and table is None:
        listed = tuple(name for name in listed if name != "tuned")
    found = tuple(_named(one, table, offers) if isinstance(one, str) else one for one in listed)
    return found[0] if len(found) == 1 else Chain(found)


def _named(name: str, table: Table | Several | None, offers: Offers | None) -> Selector:
    if name not in NAMES:
        raise BadArgument(f"no selector '{name}'{nearest(name, NAMES)}; known: {', '.join(NAMES)}")
    if name == "tuned":
        if table is None:
            raise BadArgument(
                "selector 'tuned' needs tables: pass some, or name files in TILEWRIGHT_TABLES"
            )
        return Tuned(table, offers=offers)
    others: dict[str, Callable[[], Selector]] = {
        "shipped": partial(Shipped, offers),
        "analytical": partial(Analytical, offers=offers),
        "first_fit": FirstFit,
    }
    return others[name]()


def _unread() -> BadArgument:
    return BadArgument(
        "tables are given, but the selector asked for does not read them: add 'tuned'"
    )
