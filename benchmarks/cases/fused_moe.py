"""Layers of mixtures of experts: `tilewright.fused_moe` beside the best composition of torch's
calls, and beside a layer in Triton as serving engines write it, all in CUDA graphs.

`moe_layers` says how cells are drawn, and what torch's layers are; `rivals_moe` has Triton's. A
graph has some calls with a routing each, so that few tokens do not find their experts' weights in
L2. Each result is compared with float64 before anything is timed.

`fused_moe` sums a token's rows in one order. What another order would save is told by a contender
that is ours but for its last step, which adds rows atomically.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import moe_layers
import rivals_moe
from cases import Contest, InGraphs, Part, Say
from moe_layers import CLAMP, Cell, Operands

if TYPE_CHECKING:
    from gpu_bench import Bench
    from turn import Turn

OURS, TRITON, ATOMIC = "ours", "triton", "ours, added by atomics"
GPU = "cuda:0"
BUILT = 8
"""Kernels of the rival that are compiled one after the other."""

Layer = Callable[[Any, Any, Any], Any]
"""Of x, and a routing's weights and experts."""


def said(cell: Cell) -> dict[str, Any]:
    """Keywords of ours besides operands."""
    words: dict[str, Any] = {**CLAMP, "interleaved": True} if cell.sizes.clamped else {}
    if cell.dtype == "fp8":
        words |= {"scale_a": "1x128", "scale_b": "128x128"}
    return words


def our_layers(cell: Cell, given: Operands) -> dict[str, Layer]:
    """`tilewright.fused_moe`, and all of it but the last step, which atomics do."""
    import tilewright as tw
    from tilewright import moe

    words = said(cell)
    if given.scales is not None:
        words["scales"] = given.scales

    def ours(x: Any, weights: Any, ids: Any) -> Any:
        return tw.fused_moe(x, given.w1, given.w2, weights, ids, **words)

    def atomic(x: Any, weights: Any, ids: Any) -> Any:
        rows, places = moe.rows_of_experts(x, given.w1, given.w2, ids, **words)
        return rivals_moe.added_in_any_order(rows, places, weights)

    return {OURS: ours, ATOMIC: atomic}


def asked(name: str) -> Sequence[Any]:
    """What ours will be asked in a cell."""
    from tilewright import moe

    cell = cells()[name]
    size, words = cell.sizes, said(cell)
    if cell.dtype == "fp8":
        words["dtype_b"] = "e4m3fn"
    found: Sequence[Any] = moe.plan(
        tokens=cell.tokens, hidden=size.hidden, inner=cell.inner, experts=size.experts, k=size.k,
        **words,
    ).problems  # fmt: skip
    return found


def in_triton(cell: Cell, given: Operands) -> rivals_moe.Layer:
    """The layer in Triton, cut in any way."""
    clamp = (CLAMP["limit"], CLAMP["alpha"], CLAMP["shift"]) if cell.sizes.clamped else None
    return rivals_moe.Layer(given.w1, given.w2, cell.sizes.k, clamp, given.scales)


def right(
    cell: Cell, given: Operands, layers: Mapping[str, Layer], routed: Sequence[tuple[Any, Any]]
) -> dict[str, str]:
    """What is wrong with each layer that is not right for the first two routings. Raises
    `ValueError` for ours and for Triton's."""
    wrong: dict[str, str] = {}
    wanted = [moe_layers.exact(cell, given, *one) for one in routed[:2]]
    most = moe_layers.FAR[cell.dtype]
    for name, layer in layers.items():
        try:
            far = max(
                moe_layers.far(layer(given.x, *one), exact)
                for one, exact in zip(routed, wanted, strict=False)
            )
        except RuntimeError as error:  # of a call of torch's that is not there for this GPU
            if not name.startswith("torch"):
                raise
            wrong[name] = " ".join(str(error).split())[:200]
            continue
        if far <= most:
            continue
        wrong[name] = f"an error of {far:.3f} of the rms"
        if not name.startswith("torch"):
            raise ValueError(f"{name}: {wrong[name]}")
    return wrong


