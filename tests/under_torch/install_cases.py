"""What tests of installations share: a dispatcher that computes with torch, and calls of it.

Torch's table for the CPU is overridden, as there is no GPU. No kernel runs: the dispatcher plans
for an H200 and computes with torch, in float64.
"""

from __future__ import annotations

from collections import Counter

import torch

import tilewright as tw
from tilewright import ops
from tilewright.arch import device
from tilewright.dispatch import Dispatcher
from tilewright.torch import install

BUILT = "gemm_rcr_bf16_bf16_bf16_fp32_64x64x128_w4_s6_gluon_ws_persistent_g8_direct_padmnk_al16"
PROBLEM = tw.GemmProblem(176, 64, 128)
CONV = ops.family("conv").problem_type(2, 8, 8, (4, 4), (3, 3))


def table(kernel=BUILT, ties=(), on="h200_sxm", problem=PROBLEM):
    return tw.Table.of([tw.Row(device(on), problem, kernel, ties, 7.0, (6.9, 7.1))])


class Computing(Dispatcher):
    """Plans as any dispatcher, and computes with torch."""

    def __init__(self, tables=None):
        super().__init__(device="h200_sxm", selector=["tuned", "analytical"], tables=tables)
        self.seen, self.fails = [], None

    def run_given(self, op, operands, out, stream, options, named=False):
        self.seen.append((op, dict(options)))
        if self.fails is not None:
            raise self.fails
        assert not torch.is_grad_enabled()
        compute = product if op == "gemm" else convolution
        made = compute(*(x.double() for x in operands), **options).to(operands[0].dtype)
        return made if out is None else out.copy_(made)


def product(a, b, *, epilogue="", bias=0, add=0):
    return torch.matmul(a, b) + bias + add


def convolution(one, other, *, pad, direction="forward", **words):
    bias = words.pop("bias", None)
    words = {
        w: words[w] for w in ("stride", "dilation", "groups", "spatial", "filter") if w in words
    }
    spatial, taps = words.pop("spatial", None), words.pop("filter", None)
    if direction == "forward":
        bias = None if bias is None else bias.double()
        return torch.nn.functional.conv2d(one, other, bias, padding=pad, **words)
    if direction == "data":
        shape = (one.shape[0], other.shape[1] * words["groups"], *spatial)
        return torch.nn.grad.conv2d_input(shape, other, one, padding=pad, **words)
    shape = (other.shape[1], one.shape[1] // words["groups"], *taps)
    return torch.nn.grad.conv2d_weight(one, shape, other, padding=pad, **words)


def on(only="proven"):
    return install(only, _key="CPU")


def operands(m=176, n=64, k=128, dtype=torch.bfloat16, seed=0):
    made = torch.Generator().manual_seed(seed)
    x = torch.randint(-2, 3, (m, k), generator=made).to(dtype)
    return x, torch.randint(-2, 3, (n, k), generator=made).to(dtype)


def layer(x, w, bias, **words):
    leaves = [
        one.clone(memory_format=torch.preserve_format).requires_grad_() for one in (x, w, bias)
    ]
    y = torch.nn.functional.conv2d(*leaves, **words)
    return y.detach(), *torch.autograd.grad(y.float().square().sum(), leaves)


def served(ours) -> dict[str, int]:
    found = Counter()
    for one in ours.report()["served"]:
        found[one["operator"]] += one["calls"]
    return found
