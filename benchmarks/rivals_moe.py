"""A rival of `tilewright.fused_moe`: a layer in Triton, as serving engines write it
(`rivals_moe_kernels`), with blocks chosen for each size by a short race.

The race has the blocks of engines' tuning: 16 to 128 rows, 64 to 256 columns, 32 to 128 deep, 4 or
8 warps, 3 or 4 stages. Both products share the rows of a block, since both read one order; the rest
each chooses for itself. The order of blocks is raced afterwards.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product as every
from typing import TYPE_CHECKING, Any

from tilewright.measure import timing
from tilewright.measure.measurement import Settings

if TYPE_CHECKING:
    from turn import Turn

HEIGHTS = (16, 32, 64, 128)
STAGES = (3, 4)
BANDS = (1, 8, 32)
SHARED_BYTES = 227 << 10
FEW = 1024
"""Slots that one workgroup pads."""
CHUNK = 1024
WIDE = 1024
FIRST = Settings(warm_up_seconds=0, min_samples=3, max_samples=3)
LAST = Settings(warm_up_seconds=0, min_samples=9, max_samples=9)
FINALISTS = 3

Race = Callable[[Mapping[Any, timing.Call], Settings], Mapping[Any, float]]
"""Microseconds of each call that this GPU can run."""


@dataclass(frozen=True, slots=True)
class Block:
    """How a product is cut. band: rows of blocks that are done together."""

    m: int
    n: int
    k: int
    warps: int
    stages: int
    band: int = 1


def blocks(m: int, depth: int, eight: bool) -> list[Block]:
    """The blocks that are raced for sums of `depth`. eight: operands in 8 bits, with a scale for
    128."""
    found = []
    for n, k, warps, stages in every((64, 128, 256), (32, 64, 128), (4, 8), STAGES):
        size, fits = m * n, stages * (m + n) * k * (1 if eight else 2) <= SHARED_BYTES
        usual = size >= 8192 if warps == 8 else size <= 16384
        if fits and usual and not (eight and k == 32):
            found.append(Block(m, n, k, warps, stages, 16 if m >= 64 else 1))
    even = [one for one in found if depth % one.k == 0]
    return even or [one for one in found if one.k == 64]


def heights(rows: float) -> tuple[int, ...]:
    """Rows of blocks that are raced, for so many rows of an expert: the lowest that holds them, and
    the next, as loads differ."""
    place = next((at for at, h in enumerate(HEIGHTS) if h >= rows), len(HEIGHTS) - 1)
    if rows > 4 * HEIGHTS[-1]:
        return HEIGHTS[-1:]
    place = min(place, len(HEIGHTS) - 2)
    return HEIGHTS[place : place + 2]


ANY = Block(16, 64, 64, 4, 3)


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in Triton.

    w1, w2: [experts, 2 · inner, hidden] and [experts, hidden, inner].
    k: experts of a token.
    clamp: limit, alpha and shift of a clamped gate, whose columns take turns; None for SwiGLU.
    scales: of w1 and of w2 for each 128 × 128, if these are in 8 bits.
    first, second: how the products are cut.
    """

    w1: Any
    w2: Any
    k: int
    clamp: tuple[float, float, float] | None = None
    scales: tuple[Any, Any] | None = None
    first: Block = ANY
    second: Block = ANY

    def __call__(self, x: Any, weights: Any, ids: Any) -> Any:
        """[tokens, hidden] of x [tokens, hidden], weights in fp32 and ids in int32 [tokens, k]."""
        made = self.padded(ids)
        middle = self.gated(self.times_first(self.rounded(x), made, weights))
        return self.added(self.times_second(middle, made, weights))

    # --- steps --------------------------------------------------------------------------------

    def padded(self, ids: Any) -> tuple[Any, Any, Any]:
        """The order of slots, the expert of each block, and the end of all blocks."""
        import torch

        import rivals_moe_kernels as kernels

        experts, slots, m = len(self.w1), ids.numel(), self.first.m
        length = min(slots * m, -(-(slots + experts * (m - 1)) // m) * m)
        made = partial(torch.empty, dtype=torch.int32, device=ids.device)
        order, owners, total, cursor = made(length), made(length // m), made(1), made(experts)
        up = _power(experts)
        if slots <= FEW:
            kernels.pad_few[(1,)](
                ids, order, owners, total, cursor, slots, length, experts, up, m,
                max(_power(slots), 128),
            )  # fmt: skip
            return order, owners, total
        counts = torch.zeros(experts, dtype=torch.int32, device=ids.device)
        grid = (-(-slots // CHUNK),)
        kernels.count[grid](ids, counts, order, slots, length, experts, up, CHUNK)
        kernels.pad[(-(-(length // m) // 16),)](
            counts, owners, total, cursor, length, experts, up, m
        )
        kernels.place[grid](ids, order, cursor, slots, CHUNK)
        return order, owners, total

    def rounded(self, x: Any) -> tuple[Any, Any]:
        """Rows as the first product takes them, and their scales."""
        return (x, None) if self.scales is None else in_eight(x, self.w1.dtype)

    def times_first(self, rows: tuple[Any, Any], made: Any, weights: Any) -> Any:
        scale = self.scales and self.scales[0]
        return multiplied(rows, self.w1, scale, weights, made, self.first, self.k, False)

    def gated(self, rows: Any) -> tuple[Any, Any]:
        import torch

        import rivals_moe_kernels as kernels

        slots, inner = rows.shape[0], rows.shape[1] // 2
        eight = self.scales is not None
        out = torch.empty(slots, inner, dtype=self.w2.dtype, device=rows.device)
        scales = torch.empty(slots, -(-inner // 128), device=rows.device) if eight else None
        limit, alpha, shift = self.clamp or (0.0, 1.0, 0.0)
        kernels.gate[(slots, -(-inner // WIDE))](
            rows, out, rows if scales is None else scales, inner, limit, alpha, shift, WIDE,
            self.clamp is not None, eight,
        )  # fmt: skip
        return out, scales

    def times_second(self, rows: tuple[Any, Any], made: Any, weights: Any) -> Any:
        scale = self.scales and self.scales[1]
        return multiplied(rows, self.w2, scale, weights, made, self.second, 1, True)

    def added(self, rows: Any) -> Any:
        import torch

        import rivals_moe_kernels as kernels

        slots, width = rows.shape
        out = torch.empty(slots // self.k, width, dtype=rows.dtype, device=rows.device)
        kernels.add_up[(slots // self.k, -(-width // WIDE))](rows, out, width, self.k, WIDE)
        return out


def multiplied(
    rows: tuple[Any, Any], w: Any, scale_w: Any, weights: Any, made: Any, how: Block, per_row: int,
    weighted: bool,
) -> Any:  # fmt: skip
    """A product of rows with their experts' weights, by slots; of rows in 8 bits, in bf16."""
    import torch

    import rivals_moe_kernels as kernels

    (a, scale_a), (order, owners, total) = rows, made
    _, n, k = w.shape
    high, eight = len(owners), scale_a is not None
    dtype = torch.bfloat16 if eight else a.dtype
    c = torch.empty(weights.numel(), n, dtype=dtype, device=a.device)
    kernels.product[(high * -(-n // how.n),)](
        a, w, c, scale_a if eight else weights, scale_w if eight else weights, weights, order,
        owners, total, n, k, weights.numel(), per_row, high, how.band, int(weighted),
        how.m, how.n, how.k, k % how.k == 0, eight, num_warps=how.warps, num_stages=how.stages,
    )  # fmt: skip
    return c


def in_eight(x: Any, dtype: Any) -> tuple[Any, Any]:
    """Rows in 8 bits, and a scale for each 128 elements."""
    import torch

    import rivals_moe_kernels as kernels

    rows, width = x.shape
    out = torch.empty(rows, width, dtype=dtype, device=x.device)
    scales = torch.empty(rows, -(-width // 128), device=x.device)
    kernels.round_rows[(rows, -(-width // WIDE))](x, out, scales, width, WIDE)
    return out, scales


def added_in_any_order(rows: Any, places: Any, weights: Any) -> Any:
    """What `sum_of_experts` makes of rows, by atomics in fp32."""
    import torch

    import rivals_moe_kernels as kernels

    tokens, k = places.shape
    width = rows.shape[1]
    sums = torch.zeros(tokens, width, device=rows.device)
    kernels.add_rows[(tokens * k, -(-width // WIDE))](rows, places, weights, sums, width, k, WIDE)
    return sums.to(rows.dtype)


def _power(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()


# --- the race -----------------------------------------------------------------------------------


def chosen(layer: Layer, x: Any, weights: Any, ids: Any, race: Race) -> Layer:
    """The layer cut as is fastest for these operands."""
    eight = layer.scales is not None
    best: tuple[float, Layer] | None = None
    for m in heights(ids.numel() / len(layer.w1)):
        first, second = (blocks(m, w.shape[2], eight) for w in (layer.w1, layer.w2))
        tried = replace(layer, first=first[0], second=second[0])
        made, rows = tried.padded(ids), tried.rounded(x)
        middle = tried.gated(tried.times_first(rows, made, weights))

        def of_first(one: Block, rows: Any = rows, made: Any = made) -> Any:
            return replace(layer, first=one).times_first(rows, made, weights)

        def of_second(one: Block, rows: Any = middle, made: Any = made) -> Any:
            return replace(layer, second=one).times_second(rows, made, weights)

        (us, one), (more_us, other) = (
            fastest(first, of_first, race), fastest(second, of_second, race)
        )  # fmt: skip
        if best is None or us + more_us < best[0]:
            best = us + more_us, replace(layer, first=one, second=other)
    assert best is not None
    return best[1]


def fastest(some: Iterable[Block], call: Callable[[Block], Any], race: Race) -> tuple[float, Block]:
    """The fastest block, and its microseconds: the few best of all, then their bands."""
    calls = {one: partial(call, one) for one in some}
    us = race(calls, FIRST)
    best = sorted(us, key=lambda one: us[one])[:FINALISTS]
    us = race({one: calls[one] for one in best}, LAST)
    one = min(us, key=lambda block: us[block])
    bands = [replace(one, band=band) for band in BANDS]
    us = race({other: partial(call, other) for other in bands}, LAST)
    one = min(us, key=lambda block: us[block])
    return us[one], one


def on_device(flush: timing.Call, place: str) -> Race:
    """A race on the GPU, with L2 flushed before each call."""

    def race(calls: Mapping[Any, timing.Call], settings: Settings) -> Mapping[Any, float]:
        from triton.runtime.errors import OutOfResources

        fitting: dict[Any, list[timing.Call]] = {}
        for name, call in calls.items():
            with suppress(OutOfResources):
                call()  # it is compiled, or read
                fitting[name] = [call]
        taken = timing.measure(fitting, timing.Events(flush, place), settings)
        return {name: statistics.median(series.samples_us) for name, series in taken.items()}

    return race


# --- kernels built ahead ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Build:
    """A product's kernel that the race will want. even: whether sums are whole blocks deep."""

    block: Block
    even: bool
    eight: bool


def builds(tokens: int, k: int, experts: int, depths: Iterable[int], eight: bool) -> set[Build]:
    """Those of a layer. depths: the sums of both products."""
    found = set()
    for m, depth in every(heights(tokens * k / experts), depths):
        for one in blocks(m, depth, eight):
            found.add(Build(replace(one, band=1), depth % one.k == 0, eight))
    return found


def built(those: Iterable[Build], turn: Turn) -> None:
    """Compile kernels into Triton's cache, launching none."""
    for one in those:
        _built(one)


def _built(what: Build) -> None:
    import torch

    import rivals_moe_kernels as kernels

    a = torch.float8_e4m3fn if what.eight else torch.bfloat16
    c, one, fp32, int32 = torch.bfloat16, what.block, torch.float32, torch.int32
    kernels.product.warmup(
        a, a, c, fp32, fp32, fp32, int32, int32, int32, 16, 16, 3, 3, 3, 3, 3,
        one.m, one.n, one.k, what.even, what.eight, num_warps=one.warps, num_stages=one.stages,
        grid=(1,),
    )  # fmt: skip
