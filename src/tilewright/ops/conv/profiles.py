"""Named sets of kernels to build: a ResNet's, a diffusion model's, what PyTorch calls, and so on.
Each is a product of dtypes, layers and directions; a layer has the sizes of a small and of a large
batch where they may ask for different kernels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from tilewright.arch.model import Arch
from tilewright.dtypes import resolve
from tilewright.ops.conv import words
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.profiles import Profile

HALF = ("bf16", "fp16")

Calls = Sequence[str]
"""Words of problems: layers, and what is done with them."""

TRAINING = ("direction=forward", "direction=data", "direction=weights")
INFERENCE = ("epilogue=bias", "epilogue=bias+relu", "epilogue=bias+silu",
             "epilogue=bias+add+relu")  # fmt: skip
"""A batch normalisation of fixed statistics is folded into weights and bias; a block ends by adding
its input."""


def _layers(batches: Sequence[int], layers: Calls) -> list[str]:
    return [f"n={n} {layer}" for layer in layers for n in batches]


def _square(c: int, k: int, size: int, taps: int, more: str = "", rank: int = 2) -> str:
    """A layer that keeps the image's size, but for a stride."""
    spatial, filter_ = ("x".join([str(one)] * rank) for one in (size, taps))
    return f"c={c} k={k} spatial={spatial} filter={filter_} pad={taps // 2} {more}".strip()


_WIDTHS = ((64, 56), (128, 28), (256, 14), (512, 7))
"""Channels of a ResNet's 3×3 layers, and pixels of an image's side."""

RESNET = _layers((1, 32, 128), [
    _square(3, 64, 224, 7, "stride=2"),
    *(_square(c, c, size, 3) for c, size in _WIDTHS),
    *(_square(c, c, 2 * size, 3, "stride=2") for c, size in _WIDTHS[1:]),
    *(_square(c, 4 * c, size, 1) for c, size in _WIDTHS),
    *(_square(4 * c, c, size, 1) for c, size in _WIDTHS),
    *(_square(2 * c, 4 * c, 2 * size, 1, "stride=2") for c, size in _WIDTHS[1:]),
    *(_square(2 * c, 2 * c, size, 3, "groups=32") for c, size in _WIDTHS),
    *(_square(2 * c, 2 * c, 2 * size, 3, "groups=32 stride=2") for c, size in _WIDTHS[1:]),
])  # fmt: skip
MOBILE = _layers((1, 128), [
    _square(3, 32, 224, 3, "stride=2"),
    "c=3 k=96 spatial=224x224 filter=4x4 stride=4",
    *(_square(c, c, size, 3, f"groups={c} stride={stride}")
      for c, size in ((32, 112), (144, 56), (480, 14)) for stride in (1, 2)),
    *(_square(c, c, size, 5, f"groups={c} stride={stride}")
      for c, size in ((72, 56), (240, 28), (1152, 7)) for stride in (1, 2)),
    *(_square(c, c, size, 7, f"groups={c}") for c, size in ((96, 56), (384, 14), (768, 7))),
    *(_square(c, k, size, 1) for c, k, size in ((16, 96, 112), (144, 24, 56), (480, 80, 14))),
    *(_square(c, k, 1, 1) for c, k in ((1632, 68), (68, 1632), (480, 20), (20, 480))),
])  # fmt: skip
DIFFUSION = _layers((1, 2, 16), [
    _square(4, 320, 64, 3),
    _square(320, 4, 64, 3),
    _square(4, 4, 128, 1),
    *(_square(c, c, size, 3) for c, size in ((320, 64), (640, 32), (1280, 16), (1280, 8))),
    *(_square(c, k, size, 3) for c, k, size in ((960, 320, 64), (1920, 640, 32), (2560, 1280, 8))),
    *(_square(c, c, size, 3, "stride=2") for c, size in ((320, 64), (640, 32), (1280, 16))),
    *(_square(c, k, size, 1) for c, k, size in ((320, 640, 32), (2560, 1280, 8))),
]) + _layers((1,), [
    *(_square(c, c, size, 3) for c, size in ((512, 64), (512, 256), (256, 512), (128, 512))),
    *(_square(c, k, 1024, 3) for c, k in ((3, 128), (128, 3))),
    # Videos: no frame sees one behind it.
    *(f"c={c} k={c} spatial=9x{size}x{size} filter=3x3x3 pad=2x1x1 pad_after=0x1x1"
      for c, size in ((384, 60), (192, 120), (96, 240))),
    "c=384 k=384 spatial=9x60x60 filter=3x1x1 pad=2x0x0 pad_after=0x0x0",
    "c=3 k=3 spatial=14x256x256 filter=3x1x1 pad=1x0x0",
    "c=16 k=512 spatial=5x60x90 filter=3x3x3 pad=0x1x1",
    "c=16 k=5120 spatial=21x90x160 filter=1x2x2 stride=1x2x2",
]) + _layers((14,), [  # arrays of more than 2 GiB
    *(f"c={c} k={k} spatial=576x1024 filter={taps}x{taps} pad={taps // 2}"
      for c, k, taps in ((256, 128, 1), (256, 128, 3), (128, 128, 3))),
])  # fmt: skip
AUDIO = _layers((1, 16), [
    "c=80 k=1280 spatial=3000 filter=3 pad=1",
    "c=1280 k=1280 spatial=3000 filter=3 pad=1 stride=2",
    *(f"c={c} k={k} spatial=8192 filter=7 pad=3" for c, k in ((1, 32), (32, 1), (100, 64))),
    *(f"c={c} k={c} spatial=4096 filter=7 pad={3 * d} dilation={d}"
      for c in (64, 512) for d in (1, 3, 9)),
    *(f"c={c} k={c // 2} spatial=1024 filter={2 * s} stride={s} pad={s // 2} transposed=1"
      for c, s in ((1024, 8), (512, 4), (128, 2))),
    # Conformers: every channel by itself.
    "c=1024 k=1024 groups=1024 spatial=749 filter=31 pad=15",
    # State-space models: no pixel sees one behind it.
    *(f"c={c} k={c} groups={c} spatial=4096 filter=4 pad=3 pad_after=0" for c in (2560, 8192)),
])  # fmt: skip
_RANKS = {1: ("3", "spatial=2048"), 2: ("3x3", "spatial=56x56"), 3: ("3x3x3", "spatial=8x28x28")}
PYTORCH = [
    f"n={n} c={c} k={c} {spatial} filter={filter_} pad=1 {more}".strip()
    for filter_, spatial in _RANKS.values()
    for n in (1, 32)
    for c in (64, 512, 67)
    for more in ("", "stride=2", "dilation=2", f"groups={c}", "stride=2 transposed=1",
                 "layout=channels_first", *(["groups=32"] if c % 32 == 0 else []))
]  # fmt: skip


