"""Groups of options: one dataclass is one parameter of a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tilewright.cli.grouped import grouped


@dataclass(frozen=True, slots=True)
class Inner:
    width: Annotated[int, typer.Option("--width", min=1, help="How wide.")] = 3


@dataclass(frozen=True, slots=True)
class Outer:
    name: Annotated[str, typer.Argument(metavar="NAME")]
    inner: Inner
    words: Annotated[list[str] | None, typer.Option("--word")] = None


def called(*words: str, code: int = 0) -> tuple[list[object], str]:
    """What a command with a group and an option of its own is called with, and what it prints."""
    seen: list[object] = []
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @grouped
    def command(*, outer: Outer, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        """Say it."""
        seen.extend((outer, loud))

    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return seen, result.output


def test_a_command_gets_its_groups():
    assert called("x")[0] == [Outer("x", Inner(3), None), False]
    words = ("--word", "a", "x", "--loud", "--width", "5", "--word", "b")
    assert called(*words)[0] == [Outer("x", Inner(5), ["a", "b"]), True]


def test_fields_of_groups_are_options_in_order():
    text = called("--help")[1]
    order = [text.index(word) for word in ("Say it.", "--width", "--word", "--loud")]
    assert order == sorted(order)
    assert "How wide.  [default: 3; x>=1]" in text
    called(code=2)
    called("x", "--width", "0", code=2)


def test_two_options_of_one_name_are_refused():
    def command(one: Inner, width: int = 2) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="duplicate parameter name: 'width'"):
        grouped(command)
