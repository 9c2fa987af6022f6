"""Layers of mixtures of experts: `tilewright.fused_moe` beside the best composition of torch's
calls, both in CUDA graphs.

A cell is a model, a number of ranks that its experts' inner columns are split over, a number of
tokens, and a load. By default twelve cells are drawn of all; the case ``fused-moe-every`` has all.

Each step replays a graph of `ROUTINGS` calls with a routing each, so that few tokens do not find
their experts' weights in L2. Weights are random. torch's side is the faster of its calls as they
are and of `torch.compile` of them, each in a graph, in a short race before the step is timed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

from cases import Programs


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes in a model's published config.json. clamped: with gpt-oss's gate."""

    hidden: int
    inner: int
    experts: int
    k: int
    clamped: bool = False


MODELS = {
    "mixtral-8x7b": Model(4096, 14336, 8, 2),
    "mixtral-8x22b": Model(6144, 16384, 8, 2),
    "qwen3-30b": Model(2048, 768, 128, 8),
    "qwen3-235b": Model(4096, 1536, 128, 8),
    "deepseek-v3": Model(7168, 2048, 256, 8),
    "glm-4.5": Model(5120, 1536, 160, 8),
    "gpt-oss-120b": Model(2880, 2880, 128, 4, clamped=True),
}
RANKS = (1, 4)
TOKENS = (1, 16, 256, 2048, 16384)
LOADS = ("balanced", "skewed")
DRAWN = 12
ROUTINGS = 8
RACE_SECONDS = 0.2
CLAMP = {"limit": 7.0, "alpha": 1.702, "shift": 1.0}
FAR = 0.06
"""The largest error of a result in bf16, beside the rms of what is right."""
CHECKED = 64
"""Tokens that are compared with float64."""

Layer = Callable[[Any, Any, Any, Any, Any], Any]


def routings(model: Model, tokens: int, load: str, device: str) -> list[tuple[Any, Any]]:
    """Weights and experts [tokens, k] of each call. Skewed: expert e is as likely as 1 / (e + 1),
    in an order that is shuffled."""
    import torch

    draw = torch.Generator(device).manual_seed(0)
    made = []
    for _ in range(ROUTINGS):
        likely = torch.ones(model.experts, device=device)
        if load == "skewed":
            ranks = torch.randperm(model.experts, generator=draw, device=device)
            likely = 1.0 / (ranks + 1)
        ids = torch.multinomial(likely.expand(tokens, -1), model.k, generator=draw)
        weights = torch.rand(tokens, model.k, generator=draw, device=device).softmax(-1)
        made.append((weights, ids.to(torch.int32)))
    return made


def gated(rows: Any, clamped: bool) -> Any:
    """What the second product takes, by torch's calls."""
    import torch

    if not clamped:
        gate, up = rows.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up
    gate, up = rows[..., 0::2], rows[..., 1::2]
    gate = gate.clamp(max=CLAMP["limit"])
    up = up.clamp(-CLAMP["limit"], CLAMP["limit"])
    return gate * torch.sigmoid(CLAMP["alpha"] * gate) * (up + CLAMP["shift"])


