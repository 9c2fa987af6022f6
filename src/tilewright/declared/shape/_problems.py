"""Problems of layers of known models, as permutations state them.

Shapes are those of the published models: Llama 3 8B (arXiv:2407.21783), ResNet-50
(arXiv:1512.03385), ConvNeXt-T (arXiv:2201.03545), Swin-T (arXiv:2103.14030), ViT-B/16
(arXiv:2010.11929), SDXL's U-Net and its latents (arXiv:2307.01952).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.declared.shape import _forms


def permuted(shape: Sequence[int], dims: Sequence[int], **more: Any) -> dict[str, Any]:
    """The fields of the problem that moves an array of this shape."""
    apart = [math.prod(shape[d + 1 :]) for d in dims]
    sizes, strides = _forms.canonical([shape[d] for d in dims], apart)
    found = {f"n{i}": n for i, n in enumerate(sizes)}
    return {**found, **{f"s{i}": s for i, s in enumerate(strides)}, **more}


HEADS, LAST, FIRST, TURNED = (0, 2, 1, 3), (0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2)

PERMUTED: tuple[Mapping[str, Any], ...] = (
    permuted((4, 4096, 32, 128), HEADS),  # Llama's queries, by heads, and back
    permuted((4, 32, 4096, 128), HEADS),
    permuted((4, 8, 4096, 128), TURNED),  # its keys, turned
    permuted((256, 3, 224, 224), LAST),  # ResNet's images, its first and its last layer
    permuted((256, 64, 56, 56), LAST),
    permuted((256, 56, 56, 64), FIRST),
    permuted((256, 2048, 7, 7), LAST),
    permuted((256, 7, 7, 2048), FIRST),
    permuted((128, 96, 56, 56), LAST),  # ConvNeXt's first stage
    permuted((128, 56, 56, 96), FIRST),
    permuted((16, 320, 128, 128), LAST),  # SDXL's first level, and its latents
    permuted((16, 128, 128, 320), FIRST),
    permuted((16, 4, 128, 128), LAST, dtype="fp32"),
    permuted((128, 8, 7, 8, 7, 96), (0, 1, 3, 2, 4, 5)),  # Swin's windows
    permuted((256, 3, 14, 16, 14, 16), (0, 2, 4, 1, 3, 5)),  # ViT's patches
    permuted((8192, 8192), (1, 0), dtype="fp32"),
)
CAST: tuple[Mapping[str, Any], ...] = (
    permuted((4096, 14336), (0, 1), dtype="fp32", out_dtype="bf16"),  # Llama's weights
    permuted((4096, 14336), (0, 1), out_dtype="e4m3fn", has_scale=True),
    permuted((4096, 14336), (1, 0), out_dtype="e4m3fn", has_scale=True),
)


def windows(n: int, size: int, channels: int, taps: int, **more: Any) -> dict[str, Any]:
    """The fields of the problem that cuts square images into windows of square filters."""
    square = {"height": size, "width": size, "filter_h": taps, "filter_w": taps}
    return {"n": n, "depth": 1, **square, "channels": channels, **more}


def both(word: str, value: int) -> dict[str, int]:
    """A number for height and width."""
    return {f"{word}_h": value, f"{word}_w": value}


def back(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The problem that sums the windows of `windows` back."""
    found = {word: n for word, n in fields.items() if not word.startswith(("after", "channels"))}
    for axis, name in (("h", "height"), ("w", "width")):
        around = fields.get(f"pad_{axis}", 0) + fields.get(f"after_{axis}", 0)
        reach = (fields[f"filter_{axis}"] - 1) * fields.get(f"dilation_{axis}", 1) + 1
        step = fields.get(f"stride_{axis}", 1)
        found[f"out_{axis}"] = (fields[name] + around - reach) // step + 1
    columns = fields["channels"] * fields["filter_h"] * fields["filter_w"]
    return {**found, "out_d": 1, "columns": columns}


_SAME = {**both("pad", 1), **both("after", 1)}
WINDOWS: tuple[Mapping[str, Any], ...] = (
    # ResNet's first layer and a 3×3 of its first and third stages
    windows(64, 224, 3, 7, **both("stride", 2), **both("pad", 3), **both("after", 3)),
    windows(64, 56, 64, 3, **_SAME),
    windows(64, 28, 128, 3, **both("stride", 2), **_SAME),
    windows(64, 14, 256, 3, **_SAME),
    windows(64, 224, 3, 16, **both("stride", 16)),  # ViT's patches
    windows(64, 224, 3, 4, **both("stride", 4)),  # ConvNeXt's
    windows(4, 128, 320, 3, **_SAME),  # SDXL's first level
)
WINDOWS_BACK = tuple(map(back, WINDOWS))


def chained(sizes: Sequence[int], chain: str, *over: int, **more: Any) -> dict[str, Any]:
    """The fields of the problem of a chain over arrays of these sizes.

    over: of each operand besides x, the bits of the dimensions that it has.
    """
    wide = (1,) * (4 - len(sizes)) + tuple(sizes)
    found: dict[str, Any] = {f"n{i}": n for i, n in enumerate(wide)}
    found["x_over"] = sum(1 << (3 - i) for i, n in enumerate(wide) if n > 1)
    for name, bits in zip("abc", over, strict=False):
        found |= {f"has_{name}": True, f"{name}_over": bits}
    return {**found, "chain": chain, **more}


CHAINS: tuple[Mapping[str, Any], ...] = (
    # DiT-XL/2 (arXiv:2212.09748): modulation of tokens by their image, and a gated residual
    chained((256, 256, 1152), "mul+add", 5, 5),
    chained((256, 256, 1152), "mul+add", 5, 7),
    chained((8192, 14336), "bias+gelu", 1),  # a bias and its activation; Llama's widths
    chained((8192, 4096), "add", 3),  # a residual
    chained((128, 96, 3136), "mul", 2),  # ConvNeXt's scale of channels, channels first
    chained((64, 12, 197 * 197), "add", 3),  # ViT's scores with a bias of heads
    chained((4096, 14336), "scale", 0, a_dtype="fp32", out_dtype="e4m3fn"),
    chained((4096, 14336), "", out_dtype="fp32"),
)
