"""What a command's failure looks like: one line on stderr, and an exit code."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from tilewright.cli import output
from tilewright.errors import (
    BadArgument,
    BadFile,
    EmptySpace,
    TilewrightError,
    UnsupportedProblem,
    WrongDevice,
)

FAILED = 1
"""The request was fine, the work failed."""
WRONG_REQUEST = 2
"""The request cannot be meant; the same command will never work."""
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (BadArgument, WRONG_REQUEST),  # unknown names and architectures are bad arguments too
    (BadFile, WRONG_REQUEST),
    (EmptySpace, WRONG_REQUEST),
    (UnsupportedProblem, WRONG_REQUEST),
    (WrongDevice, WRONG_REQUEST),
    (TilewrightError, FAILED),
    (OSError, FAILED),
)
"""The exit code of each error; the first line that fits counts."""


def exit_code(error: Exception) -> int:
    """The exit code for `error`, one of those in `EXIT_CODES`."""
    return next(code for kind, code in EXIT_CODES if isinstance(error, kind))


class Commands(TyperGroup):
    """The root of all commands: turns what they raise into a line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (TilewrightError, OSError) as error:
            message = str(error)
            if isinstance(error, OSError) and error.filename:
                message = f"{error.filename}: {error.strerror}"
            typer.echo(f"error: {message}", err=True)
            if output.wants_json(ctx):
                output.emit({"error": message, "type": type(error).__name__})
            raise typer.Exit(exit_code(error)) from None