def by_torch(clamped: bool, x: Any, w1: Any, w2: Any, weights: Any, ids: Any) -> Any:
    """The layer by torch's grouped products."""
    import torch

    tokens, k = ids.shape
    found, order = torch.sort(ids.reshape(-1), stable=True)
    each = torch.arange(len(w1), device=ids.device, dtype=found.dtype)
    ends = torch.searchsorted(found, each, right=True, out_int32=True)
    rows = torch._grouped_mm(x[order // k], w1.transpose(1, 2), offs=ends)
    rows = torch._grouped_mm(gated(rows, clamped), w2.transpose(1, 2), offs=ends)
    placed = torch.empty_like(rows)
    placed[order] = rows
    terms = placed.view(tokens, k, -1).float() * weights[..., None]
    return terms.sum(1).to(x.dtype)


def ours(clamped: bool, x: Any, w1: Any, w2: Any, weights: Any, ids: Any) -> Any:
    """The layer by `tilewright.fused_moe`."""
    import tilewright as tw

    said: dict[str, Any] = {**CLAMP, "interleaved": True} if clamped else {}
    return tw.fused_moe(x, w1, w2, weights, ids, **said)


def exact(clamped: bool, x: Any, w1: Any, w2: Any, weights: Any, ids: Any) -> Any:
    """The first tokens' results in float64."""
    import torch

    x, weights, ids = x[:CHECKED].double(), weights[:CHECKED].double(), ids[:CHECKED]
    y = torch.zeros_like(x)
    for e in ids.unique().tolist():
        rows = gated(x @ w1[e].double().T, clamped) @ w2[e].double().T
        y += rows * (weights * (ids == e)).sum(-1, keepdim=True)
    return y


def steps(
    model: Model, ranks: int, tokens: int, load: str, device: str = "cuda"
) -> Mapping[str, Callable[[], object]]:
    """Both sides of a cell, checked."""
    import torch

    inner = model.inner // ranks

    def drawn(*shape: int) -> Any:
        made = torch.empty(shape, device=device, dtype=torch.bfloat16)
        return made.normal_(std=shape[-1] ** -0.5)

    torch.manual_seed(0)
    w1 = drawn(model.experts, 2 * inner, model.hidden)
    w2 = drawn(model.experts, model.hidden, inner)
    x = torch.randn(tokens, model.hidden, device=device, dtype=torch.bfloat16)
    routed = routings(model, tokens, load, device)
    eager: Layer = partial(by_torch, model.clamped)
    mine: Layer = partial(ours, model.clamped)
    compiled: Layer = torch.compile(eager, dynamic=False)

    def calls(layer: Layer) -> list[Any]:
        return [layer(x, w1, w2, *one) for one in routed]

    with torch.no_grad():
        wanted = [exact(model.clamped, x, w1, w2, *one) for one in routed[:2]]
        for name, layer in (("ours", mine), ("torch", eager), ("compiled", compiled)):
            for got, right in zip(calls(layer), wanted, strict=False):
                far = (got[:CHECKED].double() - right).abs().max() / right.square().mean().sqrt()
                assert far < FAR, f"{name}: an error of {far:.3f} of the rms"
        graphs = [captured(partial(calls, layer)) for layer in (eager, compiled)]
        vendor = min(graphs, key=seconds)
        return {"ours": First(partial(calls, mine)), "vendor": vendor}


class First:
    """A step that makes its calls the first time, so that whoever listens hears of them, and then
    replays them in a graph."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call, self._replay = call, None

    def __call__(self) -> None:
        import torch

        with torch.no_grad():
            if self._replay is None:
                self._call()
                self._replay = captured(self._call)
            else:
                self._replay()


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """What replays a call in a graph."""
    import torch

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], None] = graph.replay
    return replay


def seconds(replay: Callable[[], None]) -> float:
    """The least that a replay took."""
    import torch

    least, ends = float("inf"), time.perf_counter() + RACE_SECONDS
    while time.perf_counter() < ends or least == float("inf"):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        replay()
        torch.cuda.synchronize()
        least = min(least, time.perf_counter() - begun)
    return least


CELLS = [*product(MODELS, RANKS, TOKENS, LOADS)]


def drawn_cells(count: int) -> list[tuple[str, int, int, str]]:
    """Cells by chance, in their order: a seed belongs to the case."""
    return sorted(random.Random("fused-moe").sample(CELLS, count), key=CELLS.index)


def programs(case: str, cells: Sequence[tuple[str, int, int, str]]) -> dict[str, Any]:
    """The steps of each cell, by name."""
    return {
        f"{case}-{model.replace('.', '-')}-tp{ranks}-{tokens}-{load}": partial(
            steps, MODELS[model], ranks, tokens, load
        )
        for model, ranks, tokens, load in cells
    }


_SAYS = "bf16, layers of seven mixtures of experts, 1 to 16,384 tokens, in graphs"
_AGAINST = "the faster of `torch._grouped_mm` with torch's calls and `torch.compile` of them"

CASES = (
    Programs("fused-moe", f"{_SAYS}: {DRAWN} cells by chance", _AGAINST,
             programs("fused-moe", drawn_cells(DRAWN))),
    Programs("fused-moe-every", f"{_SAYS}: every cell", _AGAINST,
             programs("fused-moe-every", CELLS)),
)  # fmt: skip
