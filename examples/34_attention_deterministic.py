"""Deterministic training: two runs, with dropout, end in the same bits."""

from __future__ import annotations

import torch

import tilewright as tw
from common import place, target
from gpt import trained
from tilewright.flash_attn import flash_attn_func


def attend(q, k, v, seed):
    """The seed of dropout comes from torch's generator, which each run begins afresh."""
    return flash_attn_func(q, k, v, dropout_p=0.1, causal=True, deterministic=True)


first, losses = trained(attend, place(), steps=2)
again, _ = trained(attend, place(), steps=2)
print(f"losses {', '.join(f'{loss:.4f}' for loss in losses)}")
assert all(map(torch.equal, first.parameters(), again.parameters()))
print("two runs have the same bits in every parameter")

# The same asked of a problem: which kernel computes the gradients, and that it may.
problem = tw.AttentionBackwardProblem(
    8, 16, 4096, 4096, 128, kv_heads=2, right=0, deterministic=True
)
planner = tw.Dispatcher(device=target())
print(f"on {planner.device_for_planning().name}: {planner.select(problem).config.name}")
