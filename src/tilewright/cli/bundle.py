"""``bundle``: collect prebuilt kernels in one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import completion, output
from tilewright.cli.build import BuildOptions, show_failures
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import LimitOptions, SpaceOptions
from tilewright.cli.options import Json, TrustBundle, command, names
from tilewright.cli.vocabulary import FAMILY, PROFILE
from tilewright.errors import BadArgument
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.arch import Device
    from tilewright.arch.targets import Target
    from tilewright.bundle import Bundle, Content
    from tilewright.cli.selection import Selection
    from tilewright.compile import BuildReport
    from tilewright.compile.report import Status
    from tilewright.registry import Registry

ENDING = ".bundle"


app = typer.Typer()


@command(
    app,
    "Collect prebuilt kernels in one file, served without Triton or a compiler.",
    "tilewright bundle shapes.csv tuned.twt --device h200_sxm -o a.bundle",
    f"tilewright bundle {PROFILE} --arch gfx942 -o framework.bundle",
    f"tilewright bundle served.jsonl {FAMILY}:small --arch all -o b.bundle",
    "tilewright bundle a.bundle missing.jsonl --arch sm_90 -o c.bundle",
    "tilewright bundle h200.bundle",
    "tilewright bundle shipped:sm_90 --device h200_sxm -o dist \\\n"
    "      --wheel tilewright-kernels-sm90",
)
def bundle(
    *,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Problems (.csv, .json, .txt, a capture's .jsonl, a set, FAMILY:SET, or a "
            "profile, FAMILY:PROFILE), tables (.twt, .json, shipped:NAME), space files (JSON), "
            "kernel names, and other bundles, in any mixture.",
            metavar="PROBLEMS|TABLE|SPACE|NAME|BUNDLE…",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help=f"File to write ({ENDING}); with --wheel, the folder to write to.",
            metavar="FILE",
        ),
    ] = None,
    spaces: SpaceOptions,
    devices: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="DEVICE",
            autocompletion=completion.gpus,
            help="Choose kernels for this GPU: a known one (see `devices`) or a JSON file; may "
            "be repeated [default: all known GPUs of each --arch]",
        ),
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option(
            "--registry", help="Add the kernels of this registry file, with their priorities."
        ),
    ] = None,
    wheel: Annotated[
        str | None,
        typer.Option(
            "--wheel",
            help="Write a wheel of this name instead, as tilewright-kernels-sm90. Dispatchers "
            "find the kernels of an installed wheel.",
            metavar="NAME",
        ),
    ] = None,
    limits: LimitOptions,
    building: BuildOptions,
    trust_bundle: TrustBundle = False,
    as_json: Json = False,
) -> None:
    """Build kernels for every --arch and write them to one file. Dispatcher(bundle=FILE) or
    TILEWRIGHT_BUNDLE serves the file without Triton or a compiler, under any Python.

    For problems, the bundle holds the kernels chosen for them; for tables, their rows and the
    kernels of the rows; for spaces, all legal kernels. The same inputs give the same bytes. Without
    -o, the command reads whole bundles, checks them and shows their contents.

    Exits with 1 if a kernel cannot be built (the others are written), or if a bundle is damaged.
    """
    from tilewright.arch import device
    from tilewright.bundle import Bundle, Content
    from tilewright.cli.planned import Planning
    from tilewright.cli.selection import tables_of

    given = [Bundle(text, trust_bundle) for text in inputs if text.endswith(ENDING)]
    others = [text for text in inputs if not text.endswith(ENDING)]
    if out is None:
        if others or wheel or registry or devices or spaces.archs:
            raise BadArgument(
                f"give -o FILE{ENDING} to write a bundle, or bundles alone to show them"
            )
        _show_all(given, as_json)
        return
    if wheel is None and out.suffix != ENDING:
        raise BadArgument(f"{out}: a bundle's file ends in {ENDING}")
    from tilewright.registry import Registry

    named = tuple(map(device, devices or ()))
    kernels = Registry.load(registry) if registry is not None else None
    table = tables_of(others)
    how = Planning(named, limits.constraints(), table)
    wanted = _targets(spaces, named) if others or kernels is not None else ()
    selections = [
        spaces.select([*others, *_legal(kernels, arch)], arch, wanted, how)
        for arch in names(wanted)
    ]
    kept = building.kept.open()
    report = building.compile([(c, s.arch) for s in selections for c in s.configs], kept)
    content = Content()
    with output.busy(f"gathering {len(report.kernels)} kernels"):
        content.add_built(report.kernels, kept)
        content.priorities = {e.name: e.priority for e in kernels or () if e.priority}
        for one in given:
            content.add_bundle(one)
        content.table = _table(table, given, wanted)
    with output.busy(f"writing {out}"):
        document = {
            **_written(content, out, wheel),
            "archs": _counts(selections, report),
            "notes": list(dict.fromkeys(note for s in selections for note in s.notes)),
        }
    output.answer(document, as_json, lambda document: _show_written(document, report))
    if report.failures:
        raise typer.Exit(FAILED)


def _targets(spaces: SpaceOptions, named: Sequence[Device]) -> tuple[Target, ...]:
    """The architectures to build for: the given ones, otherwise those of the named devices."""
    from tilewright.arch.targets import Target

    if spaces.archs or not named:
        return spaces.targets()
    return tuple(dict.fromkeys(Target(d.arch, d.compute_units) for d in named))


def _legal(kernels: Registry | None, arch_name: str) -> list[str]:
    """The names of a registry's kernels that are legal on an architecture."""
    from tilewright import ops
    from tilewright.arch import arch

    this = arch(arch_name)
    return [e.name for e in kernels or () if ops.family(e.config.family).judge(e.config, this)]