def _made(
    arch: Arch, dtypes: Calls, layers: Calls, calls: Calls, plain: bool = False
) -> Iterator[ConvProblem]:
    """The problems, without those of dtypes that the architecture does not take.

    plain: whether the layers are computed without an epilogue too.
    """
    for dtype in dtypes:
        said = [resolve(word, arch.fp8) if word != "tf32" else word for word in dtype.split("/")]
        if any(one not in arch.dtypes or arch.dtypes[one].support == "refused" for one in said):
            continue
        of = " ".join(
            f"{word}={one}" for word, one in zip(("dtype", "precision"), said, strict=False)
        )
        for layer, call in itertools.product(layers, ("", *calls) if plain else calls):
            pairs = f"{layer} {call} {of}".split()
            yield words.parse(dict(pair.split("=", 1) for pair in pairs), arch.fp8)


def _trained(arch: Arch, layers: Calls) -> Iterator[ConvProblem]:
    yield from _made(arch, HALF, layers, TRAINING)
    ordinary = [layer for layer in layers if "transposed" not in layer]
    yield from _made(arch, HALF, ordinary, INFERENCE)


def _pytorch(arch: Arch) -> Iterator[ConvProblem]:
    yield from _made(arch, (*HALF, "fp32", "fp32/tf32"), PYTORCH, TRAINING)
    forward = [layer for layer in PYTORCH if "transposed" not in layer]
    yield from _made(arch, (*HALF, "fp32"), forward, ("epilogue=bias",))


def _fp8(arch: Arch) -> Iterator[ConvProblem]:
    calls = (*INFERENCE, "epilogue=scale dtype_out=fp8", "epilogue=scale+bias+silu")
    yield from _made(arch, ("fp8",), [*RESNET, *DIFFUSION], calls, plain=True)


def _int8(arch: Arch) -> Iterator[ConvProblem]:
    calls = ("epilogue=col_scale+bias+relu", "epilogue=col_scale+bias+relu+scale dtype_out=int8")
    yield from _made(arch, ("int8",), [*RESNET, *MOBILE], calls, plain=True)


_EACH: dict[str, tuple[str, Callable[[Arch], Iterator[ConvProblem]]]] = {
    "resnet": ("ResNet and ResNeXt, trained and served, in bf16 and fp16",
               lambda arch: _trained(arch, RESNET)),
    "mobile": ("MobileNet, EfficientNet and ConvNeXt: depthwise layers and those around them",
               lambda arch: _trained(arch, MOBILE)),
    "diffusion": ("image and video diffusion: U-Nets and autoencoders",
                  lambda arch: _trained(arch, DIFFUSION)),
    "audio": ("1-D: Whisper, codecs with transposed layers, Conformers, state-space models",
              lambda arch: _trained(arch, AUDIO)),
    "pytorch": ("conv1d to conv3d, transposed too, in both layouts, bf16, fp16, fp32, TF32",
                _pytorch),
    "fp8": ("layers of ResNets and diffusion in fp8, with and without a scale", _fp8),
    "int8": ("layers of ResNets and MobileNets in int8, with scales of channels", _int8),
}  # fmt: skip


def _all(arch: Arch) -> Iterator[ConvProblem]:
    return itertools.chain.from_iterable(problems(arch) for _, problems in _EACH.values())


PROFILES = {
    **{name: Profile(about, problems) for name, (about, problems) in _EACH.items()},
    "all": Profile("all of these", _all),
}
"""By name."""
