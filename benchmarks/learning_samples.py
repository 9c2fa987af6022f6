"""Which problems and kernels learned selection learns from: the classes of problems, and the
samples that `learning_data.py draw` writes of them."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from cases.gemm_unseen import Multiples, fp8_rows, sizes
from learning_many import covered
from tilewright import arch, ops
from tilewright.arch.model import Device
from tilewright.learn.matrix import read
from tilewright.measure import designs
from tilewright.measure.designs import Design, Sample
from tilewright.measure.problems import load_problems
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.gemm import GemmProblem
from tilewright.select.features import Described
from tilewright.select.learned import judged
from tilewright.select.model import SHIPPED, gather

SAMPLES = Path(__file__).parent / "cases" / "learning"
RECORD = Path(__file__).parent / "results" / "learned_h200.parquet"
DEVICE = "h200_sxm"
SLOWEST = 2.5
"""Models are not asked about kernels of over twice the least estimate
(`select.learned.FARTHEST`)."""


@dataclass(frozen=True, slots=True)
class Class:
    """A class of problems, and how many pairs are drawn of it.

    problems: all that there are. kin: problems of one kin tell the least about each other's.
    most_flops: no larger problem is drawn: it costs more time than small ones teach.
    share: of the time.
    tuned: whether kernels that only a tuning chooses from are drawn too.
    built: of all problems together, at most so many kernels (`learning_many`); 0: `design` says.
    kind: of which kinds as many problems are taken then; None: the family's.
    """

    problems: Callable[[], Sequence[Any]]
    kin: Callable[[Any], Hashable]
    count: int
    design: Design
    most_flops: float
    share: float
    tuned: bool
    built: int = 0
    kind: Callable[[Any], str] | None = None


def _listed(*sets: str) -> Sequence[Any]:
    return load_problems(
        sets, arch.arch(arch.device(DEVICE).arch), None, {"dtype": "bf16"}
    ).problems


def _convolutions(direction: str) -> Class:
    """Layers of images without groups, of channels that tensor cores multiply by whole vectors: of
    other kinds, each problem has kernels of its own."""
    return Class(
        lambda: [
            replace(p, direction=direction)
            for p in _listed("conv:full")
            if len(p.spatial) == 2 and p.groups == 1 and p.c % 8 == p.k % 8 == 0
        ],
        lambda p: (p.c, p.k, p.filter, p.stride, p.pad, p.dilation),
        300, Design(64, first=12, slowest=SLOWEST, pool=256), 6e10, 0.15, False,
    )  # fmt: skip


SEEDS, BETWEEN = (7, 11), 300
"""Of the GEMMs between those of models. The seeds of the cases `gemm-unseen` stay unseen."""


def _between(multiples: Multiples = (1, 1, 1)) -> list[tuple[int, int, int]]:
    return [
        size
        for seed in SEEDS
        for of in (True, False)
        for size in sizes(BETWEEN, seed, of, multiples)
    ]


def _gemms() -> list[Any]:
    drawn = [GemmProblem(*size) for size in _between()]
    return [*dict.fromkeys([*_listed("gemm:full"), *drawn])]


LEAST_ROWS = 65
"""Of layers with gradients."""
SECTOR, UNITS = 16, 132
"""16-bit numbers of a sector of L2; compute units of an H200."""


def _layers_gradients() -> list[Any]:
    """What the backward pass of a layer multiplies, x [M, K] and weights [N, K]: of x a product in
    layout `rrr`, of the weights one in `crr`."""
    return [
        GemmProblem(*size, layout=layout)
        for m, n, k in dict.fromkeys(_between())
        if m >= LEAST_ROWS
        for size, layout in (((m, k, n), "rrr"), ((n, k, m), "crr"))
    ]


def _limits(p: Any) -> str:
    """The layout, whether compute units have a tile each, and whether rows begin at sectors: so
    many kinds take their time for different things."""
    tiles = "few" if -(-p.m // 128) * -(-p.n // 128) < UNITS else "many"
    rows = "whole" if p.lda % SECTOR == p.ldb % SECTOR == 0 else "askew"
    return f"{p.layout}, {tiles} tiles, rows {rows}"


def _fp8() -> list[Any]:
    """With a scale for each row of A and column of B."""
    listed = [(p.m, -(-p.n // 16) * 16, -(-p.k // 16) * 16) for p in _listed("gemm:full")]
    return [fp8_rows(*size) for size in dict.fromkeys([*listed, *_between((1, 16, 16))])]


HEADS = (
    (8, 8), (12, 2), (12, 12), (16, 2), (16, 16), (20, 4), (24, 8), (28, 4), (32, 32), (40, 8),
    (48, 8), (64, 16), (71, 1),
)  # fmt: skip
"""Heads of queries and of keys that language models have beside those of the lists."""


def _halves() -> list[Any]:
    """In fp16."""
    return [replace(p, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16") for p in _gemms()]


def _attentions(*sets: str) -> list[Any]:
    """The problems of the lists, and the same with other heads."""
    listed = load_problems(sets, arch.arch(arch.device(DEVICE).arch)).problems
    others = [
        replace(p, heads=heads, kv_heads=kv_heads)
        for p in listed
        if p.head_dim == p.head_dim_v
        for heads, kv_heads in HEADS
    ]
    return [*dict.fromkeys([*listed, *others])]


def _gradients() -> list[Any]:
    """Of attention over whole sequences."""
    names = [f.name for f in fields(AttentionProblem)]
    return [
        AttentionBackwardProblem(**{name: getattr(p, name) for name in names})
        for p in _attentions("attention:prefill")
        if not {"append", "usedkv", "lse"} & p.words and not p.paged and p.kv_layout == p.layout
    ]


CLASSES = {
    "gemm": Class(
        _gemms, lambda p: (p.n, p.k), 500, Design(64, slowest=SLOWEST, pool=200), 1.5e11, 0.25,
        False,
    ),
    "gemm_fp8": Class(
        _fp8, lambda p: (p.n, p.k), 300, Design(64, slowest=SLOWEST, pool=200), 3e11, 0.18, False
    ),
    "conv_forward": _convolutions("forward"),
    "conv_data": _convolutions("data"),
    "conv_weights": _convolutions("weights"),
    "attention": Class(
        partial(_attentions, "attention:prefill", "attention:decode"),
        lambda p: (p.heads, p.kv_heads, p.head_dim, p.head_dim_v),
        90, Design(64, slowest=SLOWEST, pool=96), 1e11, 0.12, True,
    ),
    "gemm_fp16": Class(
        _halves, lambda p: (p.n, p.k), 120, Design(64, slowest=SLOWEST, pool=200), 1.5e11, 0.08,
        False,
    ),
    "attention_backward": Class(
        _gradients, lambda p: (p.heads, p.kv_heads, p.head_dim, p.head_dim_v), 120,
        Design(64, slowest=4 * SLOWEST, pool=128), 3e11, 0.08, True,
    ),
}  # fmt: skip


ENOUGH = 64
MANY = ENOUGH + 2
"""Some kernels may not run."""


def _many(name: str, count: int, built: int, some: Callable[[Any], bool]) -> Class:
    """Those of a class's problems that are `some`, of many kernels each."""
    of = CLASSES[name]
    design = Design(MANY, first=12, slowest=SLOWEST)
    return replace(
        of, problems=lambda: [*filter(some, of.problems())], count=count, built=built,
        design=design, share=count / 1000,
    )  # fmt: skip


