"""Single options and arguments that several commands share, and how their words are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli import completion, output
from tilewright.cli.grouped import grouped
from tilewright.errors import BadArgument

if TYPE_CHECKING:
    from tilewright.arch.targets import Target

Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON on standard output; errors too, as {error, type}.",
        callback=output.remember_json,
    ),
]
Archs = Annotated[
    list[str] | None,
    typer.Option(
        "--arch",
        help="Architecture (sm_90, gfx942…), product (h100), native or all, or a list of them "
        "(gfx942,gfx950); may be repeated [default: TILEWRIGHT_ARCHS, else GPU_ARCHS, else "
        "the GPUs of this machine]",
        metavar="ARCH",
        autocompletion=completion.archs,
    ),
]
SomeArchs = Annotated[
    list[str] | None,
    typer.Option(
        "--arch",
        help="Architecture (sm_90, gfx942…) or product (h100); may be repeated.",
        metavar="ARCH",
        autocompletion=completion.archs,
    ),
]
StorePath = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="Folder of built kernels [default: TILEWRIGHT_STORE, else store in TILEWRIGHT_HOME, "
        "else in the user's cache]",
    ),
]
OpenWords = Annotated[
    list[str] | None,
    typer.Option(
        "--signature",
        help="A value that spaces and problems leave open, as dtype=bf16; may be repeated.",
        metavar="KEY=VALUE",
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=1, help="Longest time of one measurement, in seconds.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of the operands [default: random]")
]
FamilyName = Annotated[
    str | None,
    typer.Option(
        "--family",
        help="Operation family, if a space does not name its own.",
        autocompletion=completion.families,
    ),
]
Kernels = Annotated[
    list[str],
    typer.Argument(
        help="Space files (JSON); tables (.twt, .json, aiter's .csv, shipped:NAME); problems "
        "(.csv, .json, .txt, a capture's .jsonl, a set, FAMILY:SET, or a profile, FAMILY:PROFILE), "
        "for the kernels chosen for them; and kernel names; in any mixture.",
        metavar="SPACE|TABLE|PROBLEMS|NAME…",
    ),
]
RegistryFile = Annotated[
    Path | None,
    typer.Option(
        "--registry",
        help="Choose from the kernels of this registry file [default: the family's default space]",
    ),
]
TrustBundle = Annotated[
    bool, typer.Option("--trust-bundle", help="Use bundles that other users made.")
]
OnlyOurs = Annotated[
    bool, typer.Option("--only-ours", help="No algorithms of the vendor's library.")
]


def examples(*lines: str) -> str:
    """The end of a command's help: its examples, one to a line."""
    return "\n\n".join(["Examples:", "\b\n" + "\n".join(f"  $ {line}" for line in lines)])


def command(
    app: typer.Typer, short_help: str, *lines: str, name: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command of an application, where groups of options are parameters.

    short_help: its line in a list of commands. lines: its examples. name: by default the
    function's.
    """

    def add(function: Callable[..., None]) -> Callable[..., None]:
        return app.command(name, short_help=short_help, epilog=examples(*lines))(grouped(function))

    return add


_NEXT = re.compile(r",\s*(?=[A-Za-z_][\w-]*=)")
"""A comma before another KEY=."""


def words(pairs: Sequence[str] | None) -> dict[str, str]:
    """``["precision=tf32", "dtype=fp8"]`` as a mapping. One argument may have several, as in
    ``m=64,n=64``. Raises `BadArgument`."""
    found: dict[str, str] = {}
    for pair in (one for given in pairs or () for one in _NEXT.split(given)):
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise BadArgument(f"'{pair}' is not KEY=VALUE, as in dtype=bf16")
        if key in found:
            raise BadArgument(f"'{key}' is given twice")
        found[key] = value
    return found


def targets(given: Sequence[str] | None) -> tuple[Target, ...]:
    """The architectures to build for: from these lists, otherwise from the environment, otherwise
    those of the GPUs here."""
    from tilewright.arch import targets

    return targets.parse(";".join(given)) if given else targets.targets()


def names(of: Sequence[Target]) -> list[str]:
    """The architectures of targets, without repeats."""
    return list(dict.fromkeys(target.arch for target in of))


def gpu_index(on: str, others: str = "") -> int | None:
    """The number of the GPU that `on` names; None for the CPU. Raises if this machine lacks it, and
    for an emulated GPU, which has no times.

    others: what the command takes besides, for the error.
    """
    from tilewright.arch import words
    from tilewright.errors import NoDriver

    if on == "cpu":
        return None
    if words.emulated(on):
        raise BadArgument(f"{on} has no times to compare: say a GPU as cuda:0, or cpu")
    found = re.fullmatch(r"cuda(?::(\d+))?", on)
    if found is None:
        raise BadArgument(f"cannot run on '{on}': say cpu, a GPU as cuda:0 (AMD's too){others}")
    try:
        import torch
    except ImportError:
        raise NoDriver("running on a GPU needs torch: pip install 'tilewright[torch]'") from None
    index, count = int(found[1] or 0), torch.cuda.device_count()
    if index >= count:
        raise NoDriver(f"torch sees {count} GPUs here, so there is no {on}; --on cpu needs none")
    return index
