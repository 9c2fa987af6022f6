"""``kernels offered``: the algorithms that the vendor's library offers for a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import ProblemArguments
from tilewright.cli.options import Json, command
from tilewright.cli.vocabulary import FEW

if TYPE_CHECKING:
    from tilewright.measure.sweep import Group


app = typer.Typer()


@command(
    app,
    "List the algorithms that the vendor's library offers for a problem.",
    f"tilewright kernels offered {FEW} dtype=bf16",
    f"tilewright kernels offered {FEW} --devices 1, --json",
)
def offered(
    said: ProblemArguments,
    devices: Annotated[
        str,
        typer.Option(
            "--devices", help="The GPU to ask for, as `sweep` takes it; the first of several."
        ),
    ] = "1",
    count: Annotated[
        int | None,
        typer.Option("--count", min=1, help="Most algorithms [default: as many as tune takes]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the algorithms that the vendor's library offers for a problem on a live GPU, its best
    guess first. Their names are kernels' names: sweep, compare and tune take them.

    Exits with 1 if there is none.
    """
    from tilewright.measure.algorithms import offered as asked
    from tilewright.runtime.libraries import ALGORITHMS

    group = _group(devices)
    problem = said.on(group.device)
    with output.busy(f"asking the library of {group.device.name}"):
        offer = asked(group, [problem], count or ALGORITHMS)[problem]
    document: dict[str, Any] = {
        "problem": str(problem),
        "device": group.device.name,
        "kernels": [config.name for config in offer.configs],
        "reason": offer.reason,
    }
    if as_json:
        output.emit(document)
    else:
        for name in document["kernels"]:
            output.say(name)
        if offer.reason:
            output.line(f"no algorithm for {problem}: {offer.reason}")
    if not offer.configs:
        raise typer.Exit(FAILED)


def _group(devices: str) -> Group:
    from tilewright.errors import NoDriver
    from tilewright.measure.places import parse
    from tilewright.measure.sweep import Group

    place = parse(devices)[0]
    if place.backend == "cpu" or place.device is None:
        raise NoDriver(f"{place} has no vendor's library: say a GPU")
    return Group(place.device, place.environment, place=place)
