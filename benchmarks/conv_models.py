"""Whole models in channels-last with their convolutions taken from here, against torch's, forward
and backward, in one interleaved run.

    python benchmarks/conv_models.py --json conv_models_h200.json
    python benchmarks/conv_models.py --model resnext50_32x4d --batch 64 --dtype fp16
    python benchmarks/conv_models.py --model tiny --on cpu

Models are timm's, with fresh weights (`pip install timm`), or `tiny`, a stand-in of four blocks
that needs nothing: a stem, a bottleneck, one with groups, a depthwise block. The forward of each
`torch.nn.Conv2d` is swapped for `tilewright.conv2d`; all else is torch's. Both sides have the same
weights and the same input, and are judged as FlashAttention judges kernels: an error, of the output
and of each weight's gradient beside the same model in fp32 by torch, is at most twice that of
torch's own in the model's dtype, plus 1 % of its norm. A step is the forward and backward pass;
`torch.backends.cudnn.benchmark` is on. On the CPU nothing is timed. Exit status 1 if a model is
wrong.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tilewright as tw
from environment import environment
from tilewright.measure import timing
from tilewright.measure.measurement import Settings

MODELS = ("resnet50", "resnext50_32x4d", "convnext_tiny")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TIMES, PART = 2.0, 0.01
SETTINGS = Settings(min_samples=20, max_samples=100, precision=0.005, budget_seconds=20)

Model = torch.nn.Module
Tensors = dict[str, torch.Tensor]


class Block(torch.nn.Module):
    """x + a 1×1 layer of a normalised layer of `taps`, in groups."""

    def __init__(self, c: int, taps: int, groups: int) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(c, c, taps, padding=taps // 2, groups=groups)
        self.norm = torch.nn.GroupNorm(4, c)
        self.last = torch.nn.Conv2d(c, c, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.last(torch.relu(self.norm(self.first(x))))
        return found


def tiny() -> Model:
    """The stand-in."""
    stem = torch.nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
    blocks = [Block(16, 3, 1), Block(16, 3, 4), Block(16, 7, 16)]
    ends = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10)]
    return torch.nn.Sequential(stem, *blocks, *ends)


def made(name: str) -> Model:
    """A model with fresh weights, in fp32."""
    torch.manual_seed(0)
    if name == "tiny":
        return tiny()
    import timm

    found: Model = timm.create_model(name, pretrained=False)
    return found


def swap(model: Model) -> int:
    """Take the convolutions of `model` from here. Returns how many."""
    swapped = 0
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            if module.padding_mode != "zeros":
                raise ValueError(f"{module}: padding {module.padding_mode} is not of zeros")
            module.forward = _forward(module)  # type: ignore[method-assign]
            swapped += 1
    return swapped


def _forward(module: torch.nn.Conv2d) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = tw.conv2d(
            x, module.weight, module.bias, module.stride, module.padding, module.dilation,
            module.groups,
        )  # fmt: skip
        return found

    return forward


def step(model: Model, x: torch.Tensor) -> torch.Tensor:
    """A forward and a backward pass, of the mean square of the output."""
    model.zero_grad(set_to_none=True)
    out: torch.Tensor = model(x)
    out.float().square().mean().backward()
    return out


def results(model: Model, x: torch.Tensor) -> Tensors:
    """The output and the gradients of a step, in float64."""
    found = {"output": step(model, x).detach()}
    found |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: one.double() for name, one in found.items()}


def judge(ours: Tensors, theirs: Tensors, exact: Tensors) -> dict[str, Any]:
    """The worst tensor by the rule, and those that break it. A value of `of_bound` is an error as a
    share of what is allowed."""
    shares = {}
    for name, wanted in exact.items():
        norm = wanted.norm().item()
        error, other = ((side[name] - wanted).norm().item() for side in (ours, theirs))
        shares[name] = error / (TIMES * other + PART * norm + 1e-30)
    worst = max(shares, key=shares.__getitem__)
    broken = sorted(name for name, share in shares.items() if not share <= 1)
    return {"tensors": len(shares), "worst": worst, "of_bound": shares[worst], "wrong": broken}


def timed(calls: dict[str, Callable[[], object]], on: str) -> dict[str, Any]:
    """Medians of a step of each side in microseconds, and torch's over ours."""
    from tilewright.arch.detect import live_device

    events = timing.Events(timing.flusher(live_device(0).l2_bytes, on), on)
    named = {name: [call] for name, call in calls.items()}
    series = timing.measure(named, events, SETTINGS)
    us = {name: statistics.median(one.samples_us) for name, one in series.items()}
    return {
        "us": {name: round(value, 1) for name, value in us.items()},
        "interval_us": {name: one.interval_us for name, one in series.items()},
        "ratio": round(us["torch"] / us["tilewright"], 3),
    }


def compare(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """One model's line of the result."""
    layout = torch.channels_last
    exact = made(name).to(args.on, memory_format=layout)
    theirs = copy.deepcopy(exact).to(DTYPES[args.dtype])
    ours = copy.deepcopy(theirs)
    swapped = swap(ours)
    shape = (args.batch, 3, args.size, args.size)
    x = torch.randn(shape, device=args.on).to(DTYPES[args.dtype], memory_format=layout)
    found = {"model": name, "convolutions": swapped, "input": shape, "dtype": args.dtype}
    found |= judge(results(ours, x), results(theirs, x), results(exact, x.float()))
    if args.on != "cpu":
        sides = {"tilewright": ours, "torch": theirs}
        found |= timed({one: lambda m=m: step(m, x) for one, m in sides.items()}, args.on)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--model", nargs="+", choices=(*MODELS, "tiny"), default=[*MODELS])
    parser.add_argument("--on", default="cuda:0", help="a GPU, or cpu: check, and time nothing")
    parser.add_argument("--batch", type=int, default=None, help="images [GPU: 128, CPU: 2]")
    parser.add_argument("--size", type=int, default=None, help="pixels [GPU: 224, CPU: 16]")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--json", type=Path, help="where to write the results")
    args = parser.parse_args()
    small = args.on == "cpu"
    args.batch = args.batch or (2 if small else 128)
    args.size = args.size or (16 if small else 224)
    torch.backends.cudnn.benchmark = True
    lines = []
    for name in args.model:
        lines.append(compare(name, args))
        print(json.dumps(lines[-1]), flush=True)
        if args.json:
            document = {"environment": environment(), "models": lines}
            args.json.write_text(json.dumps(document, indent=1) + "\n")
    return int(any(line["wrong"] for line in lines))


if __name__ == "__main__":
    sys.exit(main())
