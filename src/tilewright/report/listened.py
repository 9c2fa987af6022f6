"""A page about what tuning would be worth to a model that was listened to. It has no script."""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.report.drawn import said, table
from tilewright.report.page import part, put
from tilewright.report.worth import STEP, Line, Worth

TITLES = (
    "saves ms", "torch ms", "torch's time is", "our ms", "our time is", "calls", "share", "problem",
    "operation", "seen behind it", "kernel", "chosen by",
)  # fmt: skip


def write(found: Worth, path: str | os.PathLike[str]) -> int:
    """Write the page to `path`, whole or not at all. Returns its size in bytes. Raises
    `BadArgument` if it cannot be written."""
    page = render(found).encode()
    put(Path(path), page)
    return len(page)


def render(found: Worth) -> str:
    """The page. Its content security policy forbids scripts and fetching anything."""
    unstated = [
        [f"{1e3 * one.seconds:.4g}", str(one.count), one.by, one.why] for one in found.unstated
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Tilewright: what tuning would be worth</title>
<style>
{part("page.css")}</style>
</head>
<body>
<header><h1>What tuning would be worth</h1>
<p>{said(summary(found))}</p></header>
<main>
<section>
<h2>Problems, those first that save most</h2>
<p>Times are milliseconds of all calls in a {said(found.per)}. Torch's were measured while the
model ran: early ones may have the host's time in them. Ours are measured where a table has this
problem on this GPU, and estimated otherwise.</p>
{table(TITLES, [cells(line) for line in found.lines])}
</section>
<section>
<h2>Calls that no operation here computes</h2>
{table(("ms in all", "calls in all", "operation", "because"), unstated)}
</section>
</main>
</body>
</html>
"""


def summary(found: Worth) -> str:
    """What there is, in sentences."""
    per = found.per if found.per == STEP else "whole run"
    times = [line.theirs_ms for line in found.lines if line.theirs_ms is not None]
    heard = ", ".join(found.heard_on) or "an unknown device"
    text = f"{len(found.lines)} problems, heard on {heard} and planned for {found.device}."
    if not times:
        return f"{text} Torch's calls were not timed on that GPU, so nothing is compared."
    step = "" if found.step_ms is None else f", of {found.step_ms:.4g} ms by the host's clock"
    return (
        f"{text} Torch's calls take {sum(times):.4g} ms of a {per}{step}. If each problem had the "
        f"faster of both, they would take {found.saves_ms:.4g} ms less: {_estimated(found)} of it "
        f"by estimate. {found.untuned} problems have no measured kernel."
    )


def _estimated(found: Worth) -> str:
    """The milliseconds that rest on estimates."""
    saved = (line.saves_ms or 0.0 for line in found.lines if line.ours_from == "estimated")
    return f"{sum(max(0.0, one) for one in saved):.4g} ms"


def cells(line: Line) -> list[str]:
    """A problem's row, by `TITLES`."""
    return [
        _ms(line.saves_ms),
        _ms(line.theirs_ms),
        line.theirs_from,
        _ms(line.ours_ms),
        line.ours_from,
        f"{line.count:.4g}",
        "" if line.share is None else f"{line.share:.1%}",
        line.problem,
        line.by,
        _seen(line),
        line.kernel,
        line.chosen_by,
    ]


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _seen(line: Line) -> str:
    return ", ".join(f"{chain} {count} of {line.followed}" for chain, count in line.seen.items())