def _tuned(name: str, count: int, built: int, some: Callable[[Any], bool]) -> Class:
    """As `_many`, with kernels that only a tuning chooses from."""
    design = Design(MANY, first=16, slowest=SLOWEST)
    return replace(_many(name, count, built, some), design=design, tuned=True)


def _one_tap(p: Any) -> bool:
    return bool(p.taps == 1)


def _several_taps(p: Any) -> bool:
    return bool(p.taps > 1)


def _few_rows(p: Any) -> bool:
    return bool(p.m <= 1024)


def _any(p: Any) -> bool:
    return True


CLASSES |= {
    "conv_data_many": _many("conv_data", 24, 130, _one_tap),
    "conv_forward_many": _many("conv_forward", 8, 110, _one_tap),
    "gemm_fp8_many": _many("gemm_fp8", 28, 160, _any),
    "gemm_many": _many("gemm", 28, 160, _any),
    "conv_weights_many": _many("conv_weights", 6, 100, _one_tap),
    "attention_many": replace(
        _tuned("attention", 20, 120, _any), design=Design(24, first=12, slowest=SLOWEST)
    ),
    "conv_data_tuned": _tuned("conv_data", 8, 200, _several_taps),
    "conv_forward_tuned": _tuned("conv_forward", 10, 160, _several_taps),
    "conv_weights_tuned": _tuned("conv_weights", 22, 200, _several_taps),
    "gemm_gradients": Class(
        _layers_gradients,
        lambda p: (p.layout, p.m, p.n, p.k),
        48,
        Design(40, first=20, slowest=1.3),
        2.5e11,
        0.05,
        True,
        240,
        _limits,
    ),
    "gemm_tuned": _tuned("gemm", 10, 100, _any),
}


