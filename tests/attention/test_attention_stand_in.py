"""Which of torch's calls answers while a kernel of attention is being built."""

from __future__ import annotations

import pytest

from tilewright import ops
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention import vendor as forward
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.attention_backward import vendor as backward

CALLS = {
    "attention": (forward.FLASH, forward.CUDNN),
    "attention_backward": (backward.FLASH, backward.CUDNN),
}
PROBLEMS = {"attention": AttentionProblem, "attention_backward": AttentionBackwardProblem}


@pytest.mark.parametrize("op", CALLS)
def test_the_one_that_builds_nothing_is_first(op):
    both = PROBLEMS[op](2, 4, 128, 128, 64)
    unequal = PROBLEMS[op](2, 4, 128, 128, 64, head_dim_v=128)
    family, (flash, cudnn) = ops.family(op), CALLS[op]
    assert [*family.stand_in(both)] == [flash, cudnn]
    assert [*family.stand_in(unequal)] == [cudnn]
    assert {*family.stand_in(both)} == {*family.vendor(both)}
