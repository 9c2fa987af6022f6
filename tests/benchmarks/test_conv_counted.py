"""The rule for cuDNN's first engine is what its record gives, and helps elsewhere."""

from __future__ import annotations

import conv_counted
from tilewright.ops.conv import engine_record


def test_the_rule_is_what_the_record_gives():
    assert conv_counted.counted(conv_counted.timed(0)) == engine_record.RECORD


def test_it_is_better_where_nothing_was_counted():
    before, after = conv_counted.answered(conv_counted.timed(1))
    assert after.mean > 1.2 * before.mean and after.p10 > 1.5 * before.p10
    assert after.least >= before.least