def chance(problem: Any) -> str:
    return hashlib.sha256(str(problem).encode()).hexdigest()


def drawn(of: Class, known: Collection[Any] = ()) -> list[Any]:
    """Problems by chance but the known, the first of each kin before the second of any."""
    return turns(of, [p for p in of.problems() if p not in known])[: of.count]


def turns(of: Class, problems: Sequence[Any]) -> list[Any]:
    """Problems that are not too large by chance, the first of each kin before the second of
    any."""
    before: dict[Hashable, int] = defaultdict(int)
    placed = []
    for problem in sorted(problems, key=chance):
        if problem.flops <= of.most_flops:
            kin = of.kin(problem)
            placed.append((before[kin], chance(problem), problem))
            before[kin] += 1
    return [problem for _, _, problem in sorted(placed)]


def ordered(sample: Sample, device: Device) -> Sample:
    """The pairs in the order to measure them."""
    models = gather(SHIPPED)
    assert models is not None

    def worth(pair: tuple[Any, Sequence[Any]]) -> float:
        """How far model and estimate are apart; infinite if the model cannot judge."""
        problem, configs = pair
        model = models.get(ops.family(problem.family).lesson(problem))
        found = judged(model, Described(problem, configs, device)) if model else ""
        return math.inf if isinstance(found, str) else found.gain

    apart = sorted(sample.pairs, key=worth, reverse=True)
    turns = dict.fromkeys(pair for both in zip(sample.pairs, apart, strict=True) for pair in both)
    return replace(sample, pairs=tuple(turns))


def draw(name: str) -> Sample:
    """The sample of a class."""
    of, device = CLASSES[name], arch.device(DEVICE)
    counts = Counter(cell.problem for cell in read([RECORD]) if cell.us is not None)
    if not of.built:
        kernels = partial(kernels_of, tuned=of.tuned)
        return ordered(designs.sample(drawn(of, counts), kernels, device, of.design), device)
    problems = [p for p in of.problems() if counts[p] < ENOUGH]
    new = [p for p in problems if not counts[p]]
    problems = [*turns(of, new), *turns(of, [p for p in problems if counts[p]])]
    ranked = designs.in_range(problems, partial(kernels_of, tuned=False), device, of.design.slowest)
    if of.tuned:
        more = designs.in_range(problems, _tuning, device, of.design.slowest)
        first = of.design.first
        ranked = {p: [*order[:first], *more.get(p, ())] for p, order in ranked.items()}
    kind = of.kind or ops.family(problems[0].family).kind
    pairs = covered(ranked, kind, of.design, of.built, of.count)
    return Sample(tuple(pairs), designs.made_by(of.design, device))


def kernels_of(problem: Any, tuned: bool) -> tuple[Any, ...]:
    """The kernels that a dispatcher chooses from for a problem; `tuned`: and those that only a
    tuning does."""
    this = arch.arch(arch.device(DEVICE).arch)
    usual = _expanded(ops.family(problem.family).default_space(problem, this))
    return tuple(dict.fromkeys((*usual, *_tuning(problem)))) if tuned else usual


def _tuning(problem: Any) -> tuple[Any, ...]:
    """The kernels that only a tuning chooses from for a problem."""
    family, this = ops.family(problem.family), arch.arch(arch.device(DEVICE).arch)
    usual = {*_expanded(family.default_space(problem, this))}
    found = (c for space in family.tuning_spaces(problem, this) for c in _expanded(space))
    return tuple(dict.fromkeys(c for c in found if c not in usual))


_spaces: dict[str, tuple[Any, ...]] = {}


def _expanded(space: Any) -> tuple[Any, ...]:
    """A space's legal kernels; equal spaces are expanded once."""
    if str(space) not in _spaces:
        _spaces[str(space)] = space.expand(arch.arch(arch.device(DEVICE).arch)).configs
    return _spaces[str(space)]
