"""A Llama's layers, prefill and decode, with products and attention taken from here, and with
torch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from cases import Programs

Steps = Mapping[str, Callable[[], object]]

LAYERS, WIDTH, INNER, HEADS, KV_HEADS, VOCABULARY = 16, 4096, 14336, 32, 8, 32000
"""Half of an 8B model's layers; the vocabulary is short, so that layers are what is timed."""
DIM = WIDTH // HEADS
CACHED = 1024
"""Keys that each sequence has when it decodes."""
TIMES, PART = 2.0, 0.01
"""An error beside the same layers in fp32 may be so many times that of torch's in bf16, and this
part of the result more."""
CHECKED = 1000
"""Tokens up to which results are held to those in fp32."""


@dataclass(frozen=True, slots=True)
class Operations:
    """What a side computes with.

    linear: of x [rows, K] and a weight [N, K]. attend: of q, k, v [batch, rows, heads, DIM].
    gated: silu(x by the gate) * (x by up), of x and a layer's weights. added: y and `linear`.
    turned: q and k by the cosines and sines of their rows' places.
    """

    linear: Callable[..., Any]
    attend: Callable[..., Any]
    gated: Callable[..., Any]
    added: Callable[..., Any]
    turned: Callable[..., Any]


def layers_of(side: Operations, weights: Any) -> Any:
    """The layers as a function of embedded tokens [batch, rows, WIDTH].

    caches: (k, v) of each layer, whose last key the tokens, one of each sequence, write; None for
    a prefill.
    """
    from torch.nn.functional import rms_norm

    def run(x: Any, cos: Any, sin: Any, caches: Any = None) -> Any:
        batch, rows, _ = x.shape
        x = x.reshape(batch * rows, WIDTH)
        for number, w in enumerate(weights["layers"]):
            h = rms_norm(x, (WIDTH,), w["before"])
            q, k, v = (side.linear(h, w[name]).view(batch, rows, -1, DIM) for name in "qkv")
            q, k = side.turned(q, k, cos, sin)
            if caches is not None:
                keys, values = caches[number]
                keys[:, -1:], values[:, -1:] = k, v
                k, v = keys, values
            x = side.added(x, side.attend(q, k, v).reshape(batch * rows, WIDTH), w["out"])
            h = rms_norm(x, (WIDTH,), w["between"])
            x = side.added(x, side.gated(h, w), w["down"])
        return side.linear(rms_norm(x[-batch:], (WIDTH,), weights["last"]), weights["head"])

    return run


def made(device: str, layers: int) -> Any:
    """Fresh weights, in fp32."""
    import torch

    torch.manual_seed(0)

    def one(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, device=device) / columns**0.5

    sizes = {
        "q": (WIDTH, WIDTH), "k": (KV_HEADS * DIM, WIDTH), "v": (KV_HEADS * DIM, WIDTH),
        "out": (WIDTH, WIDTH), "gate": (INNER, WIDTH), "up": (INNER, WIDTH),
        "down": (WIDTH, INNER),
    }  # fmt: skip
    ones = partial(torch.ones, WIDTH, device=device)
    return {
        "layers": [
            {**{name: one(*size) for name, size in sizes.items()}, "before": ones(),
             "between": ones()}
            for _ in range(layers)
        ],
        "last": ones(), "head": one(VOCABULARY, WIDTH),
    }  # fmt: skip


def changed(weights: Any, dtype: Any) -> Any:
    if isinstance(weights, dict):
        return {name: changed(one, dtype) for name, one in weights.items()}
    if isinstance(weights, list):
        return [changed(one, dtype) for one in weights]
    return weights.to(dtype)


def apart(linear: Callable[..., Any], attend: Callable[..., Any]) -> Operations:
    """Products, and torch's operations between them."""
    import torch
    from torch.nn.functional import silu

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    return Operations(
        linear, attend,
        gated=lambda x, w: silu(linear(x, w["gate"])) * linear(x, w["up"]),
        added=lambda y, x, w: y + linear(x, w),
        turned=lambda q, k, cos, sin: (turned(q, cos, sin), turned(k, cos, sin)),
    )  # fmt: skip


