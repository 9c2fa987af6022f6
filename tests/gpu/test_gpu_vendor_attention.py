"""Engines of the vendor's library for attention on a GPU: each is right, in graphs too, whatever
sizes came before it, and is chosen by a tuned table."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from gpu_arch import ARCH  # noqa: E402
from vendor_cases import Case, asked, check_in_a_graph, dispatchers  # noqa: E402

from tilewright import Constraints  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.arch.detect import live_device  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.ops.attention import FAMILY, AttentionProblem  # noqa: E402
from tilewright.ops.attention.engine_record import MANY  # noqa: E402
from tilewright.ops.attention_backward import AttentionBackwardProblem  # noqa: E402
from tilewright.ops.library import library_of  # noqa: E402

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
FP8 = AttentionProblem(
    3, 8, 200, 200, 128, kv_heads=2, dtype="e4m3fn", dtype_o="e4m3fn", others="tscale"
)
IN_FP8 = [
    FP8,
    replace(FP8, right=0, others="lse+tscale"),
    replace(FP8, right=0, corner="top_left", q_len=300, others=""),
    replace(FP8, head_dim=64, head_dim_v=64, layout="bhsd", kv_layout="bhsd"),
    replace(FP8, dtype="e5m2", dtype_kv="", dtype_o="e5m2"),
    replace(FP8, kv_len=2000),
    replace(FP8, dtype_o="bf16"),
]
PROBLEMS += [p for p in IN_FP8 if FAMILY.library_query(p, arch(ARCH), "cudnn9")]


@pytest.fixture(scope="module")
def offers():
    return asked(PROBLEMS, 2)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_engines_offered_are_right_and_captured_in_graphs(offers, problem):
    engines = offers[problem].configs
    print(*(config.name for config in engines), offers[problem].reason, sep="\n")
    assert engines and all(map(library_of, engines))
    for config in engines:
        case = Case(problem)
        check = case.check(config)
        assert check.ok, f"{config.name}: {check}"
        check_in_a_graph(case, config, warm=True)


@pytest.mark.parametrize("scale", [0.25, 3.0])
def test_a_scale_is_of_its_call(offers, scale):
    for config in offers[DENSE].configs:
        check = Case(DENSE, scale).check(config)
        assert check.ok, f"{config.name}: {check}"


def test_a_tuned_table_dispatches_to_an_engine_and_only_ours_leaves_it_out(offers):
    for dispatcher in dispatchers(DENSE, offers[DENSE].configs[0]):
        for scale in (1.0, -1.0, 0.0):  # of the last two another kernel's results
            case = Case(DENSE, scale)
            q, k, v, by = (case.operands.inputs[name] for name in ("q", "k", "v", "scale"))
            o = dispatcher.run("attention", q, k, v, scale=by)
            assert case.compared(dispatcher.select(DENSE).config, {"o": o}).ok


@pytest.mark.skipif(ARCH != "sm_90", reason="the record is of sm_90")
def test_untuned_an_engine_answers_short_sequences_in_large_batches():
    batch = -(-MANY * live_device(0).compute_units // 16)
    case = Case(AttentionProblem(batch, 16, 128, 128, 64, right=0))
    q, k, v, scale = (case.operands.inputs[name] for name in ("q", "k", "v", "scale"))
    for only_ours in (False, True):
        constraints = Constraints(only_ours=only_ours)
        dispatcher = Dispatcher(selector="analytical", constraints=constraints)
        o = dispatcher.run("attention", q, k, v, causal=True, scale=scale)
        config = dispatcher.select(case.problem).config
        assert bool(library_of(config)) != only_ours
        assert case.compared(config, {"o": o}).ok
