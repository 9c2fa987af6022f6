"""Blocks of four networks, forward and backward, with convolutions from here and from torch."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

import tilewright as tw


def resnet(f, x, a, b):  # a ResNeXt's has groups
    return x + f.conv2d(f.conv2d(x, a, padding=1, groups=16 // a.shape[1]).relu(), b)


def convnext(f, x, a, b):
    return x + f.conv2d(functional.gelu(f.conv2d(x, a, padding=3, groups=x.shape[1])), b)


def unet(f, x, a, b):
    return f.conv_transpose2d(f.conv2d(x, a, stride=2, padding=1).relu(), b, stride=2)


where = "cuda" if torch.cuda.is_available() else "cpu"
blocks = {
    "ResNet": (resnet, (16, 16, 3, 3), (16, 16, 1, 1)),
    "ResNeXt": (resnet, (16, 2, 3, 3), (16, 16, 1, 1)),
    "ConvNeXt": (convnext, (16, 1, 7, 7), (16, 16, 1, 1)),
    "U-Net": (unet, (32, 16, 3, 3), (32, 16, 2, 2)),
}
for number, (name, (block, *shapes)) in enumerate(blocks.items()):
    torch.manual_seed(number)
    given = [torch.randn(shape, device=where) / 8 for shape in ((2, 16, 8, 8), *shapes)]
    given[0] = given[0].to(memory_format=torch.channels_last)
    ours, theirs = ([x.clone().requires_grad_() for x in given] for _ in "ab")
    got, wanted = block(tw, *ours), block(functional, *theirs)
    got.square().sum().backward()
    wanted.square().sum().backward()
    pairs = [(got, wanted), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]
    error = max((a - b).abs().max().item() for a, b in pairs)
    print(f"{name:9} {list(got.shape)}, and {len(ours)} gradients: {error < 1e-2}")