def contest(name: str, seed: int, bench: Bench, say: Say) -> Contest:
    """Who computes a cell."""
    import torch

    cell, begun = cells()[name], time.time()
    with torch.no_grad():
        given = moe_layers.operands(cell, GPU, seed)
        routed = moe_layers.routings(cell, GPU, seed)
        race = rivals_moe.on_device(bench.flush, GPU)
        triton = rivals_moe.chosen(in_triton(cell, given), given.x, *routed[0], race)
        raced = time.time()
        ours = our_layers(cell, given)
        by_torch = moe_layers.torch_layers(cell, given)
        layers = {**ours, TRITON: triton, **by_torch}
        wrong = right(cell, given, layers, routed)
    say(
        f"    raced in {raced - begun:.1f} s, checked in {time.time() - raced:.1f} s; Triton has "
        f"{triton.first} and {triton.second}"
    )

    def step(layer: Layer) -> None:
        with torch.no_grad():
            for one in routed:
                layer(given.x, *one)

    calls = {n: partial(step, layer) for n, layer in layers.items() if n not in wrong}
    vendor = tuple(n for n in by_torch if n not in wrong)
    return Contest(calls, cell.calls, vendor, wrong)


def ahead(names: Sequence[str]) -> Sequence[Callable[[Turn], object]]:
    """What rivals compile: torch's parts, which take longest, and then the blocks of the race."""
    those = [cells()[name] for name in names]
    wanted: set[rivals_moe.Build] = set()
    for cell in those:
        size, depths = cell.sizes, (cell.sizes.hidden, cell.inner)
        wanted |= rivals_moe.builds(cell.tokens, size.k, size.experts, depths, cell.dtype == "fp8")
    some = sorted(wanted, key=repr)
    return [
        *(partial(moe_layers.compile_ahead, cell) for cell in those),
        *(partial(rivals_moe.built, some[at : at + BUILT]) for at in range(0, len(some), BUILT)),
    ]


# --- cases --------------------------------------------------------------------------------------


@cache
def cells() -> Mapping[str, Cell]:
    """All cells by name."""
    return {str(cell): cell for dtype in moe_layers.DTYPES for cell in moe_layers.drawn(dtype)}


def _case(name: str, dtype: str, says: str, against: str) -> InGraphs:
    names = tuple(n for n, cell in cells().items() if cell.dtype == dtype)
    return InGraphs(
        name,
        f"{says}: {len(names)} layers of {len({cells()[n].model for n in names})} mixtures of "
        "experts by chance, 1 to 16,384 tokens, loads balanced, skewed, or on half of the experts",
        against, names, contest, asked, ahead, _DRAWN,
        (
            Part("triton", "a layer in Triton as serving engines write it, tuned", (TRITON,)),
            Part("deterministic", "the same, but rows added by atomics", (ATOMIC,)),
            Part("few", f"{against}, up to 64 tokens", where=_is_few),
            Part("many", f"{against}, above 64 tokens", where=_is_many),
        ),
    )  # fmt: skip


def _is_few(name: str) -> bool:
    return cells()[name].tokens <= 64


def _is_many(name: str) -> bool:
    return not _is_few(name)


_DRAWN = (
    "cells are drawn by a seed: every model with its experts' columns on 1 and on 4 GPUs (in fp8 "
    "where sizes are multiples of 128); tokens evenly by their logarithm, each cell from another "
    "stretch of 1 to 16,384; loads dealt out evenly"
)
_PARTS = "`torch.compile` of all between two products"

CASES = (
    _case("fused-moe", "bf16", "bf16", f"the faster of `torch._grouped_mm` with torch's calls and "
          f"with {_PARTS}"),
    _case("fused-moe-fp8", "fp8", "fp8 with scales of 1×128 and 128×128",
          "the fastest of torch: weights in bf16, dequantised before, or in fp8 with a scale for "
          f"each row, by torch's calls and with {_PARTS}"),
)  # fmt: skip
