"""Edits of the text that one of the compiler's stages made, before the next stage reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.compile import clusters, preloading, setup

Edit = Callable[[str], str]


def hook(backend: str, target: str, cluster: int) -> Callable[..., Any]:
    """What ``triton.knobs.runtime.add_stages_inspection_hook`` shall be for a kernel: it has the
    edits follow the stages that make the text.

    target: the architecture, as Triton calls it. cluster: workgroups of a cluster.
    """
    edits: dict[str, list[Edit]] = {}
    if words := preloading.WORDS.get(target):
        edits["llir"] = [lambda text: preloading.preloading_fewer(text, words)]
    if backend == "cuda":
        edits["ptx"] = [setup.barriers_together]
    if cluster > 1:
        edits["ptx"].append(lambda text: clusters.across_workgroups(text, cluster))

    def insert(*stage: Any) -> tuple[str, str] | None:
        if not stage:  # Triton asks what the hook adds to its cache's key; no cache is kept here
            return "", ""
        stages = stage[1]
        for name, listed in edits.items():
            stages[name] = _followed(stages[name], listed)
        return None

    return insert


def _followed(stage: Callable[[Any, Any], str], edits: list[Edit]) -> Callable[[Any, Any], str]:
    def both(source: Any, metadata: Any) -> str:
        text = stage(source, metadata)
        for edit in edits:
            text = edit(text)
        return text

    return both
