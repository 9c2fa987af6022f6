"""``sweep --dry-run``: the work of a sweep, and an estimate of its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.cli import output
from tilewright.cli.sweep_request import choice, show_choice
from tilewright.wording import many

if TYPE_CHECKING:
    from pathlib import Path

    from tilewright.cli.sweep_request import Chosen, Request
    from tilewright.compile import Store
    from tilewright.measure.measurement import Settings
    from tilewright.measure.sweep import Group, Plan

ASSUMED_BUILD_SECONDS = 1.0
"""Assumed processor time of a build, if the directory has no builds."""


def foreseen(
    request: Request, chosen: Mapping[str, Chosen], groups: Sequence[Group]
) -> dict[str, Any]:
    """The work of a sweep, as plain data."""
    out, workers = request.options.out, request.options.workers
    document: dict[str, Any] = {
        "out": str(out),
        "archs": [choice(one) for one in chosen.values()],
    }
    if groups:
        this = request.plan(chosen, groups)
        return document | costs(this, out, request.store, request.settings, workers)
    requests = [(c, name) for name, one in chosen.items() for c in one.configs]
    _, building = _seconds_each(out)
    builds = _builds(requests, request.store, building, workers)
    return document | {"builds": builds, "seconds": builds["seconds"]}


def costs(
    this: Plan, out: Path, store: Store, settings: Settings, workers: int | None = None
) -> dict[str, Any]:
    """The cost of a plan, as plain data. Times come from the results in `out`, if it has any."""
    measuring, building = _seconds_each(out)
    basis = f"the last ones in {out}"
    if measuring is None:
        measuring = settings.warm_up_seconds / settings.interleave + settings.budget_seconds
        basis = "the budget of each, at most; loading and verifying come on top"
    parts: list[dict[str, Any]] = [
        {
            "device": part.group.device.name,
            "count": part.group.count,
            "pairs": part.pairs,
            "unsupported": part.rules(),
            "known": part.known,
            "measurements": len(part.todo) - part.vendor,
            "vendor": part.vendor,
            "again": part.again,
            "seconds": len(part.todo) * measuring / part.group.count,
        }
        for part in this.parts
    ]
    # Groups measure at the same time.
    longest = max((part["seconds"] for part in parts), default=0.0)
    builds = _builds(this.to_build(), store, building, workers)
    return {
        "devices": parts,
        "measuring": {"seconds": longest, "by": basis},
        "builds": builds,
        "seconds": longest + builds["seconds"],
    }


def _seconds_each(out: Path) -> tuple[float | None, float | None]:
    """Seconds of a measurement and of a build, from the results in the directory."""
    from tilewright.measure.database import FILE
    from tilewright.measure.results import Results
    from tilewright.measure.summary import seconds_each

    if not (out / FILE).is_file():
        return None, None
    with Results(out) as results:
        return seconds_each(results)


def _builds(
    requests: Sequence[tuple[Any, str]], store: Store, each: float | None, workers: int | None
) -> dict[str, Any]:
    """The number of requests that the store lacks, and the time to build them."""
    import os

    from tilewright.compile import part_keys

    missing = 0
    for config, arch in requests:
        keys = part_keys(config, arch)
        missing += sum(not store.has(key) for key in keys.values()) if keys else 1
    by = f"{each or ASSUMED_BUILD_SECONDS:.2g} s each, " + ("as measured" if each else "assumed")
    seconds = missing * (each or ASSUMED_BUILD_SECONDS)
    seconds /= workers or len(os.sched_getaffinity(0))
    return {"missing": missing, "seconds": seconds, "by": by}


def show(document: dict[str, Any]) -> None:
    """Print the result of `foreseen`, for people."""
    for one in document["archs"]:
        show_choice(one)
    output.line()
    show_costs(document)
    output.line("nothing was done: --dry-run")


def show_costs(document: dict[str, Any]) -> None:
    """Print the result of `costs`, for people."""
    from tilewright.measure.progress import duration

    if "devices" in document:
        output.table(
            ("device", "count", "pairs", "known", "unsupported", "to measure", "vendor", "about"),
            [
                (
                    *(part[word] for word in ("device", "count", "pairs", "known")),
                    sum(part["unsupported"].values()),
                    *(part[word] for word in ("measurements", "vendor")),
                    duration(part["seconds"]),
                )
                for part in document["devices"]
            ],
        )
        for part in document["devices"]:
            for rule, count in part["unsupported"].items():
                output.line(f"{part['device']}: {many(count, 'pair')} unsupported by rule {rule}")
            if part["again"]:
                output.line(f"{part['device']}: {part['again']} of these again, because of --retry")
    builds = document["builds"]
    missing = many(builds["missing"], "kernel")
    output.line(f"{missing} to build, about {duration(builds['seconds'])}")
    output.line(f"  ({builds['by']})")
    if "measuring" in document:
        measuring = document["measuring"]
        output.line(f"measuring takes about {duration(measuring['seconds'])}")
        output.line(f"  (by {measuring['by']})")
