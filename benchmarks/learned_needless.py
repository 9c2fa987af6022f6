"""Which figures of the estimate models make needless: `learned_methods.py figures` says how."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from learned_records import DATA, JUDGED, record, recorded, shown

NEEDLESS = 0.1
FEW_FOLDS, FEW_TREES = 3, 60
"""Of the models for each figure, of which there are many."""
FILES = ("device", "gemm", "conv", "attention")
FOUND = ("fitted", "read off", "guess", "unknown")
NEUTRAL = {"": 1.0, "µs": 0.0, "clocks": 0.0, "instructions": 0.0}


def without(figures: Sequence[str], blocks: Any, known: Sequence[str]) -> dict[str, Any]:
    """What estimate and models are worth without some figures (``gemm:SHORT_US``).

    known: digests of estimates that nothing is worked out of.
    """
    from tilewright.arch import figures as module
    from tilewright.learn import judge
    from tilewright.learn.train import Sheet

    for one in figures:
        file, _, name = one.partition(":")
        module.figures(file).__dict__[name] = NEUTRAL[module.stated(file)[name].unit]
    found = {}
    for lesson, listed in blocks.items():
        some = [Sheet(block) for block in listed]
        digest = hashlib.sha256(b"".join(s.described.us.tobytes() for s in some)).hexdigest()
        if digest in known:
            continue
        judged = judge.crossed(some, lesson, FEW_FOLDS, FEW_TREES)
        told = judge.report(judged.verdicts, judged.guards)
        found[lesson] = {
            "estimates": digest,
            **{word: shown(told[word]) for word in JUDGED},
        }
    return found


def apart(figures: Sequence[str], blocks: Any, known: Sequence[str] = ()) -> dict[str, Any] | str:
    """`without`, in a process of its own, which keeps nothing that was worked out before; or the
    error."""
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        try:
            return pool.submit(without, figures, blocks, known).result()
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def figures(files: Sequence[str]) -> None:
    from tilewright.arch.figures import stated
    from tilewright.learn import matrix

    names = [
        f"{file}:{name}"
        for file in files
        for name, one in stated(file).items()
        if one.found in FOUND and one.unit in NEUTRAL and not isinstance(one.value, dict)
    ]
    blocks = matrix.by_lesson(matrix.blocks(matrix.read([DATA])))
    result = recorded().get("figures", {})
    if "whole" not in result:
        result["whole"] = apart([], blocks)
    whole, moved = result["whole"], result.setdefault("without each", {})
    for name in names:
        if name in moved:
            continue
        moved[name] = apart([name], blocks, [one["estimates"] for one in whole.values()])
        print(name, json.dumps(moved[name]), flush=True)
        record("figures", result)
    needless = [
        name
        for name, found in moved.items()
        if isinstance(found, dict)
        and found
        and all(
            one["learned"][0] > whole[lesson]["learned"][0] - NEEDLESS
            for lesson, one in found.items()
        )
    ]
    worse = {
        name: {
            lesson: [whole[lesson]["estimate"][0], one["estimate"][0]]
            for lesson, one in moved[name].items()
            if one["estimate"][0] < whole[lesson]["estimate"][0]
        }
        for name in needless
    }
    result |= {
        "needless": needless, "worse alone": worse, "without them": apart(needless, blocks)
    }  # fmt: skip
    record("figures", result)
