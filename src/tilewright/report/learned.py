"""A page about models: how good they are, where they err, and what they ask about. It is drawn
here, and has no script."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.report.drawn import said, table
from tilewright.report.page import part, put

FIGURES = ("mean", "median", "p10", "least", "top_1", "top_5")
WAYS = {
    "estimate": "the estimate's first",
    "learned": "the model's first",
    "served": "as served: the model where it speaks",
}
WIDTH, HEIGHT = 640, 260
LEAST_SHOWN = 0.5
"""The least share of the best kernel's speed on a curve's axis."""


def write(document: Mapping[str, Any], path: str | os.PathLike[str]) -> int:
    """Write the page of what `learn evaluate` says to `path`, whole or not at all. Returns its
    size in bytes. Raises `BadArgument` if it cannot be written."""
    page = render(document).encode()
    put(Path(path), page)
    return len(page)


def render(document: Mapping[str, Any]) -> str:
    """The page. Its content security policy forbids scripts and fetching anything."""
    sections = "\n".join(_lesson(name, one) for name, one in document["lessons"].items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Tilewright: learned selection</title>
<style>
{part("page.css")}</style>
</head>
<body>
<header><h1>Learned selection</h1>
<p>The speed of the kernel chosen, in percent of the fastest kernel measured.
{said(document["how"])}</p></header>
<main>
{sections}
</main>
</body>
</html>
"""


def _lesson(name: str, one: Mapping[str, Any]) -> str:
    rows = [[WAYS[way], *(f"{one[way][f]:.1f}" for f in FIGURES)] for way in WAYS]
    groups = [
        table(
            (title, "problems", "candidates", *(f"{way}: {f}" for way in WAYS for f in SHORT)),
            [
                [
                    word, str(g["problems"]), f"{g['candidates']:.0f}",
                    *(f"{g[way][f]:.1f}" for way in WAYS for f in SHORT),
                ]
                for word, g in one[key].items()
            ],
        )
        for key, title in (
            ("by_kind", "kind"), ("by_pipeline", "best pipeline"), ("by_candidates", "kernels"),
        )
    ]  # fmt: skip
    learned_from = f" It learned from {one['seen']} of these problems." if one.get("seen") else ""
    silent = ", ".join(f"{count}: {why}" for why, count in one["silent"].items()) or "never"
    worst = [
        [w["problem"], w["kind"], f"{w['estimate']:.1f}", f"{w['served']:.1f}", w["chosen"]]
        for w in one["worst"]
    ]
    shares = [[feature, f"{100 * s:.1f}"] for feature, s in one.get("importance", {}).items()]
    return f"""<section>
<h2>{said(name)}</h2>
<p>{one["problems"]} problems, {one["candidates"]} candidates of each on average; the model chose in
{one["spoke"]}. It said nothing: {said(silent)}.{learned_from}</p>
{table(("choice", *FIGURES), rows)}
<h3>Every problem, the worst first</h3>
{_curves(one["curves"])}
<h3>By kind of problem, pipeline of the best kernel, and number of kernels measured</h3>
{"".join(groups)}
<h3>Where it loses most</h3>
{table(("problem", "kind", "estimate", "served", "chosen"), worst)}
{_asked(shares)}</section>"""


def _asked(shares: Sequence[Sequence[str]]) -> str:
    """Models of folds, which differ, have none."""
    if not shares:
        return ""
    return f"""<h3>What it asks about</h3>
<p>The share of what all questions about a feature brought in training.</p>
{table(("feature", "%"), shares)}
"""


SHORT = ("mean", "p10", "least")


def _curves(curves: Mapping[str, Sequence[float]]) -> str:
    """Sorted shares of the best kernel's speed as lines."""
    colours = {"estimate": "#c60", "served": "#06c"}
    lines = []
    for way, shares in curves.items():
        last = max(1, len(shares) - 1)
        heights = (max(0.0, share - LEAST_SHOWN) / (1 - LEAST_SHOWN) for share in shares)
        points = " ".join(
            f"{WIDTH * n / last:.1f},{HEIGHT * (1 - height):.1f}"
            for n, height in enumerate(heights)
        )
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{colours[way]}" stroke-width="2"/>'
        )
    legend = ", ".join(
        f'<span style="color:{colours[way]}">{said(WAYS[way])}</span>' for way in curves
    )
    return (
        f"<p>From {100 * LEAST_SHOWN:.0f} to 100 % of the best kernel's speed: {legend}.</p>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="Speed of the kernel chosen, by problem">{"".join(lines)}</svg>'
    )
