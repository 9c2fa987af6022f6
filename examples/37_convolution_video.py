"""A layer of a video autoencoder: 3-D convolutions in which no frame sees one behind it."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

import tilewright as tw

where = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
given = [
    torch.randn(shape, device=where) / 8
    for shape in ((1, 8, 4, 6, 6), (8, 8, 3, 3, 3), (8,), (8, 8, 3, 1, 1))
]
given[0] = given[0].to(memory_format=torch.channels_last_3d)  # [videos, channels, frames, h, w]


def ours(x, a, bias, b):
    """Two frames of zeros before the first and none behind the last: no padded copy of x."""
    h = tw.conv(x, a, pad=(2, 1, 1), pad_after=(0, 1, 1), bias=bias, epilogue="bias+silu")
    return x + tw.conv(h, b, pad=(2, 0, 0), pad_after=(0, 0, 0))


def theirs(x, a, bias, b):
    h = functional.silu(functional.conv3d(functional.pad(x, (1, 1, 1, 1, 2, 0)), a, bias))
    return x + functional.conv3d(functional.pad(h, (0, 0, 0, 0, 2, 0)), b)


sides = [[x.clone().requires_grad_() for x in given] for _ in "ab"]
got, wanted = ours(*sides[0]), theirs(*sides[1])
got.square().sum().backward()
wanted.square().sum().backward()
pairs = [(got, wanted), *((a.grad, b.grad) for a, b in zip(*sides, strict=True))]
error = max((a - b).abs().max().item() for a, b in pairs)
print(f"video layer {list(got.shape)}, and {len(given)} gradients: {error < 1e-3}")
later = given[0].clone()
later[:, :, 3] += 1.0  # the last frame
before, after = (ours(x, *given[1:]) for x in (given[0], later))  # recorded calls round otherwise
print(f"frames that change with the last: {(before != after).amax((0, 1, 3, 4)).tolist()}")
