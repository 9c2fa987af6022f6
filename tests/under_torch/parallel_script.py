"""One of two processes that compute a layer split between them, and compare with the whole layer.

Arguments: rank, file of the processes' meeting. Rank 0 prints what was compared.
"""

from __future__ import annotations

import datetime
import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import tilewright as tw
from tilewright.dispatch import Dispatcher
from tilewright.torch import port

BATCH, LENGTH, DIM, HEADS, WIDE = 2, 4, 32, 4, 64


class Linear(torch.nn.Linear):
    """torch's layer, computed by Tilewright."""

    def forward(self, x):
        if self.bias is None:
            return tw.gemm(x, self.weight.t())
        return tw.gemm(x, self.weight.t(), bias=self.bias, epilogue="bias")


class Block(torch.nn.Module):
    """Attention and two layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (Linear(DIM, DIM, bias=False) for _ in range(3))
        self.o = Linear(DIM, DIM)
        self.up, self.down = Linear(DIM, WIDE), Linear(WIDE, DIM)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, DIM // HEADS)) for f in (self.q, self.k, self.v))
        x = x + self.o(tw.attention(q, k, v, causal=True).flatten(-2))
        return x + self.down(torch.relu(self.up(x)))


PLAN = {
    **dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel),
    **dict.fromkeys(("o", "down"), RowwiseParallel),
}


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def same(mine, its, what):
    torch.testing.assert_close(whole(mine), its, atol=2e-5, rtol=1e-4, msg=lambda m: f"{what}: {m}")


def layers(mesh) -> None:
    """A block whose layers are split by columns and by rows, and its gradients."""
    torch.manual_seed(1)
    plain, split = Block(), Block()
    split.load_state_dict(plain.state_dict())
    split = parallelize_module(split, mesh, {name: style() for name, style in PLAN.items()})
    x = torch.randn(BATCH, LENGTH, DIM)
    y, z = plain(x), split(x)
    same(z, y, "block")
    y.square().sum().backward()
    z.square().sum().backward()
    for (name, mine), its in zip(split.named_parameters(), plain.parameters(), strict=True):
        assert isinstance(mine.grad, DTensor), name
        same(mine.grad, its.grad, name)


class Torchs(torch.nn.Module):
    """Two layers of torch's, and attention of what they make."""

    def __init__(self, wide: int = WIDE) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(DIM, wide), torch.nn.Linear(wide, DIM)

    def forward(self, x):
        x = self.down(torch.relu(self.up(x))).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


def ported(mesh) -> None:
    """A ported model calls ours with what is split in equal parts, also compiled, and torch's with
    what is not."""
    ours, run = [], Dispatcher.run_given

    def noted(self, op, *rest):
        ours.append(op)
        return run(self, op, *rest)

    Dispatcher.run_given = noted
    torch.manual_seed(2)
    x = torch.randn(BATCH, LENGTH, DIM)
    rows = RowwiseParallel(output_layouts=Shard(0), use_local_output=False)
    gathered = ColwiseParallel(output_layouts=Replicate())
    for wide, plan, expected in (
        (WIDE, {"up": ColwiseParallel(), "down": rows}, ["gemm", "gemm", "attention"]),
        (WIDE + 1, {"up": gathered}, ["gemm", "attention"]),
    ):
        plain, split = Torchs(wide), Torchs(wide)
        split.load_state_dict(plain.state_dict())
        port(parallelize_module(split, mesh, plan))
        ours.clear()
        y, z = plain(x), split(x)
        assert ours == expected, (wide, ours)
        same(z, y, "ported")
        y.square().sum().backward()
        z.square().sum().backward()
        for mine, its in zip(split.parameters(), plain.parameters(), strict=True):
            same(mine.grad, its.grad, "gradient of a ported layer")
        if wide == WIDE:
            same(torch.compile(split, backend="aot_eager")(x), y, "ported, compiled")
    Dispatcher.run_given = run


