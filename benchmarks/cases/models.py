"""Whole models: forward and backward passes with operations taken from here, beside torch's."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cases import HostTimes, Programs, llama
from tilewright.standing import WAITS

Steps = Mapping[str, Callable[[], object]]

TIMES, PART = 2.0, 0.01
"""An error, of the output or of gradients beside the same model in fp32, may be so many times that
of torch's own in the model's dtype, and this part of its norm more: as FlashAttention's tests. Of a
layer by itself no part more: both sides round once."""
ROOM = 0.02
"""How far a loss may be from torch's, of torch's."""
RATE, TRAINED = 3e-4, 50
"""The optimizer's largest rate, and steps of training. The rate grows over all steps and gradients
are clipped: else losses jump, and two runs that differ in a last bit jump in other steps."""

# --- convolutions -------------------------------------------------------------------------------


def timm(name: str) -> Any:
    """A model of timm's with fresh weights. Without dropout: with a mask of its own each side, and
    each step, would compute another function."""
    import timm

    return timm.create_model(name, pretrained=False, drop_rate=0.0)


def swap(model: Any) -> int:
    """Take the convolutions of `model` from here. Returns how many."""
    import torch

    import tilewright as tw

    found = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    for m in found:
        if m.padding_mode != "zeros":
            raise ValueError(f"{m}: padding {m.padding_mode} is not of zeros")
        m.forward = lambda x, m=m: tw.conv2d(
            x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups
        )
    return len(found)


def step(model: Any, x: Any) -> Any:
    """A forward and a backward pass, of the mean square of the output."""
    model.zero_grad(set_to_none=True)
    out = model(x)
    out.float().square().mean().backward()
    return out


def results(model: Any, x: Any) -> dict[str, Any]:
    """The output and the gradients of a step, in float64."""
    found = {"output": step(model, x).detach()}
    found |= {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: one.double() for name, one in found.items()}


def wrong(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], exact: Mapping[str, Any]
) -> list[str]:
    """The tensors of ours that are further off than may be."""
    found = []
    for name, wanted in exact.items():
        norm = wanted.norm().item()
        error, other = ((side[name] - wanted).norm().item() for side in (ours, theirs))
        if not error <= TIMES * other + PART * norm + 1e-30:
            found.append(name)
    return found


def as_two(found: Mapping[str, Any]) -> dict[str, Any]:
    """The output and all gradients as one vector, of `results`. Gradients one by one say little of
    a deep model in bf16: torch's own are off by much of their norm, and those that a normalization
    behind them cancels are noise alone, so that one side's may be many times the other's."""
    import torch

    gradients = [one.flatten() for name, one in found.items() if name != "output"]
    return {"output": found["output"], "gradients": torch.cat(gradients)}


def operands(model: Any, x: Any) -> dict[str, tuple[Any, Any]]:
    """Of each convolution of `model` in a step: its input, and the gradient of its output."""
    import torch

    found: dict[str, tuple[Any, Any]] = {}

    def called(name: str, layer: Any, given: Any, out: Any) -> None:
        mine = given[0].detach().requires_grad_(given[0].requires_grad)
        out.register_hook(lambda grad: found.update({name: (mine, grad)}))

    hooks = [
        layer.register_forward_hook(partial(called, name))
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Conv2d)
    ]
    step(model, x)
    for hook in hooks:
        hook.remove()
    return found


def apart(layer: Any, x: Any, grad: Any) -> dict[str, Any]:
    """What a layer by itself, in its dtype, makes of operands: output and gradients, in float64."""
    dtype = layer.weight.dtype
    x = x.detach().to(dtype).requires_grad_(x.requires_grad)
    layer.zero_grad(set_to_none=True)
    out = layer(x)
    out.backward(grad.to(dtype))
    found = {"output": out.detach(), "gradient of input": x.grad}
    found |= {f"gradient of {name}": p.grad for name, p in layer.named_parameters()}
    return {name: one.double() for name, one in found.items() if one is not None}


def wrong_apart(ours: Any, theirs: Any, x: Any) -> list[str]:
    """What convolutions of ours compute wrong, each by itself on its operands in a step: further
    off than torch's beside fp32, by the norm of all elements or in one. So no error of the layers
    before counts. Products of bf16 are exact in TF32 too."""
    import torch

    bad = []
    for name, given in operands(ours, x).items():
        layer = theirs.get_submodule(name)
        exact = apart(copy.deepcopy(layer).float(), *given)
        mine, other = apart(ours.get_submodule(name), *given), apart(layer, *given)
        for what, right in exact.items():
            for order in (2, float("inf")):
                error, allowed = (
                    torch.linalg.vector_norm(side[what] - right, order).item()
                    for side in (mine, other)
                )
                if not error <= TIMES * allowed + 1e-30:
                    bad.append(f"{name}, {what}: {error:.3g} off, torch's {allowed:.3g}")
    return bad


def convolutions(
    made: Callable[[], Any],
    images: int,
    size: int = 224,
    device: str = "cuda:0",
    order: str = "channels_last",
) -> Steps:
    """A model in bf16, with convolutions from here and from cuDNN, which tries all of its
    algorithms. Raises `ValueError` where a result is wrong: of a convolution by itself, or of the
    model.

    order: torch's name of how images and filters lie.
    """
    import torch

    from tilewright.torch import prepare

    lie = getattr(torch, order)
    torch.manual_seed(0)
    exact = made().to(device, memory_format=lie)
    theirs = copy.deepcopy(exact).to(torch.bfloat16)
    ours = copy.deepcopy(theirs)
    swap(ours)
    x = torch.randn(images, 3, size, size, device=device)
    x = x.to(torch.bfloat16, memory_format=lie)
    if device != "cpu":
        prepare(ours, x)
    torch.backends.cudnn.benchmark = False  # what checks need not be fast, and is run once
    wanted = as_two(results(exact, x.float()))
    bad = wrong_apart(ours, theirs, x)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 0
    bad += wrong(as_two(results(ours, x)), as_two(results(theirs, x)), wanted)
    if bad:
        raise ValueError(f"wrong: {'; '.join(bad)}")
    return {"ours": partial(step, ours, x), "vendor": partial(step, theirs, x)}


# --- the first step -----------------------------------------------------------------------------

HOW = ("waiting", "prepared", "not waiting")
PATIENCE_SECONDS = 120


def images(name: str) -> tuple[Any, Any]:
    """A model of timm's whose convolutions are ours, in bf16, and 32 images, channels-last."""
    import torch

    torch.manual_seed(0)
    model = timm(name).cuda().to(torch.bfloat16, memory_format=torch.channels_last)
    swap(model)
    x = torch.randn(32, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    return model, x.to(memory_format=torch.channels_last)


def tokens(rows: int) -> tuple[Any, Any]:
    """A Llama of 16 layers whose products and attention are ours, in bf16, and a sequence."""
    import torch

    torch.manual_seed(0)
    model = llama.module()
    return model, torch.randn(1, rows, llama.WIDTH, device="cuda", dtype=torch.bfloat16)


FIRST: Mapping[str, Callable[[], tuple[Any, Any]]] = {
    "efficientnet-b0": partial(images, "efficientnet_b0"),
    "regnety-016": partial(images, "regnety_016"),
    "llama": partial(tokens, 2048),
}


def first_step(name: str, how: str) -> None:
    """Run a training step of a model of `FIRST` with the process's store, and print microseconds as
    JSON. The longest call is that of one operation of ours, as its caller waits for it."""
    import torch

    import tilewright
    import tilewright.torch
    from tilewright.dispatch import Dispatcher

    model, x = FIRST[name]()
    other = torch.randn(8, 3, 3, 3, device="cuda", dtype=torch.bfloat16)
    torch.nn.functional.conv2d(torch.randn_like(other), other)  # the libraries are loaded
    torch.randn(64, 64, device="cuda") @ torch.randn(64, 64, device="cuda")
    torch.cuda.synchronize()
    found, each = {}, []

    def timed(label: str, run: Callable[[], Any]) -> None:
        begun = time.perf_counter()
        run()
        torch.cuda.synchronize()
        found[label] = (time.perf_counter() - begun) * 1e6

    def first_run(*given: Any, real: Any = Dispatcher._first_run) -> Any:
        begun = time.perf_counter()
        try:
            return real(*given)
        finally:
            each.append((time.perf_counter() - begun) * 1e6)

    if how == "prepared":
        say = partial(print, file=sys.stderr)
        timed("prepare", lambda: say(tilewright.torch.prepare(model, x)))
    Dispatcher._first_run = first_run  # type: ignore[method-assign]
    timed("first step", lambda: step(model, x))
    found["longest call"] = max(each)
    if how == "not waiting":
        dispatcher = tilewright.default_dispatcher()
        begun = time.perf_counter()
        while dispatcher.standing() and time.perf_counter() - begun < PATIENCE_SECONDS:
            time.sleep(0.05)
        found["until all kernels are built"] = (time.perf_counter() - begun) * 1e6
    timed("next step", lambda: step(model, x))
    timed("third step", lambda: step(model, x))
    print(json.dumps(found))


def first_steps(name: str) -> Mapping[str, Sequence[float]]:
    """The first training step of a model with an empty store, in a fresh process each: as calls
    wait for the compiler, prepared before, and with other kernels that stand in meanwhile."""
    found: dict[str, Sequence[float]] = {}
    script = "import sys; from cases.models import first_step; first_step(*sys.argv[1:])"
    for how in HOW:
        with tempfile.TemporaryDirectory() as folder:
            own = {"TILEWRIGHT_STORE": folder, WAITS: str(int(how != "not waiting"))}
            done = subprocess.run(
                [sys.executable, "-c", script, name, how], env={**os.environ, **own},
                stdout=subprocess.PIPE, text=True, check=True,
                cwd=Path(__file__).parents[1],
            )  # fmt: skip
        said = json.loads(done.stdout.splitlines()[-1])
        found |= {f"{how}: {label}": [us] for label, us in said.items()}
    return found


# --- a GPT --------------------------------------------------------------------------------------


def gpt(
    layers: int = 16, width: int = 1024, heads: int = 16, vocabulary: int = 50304,
    length: int = 8192, steps: int = TRAINED, device: str = "cuda:0", backend: str = "inductor",
) -> Steps:  # fmt: skip
    """A GPT that trains with attention from here, and with torch's, which is cuDNN's: GPT-2
    medium's layers over one sequence, compiled, bf16 under autocast. Both begin with the same
    weights and see the same tokens. Raises `ValueError` if a loss differs by more than `ROOM`.

    A step is a forward and a backward pass, without the optimizer's.
    """
    import contextlib

    import torch
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import tilewright as tw

    def own(q: Any, k: Any, v: Any) -> Any:
        return tw.attention(q, k, v, mask="causal")

    def torch_s(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    class Block(nn.Module):
        def __init__(self, attention: Callable[..., Any]) -> None:
            super().__init__()
            self.attention = attention
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            parts = self.project(self.before(x)).view(*x.shape[:2], 3, heads, -1)
            x = x + self.out(self.attention(*parts.unbind(2)).reshape(x.shape))
            return x + self.down(nn.functional.gelu(self.up(self.between(x))))

    class Gpt(nn.Module):
        def __init__(self, attention: Callable[..., Any]) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block(attention) for _ in range(layers))
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            for one in self.parameters():
                if one.dim() > 1:
                    nn.init.normal_(one, std=0.02)

        def forward(self, tokens: Any) -> Any:
            x = self.words(tokens[:, :-1]) + self.places.weight
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.last(x)).flatten(0, 1).float()
            return nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())

    def passes(model: Any, tokens: Any) -> Any:
        on_gpu = device != "cpu"
        only = sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if on_gpu else contextlib.nullcontext()
        model.zero_grad(set_to_none=True)
        with only:
            with torch.autocast(torch.device(device).type, torch.bfloat16):
                loss = model(tokens)
            loss.backward()
        return loss

    def trained(attention: Callable[..., Any]) -> tuple[Any, list[float]]:
        torch.manual_seed(1)
        plain = Gpt(attention).to(device)
        model = torch.compile(plain, fullgraph=True, backend=backend)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=RATE, betas=(0.9, 0.95))
        warming = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / steps, 1, steps)
        losses = []
        for number in range(steps):
            losses.append(float(passes(model, tokens_of(number)).detach()))
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            warming.step()
        return model, losses

    def tokens_of(number: int) -> Any:
        return learnable(number, length, vocabulary).to(device)

    (ours, mine), (theirs, torchs) = trained(own), trained(torch_s)
    far = max(abs(a - b) / b for a, b in zip(mine, torchs, strict=True))
    if not far <= ROOM:
        raise ValueError(f"losses are up to {far:.2%} apart")
    tokens = tokens_of(steps)
    return {"ours": partial(passes, ours, tokens), "vendor": partial(passes, theirs, tokens)}


