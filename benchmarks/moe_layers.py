"""Layers of mixtures of experts: sizes of models, how cells are drawn, and the layer by torch.

A cell is a model, a number of ranks that its experts' inner columns are split over, a number of
tokens, and a load. How cells are drawn, by a seed that is their dtype's name: every model on every
number of ranks is one cell. Logarithms of tokens, from 1 to `MOST_TOKENS`, are cut into as many
equal stretches as there are cells; each cell has another stretch, and a number in it by chance.
Loads are dealt out evenly, by chance too. In fp8 a cell's sizes are multiples of the scales' 128.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turn import Turn


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
MOST_TOKENS = 16384
LOADS = ("balanced", "skewed", "empty")
DTYPES = ("bf16", "fp8")
BLOCK = 128
"""Weights in fp8 have a scale for so many rows and columns; tokens, for so many columns."""
CLAMP = {"limit": 7.0, "alpha": 1.702, "shift": 1.0}
CHECKED = 64
"""Tokens that are compared with float64."""
FAR = {"bf16": 0.06, "fp8": 0.5}
"""The largest error of a result beside the rms of what is right: roundings to 8 bits are a fortieth
each, and of half a million results the worst is at five times their rms."""
MOST_E4M3 = 448.0


@dataclass(frozen=True, slots=True)
class Cell:
    """model: a name in `MODELS`. inner: the columns of an expert on one rank."""

    dtype: str
    model: str
    ranks: int
    tokens: int
    load: str

    @property
    def sizes(self) -> Model:
        return MODELS[self.model]

    @property
    def inner(self) -> int:
        return self.sizes.inner // self.ranks

    @property
    def calls(self) -> int:
        """Calls in a graph, with a routing each: more where a call reads few experts' weights,
        which the next one shall not find in L2."""
        return 8 if self.tokens <= 512 else 2

    def __str__(self) -> str:
        model = self.model.replace(".", "-")
        return f"{self.dtype}-{model}-tp{self.ranks}-{self.tokens}-{self.load}"


def pairs(dtype: str) -> list[tuple[str, int]]:
    """Models and ranks of a dtype."""
    step = BLOCK if dtype == "fp8" else 1
    return [
        (name, ranks)
        for name, ranks in product(MODELS, RANKS)
        if MODELS[name].hidden % step == MODELS[name].inner // ranks % step == 0
    ]


def drawn(dtype: str) -> list[Cell]:
    """The cells of a dtype: see the module."""
    by_chance = random.Random(f"fused-moe {dtype}")
    those = pairs(dtype)
    each = math.log(MOST_TOKENS) / len(those)
    tokens = [round(math.exp(each * (at + by_chance.random()))) for at in range(len(those))]
    loads = [LOADS[at % len(LOADS)] for at in range(len(those))]
    by_chance.shuffle(tokens)
    by_chance.shuffle(loads)
    return [Cell(dtype, *pair, *rest) for pair, *rest in zip(those, tokens, loads, strict=True)]


# --- operands -----------------------------------------------------------------------------------


def routings(cell: Cell, device: str, seed: int = 0) -> list[tuple[Any, Any]]:
    """Weights and experts [tokens, k] of each call. Skewed: expert e is as likely as 1 / (e + 1),
    in an order that is shuffled. Empty: half of the experts have no token."""
    import torch

    size, draw = cell.sizes, torch.Generator(device).manual_seed(seed)
    made = []
    for _ in range(cell.calls):
        ranks = torch.randperm(size.experts, generator=draw, device=device)
        likely = torch.ones(size.experts, device=device)
        if cell.load == "skewed":
            likely = 1.0 / (ranks + 1)
        elif cell.load == "empty":
            likely[ranks < size.experts // 2] = 0.0
        ids = torch.multinomial(likely.expand(cell.tokens, -1), size.k, generator=draw)
        weights = torch.rand(cell.tokens, size.k, generator=draw, device=device).softmax(-1)
        made.append((weights, ids.to(torch.int32)))
    return made


@dataclass(frozen=True, slots=True)
class Operands:
    """x, and the weights of all experts. scales: of w1 and w2 for each block, in fp8."""

    x: Any
    w1: Any
    w2: Any
    scales: tuple[Any, Any] | None

    def held(self, which: int, expert: int, dtype: Any) -> Any:
        """What an expert's weight stands for, without its scales."""
        w = (self.w1, self.w2)[which][expert].to(dtype)
        if self.scales is None:
            return w
        wide = self.scales[which][expert].to(dtype)
        return w * wide.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)


