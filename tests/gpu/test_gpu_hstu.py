"""HSTU's attention on a real GPU: the small problems of its pages' tests, and recommenders'
sizes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpu_arch import ARCH  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import ops, verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402

pytestmark = pytest.mark.gpu

SIZES = {"heads": 4, "head_dim": 128, "head_dim_v": 128, "has_num_targets": True}
WINDOW = {"contextual_seq_len": 21, "max_attn_len": 256, "min_full_attn_seq_len": 100}
APART = dict.fromkeys(("q_row", "k_row", "v_row"), 4096)
"""Between the rows of operands: those of 560000 rows lie beyond 2^31."""
LARGE = (
    {**SIZES, "rows": 124518, "bounds": 513},  # generative-recommenders' benchmark, up to 256 rows
    {**SIZES, **WINDOW, "rows": 60000, "bounds": 65},
    {**SIZES, "rows": 16384, "bounds": 5, "dtype": "fp16"},
    {**SIZES, "rows": 20000, "bounds": 17, "head_dim": 64, "head_dim_v": 64, "max_attn_len": 1000},
    {**SIZES, "rows": 9000, "bounds": 9, "head_dim": 256, "head_dim_v": 256},
    {**SIZES, "rows": 9000, "bounds": 9, "head_dim": 50, "head_dim_v": 25, "dtype": "fp32"},
    {"rows": 8192, "bounds": 3, "heads": 2, "head_dim": 128, "head_dim_v": 128, "causal": False},
    {**SIZES, "rows": 30000, "bounds": 5001},  # more sequences than a workgroup looks at together
    {**SIZES, "rows": 20000, "bounds": 17, "q_row": 1536, "k_row": 1536, "v_row": 1536},
    {"rows": 560000, "bounds": 1001, "heads": 1, "head_dim": 64, "head_dim_v": 64, **APART},
)

SMALL = runpy.run_path(str(Path(__file__).parents[1] / "declared/cases/cases_attention.py"))
PROBLEMS = [
    ops.family(name).problem_type(**each)
    for name, listed in SMALL["CASES"].items()
    for each in (*listed, *LARGE)
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_it_is_right(problem, dispatcher):
    found = verify.verify(dispatcher, problem, seed=1, device="cuda:0")
    assert found.ok, (problem, found)


@pytest.mark.parametrize("name", ["hstu_attention", "hstu_attention_backward"])
def test_every_tile_is_right(name, dispatcher):
    problem = ops.family(name).problem_type(**{**SIZES, **WINDOW, "rows": 6000, "bounds": 13})
    this = arch(ARCH)
    for config in ops.family(name).default_space(problem, this).expand(this).configs:
        found = verify.verify(dispatcher, problem, config.name, seed=2, device="cuda:0")
        assert found.ok, (config.name, found)


def test_gradients_repeat_bit_for_bit():
    lengths = torch.randint(0, 900, (64,), generator=torch.Generator().manual_seed(3))
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int().cuda()
    rows = int(offsets[-1])
    x = torch.randn(rows, 4, 3 * 128, device="cuda", dtype=torch.bfloat16)
    q, k, v = (one.requires_grad_() for one in x.split(128, dim=-1))
    do = torch.randn(rows, 4, 128, device="cuda", dtype=torch.bfloat16)

    def gradients():
        o = tw.hstu_attention(q, k, v, offsets, max_seq_len=900, alpha=0.1, max_attn_len=300)
        return torch.autograd.grad(o, (q, k, v), do)

    first = gradients()
    for _ in range(2):
        assert all(map(torch.equal, first, gradients()))
