"""1-D: the stem of Whisper's encoder, and a dilated layer of a codec, beside torch."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

import tilewright as tw

where = "cuda" if torch.cuda.is_available() else "cpu"


def whisper(f, x, a, b):
    """Mel channels to features, then half as many frames."""
    h = functional.gelu(f.conv1d(x, a, padding=1))
    return functional.gelu(f.conv1d(h, b, stride=2, padding=1))


def codec(f, x, a, b):
    """A layer that sees far, and one that makes four samples of each."""
    h = functional.elu(f.conv1d(x, a, padding="same", dilation=3))
    return f.conv_transpose1d(h, b, stride=4, padding=2)


blocks = {
    "Whisper's stem": (whisper, (2, 10, 24), (16, 10, 3), (16, 16, 3)),
    "codec": (codec, (2, 8, 12), (8, 8, 7), (8, 4, 8)),
}
for number, (name, (block, *shapes)) in enumerate(blocks.items()):
    torch.manual_seed(number)
    given = [torch.randn(shape, device=where) / 4 for shape in shapes]
    ours, theirs = ([x.clone().requires_grad_() for x in given] for _ in "ab")
    got, wanted = block(tw, *ours), block(functional, *theirs)
    got.square().sum().backward()
    wanted.square().sum().backward()
    pairs = [(got, wanted), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]
    error = max((a - b).abs().max().item() for a, b in pairs)
    print(f"{name:15}{list(got.shape)}, and {len(ours)} gradients: {error < 1e-3}")
