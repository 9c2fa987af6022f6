"""What the shipped models choose, against what the estimate alone would: sizes, layers and problems
of attention that no model was trained on and that nothing was tuned for. Of the sizes with N and K
of models, the models learned from two, and from other M of nearly all. Of each draw every third
to sixth problem is taken, in its order (`EACH`): so all cases end in two minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import rivals
from cases import Case, Part
from cases.attention_unseen import whole
from cases.conv import WORDS, fresh
from cases.gemm_unseen import fp8_rows, pooled
from tilewright.ops.gemm import GemmProblem

EACH = {"gemm": 4, "gemm-between": 6, "gemm-fp8": 4, "conv": 4, "attention": 3}
"""One problem of so many is taken."""
ORDINALS = {3: "third", 4: "fourth", 6: "sixth"}


def _case(
    name: str, says: str, problems: Callable[[], Sequence[Any]], parts: tuple[Part, ...] = ()
) -> Case:
    each = EACH[name]
    return Case(
        f"learned-{name}", f"{says}, every {ORDINALS[each]} of them, by the shipped models",
        rivals.ESTIMATED, lambda: problems()[::each],
        ours="learned", vendor=(rivals.estimated,), ways=("graphs",), parts=parts,
    )  # fmt: skip


def images() -> Sequence[Any]:
    """Layers of the kind that the models learned from."""
    return [p for p in fresh() if len(p.spatial) == 2 and p.groups == 1]


DIRECTED = tuple(
    Part(direction, rivals.ESTIMATED, where=lambda p, direction=direction: p.direction == direction)
    for direction in WORDS
)
CASES = (
    _case("gemm", "bf16, sizes that nothing was tuned for", partial(pooled, GemmProblem)),
    _case(
        "gemm-between", "bf16, N and K of models and any M",
        partial(pooled, GemmProblem, of_models=True),
    ),
    _case(
        "gemm-fp8", "fp8 with a scale for each row and column, sizes that nothing was tuned for",
        partial(pooled, fp8_rows, multiples=(1, 16, 16)),
    ),
    _case(
        "conv", "bf16, layers of images without groups, drawn from further models", images,
        DIRECTED,
    ),
    _case("attention", "bf16, problems of 128 to 640 rows, drawn by chance", lambda: [*whole(1)]),
)  # fmt: skip
