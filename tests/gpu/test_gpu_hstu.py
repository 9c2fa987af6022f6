"""HSTU's attention on a real GPU: every tile, and gradients."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpu_arch import ARCH  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import ops, verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402

pytestmark = pytest.mark.gpu

SIZES = {"heads": 4, "head_dim": 128, "head_dim_v": 128, "has_num_targets": True}
WINDOW = {"contextual_seq_len": 21, "max_attn_len": 256, "min_full_attn_seq_len": 100}


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
