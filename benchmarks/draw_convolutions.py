"""Draw layers of models for `cases/conv_unseen.csv` and `cases/conv_fresh.csv`: convolutions of
image, audio and video networks that no shipped list, table or fit has.

    python benchmarks/draw_convolutions.py --each 14 --seed 3 > benchmarks/cases/conv_unseen.csv
    python benchmarks/draw_convolutions.py --of fresh --each 16 --seed 4 \\
        > benchmarks/cases/conv_fresh.csv

Needs timm and transformers. Each model below is built from its default configuration on torch's
meta device, where nothing is computed, and run once without weights; a hook notes the sizes of each
convolution. Video networks and some of audio are stated here. A layer of `conv:full` is left out,
and for the fresh draw, of other models, each layer of the first one's models, drawn or not. Of each
kind of layer (`kind`) as many are drawn by chance, with two of the three directions; of a kind that
has fewer, all. Images are channels-first in half of the draws, audio always, video never.
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from tilewright.arch import arch
from tilewright.measure.problems import load_problems

IMAGES = (
    "bat_resnext26ts", "botnet26t_256", "convit_base", "convmixer_768_32", "crossvit_base_240",
    "cs3darknet_x", "cspdarknet53", "dpn107", "efficientformer_l3", "efficientformerv2_l",
    "ese_vovnet57b", "fbnetv3_d", "gcresnet50t", "gcvit_small", "halonet50ts", "hardcorenas_f",
    "lambda_resnet50ts", "levit_384", "mobilevitv2_200", "mvitv2_base", "nasnetalarge", "nest_base",
    "nextvit_large", "pit_b_224", "pnasnet5large", "pvt_v2_b4", "regnetx_320", "regnetz_d32",
    "resmlp_24_224", "semnasnet_100", "sequencer2d_l", "spnasnet_100", "swiftformer_l3",
    "swin_base_patch4_window7_224", "tinynet_a", "tnt_b_patch16_224", "twins_svt_large",
    "visformer_small", "xcit_medium_24_p16_224", "caformer_b36", "tiny_vit_21m_224", "vovnet39a",
    "resnetaa101d", "seresnext26t_32x4d", "eca_nfnet_l2", "beit_base_patch16_224", "convformer_b36",
)  # fmt: skip
"""Of timm, of families that `conv:full` has no model of."""
AUDIO = {
    "EncodecModel": (24000, True), "MimiModel": (24000, True), "XcodecModel": (16000, True),
    "SEWModel": (16000, False), "SEWDModel": (16000, False), "WavLMModel": (16000, False),
    "HubertModel": (16000, False), "Data2VecAudioModel": (16000, False),
    "UniSpeechModel": (16000, False), "UniSpeechSatModel": (16000, False),
}  # fmt: skip
"""Of transformers: samples a second, and whether a sequence has a dimension of channels."""
SECONDS = (2, 6)


class Layer(NamedTuple):
    n: int
    c: int
    k: int
    groups: int
    spatial: tuple[int, ...]
    filter: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool


@dataclass(frozen=True, slots=True)
class Models:
    """Models that layers are drawn from.

    images: of timm. audio: of transformers, with samples a second, and whether a sequence has a
        dimension of channels. stated: layers by model.
    """

    images: tuple[str, ...]
    audio: Mapping[str, tuple[int, bool]]
    stated: Mapping[str, tuple[Layer, ...]]


def same(n: int, c: int, size: tuple[int, ...], k: int, *taps: int, groups: int = 1) -> Layer:
    """Padding that keeps an image's size."""
    ones, pad = (1,) * len(taps), tuple(tap // 2 for tap in taps)
    return Layer(n, c, k, groups, size, taps, ones, pad, ones, False)


VIDEO = {
    "c3d": (  # Tran et al., 2015
        same(4, 3, (16, 112, 112), 64, 3, 3, 3), same(4, 64, (16, 56, 56), 128, 3, 3, 3),
        same(4, 256, (8, 28, 28), 256, 3, 3, 3), same(4, 512, (2, 7, 7), 512, 3, 3, 3),
    ),
    "slowfast_8x8_r50": (  # Feichtenhofer et al., 2019
        same(2, 256, (8, 56, 56), 64, 1, 1, 1), same(2, 64, (8, 56, 56), 64, 1, 3, 3),
        same(2, 1024, (8, 14, 14), 256, 3, 1, 1), same(2, 8, (32, 56, 56), 8, 1, 3, 3),
    ),
    "vnet": (  # Milletari et al., 2016
        same(1, 1, (64, 128, 128), 16, 5, 5, 5), same(1, 32, (32, 64, 64), 32, 5, 5, 5),
        same(1, 128, (8, 16, 16), 128, 5, 5, 5), same(1, 32, (64, 128, 128), 2, 1, 1, 1),
        Layer(1, 64, 128, 1, (16, 32, 32), (2,) * 3, (2,) * 3, (0,) * 3, (1,) * 3, False),
    ),
    "x3d_m": (  # Feichtenhofer, 2020
        same(8, 54, (16, 56, 56), 54, 3, 3, 3, groups=54), same(8, 24, (16, 112, 112), 54, 1, 1, 1),
        same(8, 216, (16, 14, 14), 216, 3, 3, 3, groups=216),
    ),
}  # fmt: skip


def down(
    n: int, c: int, size: tuple[int, ...], k: int, tap: int, stride: int, transposed: bool = False
) -> Layer:
    """No padding."""
    ones = (1,) * len(size)
    taps, strides = (tap,) * len(size), (stride,) * len(size)
    return Layer(n, c, k, 1, size, taps, strides, (0,) * len(size), ones, transposed)


def dilated(
    n: int, c: int, size: tuple[int, ...], k: int, tap: int, step: int, groups: int = 1
) -> Layer:
    """Padding that keeps an image's size, but for one behind where the filter is even."""
    ones = (1,) * len(size)
    pad, steps = (step * (tap - 1) // 2,) * len(size), (step,) * len(size)
    return Layer(n, c, k, groups, size, (tap,) * len(size), ones, pad, steps, False)


UNSEEN = Models(IMAGES, AUDIO, VIDEO)
FRESH = Models(
    images=(
        "inception_v4", "inception_resnet_v2", "res2net101_26w_4s", "coat_small", "volo_d2_224",
        "vitamin_base_224", "fasternet_l", "efficientvit_m5", "repghostnet_200",
        "mobilenet_edgetpu_v2_m", "regnetv_064", "resnetrs101", "haloregnetz_b", "mobilevit_s",
        "maxxvit_rmlp_small_rw_256", "hgnet_small", "sebotnet33ts_256", "fbnetc_100",
        "mnasnet_small", "swinv2_base_window8_256", "eva02_base_patch14_224", "nf_regnet_b1",
        "cs3edgenet_x", "gmlp_s16_224", "ghostnetv3_100", "legacy_xception", "densenetblur121d",
        "vit_base_r50_s16_224", "edgenext_small", "convnext_zepto_rms",
    ),
    audio={
        "Wav2Vec2Model": (16000, False), "VibeVoiceAcousticTokenizerModel": (24000, True),
    },
    stated={
        "i3d": (  # Carreira and Zisserman, 2017
            Layer(2, 3, 64, 1, (32, 224, 224), (7,) * 3, (2,) * 3, (3,) * 3, (1,) * 3, False),
            same(2, 64, (16, 56, 56), 192, 3, 3, 3), same(2, 192, (16, 28, 28), 96, 1, 1, 1),
            same(2, 128, (16, 28, 28), 192, 3, 3, 3), same(2, 160, (8, 14, 14), 320, 3, 3, 3),
        ),
        "p3d": (  # Qiu et al., 2017
            same(4, 64, (16, 40, 40), 64, 1, 3, 3), same(4, 64, (16, 40, 40), 64, 3, 1, 1),
            same(4, 256, (8, 20, 20), 64, 1, 1, 1),
        ),
        "unet_3d": (  # Cicek et al., 2016
            same(1, 3, (116, 132, 132), 32, 3, 3, 3), same(1, 64, (56, 64, 64), 128, 3, 3, 3),
            same(1, 64, (112, 128, 128), 3, 1, 1, 1),
            Layer(1, 256, 512, 1, (28, 32, 32), (2,) * 3, (2,) * 3, (0,) * 3, (1,) * 3, True),
        ),
        "demucs": (  # Defossez et al., 2019
            down(4, 2, (132300,), 64, 8, 4), down(4, 128, (8267,), 256, 8, 4),
            same(4, 256, (2065,), 512, 1), down(4, 256, (2065,), 512, 8, 4, transposed=True),
            down(4, 64, (33073,), 128, 8, 4, transposed=True),
        ),
        "conv_tasnet": (  # Luo and Mesgarani, 2019
            down(8, 1, (32000,), 512, 16, 8), same(8, 512, (3999,), 128, 1),
            same(8, 128, (3999,), 512, 1), same(8, 512, (3999,), 512, 3, groups=512),
            dilated(8, 512, (3999,), 512, 3, 16, groups=512),
            dilated(8, 512, (3999,), 512, 3, 128, groups=512),
            down(8, 1, (32000,), 512, 16, 8, transposed=True),
        ),
        "wavenet": (  # van den Oord et al., 2016
            same(4, 64, (16000,), 128, 2), dilated(4, 64, (16000,), 128, 2, 32),
            dilated(4, 64, (16000,), 128, 2, 512), same(4, 64, (16000,), 256, 1),
        ),
        "vocos": (  # Siuzdak, 2023
            same(16, 100, (256,), 512, 7), same(16, 512, (256,), 512, 7, groups=512),
            same(16, 512, (256,), 1536, 1),
        ),
        "melgan": (  # Kumar et al., 2019
            down(16, 256, (200,), 512, 16, 8, transposed=True),
            down(16, 64, (3200,), 128, 4, 2, transposed=True),
            dilated(16, 256, (200,), 256, 3, 9), same(16, 32, (12800,), 1, 7),
        ),
        "csn": (  # Tran et al., 2019
            same(4, 128, (8, 28, 28), 128, 3, 3, 3, groups=128),
            same(4, 256, (4, 14, 14), 256, 3, 3, 3, groups=256),
            same(4, 512, (8, 28, 28), 128, 1, 1, 1),
        ),
    },
)  # fmt: skip
"""Models that neither the others nor `conv:full` have, though some are of families that these have.
A layer of theirs is left out."""
SETS = {"unseen": UNSEEN, "fresh": FRESH}


def kind(layer: Layer) -> str:
    """What a draw is even over."""
    if layer.transposed:
        what = "transposed"
    elif layer.c == layer.k == layer.groups and layer.groups > 1:
        what = "depthwise"
    elif layer.groups > 1:
        what = "grouped"
    elif layer.filter == layer.stride != (1,) * len(layer.filter):
        what = "patches"
    elif min(layer.c, layer.k) <= 8:
        what = "few channels"
    else:
        what = "1x1" if set(layer.filter) == {1} else "dense"
    return f"{len(layer.filter)}-D {what}"


def key(layer: Any) -> tuple[Any, ...]:
    """What tells layers apart, and layers of problems."""
    return layer.c, layer.k, layer.groups, layer.spatial, layer.filter, layer.stride


def noted(model: torch.nn.Module, run: Callable[[], Any]) -> list[Layer]:
    """The convolutions of a run of a model."""
    found: list[Layer] = []

    def note(module: Any, inputs: Any, output: Any) -> None:
        x, transposed = inputs[0], module.transposed
        pad = module.padding
        if isinstance(pad, str) or x.dim() != len(module.kernel_size) + 2:
            return
        # A transposed convolution is the gradient of one from its output to its input.
        of, c, k = (output, module.out_channels, module.in_channels) if transposed else (
            x, module.in_channels, module.out_channels
        )  # fmt: skip
        found.append(
            Layer(
                x.shape[0], c, k, module.groups, tuple(of.shape[2:]), module.kernel_size,
                module.stride, pad, module.dilation, transposed,
            )
        )  # fmt: skip

    kinds = (torch.nn.modules.conv._ConvNd,)
    for module in model.modules():
        if isinstance(module, kinds):
            module.register_forward_hook(note)
    with torch.no_grad(), suppress(NotImplementedError, RuntimeError, ValueError, TypeError):
        run()  # what comes after the last convolution may want values
    return found


def layers_of(models: Models) -> Iterator[tuple[str, list[Layer]]]:
    """Each model's name and convolutions."""
    import timm
    import transformers

    for name in models.images:
        with torch.device("meta"):
            model = timm.create_model(name).eval()
            size = model.default_cfg["input_size"]
            n = random.Random(name).choice((1, 8, 32, 128))
            yield f"timm {name}", noted(model, lambda m=model, n=n, s=size: m(torch.empty(n, *s)))
    for name, (rate, channels) in models.audio.items():
        with torch.device("meta"):
            model = getattr(transformers, name)(getattr(transformers, name).config_class()).eval()
            pick = random.Random(name)
            length = (rate * pick.choice(SECONDS)) // 640 * 640
            shape = (pick.choice((1, 8, 16)), *((1,) if channels else ()), length)
            yield f"transformers {name}", noted(model, lambda m=model, s=shape: m(torch.empty(s)))
    yield from ((name, list(layers)) for name, layers in models.stated.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", choices=SETS, default="unseen", help="the models")
    parser.add_argument("--each", type=int, default=14, help="layers of each kind")
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    known = {key(p) for p in load_problems(["conv:full"], arch("sm_90")).problems}
    if args.of == "fresh":
        known |= {key(one) for _, layers in layers_of(UNSEEN) for one in layers}
    found: dict[str, dict[Layer, str]] = defaultdict(dict)
    for name, layers in layers_of(SETS[args.of]):
        print(f"{name}: {len(layers)}", file=sys.stderr)
        for one in layers:
            if key(one) not in known:
                found[kind(one)].setdefault(one, name)
    chance = random.Random(args.seed)
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(("kind", *Layer._fields, "channels", "directions", "model"))
    for what, layers in sorted(found.items()):
        for one in chance.sample(sorted(layers), min(args.each, len(layers))):
            first = {1: 1.0, 2: 0.5, 3: 0.0}[len(one.spatial)]
            channels = "first" if chance.random() < first else "last"
            directions = chance.sample(("forward", "data", "weights"), 2)
            said = ("x".join(map(str, v)) if isinstance(v, tuple) else int(v) for v in one)
            rows.writerow((what, *said, channels, " ".join(directions), layers[one]))


if __name__ == "__main__":
    main()