PRODUCTS = {
    "columns": ((Replicate(), Shard(1)), Shard(1)),
    "rows": ((Shard(0), Replicate()), Shard(0)),
    "sums": ((Shard(1), Shard(0)), Partial()),
    "whole": ((Replicate(), Replicate()), Replicate()),
    "redistributed": ((Shard(1), Shard(1)), None),
}


def products(mesh) -> None:
    """A product for each way to split it, with the gradients of both operands."""
    a, b = torch.randn(8, 16), torch.randn(16, 12)
    for name, (placed, expected) in PRODUCTS.items():
        leaves = [x.clone().requires_grad_() for x in (a, b)]
        parts = [
            distribute_tensor(x.clone(), mesh, [p]).requires_grad_()
            for x, p in zip((a, b), placed, strict=True)
        ]
        c, d = tw.gemm(*leaves), tw.gemm(*parts)
        assert expected is None or d.placements == (expected,), (name, d.placements)
        same(d, c, name)
        c.square().sum().backward()
        d.redistribute(placements=[Replicate()]).square().sum().backward()
        for mine, its in zip(parts, leaves, strict=True):
            same(mine.grad, its.grad, name)


def epilogues(mesh) -> None:
    """What is added is added once; what is no sum is not split along K."""
    a, b, bias = torch.randn(8, 16), torch.randn(16, 12), torch.randn(12)
    parts = [distribute_tensor(x, mesh, [p]) for x, p in ((a, Shard(1)), (b, Shard(0)))]
    bias_of_all = distribute_tensor(bias, mesh, [Replicate()])
    for chain, expected in (("bias", Partial()), ("bias+relu", None)):
        d = tw.gemm(*parts, bias=bias_of_all, epilogue=chain)
        assert (d.placements == (Partial(),)) is (expected is not None), (chain, d.placements)
        same(d, tw.gemm(a, b, bias=bias, epilogue=chain), chain)


def attentions(mesh) -> None:
    """Attention split along the batch and along heads that share keys, with gradients; along the
    queries it is computed whole."""
    q = torch.randn(2, 5, 4, 16)
    k, v = torch.randn(2, 2, 7, 2, 16)
    for dim, expected in ((0, Shard(0)), (2, Shard(2)), (1, None)):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        parts = [
            distribute_tensor(
                x.clone(), mesh, [Replicate() if dim == 1 and x is not q else Shard(dim)]
            )
            for x in (q, k, v)
        ]
        for one in parts:
            one.requires_grad_()
        o, lse = tw.attention(*leaves, causal=True, lse=True)
        d, sums = tw.attention(*parts, causal=True, lse=True)
        assert expected is None or d.placements == (expected,), d.placements
        same(d, o, f"attention {dim}")
        same(sums, lse, f"lse {dim}")
        o.square().sum().backward()
        d.square().sum().backward()
        for mine, its in zip(parts, leaves, strict=True):
            same(mine.grad, its.grad, f"gradient {dim}")


def compiled(mesh) -> None:
    """A product and its gradients in a compiled graph."""
    a, b = torch.randn(8, 16), torch.randn(16, 12)
    leaves = [x.clone().requires_grad_() for x in (a, b)]
    parts = [
        distribute_tensor(x.clone(), mesh, [p]).requires_grad_()
        for x, p in ((a, Replicate()), (b, Shard(1)))
    ]
    c = tw.gemm(*leaves).relu()
    d = torch.compile(lambda x, y: tw.gemm(x, y).relu(), fullgraph=True, backend="aot_eager")(
        *parts
    )
    same(d, c, "compiled")
    c.square().sum().backward()
    d.square().sum().backward()
    for mine, its in zip(parts, leaves, strict=True):
        same(mine.grad, its.grad, "compiled")


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
    torch.manual_seed(0)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for part in (products, epilogues, attentions, layers, compiled, ported):
        part(mesh)
        if rank == 0:
            print(part.__name__, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
