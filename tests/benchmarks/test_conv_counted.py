"""The rule for cuDNN's first engine is what its record gives, and holds elsewhere."""

from __future__ import annotations

import pytest

import conv_counted
from tilewright.ops.conv import engine_record


@pytest.mark.turns(8)
def test_the_rule_is_what_the_record_gives():
    assert conv_counted.DRAW.counted(conv_counted.DRAW.as_chosen(0)) == engine_record.RECORD


def test_it_holds_where_nothing_was_counted():
    known = {one.of for one in engine_record.RECORD}
    rows = [row for row in conv_counted.DRAW.timed(1) if engine_record.class_of(row[0]) in known]
    assert len(rows) >= len(known) and all(first < ours for _, ours, first, _ in rows)
