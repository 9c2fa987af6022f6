"""A ResNet's bottleneck for inference: normalisation, activation and the block's input are in the
convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

import tilewright as tw

where = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def made(*shape):
    return torch.randn(shape, device=where, dtype=torch.float16) / 4


def norm(y, scale, shift):
    return y * scale[:, None, None] + shift[:, None, None]


x = made(2, 16, 8, 8).to(memory_format=torch.channels_last)
weights = made(8, 16, 1, 1), made(8, 8, 3, 3), made(16, 8, 1, 1)
norms = [(made(w.shape[0]).float() + 1, made(w.shape[0])) for w in weights]

h = x
for w, (scale, shift) in zip(weights[:2], norms, strict=False):
    said = {"col_scale": scale, "bias": shift, "epilogue": "col_scale+bias+relu"}
    h = tw.conv(h, w, pad=(w.shape[2] // 2,) * 2, **said)
(scale, shift), last = norms[2], "col_scale+bias+add+relu"
got = tw.conv(h, weights[2], col_scale=scale, bias=shift, add=x, epilogue=last)

h = x.float()
for i, (w, (scale, shift)) in enumerate(zip(weights, norms, strict=True)):
    h = norm(functional.conv2d(h, w.float(), padding=w.shape[2] // 2), scale, shift)
    h = (h + x if i == 2 else h).relu()
print(f"bottleneck in three launches: {torch.allclose(got.float(), h, atol=3e-2)}")
print(f"channels-last stays: {got.is_contiguous(memory_format=torch.channels_last)}")
