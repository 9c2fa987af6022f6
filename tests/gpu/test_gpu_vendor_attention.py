"""Engines of the vendor's library for attention on a GPU: each is right, in graphs too, whatever
sizes came before it, and is chosen by a tuned table."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from gpu_arch import ARCH  # noqa: E402

from tilewright import Constraints, verify  # noqa: E402
from tilewright.arch.detect import live_device  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.measure.algorithms import offered  # noqa: E402
from tilewright.measure.contenders import kernel_bind, results  # noqa: E402
from tilewright.measure.devices import gpus  # noqa: E402
from tilewright.measure.sweep import Group  # noqa: E402
from tilewright.ops.attention import AttentionProblem  # noqa: E402
from tilewright.ops.attention_backward import AttentionBackwardProblem  # noqa: E402
from tilewright.ops.library import library_of  # noqa: E402
from tilewright.tables.row import Row  # noqa: E402
from tilewright.tables.table import Table  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ARCH.startswith("sm_"), reason="cuDNN is NVIDIA's"),
]

DENSE = AttentionProblem(3, 8, 200, 200, 128, kv_heads=2)
TOP_LEFT = replace(DENSE, right=0, corner="top_left")
PROBLEMS = [
    DENSE,
    TOP_LEFT,
    replace(TOP_LEFT, q_len=300),
    replace(DENSE, right=0, q_len=77, kv_len=401, others="lse"),
    replace(DENSE, dtype="fp16", dtype_kv="", dtype_o="", layout="bhsd", others="lse"),
    replace(TOP_LEFT, head_dim=64, head_dim_v=64, kv_layout="bhsd"),
    replace(DENSE, q_len=1, kv_len=513),
    AttentionBackwardProblem(3, 8, 200, 200, 128, kv_heads=2),
    AttentionBackwardProblem(2, 8, 77, 197, 64, right=0, layout="bhsd", kv_layout="bhsd"),
]


@pytest.fixture(scope="module")
def offers():
    """What the library offers for each problem, asked as a tuning asks."""
    place = gpus()[0]
    return offered(Group(place.device, place.environment, place=place), PROBLEMS, 2)


def checked(dispatcher, config, problem, scale=1.0):
    """How a call compares with the reference, and what makes the call.

    scale: over the usual one.
    """
    operands = verify.operands_of(problem, 0, "cuda:0")
    operands.inputs["scale"] *= scale
    wanted = verify.reference(problem, operands.inputs)
    call = kernel_bind(dispatcher, config.name, problem)(operands.inputs, operands.outputs)
    written = results(problem, operands, call())
    torch.cuda.synchronize()
    return verify.compare_all(problem, config, written, wanted), call, operands, wanted


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_engines_offered_are_right_and_captured_in_graphs(offers, problem):
    engines = offers[problem].configs
    print(*(config.name for config in engines), offers[problem].reason, sep="\n")
    assert engines and all(map(library_of, engines))
    for config in engines:
        check, call, operands, wanted = checked(Dispatcher(), config, problem)
        assert check.ok, f"{config.name}: {check}"
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        verify.reset(operands, {})
        graph.replay()
        torch.cuda.synchronize()
        again = verify.compare_all(problem, config, operands.written(problem), wanted)
        assert again.ok, f"{config.name}: {again}"


@pytest.mark.parametrize("scale", [0.25, 3.0])
def test_a_scale_is_of_its_call(offers, scale):
    for config in offers[DENSE].configs:
        check, *_ = checked(Dispatcher(), config, DENSE, scale)
        assert check.ok, f"{config.name}: {check}"


def test_a_tuned_table_dispatches_to_an_engine_and_only_ours_leaves_it_out(offers):
    config = offers[DENSE].configs[0]
    table = Table.of([Row(live_device(0), DENSE, config.name, (), 10.0, (9.9, 10.1), 0.5)], "m.twt")
    for constraints, chosen in ((Constraints(), True), (Constraints(only_ours=True), False)):
        dispatcher = Dispatcher(tables=table, constraints=constraints)
        plan = dispatcher.select(DENSE)
        assert (plan.config == config) == chosen
        for scale in (1.0, -1.0, 0.0):  # of the last two another kernel's results
            operands = verify.operands_of(DENSE, 0, "cuda:0")
            operands.inputs["scale"] *= scale
            wanted = verify.reference(DENSE, operands.inputs)
            q, k, v = (operands.inputs[name] for name in "qkv")
            o = dispatcher.run("attention", q, k, v, scale=operands.inputs["scale"])
            assert verify.compare_all(DENSE, plan.config, {"o": o}, wanted).ok