def _table(table: Any, given: Sequence[Bundle], wanted: Sequence[Target]) -> Any:
    """The rows of the tables, for the architectures built, and of the bundles. Where rows of one
    problem differ, the fastest is kept."""
    from tilewright.tables.merge import combine

    archs = {target.arch for target in wanted}
    placed = [("the tables", row) for row in table or () if row.device.arch in archs]
    placed += [(one.where, row) for one in given for row in one.table or ()]
    return combine(placed, "bundle", "fastest").table if placed else None


def _written(content: Content, out: Path, wheel: str | None) -> dict[str, Any]:
    from tilewright.bundle import write, write_wheel

    rows = len(content.table) if content.table is not None else 0
    if wheel is not None:
        path = write_wheel(content, wheel, out)
        made = {"out": str(path), "size": path.stat().st_size}
    else:
        written = write(content, out)
        made = {"out": str(out), "size": written.size, "digest": written.digest}
    return {**made, "kernels": len(content), "rows": rows}


def _counts(selections: Sequence[Selection], report: BuildReport) -> list[dict[str, Any]]:
    counts = Counter((result.arch.name, result.status) for result in report.results)
    statuses: tuple[Status, ...] = ("built", "cached", "rejected", "failed")
    return [
        {"arch": s.arch.name, **{status: counts[s.arch.name, status] for status in statuses}}
        for s in selections
    ]


def _show_written(document: dict[str, Any], report: BuildReport) -> None:
    output.records(document["archs"])
    output.notes(document["notes"])
    show_failures("left out", report)
    output.line(
        f"{many(document['kernels'], 'kernel')} and {many(document['rows'], 'row')}, "
        f"{output.size(document['size'])}, in {document['out']}"
    )


def _show_all(given: Sequence[Bundle], as_json: bool) -> None:
    documents = []
    for one in given:
        with output.busy(f"reading {one.where}"):
            wrong = one.verify()
            rows = len(one.table) if not wrong and one.table is not None else 0
        documents.append(
            {
                "bundle": one.where,
                "digest": one.digest,
                "size": one.path.stat().st_size,
                "versions": one.manifest.versions,
                "kernels": {arch: len(one.names(arch)) for arch in one.archs},
                "rows": rows,
                "wrong": wrong,
            }
        )
    output.answer(documents, as_json, _show)
    if any(document["wrong"] for document in documents):
        raise typer.Exit(FAILED)


def _show(documents: list[dict[str, Any]]) -> None:
    for document in documents:
        versions, kernels = document["versions"], document["kernels"]
        output.fields(
            {
                "bundle": document["bundle"],
                "digest": document["digest"],
                "size": output.size(document["size"]),
                "made with": ", ".join(f"{name} {version}" for name, version in versions.items()),
                "kernels": ", ".join(f"{count} for {arch}" for arch, count in kernels.items()),
                "rows": document["rows"],
            }
        )
        for said in document["wrong"]:
            output.line(f"wrong: {said}")
