"""``--settings``: how a command measures, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tilewright.errors import BadArgument

if TYPE_CHECKING:
    from tilewright.measure.measurement import Method, Settings

METHOD = "method"
"""The word among settings that names one of `METHODS`."""


def read_method(given: Mapping[str, str]) -> Method:
    """The method that settings say, where they may say nothing else; ``single`` if none."""
    for word in given:
        if word != METHOD:
            raise BadArgument(f"--settings: there is no '{word}' here; there is {METHOD}")
    return _method(given.get(METHOD, "single"))


def _method(word: str) -> Method:
    from tilewright.errors import nearest
    from tilewright.measure.measurement import METHODS

    for method in METHODS:
        if word == method:
            return method
    raise BadArgument(
        f"--settings: there is no {METHOD} '{word}'{nearest(word, METHODS)}; there are "
        f"{', '.join(METHODS)}"
    )


def read_settings(given: Mapping[str, str], usual: Settings | None = None) -> Settings:
    """`usual` settings (by default those of sweeps), with the given values replaced. ``method``
    stands for a timer and a cache (`METHODS`)."""
    from dataclasses import asdict, fields

    import msgspec

    from tilewright.errors import nearest
    from tilewright.measure.measurement import METHODS, Settings

    if METHOD in given:
        of_method = METHODS[_method(given[METHOD])]
        for word in of_method:
            if word in given:
                raise BadArgument(f"--settings: {METHOD} says the {word} too; give one of the two")
        given = {**{w: v for w, v in given.items() if w != METHOD}, **of_method}
    known = [METHOD, *(f.name for f in fields(Settings))]
    for word in given:
        if word not in known:
            raise BadArgument(
                f"--settings: there is no '{word}'{nearest(word, known)}; there are "
                f"{', '.join(known)}"
            )
    try:
        return msgspec.convert(
            {**(asdict(usual) if usual else {}), **given}, Settings, strict=False
        )
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise BadArgument(f"--settings: {error}") from None
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        where = place.strip("`").removeprefix("$").removeprefix(".")
        raise BadArgument(f"--settings: {f'{where}: ' if where else ''}{message}") from None
