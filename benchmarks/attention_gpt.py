"""A GPT that trains with `tilewright.attention` beside the same one with torch's attention.

    python benchmarks/attention_gpt.py --json attention_gpt_h200.json
    python benchmarks/attention_gpt.py --toy

GPT-2 medium's layers (width 1024, 16 heads of 64), 16 of them, over 8,192 tokens in one sequence,
compiled, in bf16 under autocast. Torch's attention is cuDNN's. Both models begin with the same
weights and see the same tokens; in each step one goes first, then the other. The time is that of
the forward and the backward pass, without the optimizer's step; its median leaves out the first
steps, which compile. The loss of each step is told of both. `--toy` is a small one for the CPU,
whose kernels run in the interpreter: it tells that the script runs, and its times mean nothing.
Exit status 1 if a loss differs from torch's by more than 2 %.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tilewright as tw
from environment import environment

ROOM = 0.02
"""How far a loss may be from torch's, of torch's."""

RATE = 3e-4
"""The optimizer's largest rate. It grows over all steps and gradients are clipped: else losses jump
and two runs that differ in a last bit jump in other steps."""

OURS, TORCH = "tilewright.attention", "scaled_dot_product_attention"


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model and its data. warm: steps that no time is taken of."""

    layers: int = 16
    width: int = 1024
    heads: int = 16
    vocabulary: int = 50304
    batch: int = 1
    length: int = 8192
    steps: int = 50
    warm: int = 5


TOY = Sizes(2, 32, 2, 32, 1, 24, 4, 1)

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""O of Q, K and V, all [batch, rows, heads, dim]."""


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return tw.attention(q, k, v, mask="causal")


def torch_s(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return o.transpose(1, 2)


class Block(nn.Module):
    """A layer of the model."""

    def __init__(self, sizes: Sizes, attention: Attention) -> None:
        super().__init__()
        width = sizes.width
        self.heads, self.attention = sizes.heads, attention
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, width = x.shape
        parts = self.project(self.before(x)).view(batch, rows, 3, self.heads, -1)
        o = self.attention(*parts.unbind(2)).reshape(batch, rows, width)
        x = x + self.out(o)
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Gpt(nn.Module):
    """The loss of predicting each next token."""

    def __init__(self, sizes: Sizes, attention: Attention) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.width)
        self.places = nn.Embedding(sizes.length, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes, attention) for _ in range(sizes.layers))
        self.last = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        for one in self.parameters():
            if one.dim() > 1:
                nn.init.normal_(one, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        read, wanted = tokens[:, :-1], tokens[:, 1:]
        x = self.words(read) + self.places.weight[: read.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.last(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten())


def tokens_of(sizes: Sizes, step: int, device: str) -> torch.Tensor:
    """Tokens that a model can learn: each follows from the one before, but for one in eight."""
    rng = torch.Generator().manual_seed(step)
    shape = (sizes.batch, sizes.length + 1)
    found = torch.randint(sizes.vocabulary, shape, generator=rng)
    kept = torch.rand(shape, generator=rng) < 7 / 8
    few = min(1024, sizes.vocabulary)
    for n in range(1, shape[1]):
        follows = (found[:, n - 1] * 5 + 3) % few
        found[:, n] = torch.where(kept[:, n], follows, found[:, n])
    return found.to(device)


class Trained:
    """A model in training.

    losses: of each step. ms: of each step, its forward and backward pass.
    """

    def __init__(self, sizes: Sizes, attention: Attention, device: str, backend: str) -> None:
        torch.manual_seed(1)
        self.model = Gpt(sizes, attention).to(device)
        self.run = torch.compile(self.model, fullgraph=True, backend=backend)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, betas=(0.9, 0.95))
        warming = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1 / sizes.steps, 1, sizes.steps)
        self.warming = warming
        self.device = device
        self.losses: list[float] = []
        self.ms: list[float] = []

    def step(self, tokens: torch.Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        on_gpu = self.device != "cpu"
        if on_gpu:
            torch.cuda.synchronize()
        began = time.perf_counter()
        only = sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if on_gpu else contextlib.nullcontext()
        with only:
            with torch.autocast(torch.device(self.device).type, torch.bfloat16):
                loss = self.run(tokens)
            loss.backward()
        if on_gpu:
            torch.cuda.synchronize()
        self.ms.append(1e3 * (time.perf_counter() - began))
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.warming.step()
        self.losses.append(float(loss.detach()))


def trained(sizes: Sizes, device: str, backend: str) -> dict[str, Trained]:
    """Both models, by their attention."""
    both = {
        name: Trained(sizes, attention, device, backend)
        for name, attention in ((OURS, ours), (TORCH, torch_s))
    }
    for step in range(sizes.steps):
        tokens = tokens_of(sizes, step, device)
        for name in list(both)[:: 1 if step % 2 else -1]:
            both[name].step(tokens)
        told = ", ".join(f"{name} {one.losses[-1]:.4f}" for name, one in both.items())
        print(f"step {step}: loss {told}", flush=True)
    return both


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--toy", action="store_true", help="a small model on the CPU")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--json", type=Path, help="where to write the results")
    args = parser.parse_args()
    sizes = TOY if args.toy else Sizes()
    sizes = replace(sizes, steps=args.steps) if args.steps else sizes
    device, backend = ("cpu", "aot_eager") if args.toy else ("cuda:0", "inductor")
    both = trained(sizes, device, backend)
    found: dict[str, Any] = {}
    for name, one in both.items():
        ms = statistics.median(one.ms[sizes.warm :] or one.ms)
        found[name] = {"ms": round(ms, 3), "losses": [round(x, 5) for x in one.losses]}
        print(f"{name}: {ms:.3f} ms for the forward and the backward pass")
    far = max(abs(a - b) / b for a, b in zip(both[OURS].losses, both[TORCH].losses, strict=True))
    faster = found[TORCH]["ms"] / found[OURS]["ms"]
    print(f"torch's time over ours {faster:.3f}; losses at most {far:.2%} apart")
    if args.json:
        document = {"environment": environment(), "sizes": asdict(sizes), "found": found}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(not far <= ROOM)


if __name__ == "__main__":
    sys.exit(main())
