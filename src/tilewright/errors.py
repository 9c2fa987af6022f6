"""Every exception Tilewright raises on purpose.

Each carries one sentence: what was wrong, where, and what to do about it. Catch
`TilewrightError` to catch them all; the subclasses say which journey failed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class TilewrightError(Exception):
    """Base of all errors raised by Tilewright."""


class BadArgument(TilewrightError, ValueError):
    """A value given by the caller cannot be meant (size, dtype, shape, name, layout…)."""


class BadFile(TilewrightError, ValueError):
    """A file's content is not what it should be; the message names the file and the place."""


class UnknownArch(BadArgument):
    """An architecture that no data file describes."""


class UnknownName(BadArgument, KeyError):
    """A kernel, registry or family name that is not known or does not parse."""

    def __str__(self) -> str:  # KeyError would show the repr
        return str(self.args[0]) if self.args else ""


class EmptySpace(TilewrightError):
    """A kernel space that expands to no legal kernel; the message counts the reasons, and
    `expansion` has every dropped combination where the space could be expanded at all."""

    def __init__(self, message: str, expansion: Any = None) -> None:
        super().__init__(message)
        self.expansion = expansion


class UnsupportedProblem(TilewrightError):
    """A well-formed problem that no kernel of the family can ever serve here."""


class NoKernelFound(TilewrightError):
    """No registered kernel serves the problem; the message lists the nearest misses and why."""


class NotInBundle(NoKernelFound):
    """A bundle has no kernel for the problem, and nothing is built; the message has the nearest
    kernels that it has, and the command that adds one."""


class BuildFailed(TilewrightError):
    """A kernel could not be built; the message carries its config and the compiler's words."""


class StoreError(TilewrightError):
    """The kernel store cannot be read or written (full disk, permissions, untrusted entry)."""


class WrongDevice(TilewrightError):
    """Tensors, kernel and device do not belong together."""


class LaunchFailed(TilewrightError):
    """The driver refused a module or a launch; the message has its error name."""


class IllegalAccess(LaunchFailed):
    """A kernel touched memory that is not its own."""


class OutOfMemory(LaunchFailed):
    """The memory of the device, or of the process that interprets, was not enough."""


class KernelCrashed(LaunchFailed):
    """A kernel that was interpreted raised, or ended its process."""


class NoDriver(TilewrightError):
    """No usable GPU driver on this machine for what was asked."""


class NoCluster(TilewrightError):
    """No Ray cluster answers, or none of its nodes has a device that can be used."""


class NoCompiler(TilewrightError):
    """The launcher cannot be compiled here; launches then go through Python."""


class VerificationFailed(TilewrightError):
    """A kernel's output differs from the reference by more than the tolerance."""


LONGEST_HINT = 200
"""Characters of a word that a hint is looked for. A longer one is no slip of the hand, and
comparing takes time with the square of its length."""


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint to append to an error: ``" (did you mean 'x'?)"``, or ``""`` when nothing is near,
    or `word` is no text.

    Never a word that is one letter's difference in meaning away: ``dtype_b`` for ``dtype_c``. Not
    for names of GPUs, of which any two that are spelt alike are two GPUs.
    """
    if not isinstance(word, str) or len(word) > LONGEST_HINT:
        return ""
    meant = [one for one in known if not _siblings(word, one)]
    close = difflib.get_close_matches(word, meant, n=1, cutoff=0.6)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _siblings(one: str, other: str) -> bool:
    """Whether two words are alike but for a part of one letter."""
    parts, others = one.split("_"), other.split("_")
    if len(parts) < 2 or len(parts) != len(others):
        return False
    differ = [pair for pair in zip(parts, others, strict=True) if pair[0] != pair[1]]
    return len(differ) == 1 and all(len(part) == 1 for part in differ[0])


def shown(value: object, most: int = 80) -> str:
    """`value` as an error quotes it: its `repr`, cut to `most` characters. Never raises."""
    try:
        # A slice, so that a text of megabytes is not quoted whole first.
        text = repr(value[: most + 1] if isinstance(value, str | bytes) else value)
    except (ValueError, RecursionError):  # an integer of too many digits; a value too deep
        return f"a {type(value).__name__} too large to print"
    return text if len(text) <= most + 2 else text[:most] + "…"
