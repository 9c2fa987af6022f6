"""How a command reports a failure: one line on stderr, and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from tilewright.cli import output
from tilewright.cli.codes import BROKEN_PIPE, INTERRUPTED
from tilewright.cli.vocabulary import PROBLEM
from tilewright.errors import (
    BadArgument,
    BadFile,
    EmptySpace,
    TilewrightError,
    UnsupportedProblem,
    WrongDevice,
)
from tilewright.printable import printable

FAILED = 1
"""The request was right, but the work failed."""
WRONG_REQUEST = 2
"""The request was wrong: the same command will never work."""

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (BadArgument, WRONG_REQUEST),  # unknown names and architectures are bad arguments too
    (BadFile, WRONG_REQUEST),
    (EmptySpace, WRONG_REQUEST),
    (UnsupportedProblem, WRONG_REQUEST),
    (WrongDevice, WRONG_REQUEST),
    (TilewrightError, FAILED),
    (OSError, FAILED),
)
"""The exit code of each error type. The first entry that fits counts."""


def exit_code(error: Exception) -> int:
    """The exit code for `error`, from `EXIT_CODES`."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


# Depending on its version, typer contains click or depends on it.
_Usage: Any = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")


class Commands(TyperGroup):
    """The root of all commands: turns errors into a line and an exit code."""

    def make_context(self, *words: Any, **options: Any) -> Any:
        try:
            return super().make_context(*words, **options)
        except _Usage as error:
            raise _harmless(error) from None
        except KeyboardInterrupt:
            raise _interrupted() from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except _Usage as error:
            raise _harmless(error) from None
        except BrokenPipeError:
            discard_output()
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            raise _interrupted() from None
        except (TilewrightError, OSError) as error:
            message = said(error)
            output.say(f"error: {message}", err=True)
            try:
                sys.stdout.flush()
                if output.wants_json(ctx):
                    output.emit({"error": message, "type": type(error).__name__})
            except OSError:  # writing to standard output failed
                discard_output()
            raise typer.Exit(exit_code(error)) from None


def _harmless(error: Any) -> Any:
    """A usage error with a printable message. The message quotes the command line, which may hold
    file names that the shell put there for ``*``."""
    if word := _without_dashes(error):
        error.message += f"; a word of a problem has no dashes: {word}=VALUE"
    error.message = printable(error.message)
    return error


def _without_dashes(error: Any) -> str:
    """The word that an unknown option may be meant as; "" for other errors, and where a command
    takes no problem in words."""
    option, command = getattr(error, "option_name", ""), getattr(error.ctx, "command", None)
    if type(error).__name__ != "NoSuchOption" or command is None:
        return ""
    takes = any(one.metavar == PROBLEM for one in command.params)
    return option.lstrip("-").partition("=")[0] if takes else ""


def said(error: Exception) -> str:
    """One sentence for an error."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def _interrupted() -> typer.Exit:
    output.say("interrupted", err=True)
    return typer.Exit(INTERRUPTED)


def discard_output() -> None:
    """Send standard output nowhere: Python writes the rest of it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
