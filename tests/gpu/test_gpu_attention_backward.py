"""Attention's gradients on a GPU: the grid of `backward_parity`, real sizes, graphs, and runs that
repeat bit for bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from backward_parity import compute, grid  # noqa: E402
from gpu_arch import ARCH  # noqa: E402

from tilewright import arrays, verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.measure.contenders import results  # noqa: E402
from tilewright.ops import family  # noqa: E402
from tilewright.ops.attention_backward import AttentionBackwardProblem  # noqa: E402
from tilewright.select.constraints import Constraints  # noqa: E402

pytestmark = pytest.mark.gpu

GPU = "cuda:0"
DATA = arch(ARCH)
FAMILY = family("attention_backward")
GRID = grid()


def _cases():
    """Each problem of the grid with every kernel of its architecture's own, and one portable."""
    for number, p in enumerate(GRID):
        spaces = FAMILY.tuning_spaces(p, DATA)
        configs = dict.fromkeys(c for space in spaces for c in space.expand(DATA).configs)
        found = [c for c in configs if FAMILY.supports(c, p, DATA)]
        portable = [one for one in found if FAMILY.interpreted(one) == one]
        yield from ((one, p) for one in found if one not in portable)
        if portable:
            yield portable[number % len(portable)], p


CASES = [*_cases()]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_grid_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    wrong = compute(dispatcher, problem, number, GPU, kernel.name)
    assert not wrong, wrong


def real(**fields) -> AttentionBackwardProblem:
    sizes = {"batch": 2, "heads": 16, "q_len": 4096, "kv_len": 4096, "head_dim": 128, "kv_heads": 2}
    return AttentionBackwardProblem(**(sizes | fields))


PACKED = {"batch": 16, "total_q": 16384, "total_kv": 16384, "others": "packedq+packedkv"}
REAL = [
    *(real(head_dim=d, dtype=dtype, right=right)
      for d in (64, 128, 256) for dtype in ("bf16", "fp16") for right in (None, 0)),
    real(q_len=4224, kv_len=4224, right=0, kv_heads=16),
    real(q_len=1023, kv_len=4224, right=0, corner="top_left"),
    real(head_dim=192, head_dim_v=128, right=0),
    real(left=1024, right=0, others="sinks", grads="dq+dk+dv+dsinks"),
    real(softcap=50.0, right=0),
    real(others="alibi", right=0, grads="dq+dk+dv+dslopes"),
    real(q_len=2048, kv_len=2048, bias_shape=(1, 16), grads="dq+dk+dv+dbias"),
    real(q_len=1023, kv_len=2048, head_dim=64, bias_shape=(2, 1), right=0, grads="dq+dk+dv+dbias"),
    real(dropout=0.125, right=0),
    real(right=0, **PACKED),
    real(right=0, accumulate=True),
    real(right=0, blocks_shape=(1, 16), block_size=128, density=0.25),
    real(head_dim=64, blocks_shape=(2, 1), block_size=64, left=1000, right=0),
]  # fmt: skip


@pytest.mark.parametrize("problem", REAL, ids=str)
def test_real_sizes_are_right(dispatcher, problem):
    result = verify.verify(dispatcher, problem, device=GPU)
    assert result.ok, result


GRAPHS = [
    real(q_len=500, kv_len=500, batch=6, total_q=1500, total_kv=1500, right=0,
         others="packedq+packedkv"),
    real(q_len=300, kv_len=300, batch=6, others="usedq+usedkv"),
    real(q_len=300, kv_len=300, dropout=0.25),
]  # fmt: skip


@pytest.mark.parametrize("problem", GRAPHS, ids=str)
def test_a_graph_is_replayed_with_other_lengths_and_values(dispatcher, problem):
    operands = verify.operands_of(problem, 0, GPU)
    config = dispatcher.select(problem).config
    verify.run(dispatcher, problem, operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        verify.run(dispatcher, problem, operands)
    for seed in (1, 2, 3):
        fresh = verify.operands_of(problem, seed, GPU)
        given = {name: operands.inputs[name] for name in FAMILY.scalars}
        for name, x in fresh.inputs.items():
            if name not in given:
                arrays.overwrite(operands.inputs[name], x)
        for output in operands.outputs.values():
            arrays.poison(output)
        graph.replay()
        wanted = verify.reference(problem, fresh.inputs | given)
        check = verify.compare_all(problem, config, operands.written(problem), wanted)
        assert check.ok, f"seed {seed}: {check}"


RUNS = 1000


@pytest.mark.parametrize("fields", [{}, {"right": 0}, PACKED | {"right": 0}], ids=str)
@pytest.mark.parametrize("said", ["problem", "constraint"])
def test_deterministic_gradients_have_the_same_bits_in_every_run(fields, said):
    by = Constraints(deterministic=said == "constraint")
    problem = real(q_len=2048, kv_len=2048, deterministic=said == "problem", **fields)
    dispatcher = Dispatcher(constraints=by)
    operands = verify.operands_of(problem, 0, GPU)
    first = None
    for _ in range(RUNS):
        verify.reset(operands, {})
        verify.run(dispatcher, problem, operands)
        seen = [x.contiguous().view(torch.uint8) for x in operands.outputs.values()]
        if first is None:
            first = [x.clone() for x in seen]
        assert all(map(torch.equal, first, seen))


VENDOR = [p for p in (*GRID, *REAL) if FAMILY.vendor(p)]


@pytest.mark.skipif(not ARCH.startswith("sm_"), reason="cuDNN is NVIDIA's")
@pytest.mark.parametrize("number", range(len(VENDOR)))
def test_what_torch_computes_is_right(number):
    problem = VENDOR[number]
    operands = verify.operands_of(problem, number, GPU)
    wanted = verify.reference(problem, operands.inputs)
    for name, bind in FAMILY.vendor(problem).items():
        returned = bind(operands.inputs, operands.outputs)()
        check = verify.compare_all(problem, None, results(problem, operands, returned), wanted)
        assert check.ok, f"{name}: {check}"
