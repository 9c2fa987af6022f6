"""``expand``: count and list the kernels of a space on each architecture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import completion, output
from tilewright.cli.errors import WRONG_REQUEST
from tilewright.cli.groups import SpaceOptions
from tilewright.cli.options import Json, command, names, words
from tilewright.cli.vocabulary import TINY, WORDS
from tilewright.errors import BadArgument, EmptySpace

if TYPE_CHECKING:
    from tilewright.cli.selection import Selection
    from tilewright.space import Dropped


app = typer.Typer()


@command(
    app,
    "Count or list the kernels of a space on each architecture.",
    "tilewright expand space.json --arch sm_90 --arch gfx942",
    "tilewright expand space.json --arch sm_90 --signature dtype=fp16 --list",
    f"tilewright expand --default {TINY} --arch sm_90 --dropped",
)
def expand(
    *,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"A space file; with --default, a problem as {WORDS} dtype=bf16.",
            metavar="SPACE.json | KEY=VALUE…",
        ),
    ] = None,
    spaces: SpaceOptions,
    default: Annotated[
        str | None,
        typer.Option(
            "--default",
            help="Expand the default space of this family instead of a file.",
            metavar="FAMILY",
            autocompletion=completion.families,
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the legal kernels by name.")] = False,
    dropped: Annotated[
        bool,
        typer.Option(
            "--dropped", help="List every dropped combination with the rule that dropped it."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Count the legal kernels of a space, and count the combinations that each rule dropped.

    The space file is a sweep in CK Tile Engine's form, or the same form with Tilewright's words (CK
    Tile's `warp_m × warp_n` is num_warps here, its warp tile is mma; see `tilewright --help`).
    """
    found: dict[str, Selection | EmptySpace] = {}
    for name in names(spaces.targets()):
        try:
            found[name] = _select(inputs or [], name, default, spaces)
        except EmptySpace as error:  # noqa: PERF203  # the other architectures are still shown
            found[name] = error
    if as_json:
        output.emit([_document(name, result, listed, dropped) for name, result in found.items()])
    empty = [result for result in found.values() if isinstance(result, EmptySpace)]
    for number, result in enumerate(r for r in found.values() if not isinstance(r, EmptySpace)):
        if not as_json:
            if number:
                output.line()
            _show(result, listed, dropped)
    for none in empty:
        output.say(f"error: {none}", err=True)
    if empty:
        raise typer.Exit(WRONG_REQUEST)


def _select(
    inputs: list[str], arch_name: str, default: str | None, spaces: SpaceOptions
) -> Selection:
    """The legal kernels on one architecture. Raises `EmptySpace` if there are none."""
    from tilewright import ops
    from tilewright.arch import arch
    from tilewright.cli import selection

    if default is None:
        if len(inputs) != 1:
            raise BadArgument("give one space file, or --default FAMILY and a problem's words")
        if not selection.is_file(inputs[0]):
            raise BadArgument(f"'{inputs[0]}' is not a space file (JSON)")
        return spaces.select(inputs, arch_name)
    if spaces.signature:
        raise BadArgument(
            "--signature completes a space file; with --default, give it among the problem's words"
        )
    this = arch(arch_name)
    of = ops.family(default)
    problem = of.parse_problem(words(inputs), this)
    with output.busy(f"expanding the default space of {default} for {this.name}"):
        found = of.default_space(problem, this).expand(this)
    return selection.Selection(this, found.configs, found.dropped, found.duplicates)


def _document(
    arch_name: str, result: Selection | EmptySpace, listed: bool, dropped: bool
) -> dict[str, Any]:
    from tilewright.cli import selection

    combinations: Sequence[Dropped]
    if isinstance(result, EmptySpace):
        document: dict[str, Any] = {"arch": arch_name, "legal": 0, "error": str(result)}
        combinations = result.expansion.dropped if result.expansion is not None else ()
    else:
        document = selection.summary(result)
        combinations = result.dropped
        if listed:
            document["kernels"] = [config.name for config in result.configs]
    if dropped:
        document["dropped_combinations"] = [
            {"rule": d.verdict.rule, "reason": d.verdict.reason, "fields": dict(d.fields)}
            for d in combinations
        ]
    return document


def _show(result: Selection, listed: bool, dropped: bool) -> None:
    from tilewright.cli import selection

    again = f", {result.duplicates} repeated" if result.duplicates else ""
    output.heading(
        f"{result.arch.name}: {len(result.configs)} legal kernels, "
        f"{len(result.dropped)} combinations dropped{again}"
    )
    if result.dropped and not dropped:
        selection.show_rules(selection.rules(result.dropped))
    output.notes(result.notes)
    if listed:
        output.line()
        for config in result.configs:
            output.say(config.name)
    if dropped and result.dropped:
        _show_dropped(result)


def _show_dropped(result: Selection) -> None:
    """Print every dropped combination, by the fields that differ between them."""
    first = result.dropped[0].fields
    varying = [f for f in first if any(d.fields.get(f) != first[f] for d in result.dropped)]
    output.table(
        ("dropped by", "combination", "because"),
        [
            (
                d.verdict.rule,
                " ".join(f"{f}={_word(d.fields.get(f))}" for f in varying) or "the only one",
                d.verdict.reason,
            )
            for d in result.dropped
        ],
    )


def _word(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
