"""A small GPT for the examples that train one: attention is a function that they pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

TEXT = (
    b"How much wood would a woodchuck chuck if a woodchuck could chuck wood? As much wood as it. "
)
HEADS, KV_HEADS, DIM = 2, 1, 32
WIDTH = HEADS * DIM
Attend = Callable[..., Any]


class Block(nn.Module):
    """Attention, then two layers; `attend` takes q [batch, rows, HEADS, DIM], k, v and a seed."""

    def __init__(self, attend: Attend, layer: int) -> None:
        super().__init__()
        self.attend, self.layer = attend, layer
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * DIM)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        heads = self.qkv(self.norms[0](x)).unflatten(-1, (-1, DIM))
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), -2)  # views, which are read as they lie
        x = x + self.out(self.attend(q, k, v, seed=100 * step + self.layer).flatten(-2))
        return x + self.mlp(self.norms[1](x))


class Gpt(nn.Module):
    """Bytes [batch, rows] to scores of the next byte. places: of the rows, if not 0, 1, 2…"""

    def __init__(self, attend: Attend, rows: int, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(rows, WIDTH)
        self.blocks = nn.ModuleList(Block(attend, layer) for layer in range(layers))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, x: torch.Tensor, step: int = 0, places: Any = None) -> torch.Tensor:
        h = self.tokens(x)
        h = h + self.places.weight[slice(x.shape[-1]) if places is None else places]
        for block in self.blocks:
            h = block(h, step)
        return self.head(h)


def trained(attend: Attend, device: str, steps: int, rows: int = 40) -> tuple[Gpt, list[float]]:
    """A model after `steps` batches of the text, from the same start every time, and its losses."""
    torch.manual_seed(0)
    model = Gpt(attend, rows).to(device)
    by = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text, losses = torch.tensor(list(TEXT)), []
    for step in range(steps):
        starts = torch.randint(len(text) - rows, (2,))
        batch = torch.stack([text[start : start + rows + 1] for start in starts]).to(device)
        scores = model(batch[:, :-1], step)
        loss = F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        by.zero_grad()
        loss.backward()
        by.step()
        losses.append(loss.item())
    return model, losses
