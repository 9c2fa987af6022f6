"""Selectors from what a caller gives: names, functions, or a list of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.errors import BadArgument, nearest
from tilewright.select import ByFunction, Chain, FirstFit, Offers, Selector
from tilewright.select.analytical import Analytical
from tilewright.select.learned import Learned
from tilewright.select.model import GivenModels, Models
from tilewright.select.model import gather as gather_models
from tilewright.select.shipped import Shipped
from tilewright.select.tuned import Tuned
from tilewright.tables.merge import Several, Tables, gather, gather_kept
from tilewright.tables.table import Table

NAMES = ("tuned", "shipped", "learned", "analytical", "first_fit")
"""Names of selectors, in the order of the default chain."""

Wanted = Selector | Callable[..., Sequence[Any]] | str | Sequence[Selector | str]


def configured(
    wanted: Wanted | None = None,
    tables: Tables | None = None,
    usual: Table | Several | None = None,
    offers: Offers | None = None,
    models: GivenModels | None = None,
) -> Selector:
    """The selector that a caller wants.

    wanted: a selector, a function that ranks, a name of `NAMES`, or several of these for a chain;
        None for the default chain, which has ``tuned`` only where there are tables, and ``learned``
        only where there are models.
    tables: the tables that ``tuned`` reads; None for the files that ``TILEWRIGHT_TABLES`` names,
        for `usual` where it names none, and for those of the user's folder where it is not set and
        there are no usual ones.
    offers: what the vendor's library offers, for ``analytical`` and rows of nearby sizes.
    models: what ``learned`` reads; None for the files that ``TILEWRIGHT_MODELS`` names.

    Raises `BadArgument` for an unknown name, for tables and models that no selector reads, and for
    ``tuned`` and ``learned`` without them; and `BadFile`.
    """
    given = {"tuned": tables, "learned": models}
    if wanted is not None and not isinstance(wanted, str | Sequence):
        _check_read(given, ())
        return ByFunction(wanted) if callable(wanted) else wanted
    listed = NAMES if wanted is None else (wanted,) if isinstance(wanted, str) else tuple(wanted)
    _check_read(given, listed)
    table = _tables(tables, usual) if "tuned" in listed else None
    learned = gather_models(models) if "learned" in listed else None
    if wanted is None:
        absent = [n for n, read in (("tuned", table), ("learned", learned)) if read is None]
        listed = tuple(name for name in listed if name not in absent)
    found = tuple(
        _named(one, table, learned, offers) if isinstance(one, str) else one for one in listed
    )
    return found[0] if len(found) == 1 else Chain(found)


def _tables(given: Tables | None, usual: Table | Several | None) -> Table | Several | None:
    """The tables that ``tuned`` reads. One without rows is a table too."""
    for found in (gather(given), usual):
        if found is not None:
            return found
    return gather_kept()


def _named(
    name: str, table: Table | Several | None, models: Models | None, offers: Offers | None
) -> Selector:
    if name not in NAMES:
        raise BadArgument(f"no selector '{name}'{nearest(name, NAMES)}; known: {', '.join(NAMES)}")
    if name == "tuned":
        if table is None:
            raise BadArgument(
                "selector 'tuned' needs tables: pass some, or name files in TILEWRIGHT_TABLES"
            )
        return Tuned(table, offers=offers)
    if name == "learned":
        if models is None:
            raise BadArgument(
                "selector 'learned' needs models: pass some, or name files in TILEWRIGHT_MODELS"
            )
        return Learned(models, offers)
    others: dict[str, Callable[[], Selector]] = {
        "shipped": partial(Shipped, offers),
        "analytical": partial(Analytical, offers=offers),
        "first_fit": FirstFit,
    }
    return others[name]()


_CALLED = {"tuned": "tables", "learned": "models"}


def _check_read(given: Mapping[str, object], listed: Sequence[object]) -> None:
    """Raise `BadArgument` for what is given and no selector of `listed` reads."""
    for name, read in given.items():
        if read is not None and name not in listed:
            raise BadArgument(
                f"{_CALLED[name]} are given, but the selector asked for does not read them: add "
                f"'{name}'"
            )
