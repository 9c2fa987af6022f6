"""Every exception that Tilewright raises on purpose.

Each message is one sentence: what was wrong, where, and what to do about it. Catch
`TilewrightError` to catch all of them; a subclass says which part failed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class TilewrightError(Exception):
    """Base of all errors raised by Tilewright."""


class BadArgument(TilewrightError, ValueError):
    """The caller gave an impossible value (size, dtype, shape, name, layout…)."""


class BadFile(TilewrightError, ValueError):
    """A file's content is wrong; the message names the file and the place."""


class UnknownArch(BadArgument):
    """An architecture that no data file describes."""


class UnknownName(BadArgument, KeyError):
    """A kernel, registry or family name that is unknown or does not parse."""

    def __str__(self) -> str:  # KeyError would show the repr
        return str(self.args[0]) if self.args else ""


class EmptySpace(TilewrightError):
    """A kernel space that expands to no legal kernel. The message counts the reasons. `expansion`
    has every dropped combination if the space could be expanded at all."""

    def __init__(self, message: str, expansion: Any = None) -> None:
        super().__init__(message)
        self.expansion = expansion


class UnsupportedProblem(TilewrightError):
    """A well-formed problem that no kernel of the family can ever serve here."""


class NoKernelFound(TilewrightError):
    """No registered kernel serves the problem; the message lists the nearest misses and why."""


class NotInBundle(NoKernelFound):
    """A bundle has no kernel for the problem, and nothing is built. The message has the bundle's
    nearest kernels, and the command that adds one."""


class BuildFailed(TilewrightError):
    """A kernel could not be built; the message has its config and the compiler's output."""


class LibraryRefused(BuildFailed):
    """The vendor's library that an algorithm belongs to is missing, is of another major version, or
    refuses the algorithm."""


class StoreError(TilewrightError):
    """The kernel store cannot be read or written (full disk, permissions, untrusted entry)."""


class WrongDevice(TilewrightError):
    """Tensors, kernel and device do not belong together."""


class LaunchFailed(TilewrightError):
    """The driver refused a module or a launch; the message has the driver's error name."""


class IllegalAccess(LaunchFailed):
    """A kernel accessed memory outside its operands."""


class OutOfMemory(LaunchFailed):
    """The memory of the device, or of the interpreting process, was not enough."""


class KernelCrashed(LaunchFailed):
    """An interpreted kernel raised, or ended its process."""


class KernelEndless(LaunchFailed):
    """A kernel on an emulated GPU did not end within its limits."""


class FindingsFound(TilewrightError):
    """An emulated kernel did what no kernel may, whether or not its result is right: `findings`,
    one text for each. The outputs are written."""

    def __init__(self, message: str, findings: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings


class UnknownInstruction(LaunchFailed):
    """An instruction, or a form of one, that the emulator does not know."""


class NoDriver(TilewrightError):
    """This machine has no usable GPU driver for the request."""


class NoCluster(TilewrightError):
    """No Ray cluster answers, or none of its nodes has a usable device."""


class NoCompiler(TilewrightError):
    """The launcher cannot be compiled here; launches then go through Python."""


class VerificationFailed(TilewrightError):
    """A kernel's output differs from the reference by more than the tolerance."""


MOST_LISTED = 3


def listed(findings: Sequence[str]) -> str:
    """Findings for a message: their number, and the first of them."""
    more = f"; and {len(findings) - MOST_LISTED} more" if len(findings) > MOST_LISTED else ""
    word = "finding" if len(findings) == 1 else "findings"
    return f"{len(findings)} {word}: {'; '.join(findings[:MOST_LISTED])}{more}"


LONGEST_HINT = 200
"""No hint is searched for words with more characters. Such a word is not a typing error, and
comparing takes time quadratic in its length."""


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint to append to an error: ``" (did you mean 'x'?)"``, or ``""`` if no known word is near
    or `word` is not text.

    Upper case and hyphens do not count. Never suggests a word that differs in a part of one letter,
    because that letter carries the meaning: ``dtype_b`` for ``dtype_c``. Do not use it for names of
    GPUs, where similar names mean different GPUs.
    """
    if not isinstance(word, str) or len(word) > LONGEST_HINT:
        return ""
    known = list(known)
    for spelling in dict.fromkeys((word, word.lower().replace("-", "_"))):
        meant = [one for one in known if not _siblings(spelling, one)]
        if close := difflib.get_close_matches(spelling, meant, n=1, cutoff=0.6):
            return f" (did you mean '{close[0]}'?)"
    return ""


def _siblings(one: str, other: str) -> bool:
    """Whether two words differ only in one part, of one letter."""
    parts, others = one.split("_"), other.split("_")
    if len(parts) < 2 or len(parts) != len(others):
        return False
    differ = [pair for pair in zip(parts, others, strict=True) if pair[0] != pair[1]]
    return len(differ) == 1 and all(len(part) == 1 for part in differ[0])


def shown(value: object, most: int = 80) -> str:
    """`value` as an error quotes it: its `repr`, cut to `most` characters. Never raises."""
    try:
        # Slice first, so that a text of megabytes is not quoted whole.
        text = repr(value[: most + 1] if isinstance(value, str | bytes) else value)
    except (ValueError, RecursionError):  # an integer of too many digits; a value too deep
        return f"a {type(value).__name__} too large to print"
    return text if len(text) <= most + 2 else text[:most] + "…"
