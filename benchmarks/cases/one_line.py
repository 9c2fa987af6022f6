"""Whole models that one line takes here (`port`, and transformers' name `tilewright`), beside the
same models as they are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cases import Programs, hugging_face
from cases.llama import checked, no_gradients
from cases.models import results, step, timm, wrong

Steps = Mapping[str, Callable[[], object]]

LATENT, TEXT, CONTEXT = 64, 77, 768
"""Height and width of a latent image, and rows and columns of the text that it is made from, as
Stable Diffusion's first versions have them."""
WIDTHS = (320, 640, 1280)
"""Channels of the U-Net's levels."""


def unet(widths: tuple[int, ...] = WIDTHS, heads: int = 8, context: int = CONTEXT) -> Any:
    """A U-Net of a diffusion model: at each level a residual block of two 3×3 convolutions, and a
    transformer block with attention over pixels and over a text, down and up again."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, read: int, made: int) -> None:
            super().__init__()
            self.before, self.between = (nn.GroupNorm(min(32, n // 2), n) for n in (read, made))
            self.first = nn.Conv2d(read, made, 3, padding=1)
            self.second = nn.Conv2d(made, made, 3, padding=1)
            self.past = nn.Conv2d(read, made, 1) if read != made else nn.Identity()

        def forward(self, x: Any) -> Any:
            y = self.first(nn.functional.silu(self.before(x)))
            return self.past(x) + self.second(nn.functional.silu(self.between(y)))

    class Attention(nn.Module):
        def __init__(self, width: int, read: int) -> None:
            super().__init__()
            self.q = nn.Linear(width, width, bias=False)
            self.k, self.v = (nn.Linear(read, width, bias=False) for _ in "kv")
            self.out = nn.Linear(width, width)

        def forward(self, x: Any, read: Any) -> Any:
            q, k, v = (
                one.unflatten(-1, (heads, -1)).transpose(1, 2)
                for one in (self.q(x), self.k(read), self.v(read))
            )
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out(mixed.transpose(1, 2).flatten(-2))

    class Transformer(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
            self.own, self.other = Attention(width, width), Attention(width, context)
            self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any, text: Any) -> Any:
            rows = x.flatten(2).transpose(1, 2)
            normed = self.norms[0](rows)
            rows = rows + self.own(normed, normed)
            rows = rows + self.other(self.norms[1](rows), text)
            value, gate = self.up(self.norms[2](rows)).chunk(2, -1)
            rows = rows + self.down(value * nn.functional.gelu(gate))
            return rows.transpose(1, 2).reshape(x.shape)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first, last = widths[0], widths[-1]
            self.read = nn.Conv2d(4, first, 3, padding=1)
            pairs = [*zip((first, *widths), widths, strict=False)]
            self.down = nn.ModuleList(Residual(a, b) for a, b in pairs)
            self.smaller = nn.ModuleList(nn.Conv2d(b, b, 3, 2, 1) for _, b in pairs)
            self.middle = Residual(last, last)
            self.up = nn.ModuleList(Residual(2 * b, a) for a, b in reversed(pairs))
            self.over = nn.ModuleList(Transformer(b) for _, b in pairs)
            self.across = nn.ModuleList(Transformer(a) for a, _ in reversed(pairs))
            self.made = nn.Conv2d(first, 4, 3, padding=1)

        def forward(self, x: Any, text: Any) -> Any:
            x, kept = self.read(x), []
            for block, over, smaller in zip(self.down, self.over, self.smaller, strict=True):
                x = over(block(x), text)
                kept.append(x)
                x = smaller(x)
            x = self.middle(x)
            for block, across in zip(self.up, self.across, strict=True):
                x = nn.functional.interpolate(x, scale_factor=2.0)
                x = across(block(torch.cat((x, kept.pop()), 1)), text)
            return self.made(x)

    return UNet()


def diffusion(images: int, device: str) -> tuple[Any, tuple[Any, ...]]:
    """The U-Net, with latent images and a text for each."""
    import torch

    latent = torch.randn(images, 4, LATENT, LATENT, device=device)
    return unet().to(device), (latent, torch.randn(images, TEXT, CONTEXT, device=device))


def whisper(batch: int, device: str) -> tuple[Any, tuple[Any, ...]]:
    """The encoder of Whisper large, with half a minute of sound for each of a batch."""
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    shapes = WhisperConfig(
        d_model=1280, encoder_layers=32, encoder_attention_heads=20, encoder_ffn_dim=5120,
        num_mel_bins=128, attn_implementation="sdpa",
    )  # fmt: skip
    return WhisperEncoder(shapes).to(device), (torch.randn(batch, 128, 3000, device=device),)


def pictures(name: str, images: int, device: str) -> tuple[Any, tuple[Any, ...]]:
    """A model of timm's, with images."""
    import torch

    return timm(name).to(device), (torch.randn(images, 3, 224, 224, device=device),)


Made = Callable[[str], tuple[Any, tuple[Any, ...]]]
"""Of a device: a model in fp32, and what it is called with."""


def take(model: Any) -> None:
    """The one line; for models of transformers, two."""
    from tilewright.torch import port

    port(model)
    if hasattr(model, "set_attn_implementation"):
        import tilewright.transformers

        tilewright.transformers.register()
        model.set_attn_implementation("tilewright")


