"""Convolutions, channels-last on both sides, in all three directions."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import rivals
from cases import Case, Part
from comparison import BY_ESTIMATE
from tilewright.arch import arch
from tilewright.measure.problems import load_problems
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.geometry import channels_first

Problems = Iterator[ConvProblem]


def same(n: int, c: int, size: int, k: int, taps: int = 3, **more: Any) -> ConvProblem:
    """A square image, and padding that keeps its size."""
    pad = (taps // 2,) * 2
    return ConvProblem(n, c, k, (size, size), (taps, taps), pad=pad, **more)


def dense() -> Problems:
    for n, c, size, k in (
        (8, 640, 32, 640), (64, 256, 16, 256), (32, 256, 56, 256), (1, 128, 512, 128),
        (8, 320, 64, 320), (16, 512, 32, 512), (64, 64, 56, 64),
    ):  # fmt: skip
        yield same(n, c, size, k)
    yield same(32, 256, 56, 512, stride=(2, 2))
    yield same(32, 256, 56, 64, taps=1)
    yield same(32, 256, 56, 512, taps=1, stride=(2, 2))


def grouped() -> Problems:
    """Layers of ResNeXt and RegNet with groups of 8, 16, 4, 32 and, with a stride, 16 and 8."""
    yield same(32, 256, 56, 256, groups=32)
    yield same(32, 512, 28, 512, groups=32)
    yield same(64, 128, 56, 128, groups=32)
    yield same(64, 1024, 14, 1024, groups=32)
    yield same(32, 512, 56, 512, groups=32, stride=(2, 2))
    yield same(64, 256, 56, 256, groups=32, stride=(2, 2))


def depthwise() -> Problems:
    yield same(32, 256, 28, 256, groups=256)
    yield same(32, 96, 112, 96, groups=96, stride=(2, 2))
    yield same(32, 240, 28, 240, taps=5, groups=240)
    yield same(128, 96, 56, 96, taps=7, groups=96)


def stems() -> Problems:
    yield same(32, 3, 224, 64, taps=7, stride=(2, 2))
    yield ConvProblem(32, 3, 96, (224, 224), (4, 4), stride=(4, 4))
    yield same(32, 3, 224, 32, stride=(2, 2))
    yield same(32, 3, 224, 64)


def layers(count: int = 40, seed: int = 11) -> Problems:
    """Layers of models of `conv:full`, drawn by chance."""
    every = load_problems(["conv:full"], arch("sm_90")).problems
    yield from random.Random(seed).sample(every, count)


def turned(
    problems: Callable[[], Problems], directions: Iterable[str], dtype: str = "bf16"
) -> list[ConvProblem]:
    """The same layers in these directions."""
    return [
        replace(p, direction=direction, dtype=dtype, dtype_out="")
        for direction in directions
        for p in problems()
    ]


UNSEEN = Path(__file__).with_name("conv_unseen.csv")
"""Layers of models that no list or table has, as `draw_convolutions.py` drew them."""
FRESH = Path(__file__).with_name("conv_fresh.csv")
"""Layers of other models, of which nothing was counted or fitted."""


def unseen(half: int) -> Problems:
    """A half of the layers of `UNSEEN`, every other one, in two directions each. What is counted
    for choosing is counted from half 0; half 1 takes no part in it."""
    return drawn(UNSEEN, slice(half, None, 2))


def drawn(file: Path, which: slice) -> Problems:
    """Layers of a file, in two directions each."""
    for row in [*csv.DictReader(file.read_text().splitlines())][which]:
        sizes = {
            word: tuple(map(int, row[word].split("x")))
            for word in ("spatial", "filter", "stride", "pad", "dilation")
        }
        n, c, k, groups = (int(row[word]) for word in ("n", "c", "k", "groups"))
        p = ConvProblem(n, c, k, groups=groups, **sizes)
        if row["channels"] == "first":
            strides = {f"{name}_strides": channels_first(p.shape_of(name)) for name in "xwy"}
            p = replace(p, **strides)
        for direction in row["directions"].split():
            yield replace(p, direction=direction)


PREPARED = 36


def fresh() -> list[ConvProblem]:
    return [*dict.fromkeys(drawn(FRESH, slice(None)))]


def prepared() -> list[ConvProblem]:
    """Some layers of `FRESH`, drawn by chance: all would take an hour to measure."""
    return random.Random(17).sample(fresh(), PREPARED)


RECORD = Path(__file__).parents[1] / "results" / "conv_fresh_h200.json"
"""What a run of all of `FRESH` took by the estimate."""
BEHIND = 0.97
"""Of the library's speed; what is slower is behind it by more than noise."""


