"""The rule for cuDNN's first engine of attention is what its record gives, and holds elsewhere."""

from __future__ import annotations

import attention_counted
from tilewright.ops.attention import engine_record

DRAW = attention_counted.DRAW


def test_the_rule_is_what_the_record_gives():
    assert DRAW.counted(DRAW.timed(0)) == engine_record.RECORD


def test_it_holds_where_nothing_was_counted():
    known = {one.of for one in engine_record.RECORD}
    rows = [row for row in DRAW.timed(1) if DRAW.class_of(row[0]) in known]
    assert {DRAW.class_of(row[0]) for row in rows} == known
    assert all(first < ours for _, ours, first, _ in rows)