def tensor_of(out: Any) -> Any:
    return getattr(out, "last_hidden_state", out)


def sides(made: Made, device: str, last: bool) -> tuple[Any, Any, Any, tuple[Any, ...]]:
    """Ours and theirs in bf16, the same in fp32, and what they are called with, in fp32.

    last: whether images lie channels-last.
    """
    import torch

    lie = torch.channels_last if last else torch.contiguous_format
    torch.backends.cudnn.benchmark = False  # what checks need not be fast, and is run once
    torch.manual_seed(0)
    exact, given = made(device)
    exact = exact.eval().to(memory_format=lie)
    given = tuple(x.to(memory_format=lie) if x.dim() == 4 else x for x in given)
    theirs = copy.deepcopy(exact).to(torch.bfloat16)
    ours = copy.deepcopy(theirs)
    take(ours)
    return ours, theirs, exact, given


def by_fastest() -> None:
    """From here on, cuDNN tries all of its algorithms for a convolution, and takes the fastest."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 0


def inference(made: Made, compiled: bool, last: bool = False, device: str = "cuda:0") -> Steps:
    """Forward passes. Raises `ValueError` where a result is wrong."""
    import torch

    ours, theirs, exact, given = sides(made, device, last)
    right = tensor_of(no_gradients(exact, *given))
    del exact
    by_fastest()
    given = tuple(x.to(torch.bfloat16) for x in given)
    if device != "cpu":
        from tilewright.torch import prepare

        no_gradients(prepare, ours, *given)
    if compiled:
        ours, theirs = (torch.compile(model) for model in (ours, theirs))
    steps = {
        "ours": partial(no_gradients, ours, *given),
        "vendor": partial(no_gradients, theirs, *given),
    }
    checked(*(tensor_of(run()) for run in steps.values()), right)
    return steps


def training(made: Made, last: bool = False, device: str = "cuda:0") -> Steps:
    """Forward and backward passes, eager. Raises `ValueError` where a result is wrong."""
    import torch

    ours, theirs, exact, (x,) = sides(made, device, last)
    low = x.to(torch.bfloat16)
    for one in (ours, theirs, exact):
        one.train()
    right = results(exact, x)
    by_fastest()
    if device != "cpu":
        from tilewright.torch import prepare

        prepare(ours, low)
    if bad := wrong(results(ours, low), results(theirs, low), right):
        raise ValueError(f"wrong: {', '.join(bad)}")
    return {"ours": partial(step, ours, low), "vendor": partial(step, theirs, low)}


MODELS: Mapping[str, tuple[Made, bool]] = {
    **{
        name.replace("_", "-"): (partial(pictures, name, 32), True)
        for name in ("convnext_tiny", "resnet50", "efficientnet_b0")
    },
    "unet": (partial(diffusion, 4), True),
    "whisper": (partial(whisper, 4), False),
}
"""What is called, and whether its images lie channels-last."""

LANGUAGE = ("llama", "qwen")


def forward_passes() -> Mapping[str, Callable[[], Steps]]:
    return {
        f"one-line-{name}{end}": partial(inference, made, compiled, last)
        for name, (made, last) in MODELS.items()
        for end, compiled in (("", False), ("-compiled", True))
    }


def language() -> Mapping[str, Callable[[], Steps]]:
    """Prompts of models whose products are ours too."""
    return {
        f"one-line-{name}-{rows}{end}":
            partial(hugging_face.prefill, name, rows, compiled, take=take)
        for end, compiled in (("", False), ("-compiled", True))
        for name in LANGUAGE
        for rows in (512, 2048, 16384)
    }  # fmt: skip


def decoding() -> Mapping[str, Callable[[], Steps]]:
    """One token of each sequence."""
    return {
        f"one-line-decode-{name}-{batch}":
            partial(hugging_face.in_a_graph, name, batch, take=take)
        for name in LANGUAGE
        for batch in (1, 16, 128)
    }  # fmt: skip


def steps_of_training() -> Mapping[str, Callable[[], Steps]]:
    return {
        f"one-line-train-{name.replace('_', '-')}": partial(
            training, partial(pictures, name, 32), True
        )
        for name in ("convnext_tiny", "resnet50", "efficientnet_b0")
    }


CASES = (
    Programs(
        "one-line", "bf16, whole models that `port` takes here, forward passes, eager and "
        "compiled: 32 images, 4 latent images of a diffusion's U-Net, 4 half minutes of Whisper",
        "the same models with torch's operations", forward_passes(),
    ),
    Programs(
        "one-line-language", "bf16, 16 layers of an 8B Llama and an 8B Qwen3 of transformers, "
        "products by `port` and attention by name, prompts of 512 to 16,384 tokens, cached",
        "the same models with torch's operations and sdpa", language(),
    ),
    Programs(
        "one-line-decode", "bf16, the same two models, one token of 1 to 128 sequences of 1,024 in "
        "a static cache of 2,048, in a replayed CUDA graph",
        "the same models with torch's operations and sdpa", decoding(),
    ),
    Programs(
        "one-line-train", "bf16, whole models that `port` takes here, 32 images, forward and "
        "backward, eager", "the same models with torch's operations", steps_of_training(),
    ),
)  # fmt: skip
