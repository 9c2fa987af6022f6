"""Untuned problems: when the process ends, one line says how many problems ran on a GPU with a
kernel that no table's row chose, and the commands that measure or tune them.

The line is a warning of the logger ``tilewright``. ``TILEWRIGHT_UNTUNED=0`` turns it off. Only the
first rank of a distributed program says it, and no child of `multiprocessing`.
"""

from __future__ import annotations

import atexit
import logging
import os
import shlex
import sys
from typing import Any

from tilewright import capturing, variables
from tilewright.checks import flag
from tilewright.plan import Plan

log = logging.getLogger("tilewright")

VARIABLE = variables.UNTUNED
"""The environment variable that says whether to say it."""

EXPECTED = frozenset({"learned", "analytical", "first_fit"})
"""Selectors that choose without a measurement of the problem."""

_MOST = 100_000
"""Problems that are told apart. Beyond, they are not counted."""

_met: set[Any] = set()


def saw(plan: Plan) -> None:
    """A plan was launched on a GPU. Raises `BadArgument` for another value of the variable than 0
    and 1."""
    if plan.selector not in EXPECTED or plan.problem in _met or len(_met) >= _MOST:
        return
    if not _met and flag(VARIABLE, True) and os.environ.get("RANK", "0") == "0":
        atexit.register(_say)
    _met.add(plan.problem)


def _say() -> None:
    if _met:
        log.warning("%s", said(len(_met), [str(one.path) for one in capturing.active], program()))


def said(count: int, captured: list[str], program: str) -> str:
    """The line.

    captured: files that this process captures into, which have the problems.
    program: the command that runs it again.
    """
    noun = "problem has" if count == 1 else "problems have"
    file, first = "untuned.jsonl", ""
    if captured:
        file = shlex.quote(captured[0])
    else:
        first = f"{capturing.VARIABLE}={file} {capturing.ONLY_VARIABLE}=misses {program} && "
    return (
        f"{count} {noun} no row in a table, so an estimate chose the kernel; to measure a few of "
        f"each: {first}tilewright prepare {file} --measure; or search longer: tilewright tune "
        f"--problems {file} --table mine.twt"
    )


def program() -> str:
    """The command that started this process."""
    words = sys.orig_argv
    return "PROGRAM" if "-c" in words else shlex.join(words)


def _forked() -> None:
    """In a new process: the parent says it."""
    _met.clear()
    atexit.unregister(_say)


os.register_at_fork(after_in_child=_forked)
