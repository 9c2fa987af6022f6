"""Samples of torch's own products through our functions: nothing is wrong in silence, and nothing
is refused."""

from __future__ import annotations

from collections import Counter

import pytest

import selection

torch = pytest.importorskip("torch")

from torch_samples import ADAPTERS, ROOMS, judged  # noqa: E402

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
    assert not reasons and found.keys() == {"right"}
    return found


@pytest.mark.turns(24)
def test_samples_of_products_and_attention():
    names = [name for name in ADAPTERS if "conv" not in name]
    _judged(names, [torch.float32], 1 if selection.everything() else 5)


@pytest.mark.turns(64)
def test_a_share_of_all_samples_in_every_dtype():
    _judged(ADAPTERS, selection.some([*ROOMS], 1), EACH)
