"""``registry``: sets of kernels as JSON files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import SpaceOptions, StoreOptions
from tilewright.cli.options import (
    Archs,
    Json,
    Kernels,
    SomeArchs,
    command,
    examples,
    names,
    targets,
)
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.compile import BuildReport, Store
    from tilewright.registry import Registry

app = typer.Typer(
    help="Sets of kernels as files: export, import, check.",
    no_args_is_help=True,
    epilog=examples("tilewright registry export space.json --arch sm_90 -o kernels.json"),
)

File = Annotated[Path, typer.Argument(help="Registry file (JSON).", metavar="FILE")]


@command(
    app,
    "Write the legal kernels of spaces to a file.",
    "tilewright registry export space.json --arch sm_90 -o kernels.json",
)
def export(
    *,
    inputs: Kernels,
    file: Annotated[Path, typer.Option("--output", "-o", help="File to write.", metavar="FILE")],
    spaces: SpaceOptions,
    name: Annotated[str, typer.Option("--name", help="The registry's name.")] = "default",
    kept: StoreOptions,
    as_json: Json = False,
) -> None:
    """Write the kernels that are legal on any of the architectures to a registry file.

    A kernel that the store has built is written with its build.
    """
    from tilewright.compile import find
    from tilewright.registry import Registry

    store = kept.open()
    registry = Registry(name)
    for arch_name in names(spaces.targets()):
        chosen = spaces.select(inputs, arch_name)
        with output.busy(f"looking {len(chosen.configs)} kernels up in {store.path}"):
            for config in chosen.configs:
                found = find(config, chosen.arch, store) or {}
                registry.register_all([*found.values()] or [config])
    registry.save(file)
    document = {"file": str(file), **_contents(registry)}
    output.answer(document, as_json, _show)
    if not as_json:
        output.line(f"written to {file}")


@command(
    app,
    "Show the contents of a file; build it with --build.",
    "tilewright registry import kernels.json",
    "tilewright registry import kernels.json --build --arch sm_90",
    name="import",
)
def import_(
    *,
    file: File,
    build: Annotated[
        bool,
        typer.Option("--build", help="Build the kernels that the store lacks, for each --arch."),
    ] = False,
    archs: Archs = None,
    kept: StoreOptions,
    as_json: Json = False,
) -> None:
    """Read a registry file and show its contents; with --build, build its kernels into the store.

    Kernels that are illegal on an architecture are not built for it.
    """
    from tilewright.errors import BadArgument
    from tilewright.registry import Registry

    if archs and not build:
        raise BadArgument("--arch applies to --build: give --build too, or neither")
    registry = Registry.load(file)
    report = _build(registry, names(targets(archs)), kept.open()) if build else None
    document = {"file": str(file), **_contents(registry)}
    if report:
        document["counts"] = dict(Counter(result.status for result in report.results))
        document["failures"] = [str(failure) for failure in report.failures]
    output.answer(document, as_json, _show)
    if report and not as_json:
        for failure in report.failures:
            output.line(str(failure))
        output.line(str(report))
    if report and report.failures:
        raise typer.Exit(FAILED)


def _build(registry: Registry, archs: list[str], kept: Store) -> BuildReport:
    from tilewright import ops
    from tilewright.arch import arch
    from tilewright.cli.build import compile_all
    from tilewright.errors import EmptySpace

    targets = [arch(name) for name in archs]
    requests = [
        (entry.config, this)
        for this in targets
        for entry in registry
        if ops.family(entry.config.family).judge(entry.config, this)
    ]
    if not requests:
        raise EmptySpace(f"no kernel of registry '{registry.name}' is legal on {', '.join(archs)}")
    return compile_all(requests, kept)


@command(
    app,
    "Find the entries of a file that would not work.",
    "tilewright registry check kernels.json",
    "tilewright registry check kernels.json --arch gfx942",
)
def check(
    *,
    file: File,
    archs: SomeArchs = None,
    kept: StoreOptions,
    as_json: Json = False,
) -> None:
    """Check a registry file. Exits with 1 if an entry would not work.

    Checks the form of the file, that every name matches its config, that every kernel is legal on
    each --arch, and that the store has every listed build, intact.
    """
    from tilewright.registry import Registry

    registry = Registry.load(file)
    with output.busy(f"checking {len(registry)} kernels"):
        problems = _illegal(registry, archs or []) + _missing(registry, kept.open())
    contents = _contents(registry)
    if as_json:
        output.emit({"file": str(file), "ok": not problems, **contents, "problems": problems})
    else:
        _show(contents)
        if problems:
            output.line()
            rows = [(p["problem"], p["arch"], p["name"], p["reason"]) for p in problems]
            output.table(("problem", "arch", "kernel", "because"), rows)
        output.line(many(len(problems), "problem") if problems else "no problem found")
    if problems:
        raise typer.Exit(FAILED)


def _illegal(registry: Registry, archs: list[str]) -> list[dict[str, str]]:
    from tilewright import ops
    from tilewright.arch import arch

    problems = []
    for this in map(arch, archs):
        for entry in registry:
            verdict = ops.family(entry.config.family).judge(entry.config, this)
            if not verdict:
                problems.append(_problem("illegal", this.name, entry.name, str(verdict)))
    return problems


def _missing(registry: Registry, kept: Store) -> list[dict[str, str]]:
    from tilewright.compile import UntrustedEntry

    problems = []
    for entry in registry:
        for place, kernel in entry.builds.items():
            try:
                found = kept.load(kernel.key)
            except UntrustedEntry as error:
                problems.append(_problem("untrusted", place, entry.name, str(error)))
                continue
            if found is None:
                reason = f"not in {kept.path}, or damaged there"
                problems.append(_problem("missing", place, entry.name, reason))
            elif found != kernel:
                reason = f"{kept.path} has another build under the same key"
                problems.append(_problem("different", place, entry.name, reason))
    return problems


def _problem(what: str, arch: str, name: str, reason: str) -> dict[str, str]:
    return {"problem": what, "arch": arch, "name": name, "reason": reason}


def _contents(registry: Registry) -> dict[str, Any]:
    return {
        "registry": registry.name,
        "kernels": len(registry),
        "families": dict(Counter(entry.config.family for entry in registry)),
        "builds": dict(Counter(arch for entry in registry for arch in entry.archs)),
        "priorities": {
            str(priority): count
            for priority, count in sorted(Counter(entry.priority for entry in registry).items())
        },
    }


def _show(contents: dict[str, Any]) -> None:
    output.heading(f"registry '{contents['registry']}': {many(contents['kernels'], 'kernel')}")
    priorities = {f"of priority {word}": n for word, n in contents["priorities"].items()}
    output.fields(
        {
            "families": output.counts(contents["families"]) or "none",
            "builds": output.counts(contents["builds"]) or "none",
            "priorities": output.counts(priorities) or "none",
        }
    )
