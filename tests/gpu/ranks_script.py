"""One of some processes, each with a GPU of its own, between which a model is split or copied. Of
one process alone, everything is its own, by the same calls.

Arguments: rank, how many processes there are, file of their meeting, ``cuda`` (by NCCL) or ``cpu``
(by gloo). Each part compares results and gradients with those of one process by torch's functions
in fp32, and asserts that the kernels of a ported model are ours. Rank 0 prints the parts that
passed.
"""

from __future__ import annotations

import copy
import datetime
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ["TILEWRIGHT_WAITS"] = "1"  # kernels are ours from the first call on

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import tilewright as tw
from tilewright import capturing
from tilewright.torch import port

BATCH, LENGTH, DIM, HEADS, STEPS = 2, 32, 128, 4, 3
ROOM = {torch.bfloat16: 4e-2, torch.float32: 1e-3}
"""How far a result may be from that of fp32, of its norm."""


class Block(nn.Module):
    """Attention, and two layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(DIM, DIM, bias=False) for _ in range(3))
        self.o, self.up, self.down = nn.Linear(DIM, DIM), nn.Linear(DIM, 256), nn.Linear(256, DIM)

    def forward(self, x: Any) -> Any:
        q, k, v = (
            f(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(x)))


PLAN = {
    **dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel),
    **dict.fromkeys(("o", "down"), RowwiseParallel),
}
OURS = {"gemm": 6, "attention": 1}
"""Calls of a forward pass."""


def whole(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def near(found: Any, exact: Any, what: str) -> None:
    found, exact = whole(found).detach().double(), exact.detach().double()
    far = float((found - exact).norm() / exact.norm())
    assert far < ROOM[DTYPE], (what, far)


def results(model: nn.Module, x: Any) -> list[Any]:
    """The output and the gradients of all parameters."""
    model.zero_grad()
    y = model(x)
    y.float().square().mean().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


def made(seed: int) -> tuple[Block, list[Any], Any]:
    """A model, its results in fp32, and its input, the same in all processes."""
    torch.manual_seed(seed)
    model, x = Block().to(DTYPE), torch.randn(BATCH, LENGTH, DIM).to(DTYPE)
    return model, results(copy.deepcopy(model).float(), x.float()), x


def counted(call: Any, *given: Any) -> tuple[Any, Counter[str]]:
    """What a call returns, and our calls in it, by operation."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "calls.jsonl"
        with tw.capture(file):
            found = call(*given)
        counts: Counter[str] = Counter()
        for problem, count in capturing.load(file).items():
            counts[problem.family] += count
    return found, counts


def compared(model: nn.Module, x: Any, exact: list[Any], what: str) -> None:
    """Several times, as a call like an earlier one takes another way."""
    for _ in range(STEPS):
        for number, (one, other) in enumerate(zip(results(model, x), exact, strict=True)):
            near(one, other, f"{what}: {number}")


def products(mesh: Any) -> None:
    a, b = torch.randn(64, 128).to(DTYPE), torch.randn(128, 96).to(DTYPE)
    ways: dict[str, tuple[tuple[Any, Any], Any]] = {
        "columns": ((Replicate(), Shard(1)), Shard(1)),
        "rows": ((Shard(0), Replicate()), Shard(0)),
        "sums": ((Shard(1), Shard(0)), Partial()),
    }
    for name, (placed, expected) in ways.items():
        parts = [
            distribute_tensor(x.clone(), mesh, [p]).requires_grad_()
            for x, p in zip((a, b), placed, strict=True)
        ]
        leaves = [x.float().clone().requires_grad_() for x in (a, b)]
        (leaves[0] @ leaves[1]).square().mean().backward()
        c, counts = counted(tw.gemm, *parts)
        assert c.placements == (expected,) and counts == {"gemm": 1}, (name, c.placements, counts)
        near(c, leaves[0] @ leaves[1], name)
        c.redistribute(placements=[Replicate()]).float().square().mean().backward()
        for mine, its in zip(parts, leaves, strict=True):
            near(mine.grad, its.grad, f"{name}: gradient")


def parallel(mesh: Any) -> None:
    """A ported model whose layers are split by columns and by rows."""
    model, exact, x = made(1)
    model = parallelize_module(model, mesh, {name: style() for name, style in PLAN.items()})
    port(model)
    _, counts = counted(model, x)
    assert counts == OURS, counts
    compared(model, x, exact, "parallel")
    # Torch 2.11 compiles it anew with symbols for sizes, which its DTensor cannot hash.
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    compared(compiled, x, exact, "parallel, compiled")


def replicated(mesh: Any) -> None:
    """DDP: each process has a part of the batch, and the gradient is that of all of it."""
    model, (_, *exact), x = made(2)
    device = [x.device] if x.is_cuda else None
    copied = DistributedDataParallel(ported(model), device_ids=device)
    part = x.chunk(dist.get_world_size())[dist.get_rank()]
    _, counts = counted(copied, part)
    assert counts == OURS, counts
    for _ in range(STEPS):
        _, *found = results(copied, part)
        for number, (one, other) in enumerate(zip(found, exact, strict=True)):
            near(one, other, f"replicated: {number}")


def sharded(mesh: Any) -> None:
    """FSDP2, which frees and gathers the parameters around each call."""
    model, exact, x = made(3)
    fully_shard(ported(model), mesh=mesh, reshard_after_forward=True)
    _, counts = counted(model, x)
    assert counts == OURS, counts
    compared(model, x, exact, "sharded")


def ported(model: nn.Module) -> nn.Module:
    port(model)
    return model


PARTS = products, parallel, replicated, sharded
KIND = sys.argv[4]
DTYPE = torch.bfloat16 if KIND == "cuda" else torch.float32


def main() -> None:
    rank, count, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if KIND == "cuda":
        torch.cuda.set_device(rank)
        torch.set_default_device(f"cuda:{rank}")
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if KIND == "cuda" else "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(minutes=3),
    )
    mesh = dist.device_mesh.init_device_mesh(KIND, (count,))
    for part in PARTS:
        torch.manual_seed(0)
        part(mesh)
        dist.barrier()
        if rank == 0:
            print(part.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
