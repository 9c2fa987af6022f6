"""A model made by hand: kernels of one pipeline are taken to be faster than they are estimated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from tilewright.arch.model import Device
from tilewright.select.features import Described
from tilewright.select.model import Feature, Model
from tilewright.select.probes import taken
from tilewright.select.trees import LEAF, Trees, joined


def planted(
    problems: Iterable[Any],
    configs: Sequence[Any],
    device: Device,
    pipeline: str,
    gain: float = 0.5,
    **more: Any,
) -> Model:
    """A model that saw these problems and configs, and that takes kernels of `pipeline` to be
    faster by the logarithm `gain` than the others."""
    described = [Described(problem, configs, device) for problem in problems]
    problem = described[0].problem
    words: dict[str, set[str]] = {"config.pipeline": {c.pipeline for c in configs}}
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    for one in described:
        for f in fields(one.problem):
            value, name = one.column(f"problem.{f.name}"), f"problem.{f.name}"
            if isinstance(value, str):
                words.setdefault(name, set()).add(value)
            elif value is not None:
                low[name] = min(low.get(name, value), value)
                high[name] = max(high.get(name, value), value)
    features = [Feature(name, tuple(sorted(said))) for name, said in words.items()]
    features += [Feature(name, (), float(low[name]), float(high[name])) for name in low]
    code = features[0].words.index(pipeline)
    # below code, at it, above it; two alike, whose halves agree
    tree = Trees(
        feature=(0, LEAF, 0, LEAF, LEAF),
        threshold=(code - 0.5, 0.0, code + 0.5, -gain / 2, 0.0),
        left=(1, 0, 3, 0, 0),
        right=(2, 0, 4, 0, 0),
        roots=(0,),
    )
    from tilewright import ops

    said: dict[str, Any] = {
        "lesson": ops.family(problem.family).lesson(problem),
        "family": problem.family,
        "archs": (device.arch,),
        "devices": (device.name,),
        "versions": {"tilewright": "0.1.0"},
        "features": tuple(features),
        "trees": joined([tree, tree]),
        "least_gain": 0.01,
    }
    model = Model(**{**said, "probes": (), **more})
    return replace(model, probes=taken(described, model.answers))