def operands(cell: Cell, device: str, seed: int = 0) -> Operands:
    """By chance: rows of products have about the rms of x."""
    import torch

    size = cell.sizes
    torch.manual_seed(seed)

    def weight(rows: int, columns: int) -> tuple[Any, Any]:
        bf16 = partial(torch.empty, device=device, dtype=torch.bfloat16)
        if cell.dtype == "bf16":
            return bf16(size.experts, rows, columns).normal_(std=columns**-0.5), None
        shape = (size.experts, rows, columns)
        made = torch.empty(shape, device=device, dtype=torch.float8_e4m3fn)
        for one in made:  # random numbers of all at once would take twice the memory
            one.copy_(bf16(rows, columns).normal_(std=64.0).clamp_(-MOST_E4M3, MOST_E4M3))
        scales = torch.rand(size.experts, rows // BLOCK, columns // BLOCK, device=device) + 0.5
        return made, scales * (columns**-0.5 / 64.0)

    (w1, s1), (w2, s2) = weight(2 * cell.inner, size.hidden), weight(size.hidden, cell.inner)
    x = torch.randn(cell.tokens, size.hidden, device=device, dtype=torch.bfloat16)
    return Operands(x, w1, w2, None if s1 is None else (s1, s2))


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


def exact(cell: Cell, given: Operands, weights: Any, ids: Any) -> Any:
    """The first tokens' results in float64."""
    import torch

    x, weights, ids = given.x[:CHECKED].double(), weights[:CHECKED].double(), ids[:CHECKED]
    y = torch.zeros_like(x)
    for e in ids.unique().tolist():
        token, choice = (ids == e).nonzero(as_tuple=True)
        rows = gated(x[token] @ given.held(0, e, torch.float64).T, cell.sizes.clamped)
        rows = rows @ given.held(1, e, torch.float64).T
        y.index_add_(0, token, rows * weights[token, choice, None])
    return y


def far(got: Any, wanted: Any) -> float:
    """The largest error of the first tokens beside the rms; infinite for what is no number."""
    error = (got[:CHECKED].double() - wanted).abs().nan_to_num(math.inf).max()
    return float(error / wanted.square().mean().sqrt())


# --- the layer by torch -------------------------------------------------------------------------

Call = Callable[..., Any]
Product = Callable[[Any, Any], Any]


def by_row(rows: Any) -> tuple[Any, Any]:
    """Rows in 8 bits, and a scale for each."""
    import torch

    wide = rows.float()
    scales = wide.abs().amax(-1).clamp(min=1e-10) / MOST_E4M3
    return (wide / scales[..., None]).to(torch.float8_e4m3fn), scales


def sorted_rows(x: Any, ids: Any, experts: int, eight: bool) -> tuple[Any, Any, Any]:
    """Rows by experts, where each came from, and where those of an expert end."""
    import torch

    found, order = torch.sort(ids.reshape(-1), stable=True)
    each = torch.arange(experts, device=ids.device, dtype=found.dtype)
    ends = torch.searchsorted(found, each, right=True, out_int32=True)
    token = order // ids.shape[1]
    if not eight:
        return x[token], order, ends
    rows, scales = by_row(x)
    whole = rows.view(torch.uint8)[token].view(rows.dtype)
    return (whole, scales[token]), order, ends


def middle(rows: Any, clamped: bool, eight: bool) -> Any:
    made = gated(rows, clamped)
    return by_row(made) if eight else made


def combined(rows: Any, order: Any, weights: Any) -> Any:
    import torch

    placed = torch.empty_like(rows)
    placed[order] = rows
    terms = placed.view(*weights.shape, -1).float() * weights[..., None]
    return terms.sum(1).to(rows.dtype)


@dataclass(frozen=True, slots=True)
class ByTorch:
    """The layer by torch: its calls, or what `torch.compile` makes of all between two products.

    products: by torch, of rows by experts and their ends.
    eight: whether products take rows in 8 bits.
    """

    cell: Cell
    products: tuple[Product, Product]
    eight: bool = False
    compiled: bool = False

    def __call__(self, x: Any, weights: Any, ids: Any) -> Any:
        size, first, second = self.cell.sizes, *self.products
        parts = (sorted_rows, middle, combined)
        take, between, add = map(_compiled, parts) if self.compiled else parts
        rows, order, ends = take(x, ids, size.experts, self.eight)
        made = between(first(rows, ends), size.clamped, self.eight)
        return add(second(made, ends), order, weights)


@cache
def _compiled(part: Call) -> Call:
    import torch

    return torch.compile(part, dynamic=False)


def compile_ahead(cell: Cell, turn: Turn, device: str = "cuda:0") -> None:
    """Have what a cell's layers by torch compile in Inductor's caches. It needs no weights."""
    import torch

    import rivals_declared

    rivals_declared.time_alone(turn)
    size, slots = cell.sizes, cell.tokens * cell.sizes.k

    def without(columns: int) -> Product:
        made = torch.zeros(slots, columns, device=device, dtype=torch.bfloat16)
        return lambda rows, ends: made

    x = torch.zeros(cell.tokens, size.hidden, device=device, dtype=torch.bfloat16)
    products = (without(2 * cell.inner), without(size.hidden))
    (routing, *_) = routings(cell, device)
    with torch.no_grad():
        for eight in (False, True)[: 2 if cell.dtype == "fp8" else 1]:
            ByTorch(cell, products, eight, compiled=True)(x, *routing)


def torch_layers(cell: Cell, given: Operands) -> Mapping[str, ByTorch]:
    """All that torch has for a cell. In fp8 it has no grouped product with scales of blocks: so the
    weights are dequantised before, or rounded anew by rows."""
    import torch

    def in_bf16(which: int) -> Product:
        w = (given.w1, given.w2)[which]
        if given.scales is not None:
            wide = torch.empty(w.shape, dtype=torch.bfloat16, device=w.device)
            for e in range(len(w)):
                wide[e] = given.held(which, e, torch.float32)
            w = wide
        return lambda rows, ends: torch._grouped_mm(rows, w.transpose(1, 2), offs=ends)

    def in_fp8(which: int) -> Product:
        w = (given.w1, given.w2)[which]
        eight, scales = torch.empty_like(w), torch.empty(w.shape[:2], device=w.device)
        for e in range(len(w)):
            eight[e], scales[e] = by_row(given.held(which, e, torch.float32))

        def times(rows: Any, ends: Any) -> Any:
            return torch._scaled_grouped_mm(
                rows[0], eight.transpose(1, 2), rows[1], scales, offs=ends,
                out_dtype=torch.bfloat16, use_fast_accum=True,
            )  # fmt: skip

        return times

    both = {"torch": (in_bf16(0), in_bf16(1))}
    if cell.dtype == "fp8":
        both = {"torch in bf16": both["torch"], "torch by rows": (in_fp8(0), in_fp8(1))}
    return {
        name + end: ByTorch(cell, products, name == "torch by rows", compiled)
        for name, products in both.items()
        for end, compiled in (("", False), (", compiled", True))
    }
