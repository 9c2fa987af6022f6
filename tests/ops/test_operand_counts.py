"""One operand too many or too few is refused, by every family, before anything is launched."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import ops, verify
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.causal_conv import CausalConvProblem
from tilewright.ops.conv import ConvProblem
from tilewright.ops.gemm import GemmProblem
from tilewright.ops.grouped_gemm import GroupedGemmProblem
from tilewright.ops.merge_states import MergeStatesProblem
from tilewright.ops.nouns import Call, View

SCALED = {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}
PROBLEMS = (
    GemmProblem(64, 64, 64),
    GemmProblem(64, 64, 64, dtype_a="fp32", epilogue="bias+add"),
    GemmProblem(64, 64, 64, batch=3),
    GemmProblem(64, 64, 64, layout="rsr"),
    GemmProblem(64, 128, 256, **SCALED),
    GemmProblem(64, 64, 64, pre_a="add"),
    GemmProblem(64, 64, 128, dtype_b="int4", scale_b="128x1"),
    GroupedGemmProblem("contiguous", groups=4, m=64, n=64, k=64),
    GroupedGemmProblem("masked", groups=4, m=64, n=64, k=64, epilogue="bias"),
    GroupedGemmProblem("weights", groups=4, m=64, n=64, k=64, layout="crr", epilogue="bias"),
    GroupedGemmProblem("columns", groups=4, m=64, n=64, k=64),
    GroupedGemmProblem("list", sizes=((16, 64, 64), (7, 32, 64))),
    AttentionProblem(2, 4, 64, 96, 64),
    AttentionProblem(2, 4, 64, 96, 64, kv_heads=2, right=0, others="alibi+sinks"),
    AttentionBackwardProblem(2, 4, 64, 96, 64, kv_heads=2, others="sinks", grads="dq"),
    ConvProblem(2, 16, 32, (7, 9), (3, 3), pad=(1, 1), epilogue="bias+add"),
    ConvProblem(2, 16, 32, (7, 9), (3, 3), groups=2, direction="data"),
    ConvProblem(2, 16, 32, (7, 9), (3, 3), stride=(2, 2), direction="weights"),
    CausalConvProblem(2, 16, 9, extras="bias+silu+initial+final"),
    CausalConvProblem(2, 16, 9, direction="backward", extras="silu+packed"),
    CausalConvProblem(2, 16, 1, direction="update", extras="bias+indexed", cache_entries=5),
    MergeStatesProblem(3, 2, 16, states=4),
    MergeStatesProblem(3, 2, 16, form="pair"),
    MergeStatesProblem(3, 2, 16, form="in_place", masked=True),
)


def test_every_family_is_here():
    assert {p.family for p in PROBLEMS} == set(ops.with_a_folder())


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_one_operand_too_many_or_too_few_is_refused(problem):
    family = ops.family(problem.family)
    options = family.options(problem)
    views = {o: View(o.shape, o.strides, o.dtype, 256, "cpu") for o in family.operands(problem)}
    inputs = [view for o, view in views.items() if not o.keyword and o.role != "out"]
    outputs = tuple(view for o, view in views.items() if o.role == "out")
    named = {o.name: view for o, view in views.items() if o.keyword}
    call = Call(tuple(inputs), named, outputs, options)
    assert family.problem_of(call).family == problem.family
    few = list(range(len(inputs)))
    # Gradients may follow the operands, to be added to.
    full = [*inputs, *outputs] if problem.family == "attention_backward" else inputs
    more = outputs[0] if outputs else inputs[0]
    for wrong in ([*full, more], [*full, inputs[-1]], *(inputs[:count] for count in few)):
        for targets in (outputs, None):
            # Attention of two operands is latent, and has one head of keys.
            with pytest.raises(BadArgument, match=r"operands \(|no operands|latent .* one head"):
                family.problem_of(Call(tuple(wrong), named, targets, options))


@pytest.mark.parametrize("problem", PROBLEMS[1:9:4], ids=str)
def test_an_output_passed_by_position_is_not_written(problem):
    inputs, out = verify.make_operands(problem, seed=0, device="cpu")
    options = ops.family(problem.family).options(problem)
    before = np.array(out, copy=True)
    with pytest.raises(BadArgument, match="pass the output as out="):
        Dispatcher(device="h200_sxm").run(problem.family, *inputs, out, **options)
    assert np.array_equal(np.array(out), before, equal_nan=True)
