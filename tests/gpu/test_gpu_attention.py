"""Attention on a real GPU: the grid of the peers' tests on every pipeline that serves a problem,
real sizes, lengths that change between replays of a graph, and what torch computes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from attention_cases import ways  # noqa: E402
from gpu_arch import ARCH  # noqa: E402
from parity_cases import compute, grid, of_pipeline  # noqa: E402

from tilewright import arrays, verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.dtypes import resolve  # noqa: E402
from tilewright.measure.contenders import results  # noqa: E402
from tilewright.ops.attention import FAMILY, AttentionProblem  # noqa: E402
from tilewright.ops.attention.pipelines import PIPELINES  # noqa: E402

pytestmark = pytest.mark.gpu

GPU = "cuda:0"
DATA = arch(ARCH)
FP8 = resolve("fp8", DATA.fp8)
OWN = 24
"""Problems of each pipeline's own features."""
HAS_FP8 = DATA.dtypes[FP8].support != "refused"
GRID = grid(FP8 if HAS_FP8 else "")


def _cases():
    """Each problem of the grid with every kernel of its architecture's own, and one portable; and
    problems of the features that each pipeline of the architecture's own knows."""
    for number, p in enumerate(GRID):
        found = ways(p, DATA, interpreted=False)
        portable = [one for one in found if FAMILY.interpreted(one) == one]
        own = [one for one in found if one not in portable]
        yield from ((one, p) for one in own)
        if portable:
            yield portable[number % len(portable)], p
    for name, record in PIPELINES.items():
        if record.runs_on(DATA) and record.sibling != name:
            yield from of_pipeline(record, DATA, OWN)


CASES = [*_cases()]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_grid_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    wrong = compute(dispatcher, problem, number, GPU, kernel.name)
    assert not wrong, wrong


def real(**fields) -> AttentionProblem:
    sizes = {"batch": 2, "heads": 16, "q_len": 4096, "kv_len": 4096, "head_dim": 128, "kv_heads": 2}
    return AttentionProblem(**(sizes | fields))


PAGED = {"page_size": 16, "pages": 8500, "page_entries": 4096, "others": "lse+usedkv+pagetable"}
LATENT = {"heads": 64, "kv_heads": 1, "head_dim": 576, "head_dim_v": 512}
REAL = [
    *(real(head_dim=d, dtype=dtype, right=right)
      for d in (64, 128, 256) for dtype in ("bf16", "fp16") for right in (None, 0)),
    real(q_len=4224, kv_len=4224, right=0, others="lse"),
    real(q_len=1023, kv_len=4224, right=0, corner="top_left"),
    real(head_dim=192, head_dim_v=128, right=0),
    real(left=1024, right=0, others="lse+sinks"),
    real(softcap=50.0, right=0),
    real(others="alibi", right=0),
    real(q_len=1023, kv_len=2048, head_dim=64, bias_shape=(2, 1), right=0),
    real(batch=16, total_q=16384, total_kv=16384, right=0, others="lse+packedq+packedkv"),
    real(q_len=1, kv_len=65536, batch=1, others="usedkv"),
    real(q_len=1, kv_len=65536, **PAGED),
    real(q_len=4, kv_len=65536, right=0, dtype_kv=FP8, **PAGED),
    real(q_len=1, kv_len=16384, batch=8, others="usedkv+latent", **LATENT),
    real(dtype=FP8, right=0, others="tscale"),
    *(real(blocks_shape=(1, 16), block_size=size, density=0.25, head_dim=d, right=right)
      for size, d in ((128, 128), (64, 64), (192, 256)) for right in (None, 0)),
    real(q_len=1000, kv_len=1500, blocks_shape=(2, 16), block_size=128, density=0.1, right=0),
    real(batch=16, total_q=16384, total_kv=16384, blocks_shape=(1, 1), block_size=128, density=0.4,
         others="lse+packedq+packedkv"),
]  # fmt: skip