def learnable(seed: int, length: int, vocabulary: int) -> Any:
    """Tokens [1, length + 1] that a model can learn: each follows from the one before, but for one
    in eight."""
    import torch

    rng = torch.Generator().manual_seed(seed)
    found = torch.randint(vocabulary, (1, length + 1), generator=rng)
    kept = torch.rand(1, length + 1, generator=rng) < 7 / 8
    few = min(1024, vocabulary)
    for n in range(1, length + 1):
        follows = (found[:, n - 1] * 5 + 3) % few
        found[:, n] = torch.where(kept[:, n], follows, found[:, n])
    return found


NAMES = ("resnet50", "resnext50_32x4d", "convnext_tiny")
SMALL = ("efficientnet_b0", "mobilenetv3_large_100", "regnety_016", "mnasnet_100", "resnet18",
         "ghostnet_100")  # fmt: skip
"""Models of many small convolutions, whose host is hardly ahead of the GPU."""
ORDERS = {"last": "channels_last", "first": "contiguous_format"}

CASES = (
    *(
        HostTimes(
            f"host-first-step-{name}", f"the first training step of {says}, bf16, with an empty "
            "store", partial(first_steps, name),
        )
        for name, says in (
            ("efficientnet-b0", "EfficientNet-B0, 32 images, channels-last"),
            ("regnety-016", "RegNetY-016, 32 images, channels-last"),
            ("llama", "a Llama of 16 layers of 8B's shapes, 2,048 tokens"),
        )
    ),
    Programs(
        "models-conv", "bf16, whole models of convolutions, 128 images, forward and backward",
        "torch with cuDNN, the fastest of all its algorithms",
        {
            f"model-{name.replace('_', '-')}": partial(convolutions, partial(timm, name), 128)
            for name in NAMES
        },
    ),
    Programs(
        "models-eager", "bf16, whole models of small convolutions, 32 images, forward and backward",
        "torch with cuDNN, the fastest of all its algorithms",
        {
            f"model-eager-{name.replace('_', '-')}-channels-{end}":
                partial(convolutions, partial(timm, name), 32, order=order)
            for name in SMALL
            for end, order in ORDERS.items()
        },
    ),
    Programs(
        "model-gpt", "a GPT of 16 layers, 8k tokens, compiled, forward and backward",
        "torch with cuDNN's attention", {"model-gpt": gpt},
    ),
)  # fmt: skip