def sides(weights: Any, causal: bool, fused: bool = False) -> tuple[Any, Any]:
    """The layers with operations from here, and with torch's.

    fused: whether ours take the gate, and the sum behind a product, with the product, and turn q
        and k at once.
    """
    import torch
    from torch.nn.functional import linear, scaled_dot_product_attention

    import tilewright as tw

    def own_linear(x: Any, w: Any) -> Any:
        return tw.gemm(x, w.t())

    def own_attention(q: Any, k: Any, v: Any) -> Any:
        return tw.attention(q, k, v, is_causal=causal)

    def attention(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
        return out.transpose(1, 2)

    @cache
    def places(batch: int, rows: int, device: Any) -> Any:
        return torch.arange(rows, device=device, dtype=torch.int32).repeat(batch)

    def own_turned(q: Any, k: Any, cos: Any, sin: Any) -> Any:
        at = places(*q.shape[:2], q.device)
        flat = (x.flatten(0, 1) for x in (q, k))
        made = tw.rotary(*flat, cos[0, :, 0], sin[0, :, 0], positions=at)
        return tuple(y.view(x.shape) for x, y in zip((q, k), made, strict=True))

    own = apart(own_linear, own_attention)
    if fused:
        for w in weights["layers"]:  # columns: gate, up, gate, up
            w["both"] = torch.stack((w["gate"], w["up"]), 1).flatten(0, 1)
        own = Operations(
            own_linear, own_attention,
            gated=lambda x, w: tw.gemm(x, w["both"].t(), epilogue="swiglu"),
            added=lambda y, x, w: tw.gemm(x, w.t(), epilogue="add", add=y),
            turned=own_turned,
        )  # fmt: skip
    return layers_of(own, weights), layers_of(apart(linear, attention), weights)


def module(device: str = "cuda", layers: int = LAYERS) -> Any:
    """The layers with operations from here, in bf16, as a module that trains."""
    import torch

    weights = changed(made(device, layers), torch.bfloat16)

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(map(torch.nn.ParameterDict, weights["layers"]))
            self.last, self.head = (torch.nn.Parameter(weights[name]) for name in ("last", "head"))

        def forward(self, x: Any) -> Any:
            now = {"layers": [*self.layers], "last": self.last, "head": self.head}
            cos, sin = angles(torch.arange(x.shape[1], device=x.device))
            return sides(now, causal=True)[0](x, cos.to(x.dtype), sin.to(x.dtype))

    return Layers()


def angles(places: Any) -> tuple[Any, Any]:
    """Cosines and sines of rotary embedding [1, rows, 1, DIM/2]."""
    import torch

    rates = 500000.0 ** -(torch.arange(0, DIM, 2, device=places.device) / DIM)
    found = (places[:, None] * rates)[None, :, None]
    return found.cos(), found.sin()


def checked(ours: Any, theirs: Any, exact: Any) -> None:
    """Raises `ValueError` where ours is further off than may be."""
    error, other = ((one.double() - exact.double()).norm() for one in (ours, theirs))
    if not error <= TIMES * other + PART * exact.double().norm():
        raise ValueError(f"wrong: {error:.3g} off, torch's {other:.3g}")


def prefill(rows: int, device: str = "cuda:0", layers: int = LAYERS, fused: bool = False) -> Steps:
    """One prompt. Raises `ValueError` where a result is wrong."""
    import torch

    weights = made(device, layers)
    x = torch.randn(1, rows, WIDTH, device=device)
    cos, sin = angles(torch.arange(rows, device=device))
    exact = sides(weights, True)[1](x, cos, sin) if rows <= CHECKED else None
    weights, x, cos, sin = (changed(one, torch.bfloat16) for one in (weights, x, cos, sin))
    ours, theirs = (
        partial(no_gradients, side, x, cos, sin) for side in sides(weights, True, fused)
    )
    if exact is not None:
        checked(ours(), theirs(), exact)
    return {"ours": ours, "vendor": theirs}


def decode(batch: int, device: str = "cuda:0", layers: int = LAYERS, fused: bool = False) -> Steps:
    """One token of each sequence, in a replayed CUDA graph. Raises `ValueError` where a result is
    wrong."""
    import torch

    weights = made(device, layers)
    x = torch.randn(batch, 1, WIDTH, device=device)
    shape = (batch, CACHED, KV_HEADS, DIM)
    caches = [[torch.randn(shape, device=device) for _ in "kv"] for _ in range(layers)]
    cos, sin = angles(torch.arange(CACHED - 1, CACHED, device=device))
    exact = no_gradients(sides(weights, False)[1], x, cos, sin, changed(caches, torch.float32))
    low = [changed(one, torch.bfloat16) for one in (weights, x, cos, sin, caches)]
    found = {}
    for name, side in zip(("ours", "vendor"), sides(low[0], False, fused), strict=True):
        run = partial(no_gradients, side, *low[1:])
        found[name] = graph_of(run) if device != "cpu" else (run, run())
    checked(found["ours"][1], found["vendor"][1], exact)
    return {name: run for name, (run, _) in found.items()}


def no_gradients(run: Callable[..., Any], *given: Any) -> Any:
    import torch

    with torch.no_grad():
        return run(*given)


def graph_of(run: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
    """What replays `run` in a CUDA graph, and its result."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())  # what `run` reads may be on its way there
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    graph.replay()
    torch.cuda.synchronize()

    def replayed(_owner: Callable[[], Any] = run) -> None:  # a graph owns nothing that it reads
        graph.replay()

    return replayed, out


PROMPTS, BATCHES = (512, 1000, 2048, 3333, 8192), (1, 16, 64, 128)


def named(word: str, make: Callable[[int], Steps], sizes: Sequence[int]) -> Mapping[str, Any]:
    return {f"{word}-{size}": partial(make, size) for size in sizes}


CASES = (
    Programs(
        "llama-prefill", f"bf16, {LAYERS} layers of an 8B Llama, prompts of 512 to 8,192 tokens, "
        "products and attention from here", "torch's products and attention",
        named("llama-prefill", prefill, PROMPTS),
    ),
    Programs(
        "llama-decode", f"bf16, the same layers, one token of 1 to 128 sequences of {CACHED}, in "
        "a replayed CUDA graph", "torch's products and attention",
        named("llama-decode", decode, BATCHES),
    ),
    Programs(
        "llama-prefill-fused", "the same prompts, ours with gates and sums in the products' "
        "kernels, and rotary embedding in one",
        "torch's products and attention, and its operations between them",
        named("llama-prefill-fused", partial(prefill, fused=True), PROMPTS),
    ),
    Programs(
        "llama-decode-fused", "the same tokens, ours with gates and sums in the products' "
        "kernels, and rotary embedding in one",
        "torch's products and attention, and its operations between them",
        named("llama-decode-fused", partial(decode, fused=True), BATCHES),
    ),
)  # fmt: skip
