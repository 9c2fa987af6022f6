"""Many routings of one layer, whose results need no loop: each expert's result for every token is
computed once, in float64, and a routing only chooses among them."""

from __future__ import annotations

from typing import Any

import torch
from layer_cases import activated

from tilewright import moe

NEVER = (0, -1)
"""Experts that no routing chooses: the first and the last. Their weights may hold NaN."""
KINDS = 8
SIZES = {"hidden": 256, "inner": 128, "experts": 24, "k": 4}
TOKENS = (1, 5, 33, 97, 200)
WIDER = {"hidden": 1024, "inner": 512, "experts": 32, "k": 8}
WIDER_TOKENS = (8, 3000)
FP8 = {"dtype_b": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}


def plans(**how: Any) -> list[Any]:
    """The plan of each layer that GPU tests run: in bf16, and with weights as `in_fp8` has them."""
    return [
        moe.plan(tokens=tokens, **size, **words, **how)
        for size, some in ((SIZES, TOKENS), (WIDER, WIDER_TOKENS))
        for tokens in some
        for words in ({}, FP8)
    ]


def drawn(count: int, tokens: int, experts: int, k: int, device: str, seed: int = 0) -> Any:
    """Experts [count, tokens, k], int32, from beyond both ends too. In turns, the
    experts are any, few, one, none, or skewed; or only one token has some, only one choice of each
    token, or only half of the tokens."""
    draw = torch.Generator(device).manual_seed(seed)
    shape = (count, tokens, k)
    ids = torch.randint(-2, experts + 3, shape, device=device, generator=draw)
    turn = torch.arange(count, device=device)
    kind = (turn % KINDS)[:, None, None]
    number = turn[:, None, None]
    token = torch.arange(tokens, device=device)[None, :, None]
    choice = torch.arange(k, device=device)[None, None, :]
    few, one = ids % 3 + 1, (number // KINDS % (experts - 2) + 1).expand(shape)
    skewed = (torch.rand(shape, device=device, generator=draw) ** 3 * experts).long()
    for number_of, some in (
        (1, few), (2, one), (3, ids.new_full(shape, -1)), (4, skewed),
        (5, torch.where(token == number % tokens, ids, -1)),
        (6, torch.where(choice == number % k, ids, -1)),
        (7, torch.where(token % 2 == 0, ids, experts)),
    ):  # fmt: skip
        ids = torch.where(kind == number_of, some, ids)
    ids = torch.where((ids == 0) | (ids == experts - 1), 1, ids)
    return ids.to(torch.int32)


def of_every_expert(
    x: Any, w1: Any, w2: Any, b1: Any = None, b2: Any = None, **said: Any
) -> Any:  # fmt: skip
    """[experts, tokens, hidden] in float64."""
    x, inner, found = x.double(), w2.shape[-1], []
    for e, (up, down) in enumerate(zip(w1, w2, strict=True)):
        h = x @ up.double().T + (0.0 if b1 is None else b1[e].double())
        y = activated(h, inner, **said) @ down.double().T
        found.append(y + (0.0 if b2 is None else b2[e].double()))
    return torch.stack(found)


def chosen(every: Any, weights: Any, ids: Any) -> Any:
    """A routing's result [tokens, hidden], of `of_every_expert`'s. Waits for nothing, so that a
    graph can hold it."""
    experts, tokens, _ = every.shape
    there = (ids >= 0) & (ids < experts)
    safe = torch.where(there, ids, 1).long()
    token = torch.arange(tokens, device=ids.device)[:, None]
    rows = every[safe, token]  # [tokens, k, hidden]
    return (rows * (weights.double() * there)[..., None]).sum(1)
