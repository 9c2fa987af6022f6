"""`Target`: a GPU to build for, and the list of them that a user, or the environment, gives.

A list is words with commas or semicolons between them: ``gfx942,gfx950``. A word is an
architecture or a product that has it (see `tilewright.arch.arch`), with a count of compute units
where it matters (``gfx942:304``; without one, any); ``all``: every architecture that is known; or
GPUs of this machine: one, ``cuda:0``, or all, ``native``. A list without these GPUs means the same
on every machine: no GPU is looked at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright import variables
from tilewright.arch import words
from tilewright.arch.detect import live_devices
from tilewright.arch.load import archs
from tilewright.arch.model import Device
from tilewright.arch.resolve import arch
from tilewright.arch.words import NATIVE
from tilewright.checks import parse_whole
from tilewright.errors import BadArgument, NoDriver, UnknownArch, shown

VARIABLES = (variables.ARCHS, "GPU_ARCHS")
"""Environment variables that hold a list; the first that is not empty counts."""

ALL = "all"

# An architecture as drivers say it, with the features they may add, and the count.
_WORD = re.compile(
    r"(?P<arch>[\w -]+(?::[a-z]+[+-])*)(?::(?P<units>\d+))?", re.ASCII | re.IGNORECASE
)

Live = Callable[[], Sequence[Device]]


@dataclass(frozen=True, slots=True)
class Target:
    """An architecture, and how many compute units its GPU has; None: any number."""

    arch: str
    compute_units: int | None = None

    def covers(self, device: Device) -> bool:
        """Whether `device` is such a GPU. The interpreter is none."""
        alike = device.arch == self.arch and self.compute_units in (None, device.compute_units)
        return alike and not device.interpreted

    def meets(self, other: Target) -> bool:
        """Whether some GPU is both."""
        units = (self.compute_units, other.compute_units)
        return self.arch == other.arch and (None in units or units[0] == units[1])

    def __str__(self) -> str:
        return self.arch if self.compute_units is None else f"{self.arch}:{self.compute_units}"


def parse(text: str, live: Live = live_devices) -> tuple[Target, ...]:
    """The targets that a list names, each once, in its order. Nothing at all means ``native``.

    `live` says which GPUs are here; it is asked only for them. Raises `UnknownArch` and
    `BadArgument` with the known architectures, and `NoDriver` where ``native`` finds no GPU.
    """
    if not isinstance(text, str):
        raise BadArgument(f"targets are a text such as 'sm_90;gfx942', not {shown(text)}")
    listed = [word.strip() for word in re.split("[,;]", text)]
    if listed == [""]:
        listed = [NATIVE]
    elif not any(listed):
        raise BadArgument(f"'{text}' has separators and no architecture; {_known()}")
    found: dict[Target, None] = {}
    for word in filter(None, listed):
        if word.lower() == NATIVE:
            here = _here(live)
        elif word.lower() == ALL:
            found.update((Target(name), None) for name in archs())
            continue
        elif (number := words.number(word)) is not None:
            here = _here(live)[number : number + 1]
            if not here:
                raise BadArgument(f"there is no GPU {number} here, as '{word}' says")
        else:
            found[_target(word, text)] = None
            continue
        found.update((Target(d.arch, d.compute_units), None) for d in here)
    return tuple(found)


def targets(
    environment: Mapping[str, str] = os.environ, live: Live = live_devices
) -> tuple[Target, ...]:
    """The targets that the environment names (see `VARIABLES`); this machine's GPUs if it names
    none. Raises as `parse` does; errors about a list name the variable."""
    for name in VARIABLES:
        text = environment.get(name, "")
        if text.strip():
            try:
                return parse(text, live)
            except (BadArgument, NoDriver) as error:
                raise type(error)(f"{name}: {error}") from None
    return parse("", live)


def _target(word: str, text: str) -> Target:
    said = _WORD.fullmatch(word)
    where = f"'{word}'" if word == text else f"'{word}' of '{text}'"
    if said is None:
        raise BadArgument(f"{where} is not an architecture, as gfx942 or gfx942:304; {_known()}")
    try:
        name = arch(said["arch"]).name
    except UnknownArch as error:
        raise UnknownArch(f"{error}; or {NATIVE}, or {ALL}") from None
    if said["units"] is None:
        return Target(name)
    units = parse_whole(f"{where}: compute units", said["units"])
    if units == 0:
        raise BadArgument(f"{where}: no GPU has 0 compute units")
    return Target(name, units)


def _here(live: Live) -> Sequence[Device]:
    try:
        return live()
    except NoDriver as error:
        raise NoDriver(
            f"{error}; to build without a GPU, say what for in {VARIABLES[0]} (gfx942,gfx950) or "
            "by --arch; to build for this machine's GPU, make its driver visible here"
        ) from None


def _known() -> str:
    return f"known: {', '.join(archs())}, or {NATIVE}, or {ALL}"
