"""``kernels``: look into the store, and read the compiler's output."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli import output
from tilewright.cli.errors import FAILED
from tilewright.cli.groups import StoreOptions
from tilewright.cli.options import Json, SomeArchs, command, examples
from tilewright.errors import BadArgument
from tilewright.wording import many

if TYPE_CHECKING:
    from tilewright.arch import Arch
    from tilewright.compile import Kernel, Store

app = typer.Typer(
    help="Kernels: list, show, inspect, check, and the library's.",
    no_args_is_help=True,
    epilog=examples("tilewright kernels list --arch sm_90", "tilewright kernels show NAME"),
)

Name = Annotated[str, typer.Argument(help="The kernel's name.", metavar="NAME")]


@command(
    app,
    "List the kernels in the store.",
    "tilewright kernels list",
    "tilewright kernels list --arch gfx942 --match '*_persistent_*'",
    name="list",
)
def list_kernels(
    kept: StoreOptions,
    archs: SomeArchs = None,
    match: Annotated[
        str, typer.Option("--match", help="Shell pattern that names must match.")
    ] = "*",
    as_json: Json = False,
) -> None:
    """List the kernels in the store, with the resources of the GPU that each uses."""
    from tilewright.arch import arch

    store = kept.open()
    wanted = {arch(name).name for name in archs or ()}
    found = [
        kernel
        for kernel in store.entries()
        if (not wanted or kernel.arch in wanted) and fnmatch.fnmatchcase(kernel.name, match)
    ]
    found.sort(key=lambda kernel: (kernel.arch, kernel.name, kernel.part, kernel.key))
    old = _outdated(found, store)
    rows = [{**_row(kernel), "outdated": kernel.key in old} for kernel in found]
    if as_json:
        output.emit(rows)
        return
    if not rows:
        output.line(f"no such kernel in {store.path}; `tilewright build` puts them there")
        return
    output.records(
        {
            "kernel": kernel.called,
            "arch": row["arch"],
            "registers": row["registers"],
            "spills": row["spill_bytes"],
            "shared": row["shared"],
            "workgroups a unit": f"{row['workgroups']} (limit: {row['limiter']})",
            "size": row["size"],
            "": "outdated" if row["outdated"] else "",
        }
        for kernel, row in zip(found, rows, strict=True)
    )
    output.line(f"\n{many(len(rows), 'kernel')} in {store.path}; sizes in bytes")


def _outdated(kernels: list[Kernel], kept: Store) -> set[str]:
    """Keys of kernels that the store holds twice and that would be built differently now."""
    counts = Counter((kernel.name, kernel.arch, kernel.part) for kernel in kernels)
    old: set[str] = set()
    for kernel in kernels:
        if counts[kernel.name, kernel.arch, kernel.part] > 1:
            current = _current(kernel.name, kernel.arch, kept).get(kernel.part)
            if current is None or current.key != kernel.key:
                old.add(kernel.key)
    return old


def _current(name: str, arch: str, kept: Store) -> dict[str, Kernel]:
    from tilewright import ops
    from tilewright.compile import find
    from tilewright.errors import UnknownName

    try:
        config = ops.family_of(name).parse_name(name)
    except UnknownName:  # written by another version
        return {}
    return find(config, arch, kept) or {}


def _part(kernel: Kernel) -> dict[str, str]:
    """The part, if the config has several."""
    from tilewright.ops.nouns import MAIN

    return {} if kernel.part == MAIN else {"part": kernel.part}


def _row(kernel: Kernel) -> dict[str, Any]:
    from tilewright.arch import arch

    occupancy = kernel.occupancy(arch(kernel.arch))
    return {
        "name": kernel.name,
        **_part(kernel),
        "arch": kernel.arch,
        "registers": kernel.resources.registers,
        "spill_bytes": kernel.resources.spill_bytes,
        "shared": kernel.shared,
        "workgroups": occupancy.workgroups,
        "waves_per_simd": occupancy.waves_per_simd,
        "limiter": occupancy.limiter,
        "size": kernel.blob(kernel.binary).size,
        "key": kernel.key,
    }


@command(
    app,
    "Show a kernel's config, and where it is legal and built.",
    "tilewright kernels show NAME",
    "tilewright kernels show NAME --arch sm_90 --json",
)
def show(
    *,
    name: Name,
    archs: SomeArchs = None,
    kept: StoreOptions,
    as_json: Json = False,
) -> None:
    """Show one kernel: its config and, for each architecture, whether it is legal and built."""
    from tilewright import arch, ops
    from tilewright.ops.library import library_of

    config = ops.family_of(name).parse_name(name)
    store = kept.open()
    targets = [_target(config, arch.arch(a), store) for a in archs or arch.archs()]
    if as_json:
        fields = {"family": config.family, **asdict(config)}
        output.emit({"name": config.name, "config": fields, "archs": targets})
        return
    output.heading(config.name)
    output.fields({"family": config.family, **asdict(config)})
    library = library_of(config)
    not_built = f"needs no build: {library} computes it" if library else "not built"
    built = [t for t in targets if t["built"]]
    for target in built:
        output.line()
        for part, made in target.get("parts", {"": target}).items():
            output.heading(f"built for {target['arch']}{part and f', part {part}'}")
            output.fields(_resources(made))
    rows = [
        (t["arch"], not_built if t["legal"] else f"cannot be built: {t['reason']}")
        for t in targets
        if not t["built"]
    ]
    if rows:
        output.line()
        output.table(("arch", "state"), rows)


def _target(config: Any, arch: Arch, kept: Store) -> dict[str, Any]:
    from tilewright import ops
    from tilewright.compile import find
    from tilewright.compile.kernel import to_data
    from tilewright.ops.nouns import MAIN

    verdict = ops.family(config.family).judge(config, arch)
    found = (find(config, arch, kept) if verdict else None) or {}
    parts = {
        part: {"kernel": to_data(kernel), "occupancy": asdict(kernel.occupancy(arch))}
        for part, kernel in found.items()
    }
    none = {"kernel": None, "occupancy": None}
    return {
        "arch": arch.name,
        "legal": verdict.ok,
        "reason": "" if verdict else str(verdict),
        "built": bool(found),
        **(parts.get(MAIN, none) if len(parts) < 2 else {**none, "parts": parts}),
    }


def _resources(made: dict[str, Any]) -> dict[str, Any]:
    kernel, occupancy = made["kernel"], made["occupancy"]
    resources = dict(kernel["resources"])
    return {
        **{word: resources[word] for word in resources if resources[word] or word == "registers"},
        "spills": f"{resources['spill_bytes']} bytes a thread",
        "shared": f"{kernel['shared']} bytes",
        "warps": kernel["num_warps"],
        "occupancy": f"{occupancy['workgroups']} workgroups a compute unit, "
        f"{occupancy['waves_per_simd']:g} warps a SIMD; limited by {occupancy['limiter']}",
        "arguments": ", ".join(f"{name}: {kind}" for name, kind in kernel["arguments"]),
        "entry": kernel["entry"],
        "files": ", ".join(f"{kind} ({b['size']} bytes)" for kind, b in kernel["blobs"].items()),
        "key": kernel["key"],
    }


@command(
    app,
    "Print a kernel as PTX, SASS, AMD assembly or IR.",
    "tilewright kernels inspect NAME --arch sm_90 --what sass | less",
    "tilewright kernels inspect NAME --arch gfx942 --what amdgcn | grep mfma",
)
def inspect(
    *,
    name: Name,
    arch: Annotated[str, typer.Option("--arch", help="Architecture that the kernel is built for.")],
    what: Annotated[
        str,
        typer.Option(
            "--what", help="Form to print: ptx, sass (NVIDIA), amdgcn (AMD), llir or ttgir."
        ),
    ],
    part: Annotated[
        str | None,
        typer.Option("--part", help="Which kernel of a config with several.", metavar="PART"),
    ] = None,
    kept: StoreOptions,
    as_json: Json = False,
) -> None:
    """Print a kernel in one of the compiler's forms. Builds the kernel first if the store lacks
    it."""
    from tilewright import ops
    from tilewright.arch import arch as by_name
    from tilewright.cli.build import compile_all
    from tilewright.compile import find
    from tilewright.compile import inspect as text_of
    from tilewright.errors import UnsupportedProblem
    from tilewright.ops.library import library_of

    config, this = ops.family_of(name).parse_name(name), by_name(arch)
    verdict = ops.family(config.family).judge(config, this)
    if not verdict:
        raise UnsupportedProblem(f"{config.name} cannot be built for {this.name}: {verdict}")
    if library := library_of(config):
        raise UnsupportedProblem(
            f"{config.name} has no code here: {library}, the vendor's library, computes it"
        )
    store = kept.open()
    found = find(config, this, store)
    if found is None:
        report = compile_all([(config, this)], store, workers=1)
        # A rejected kernel can be read too.
        found = {r.part: r.kernel for r in report.results if r.kernel is not None}
        if not (part in found if part else found):
            report.raise_if_failed()
    kernel = _of_part(found, part, config.name)
    text = text_of(kernel, store, what)
    if as_json:
        document = {"name": config.name, **_part(kernel), "arch": this.name, "what": what}
        output.emit({**document, "text": text})
    else:
        output.say(text.rstrip("\n"))


def _of_part(found: dict[str, Kernel], part: str | None, name: str) -> Kernel:
    """The kernel of this part, or the only kernel if no part is given. Raises `BadArgument`."""
    if part is None and len(found) == 1:
        return next(iter(found.values()))
    if part is None:
        raise BadArgument(
            f"{name} has several kernels; choose one with --part {' or '.join(found)}"
        )
    if part not in found:
        raise BadArgument(f"{name} has no part '{part}'; it has {', '.join(found)}")
    return found[part]


@command(
    app,
    "Read the whole store and report damage.",
    "tilewright kernels check",
    "tilewright kernels check --store DIR",
)
def check(kept: StoreOptions, as_json: Json = False) -> None:
    """Read every file of the store. Exits with 1 if a file is damaged or belongs to another
    user."""
    store = kept.open()
    with output.busy(f"reading {store.path}"):
        problems = store.verify()
        usable = sum(1 for _ in store.entries()) if not problems else 0
    if as_json:
        output.emit({"store": str(store.path), "ok": not problems, "problems": problems})
    elif problems:
        for problem in problems:
            output.line(problem)
        output.line(f"\n{len(problems)} entries of {store.path} are not usable")
    else:
        missing = "" if store.path.exists() else " (which does not exist yet)"
        output.line(f"{many(usable, 'kernel')} in {store.path}{missing}, all intact")
    if problems:
        raise typer.Exit(FAILED)