@pytest.mark.parametrize("problem", REAL, ids=str)
def test_real_sizes_are_right(dispatcher, problem):
    if FP8 in (problem.dtype, problem.dtype_kv) and not HAS_FP8:
        pytest.skip(f"{ARCH} has no {FP8}")
    result = verify.verify(dispatcher, problem, device=GPU)
    assert result.ok, result


COLUMNS = {"v_strides": (1 << 22, 1, 1 << 18, 2048)}
RISING = [
    real(dtype=dtype, kv_heads=0, q_len=500, kv_len=2048, right=right, others=others, **more)
    for dtype, more in (("bf16", {}), ("fp16", {}), (FP8, COLUMNS))
    for right in (None, 0)
    for others in ("lse", "lse+sinks")
]  # fmt: skip


@pytest.mark.parametrize("rise", [4.0, 20.0])
@pytest.mark.parametrize("problem", RISING, ids=str)
def test_maxima_that_rise(dispatcher, problem, rise):
    """By bits that every eighth of the keys adds, for every second head: weights by a guessed
    maximum are computed once more. In fp8 by fewer: scores are as wrong as products are (14 bits
    of them are added up), times the scale."""
    if problem.dtype == FP8 and not HAS_FP8:
        pytest.skip(f"{ARCH} has no {FP8}")
    operands = verify.operands_of(problem, 0, GPU)
    eighth = torch.arange(problem.kv_len - 1, -1, -1, device=GPU) * 8 // problem.kv_len
    for name in ("q", "k"):
        x = operands.inputs[name].float()
        x[:, :, ::2] = 1.0 if name == "q" else eighth[:, None, None] / 8
        operands.inputs[name].copy_(x)
    rise = min(rise, 7.0) if problem.dtype == FP8 else rise
    given = {"scale": rise / 16 * 0.6931}
    verify.run(dispatcher, problem, verify.Operands(operands.inputs | given, operands.outputs))
    wanted = verify.reference(problem, operands.inputs | given)
    check = verify.compare_all(problem, None, operands.written(problem), wanted)
    assert check.ok, check


GRAPHS = [
    real(q_len=1, kv_len=2000, batch=6, others="lse+usedkv"),
    real(q_len=1, kv_len=2000, batch=6, page_size=16, pages=500, page_entries=125,
         others="lse+usedkv+pagetable"),
    real(q_len=33, kv_len=900, batch=6, page_size=64, pages=50, page_entries=90, right=0,
         others="lse+usedq+usedkv+pagelist"),
    real(q_len=500, kv_len=500, batch=6, total_q=1500, total_kv=1500, right=0,
         others="lse+packedq+packedkv"),
    real(q_len=2, kv_len=700, batch=6, new_kv=2, rotary_dim=64, rotary_len=702, right=0,
         others="lse+usedkv+rotaryh"),
    real(q_len=300, kv_len=300, dropout=0.25, others="lse+random"),
]  # fmt: skip


@pytest.mark.parametrize("problem", GRAPHS, ids=str)
def test_a_graph_is_replayed_with_other_lengths_pages_and_values(dispatcher, problem):
    operands = verify.operands_of(problem, 0, GPU)
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
        check = verify.compare_all(problem, None, operands.written(problem), wanted)
        assert check.ok, f"seed {seed}: {check}"


@pytest.mark.parametrize("number", range(0, len(CASES), 9))
def test_a_kernel_gives_the_same_bits_again(dispatcher, number):
    kernel, problem = CASES[number]
    if not FAMILY.repeats(kernel):
        pytest.skip("is not said to repeat")
    operands = verify.operands_of(problem, 0, GPU)
    before, seen = verify.snapshot(problem, operands.inputs), []
    for _ in range(3):
        verify.reset(operands, before)
        verify.run(dispatcher, problem, operands, kernel.name)
        seen.append([bytes_of(x) for x in operands.written(problem).values()])
    for again in seen[1:]:
        assert all(map(torch.equal, seen[0], again))


def bytes_of(x):
    """A copy of an array's elements as bytes, which NaN leaves comparable."""
    return x.contiguous().view(torch.uint8).clone()


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
