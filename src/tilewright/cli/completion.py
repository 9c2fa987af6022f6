"""What a shell offers for a word that is being typed: names of families, GPUs and architectures.

Nothing is imported for it that users' modules or families bring: a shell asks at each press of Tab.
Files are completed by typer and by the shell itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from tilewright.errors import TilewrightError


def families(incomplete: str) -> list[str]:
    """Families of this package and of installed ones."""
    from tilewright import ops

    return _beginning(ops.installed(), incomplete)


def archs(incomplete: str) -> list[str]:
    """Architectures and known GPUs; of a list of them, the last."""
    from tilewright.arch import files

    before, comma, last = incomplete.rpartition(",")
    found: list[str] = []
    with suppress(TilewrightError):  # a file of the user's that cannot be read
        found = _beginning([*files.architectures(), *files.devices()], last)
    return [f"{before}{comma}{name}" for name in found]


def gpus(incomplete: str) -> list[str]:
    """Known GPUs."""
    from tilewright.arch import files

    found: list[str] = []
    with suppress(TilewrightError):
        found = _beginning(files.devices(), incomplete)
    return found


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
