"""Samples of torch's own products through our operations: nothing is wrong in silence, and hardly
anything is refused."""

from __future__ import annotations

from collections import Counter

import pytest

import selection

torch = pytest.importorskip("torch")

from torch_samples import ADAPTERS, ROOMS, judged  # noqa: E402

SHARE = 0.95
"""Of all samples, that are right; the others are refused by a typed error."""


EACH = 60
"""Of so many samples one is tried in every dtype, by the short suite in one;
`torch_samples.py` as a program tries all."""


def _judged(names, kinds, each=1) -> Counter[str]:
    found: Counter[str] = Counter()
    reasons = []
    for kind in kinds:
        for name in names:
            count, whys = judged(name, kind, each)
            found += count
            reasons += whys
    bad = [why for why in reasons if not why.startswith("refused")]
    assert not bad and found.keys() <= {"right", "refused"}, bad
    print(*reasons, sep="\n")
    return found


@pytest.mark.turns(12)
def test_samples_of_products_and_attention():
    names = [name for name in ADAPTERS if "conv" not in name]
    found = _judged(names, [torch.float32], 1 if selection.everything() else 5)
    assert found["right"] >= SHARE * found.total()


@pytest.mark.turns(32)
def test_a_share_of_all_samples_in_every_dtype():
    found = _judged(ADAPTERS, selection.some([*ROOMS], 1), EACH)
    assert found["right"] >= SHARE * found.total()