def behind() -> list[ConvProblem]:
    """The layers of `FRESH` that were behind the library in `RECORD`."""
    taken = json.loads(RECORD.read_text())["conv-fresh"]
    return [p for p in fresh() if taken[str(p)]["ratio with the library"] < BEHIND]


CUDNN = "cuDNN, the fastest of all its algorithms"
SETS: dict[str, tuple[str, Callable[[], Problems]]] = {
    "dense": ("ten layers of 64 and more channels, 3×3 and 1×1", dense),
    "grouped": ("six layers of 3×3 in groups of 4 to 32 channels", grouped),
    "depthwise": ("four depthwise layers, 3×3, 5×5 and 7×7", depthwise),
    "stems": ("four layers of 3 channels", stems),
}
WORDS = {"forward": "forward", "data": "gradient of the data", "weights": "gradient of the weights"}
DIRECTED = tuple(
    Part(direction, CUDNN, where=lambda p, direction=direction: p.direction == direction)
    for direction in WORDS
)

LAST, FIRST = "channels-last", "channels-first"


def layout(p: ConvProblem) -> str:
    """How images lie."""
    return FIRST if p.x_strides and p.x_strides[-1] == 1 != p.x_strides[1] else LAST


KINDS = (
    Part("1d", CUDNN, where=lambda p: len(p.spatial) == 1),
    Part("2d-last", CUDNN, where=lambda p: len(p.spatial) > 1 and layout(p) == LAST),
    Part("2d-first", CUDNN, where=lambda p: len(p.spatial) > 1 and layout(p) == FIRST),
)


BY_ESTIMATE_PART = Part("by-estimate", CUDNN, named=BY_ESTIMATE)
"""What the estimate chooses for the problems of a prepared case."""

CASES = (
    *(
        Case(
            f"conv-{name}-{direction}", f"bf16, {says}, {words}", CUDNN,
            partial(turned, problems, [direction]), library=True,
        )
        for name, (says, problems) in SETS.items()
        for direction, words in WORDS.items()
    ),
    Case(
        "conv-layers", "bf16, 40 layers of models, drawn by chance, in all directions, by what is "
        "chosen", CUDNN, partial(turned, layers, WORDS), ours="answered", parts=DIRECTED,
    ),
    Case(
        "conv-layers-fp16", "the same in fp16", CUDNN, partial(turned, layers, WORDS, "fp16"),
        ours="answered", parts=DIRECTED,
    ),
    Case(
        "conv-layers-default", "the same in bf16, by the estimate without the shipped tables",
        CUDNN, partial(turned, layers, WORDS), ours="estimated", parts=DIRECTED,
    ),
    *(
        Case(
            f"conv-unseen{name}", f"bf16, layers drawn from models that nothing was tuned for, "
            f"{says}, channels-last and channels-first, by the estimate", CUDNN,
            lambda half=half: list(unseen(half)), ours="estimated",
            vendor=(rivals.torch_calls, rivals.first_engine), parts=KINDS,
        )
        for half, name, says in (
            (0, "-counted", "those that the rule for cuDNN is counted from"),
            (1, "", "those that no rule is counted from"),
        )
    ),
    Case(
        "conv-fresh", "bf16, layers drawn from further models, of which nothing was counted or "
        "fitted, channels-last and channels-first, by the estimate", CUDNN,
        fresh, ours="estimated",
        vendor=(rivals.torch_calls, rivals.first_engine), parts=KINDS, ways=("graphs",),
    ),
    Case(
        "conv-fresh-prepared", f"{PREPARED} layers of that draw, drawn by chance, as prepared by "
        "measuring a few candidates, and by the estimate", CUDNN, prepared, ours="prepared",
        vendor=(rivals.torch_calls, rivals.first_engine), parts=(*KINDS, BY_ESTIMATE_PART),
        ways=("graphs",),
    ),
    Case(
        "conv-fresh-behind", "the layers of that draw that were behind the library in a run by the "
        "estimate, as prepared by measuring a few candidates, and by the estimate", CUDNN, behind,
        ours="prepared", vendor=(rivals.torch_calls, rivals.first_engine),
        parts=(*KINDS, BY_ESTIMATE_PART), ways=("graphs",),
    ),
    *(
        Case(
            f"conv-first{name}", "bf16, the channels-first layers of that draw, by the estimate, "
            f"{says}", CUDNN, lambda half=half: [p for p in unseen(half) if layout(p) == FIRST],
            ours="estimated", vendor=(rivals.torch_calls, rivals.first_engine), ways=("graphs",),
        )
        for half, name, says in (
            (0, "-counted", "those that the rule for cuDNN is counted from"),
            (1, "", "those that no rule is counted from"),
        )
    ),
)  # fmt: skip
