"""Every form of a layer that a GPU runs at random routings, in the interpreter."""

from __future__ import annotations

import pytest
from layer_forms import FORMS, SIZES, Layer
from many_routings import NEVER, drawn

import tilewright as tw
from tilewright import capturing


@pytest.mark.turns(24)
@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_right_and_its_plan_is_of_what_a_call_runs(tmp_path, name):
    layer = Layer(FORMS[name], 3, "cpu", seed=2)
    layer.poison(NEVER)
    (ids,) = drawn(1, 3, SIZES["experts"], SIZES["k"], "cpu", seed=5)
    with tw.capture(tmp_path / "met.jsonl"):
        y = layer.run(ids)
    assert 0 < layer.error(y, ids) < layer.limit
    assert {*capturing.load(tmp_path / "met.jsonl")} == {*FORMS[name].plan(3).problems}
