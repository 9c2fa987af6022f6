"""One of two processes that train a small model whose parameters FSDP shards between them.

Arguments: rank, file of the processes' meeting. Rank 0 prints the loss of each step, and how far
the parameters are from those of the same training by torch's own functions in one process.
"""

from __future__ import annotations

import datetime
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import tilewright as tw

STEPS, BATCH, LENGTH, DIM, HEADS = 2, 2, 4, 32, 2


class Block(torch.nn.Module):
    """Attention and a layer behind it, by Tilewright or by torch."""

    def __init__(self, ours: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.ours = ours
        self.qkv = torch.nn.Parameter(torch.randn(DIM, 3 * DIM) / DIM**0.5)
        self.out = torch.nn.Parameter(torch.randn(DIM, DIM) / DIM**0.5)
        self.bias = torch.nn.Parameter(torch.randn(DIM))

    def forward(self, x):
        parts = self.gemm(x, self.qkv).view(BATCH, LENGTH, 3, HEADS, DIM // HEADS)
        q, k, v = parts.unbind(2)
        if self.ours:
            o = tw.attention(q, k, v).reshape(BATCH, LENGTH, DIM)
            return tw.gemm(o, self.out, bias=self.bias, epilogue="bias+relu")
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return torch.relu(o.reshape(BATCH, LENGTH, DIM) @ self.out + self.bias)

    def gemm(self, a, b):
        return tw.gemm(a, b) if self.ours else a @ b


def train(model: Block, batches) -> list[float]:
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for x in batches:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main() -> None:
    rank, meeting = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(minutes=10),
    )
    batches = torch.randn(STEPS, BATCH, LENGTH, DIM, generator=torch.Generator().manual_seed(2))
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    ours = fully_shard(Block(ours=True), mesh=mesh, reshard_after_forward=True)
    plain = Block(ours=False)
    losses, exact = train(ours, batches), train(plain, batches)
    for (name, mine), its in zip(ours.named_parameters(), plain.parameters(), strict=True):
        assert isinstance(mine, DTensor)
        assert torch.allclose(mine.full_tensor(), its, atol=1e-5), name
    assert torch.allclose(torch.tensor(losses), torch.tensor(exact)), (losses, exact)
    if rank == 0:
        print("trained", len(losses), "steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
