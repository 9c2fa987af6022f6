"""``sweep --dry-run``: what a sweep would do, and how long it would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.cli import output
from tilewright.cli.sweep_request import choice, show_choice

if TYPE_CHECKING:
    from tilewright.cli.sweep_request import Chosen, Request
    from tilewright.tune.sweep import Group

ASSUMED_BUILD_SECONDS = 1.0
"""What a build is assumed to take a processor where the directory has none to go by."""


def foreseen(
    request: Request, chosen: Mapping[str, Chosen], groups: Sequence[Group]
) -> dict[str, Any]:
    """What a sweep would do, as plain data."""
    import os

    from tilewright.build import build_keys
    from tilewright.tune.database import FILE
    from tilewright.tune.results import Results
    from tilewright.tune.summary import seconds_each

    measuring = building = None
    if (request.out / FILE).is_file():
        with Results(request.out) as results:
            measuring, building = seconds_each(results)
    document: dict[str, Any] = {
        "out": str(request.out),
        "archs": [choice(one) for one in chosen.values()],
    }
    if groups:
        this = request.plan(chosen, groups)
        requests = this.to_build()
        basis = f"the last ones in {request.out}"
        if measuring is None:
            s = request.settings
            measuring = s.warm_up_seconds / s.interleave + s.budget_seconds
            basis = "the budget of each, at most; loading and verifying come on top"
        parts: list[dict[str, Any]] = [
            {
                "device": part.group.device.name,
                "count": part.group.count,
                "pairs": part.kernels * part.problems - part.strangers,
                "unsupported": part.rules(),
                "known": part.known,
                "measurements": len(part.todo) - part.vendor,
                "vendor": part.vendor,
                "again": part.again,
                "seconds": len(part.todo) * measuring / part.group.count,
            }
            for part in this.parts
        ]
        longest = max(part["seconds"] for part in parts)  # groups measure at the same time
        document |= {"devices": parts, "measuring": {"seconds": longest, "by": basis}}
    else:
        requests = [(c, name) for name, one in chosen.items() for c in one.configs]
        longest = 0.0
    missing = 0
    for name in chosen:
        configs = [config for config, arch in requests if arch == name]
        missing += sum(not (k and request.store.has(k)) for k in build_keys(configs, name))
    each = building if building is not None else ASSUMED_BUILD_SECONDS
    seconds = missing * each / (request.workers or len(os.sched_getaffinity(0)))
    by = f"{each:.2g} s each, " + ("as measured" if building is not None else "assumed")
    document["builds"] = {"missing": missing, "seconds": seconds, "by": by}
    document["seconds"] = longest + seconds
    return document


def show(document: dict[str, Any]) -> None:
    """The same, for people."""
    from tilewright.tune.progress import duration

    for one in document["archs"]:
        show_choice(one)
    output.line()
    if "devices" in document:
        output.table(
            ("device", "count", "pairs", "known", "unsupported", "to measure", "vendor", "about"),
            [
                (
                    part["device"],
                    part["count"],
                    part["pairs"],
                    part["known"],
                    sum(part["unsupported"].values()),
                    part["measurements"],
                    part["vendor"],
                    duration(part["seconds"]),
                )
                for part in document["devices"]
            ],
        )
        for part in document["devices"]:
            for rule, count in part["unsupported"].items():
                output.line(f"{part['device']}: {count} pairs unsupported by rule {rule}")
            if part["again"]:
                output.line(f"{part['device']}: {part['again']} of these once more, by --retry")
    builds = document["builds"]
    output.line(f"{builds['missing']} kernels to build, about {duration(builds['seconds'])}")
    output.line(f"  ({builds['by']})")
    if "measuring" in document:
        measuring = document["measuring"]
        output.line(f"measuring takes about {duration(measuring['seconds'])}")
        output.line(f"  (by {measuring['by']})")
    output.line("nothing was done: --dry-run")
