"""What `learn` answers, as tables: figures of models, where they lose, what to measure next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.cli import output
from tilewright.wording import many

SHOWN = 10
"""Rows of what is listed by worth: features, problems that lose most."""


def data(document: Mapping[str, Any]) -> None:
    """What `data` packed."""
    size = output.size(document["bytes"])
    output.line(f"{document['out']}: {document['cells']} measurements, {size}")


def models(document: Mapping[str, Any]) -> None:
    """What `explain` says of each model."""
    for one in document["models"]:
        output.heading(one["class"])
        output.fields(
            {
                "measured on": ", ".join(one["devices"]),
                "problems": f"{one.get('problems', '?')}, {one.get('cells', '?')} measurements",
                "trees": f"{one['trees']}, over {one['features']} features",
                "least gain": f"{one['least_gain']:.3f}",
                "silent on": ", ".join(one["silent_kinds"]) or "no kind",
            }
        )
        if one["stale"]:
            output.line(f"not used: {one['stale']}")
        if "judged" in one:
            _figures(one["judged"])
        else:
            output.line("it was not judged on problems that training did not see")
        rows = [(name, f"{100 * s:.1f}") for name, s in one["importance"].items()][:SHOWN]
        output.table(("asks about", "%"), rows)
        _worst(one.get("worst", ()))


def compared(document: Mapping[str, Any]) -> None:
    """The estimate and models on the same measurements."""
    from tilewright.learn.judge import FIGURES

    rows: list[tuple[Any, ...]] = []
    for one in document["compared"]:
        if ("estimate", one["class"]) not in {row[:2] for row in rows}:
            figures = (f"{one['estimate'][f]:.1f}" for f in FIGURES)
            rows.append(("estimate", one["class"], *figures, ""))
        figures = (f"{one['served'][f]:.1f}" for f in FIGURES)
        rows.append((one["model"], one["class"], *figures, one["spoke"]))
    output.table(("model", "class", *FIGURES, "spoke"), rows)
    for one in document["compared"]:
        _seen(one, f"{one['model']}, {one['class']}: ")
    for path, lessons in document["left_out"].items():
        output.line(f"{path} has no model of {', '.join(lessons)}")


def suggested(document: Mapping[str, Any]) -> None:
    """Problems to measure next, and those that no model can judge."""
    rows = [
        (f"{one['worth']:.4g}", one["count"], f"{one['gain']:.1%}", one["problem"])
        for one in document["suggested"]
    ]
    output.table(("worth", "calls", "gain", "problem"), rows)
    for why, count in document["unknown"].items():
        output.line(f"{many(count, 'problem')}: {why}")


def judged(document: Mapping[str, Any]) -> None:
    """What `train` and `evaluate` found, by class."""
    output.line(document["how"])
    for lesson, one in document["lessons"].items():
        output.heading(lesson)
        _figures(one)
        _seen(one)
        _worst(one["worst"])
    for lesson, why in document["left_out"].items():
        output.line(f"left out: {lesson}: {why}")
    for name in ("out", "page"):
        if name in document:
            output.line(f"wrote {document[name]}")


def _figures(one: Mapping[str, Any]) -> None:
    from tilewright.learn.judge import FIGURES

    rows: list[tuple[Any, ...]] = []
    groups = {"all": one, **one["by_kind"]}
    counts = one.get("by_candidates", {})  # models of earlier versions say nothing of it
    groups |= {f"candidates: {name}": group for name, group in counts.items()}
    groups |= {f"best: {name}": group for name, group in one["by_pipeline"].items()}
    for name, group in groups.items():
        for way in ("estimate", "served"):
            figures = (f"{group[way][f]:.1f}" for f in FIGURES)
            of = (group["problems"], f"{group['candidates']:.0f}")
            rows.append((name, *of, way, *figures))
    output.table(("problems of", "count", "candidates", "choice", *FIGURES), rows)
    output.line(f"the model chose for {one['spoke']} problems")
    for why, count in one["silent"].items():
        output.line(f"it said nothing about {count}: {why}")


def _seen(one: Mapping[str, Any], whose: str = "") -> None:
    if count := one.get("seen", 0):
        of = f"{count} of these {one['problems']} problems"
        output.line(f"{whose}it learned from {of}, so the figures flatter it")


def _worst(worst: Sequence[Mapping[str, Any]]) -> None:
    """Problems on which the fastest kernel is not chosen."""
    lost = [w for w in worst if w["served"] < 100][:SHOWN]
    rows = [(f"{w['served']:.1f}", f"{w['estimate']:.1f}", w["problem"]) for w in lost]
    if rows:
        output.table(("served", "estimate", "loses most on"), rows)
