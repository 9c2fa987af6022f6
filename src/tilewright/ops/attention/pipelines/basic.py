"""`basic`: from plain pointers, in Triton, on every architecture; every feature."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.features import FEATURES
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.attention.operands import strides_of
from tilewright.ops.attention.parts import KERNELS
from tilewright.ops.attention.pipelines import common
from tilewright.ops.attention.pipelines.record import Pace, Pipeline
from tilewright.ops.attention.problem import FP8, AttentionProblem
from tilewright.ops.attention.rates import ATTENTION
from tilewright.ops.binder import Part, Value
from tilewright.ops.nouns import MAIN

ASYNC_ROWS = 64
"""Least rows of a tile that the asynchronous matrix units take; fewer are multiplied as before."""

MOST_FEW = 256
"""Rows of Q (times the heads that share keys) for which the keys may be split."""

_DTYPES = (
    *((d, d) for d in ("bf16", "fp16", "fp32", *FP8)),
    *((q, kv) for q in ("bf16", "fp16") for kv in FP8),
)


Tile = tuple[int, int, int]
"""Rows of Q, rows of K and V, and warps."""

_TILES: dict[str, tuple[tuple[int, tuple[Tile, ...]], ...]] = {
    "async": (
        (192, ((16, 64, 4), (64, 32, 4), (128, 64, 8))),
        (256, ((16, 64, 4), (64, 32, 8))),
    ),
    "sync": (
        (64, ((16, 64, 4), (64, 64, 4), (128, 64, 8))),
        (128, ((16, 64, 4), (64, 32, 4), (128, 32, 8))),
        (256, ((16, 64, 4), (64, 32, 8))),
    ),
    "cdna": (
        (192, ((16, 64, 4), (64, 64, 4), (128, 32, 8), (128, 64, 4))),
        (256, ((16, 64, 4), (64, 64, 4))),
    ),
    "rdna3": (
        (64, ((16, 32, 4), (64, 32, 4), (128, 32, 8))),
        (128, ((16, 16, 8), (64, 32, 8), (128, 16, 8))),
        (256, ((16, 16, 8), (64, 32, 8))),
    ),
    "rdna4": (
        (64, ((16, 32, 4), (64, 64, 4), (128, 64, 8))),
        (128, ((16, 32, 4), (64, 32, 4), (128, 32, 8))),
        (256, ((16, 16, 8), (32, 32, 8))),
    ),
    "vector": (
        (64, ((16, 32, 4), (32, 32, 4), (32, 32, 8))),
        (128, ((16, 32, 4), (32, 32, 4))),
        (192, ((16, 32, 4), (16, 16, 8))),
        (256, ((16, 16, 4), (16, 16, 8))),
    ),
    "fp32": ((64, ((16, 32, 4), (64, 32, 8))), (256, ((16, 32, 4), (32, 32, 4)))),
    "cuda fp32": (
        (64, ((16, 32, 4), (64, 32, 8))),
        (128, ((16, 32, 8), (32, 16, 8))),
        (256, ((16, 32, 8),)),
    ),
    "vector fp32": (
        (64, ((16, 16, 4), (32, 32, 8))),
        (128, ((16, 16, 8), (32, 16, 8))),
        (256, ((16, 16, 8),)),
    ),
}
"""Tiles by how an architecture multiplies, for head dims up to some size: those that do not spill
in bf16 under a causal mask and a window, which take most registers. Q and O take most of them, and
on vector units (gfx1250) a whole product's Q, K and V. Which tiles spill:
docs/notes/attention-basic.md."""

_LONG: dict[str, tuple[Tile, ...]] = {
    "cuda": ((16, 32, 4), (32, 32, 8)),
    "hip": ((16, 32, 4),),
}
"""For head dims beyond all, by backend."""


GATHERED = 8
"""Rows of a page from which `gluon_decode` copies whole boxes."""

_GATHERS = (16, 128, 4, 3)
"""Where rows come one by one, many must be under way: one query over 131,072 tokens in pages of 1
took 78 µs on an H200, and 116 with 16x64 in two stages."""


def _on_vectors(dtype: str, arch: Arch) -> bool:
    """Whether AMD's vector units multiply: Triton unrolls such a product completely."""
    return arch.backend == "hip" and arch.dtypes[dtype].via == "fma"


def _multiplier(dtype: str, arch: Arch) -> str:
    """The key of `_TILES`: how tiles are multiplied. On RDNA 3 each half of a wave holds all of Q
    and K, unless they are loaded in pieces (`_rolled`)."""
    if dtype == "fp32" and arch.backend == "cuda":
        return "cuda fp32"
    if dtype == "fp32":
        return "vector fp32" if _on_vectors(dtype, arch) else "fp32"
    if arch.dot == "vector":
        return "vector"
    if arch.backend == "cuda":
        return "async" if arch.async_mma else "sync"
    if arch.warp_size == 64:
        return "cdna"
    return "rdna3" if arch.operand_copies > 1 else "rdna4"


def tiles_of(dtype: str, most: int, arch: Arch) -> tuple[Tile, ...]:
    """The tiles for head dims of at most `most`."""
    rows = _TILES[_multiplier(dtype, arch)]
    return next((tiles for size, tiles in rows if most <= size), _LONG[arch.backend])


def _tiles(p: AttentionProblem, arch: Arch) -> tuple[Tile, ...]:
    found = tiles_of(p.dtype, max(p.head_dim, p.head_dim_v), arch)
    if p.block_size:  # tiles lie within blocks
        found = tuple(
            (math.gcd(q, p.block_size), math.gcd(kv, p.block_size), w) for q, kv, w in found
        )
    # A multiplication of 8-bit weights takes 32 keys at least.
    return tuple((q, max(kv, 32), w) for q, kv, w in found) if p.dtype in FP8 else found


def _few(p: AttentionProblem) -> bool:
    """Whether there are few rows of Q: then keys are split."""
    return p.q_len * p.group <= MOST_FEW


def _spread(
    p: AttentionProblem, tiles: Iterable[tuple[int, int, int, int]]
) -> list[dict[str, Any]]:
    """Algorithms of these tiles and stages."""
    alignments = (16, 1) if _apart(p) is None else (1,)
    return [
        {
            "tile_q": tile_q,
            "tile_kv": tile_kv,
            "num_warps": warps,
            "num_stages": stages,
            "scheduler": scheduler,
            "pack": pack,
            "alignment": alignment,
        }
        for tile_q, tile_kv, warps, stages in tiles
        for scheduler in (("tile", "split") if _few(p) else ("tile",))
        for pack in ((False, True) if p.group > 1 else (False,))
        for alignment in alignments
    ]


def _algorithms(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    stages = 2 if arch.backend == "cuda" else 1
    tiles = [(*tile, stages) for tile in _tiles(p, arch)]
    if arch.async_mma and 0 < p.page_size < GATHERED and _few(p):
        tiles.insert(0, _GATHERS)
    return _spread(p, tiles)


def _tuned(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    default = _algorithms(p, arch)
    stages = [n for n in (1, 2, 3) if n in arch.num_stages]
    tiles = itertools.product((16, 32, 64, 128), (32, 64, 128), (4, 8), stages)
    return [one for one in _spread(p, tiles) if one not in default]


def _shared_memory(c: AttentionConfig, arch: Arch) -> int:
    """On NVIDIA: Q, and K and V of each stage (one less where the matrix unit does not read there
    by itself), and the weights where the warps divide the two products differently. On AMD Q is in
    registers after it has passed through the memory that K and V use later."""
    size = DTYPES[c.dtype].bytes
    stored = size if size == DTYPES[c.dtype_kv].bytes else 1
    q = c.tile_q * sum(widths(c.head_dim, size)) * size
    k, v = (c.tile_kv * stored * sum(widths(dim, size)) for dim in (c.head_dim, c.head_dim_v))
    if arch.backend == "hip":
        return max(q, k, v, (k + v) * (c.num_stages - 1))
    if arch.async_mma and c.tile_q >= ASYNC_ROWS:
        return q + (k + v) * c.num_stages
    weights = c.tile_q * c.tile_kv * size
    differ = c.tile_q < max(c.tile_kv, *widths(c.head_dim_v, size))
    return q + (k + v) * max(1, c.num_stages - 1) + weights * differ


def widths(dim: int, size: int) -> tuple[int, ...]:
    """The blocks that a row of `dim` elements of `size` bytes is held in: `kernels.keys.pieces`,
    which says why, and which no process without Triton can import."""
    least = 32 if size == 1 else 16
    whole = max(least, 1 << (dim - 1).bit_length())
    first = max(least, whole // 2)
    second = max(least, 1 << (dim - first - 1).bit_length()) if dim > first else 0
    return (first, second) if second and first + second < whole else (whole,)


def _registers(c: AttentionConfig, arch: Arch) -> int:
    """Scores and sums; and Q, where it stays and matrix instructions take it from registers: of the
    rows that a warp has, at least 16."""
    size = DTYPES[c.dtype].bytes
    threads = c.num_warps * arch.warp_size
    found = c.tile_q * (c.tile_kv + sum(widths(c.head_dim_v, size))) // threads
    if (arch.async_mma and c.tile_q >= ASYNC_ROWS) or c.dtype == "fp32" or _rolled(c, arch):
        return found
    rows = max(16, c.tile_q // c.num_warps)
    held = rows * sum(widths(c.head_dim, size)) * size // 4
    return found + arch.operand_copies * held // arch.warp_size


def _by_fp16(c: AttentionConfig, arch: Arch) -> bool:
    """Whether keys and values become bf16 by fp16. Triton takes an instruction for FNUZ types to
    bf16, also where the GPU has none, or has it for OCP types."""
    fnuz = c.dtype == "bf16" and c.dtype_kv.endswith("fnuz")
    return fnuz and arch.dtypes[c.dtype_kv].support != "native"


def _rolled(c: AttentionConfig, arch: Arch) -> bool:
    """Whether Q·Kᵀ is a loop along the head dim that loads Q again at each step. Unrolled, long
    rows and a mask do not fit the registers of RDNA 3, where each half of a wave holds all of Q and
    K, and no rows of fp32 fit those of vector units."""
    return "latent" not in c.words and rolls(c.dtype, c.head_dim, arch)


def rolls(dtype: str, head_dim: int, arch: Arch) -> bool:
    """`_rolled` for rows that are not latent."""
    return _on_vectors(dtype, arch) or (arch.operand_copies > 1 and head_dim > 128)


def _dependent(c: AttentionConfig, arch: Arch) -> bool:
    """Whether the kernel that combines splits may start before this one has ended."""
    return c.scheduler == "split" and arch.has("pdl")


MOST_UNROLLED = 256
"""Multiplications of weights by values that a thread may do in a step on AMD's vector units. Tiles
with as many take up to 256 registers; of those with 512 most spilled, 20 to 956 bytes (head dims 32
to 256, window, gfx1100)."""


_AIMED = (96, 192)
"""Head dims at which ptxas aims at 64 to 80 registers for fp32, and spills 8 to 16 bytes to get
there (sm_89, sm_100, sm_120). Told that a thread has 128, it spills none."""


def _options(c: AttentionConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    found = common.triton_options(c, arch)
    if arch.backend == "cuda" and c.dtype == "fp32" and max(c.head_dim, c.head_dim_v) in _AIMED:
        found += (("maxnreg", 128),)
    return found


def _vector_products(c: AttentionConfig, arch: Arch) -> str | None:
    if not _on_vectors(c.dtype, arch):
        return None
    columns = sum(widths(c.head_dim_v, DTYPES[c.dtype].bytes))
    unrolled = c.tile_q * c.tile_kv * columns // (c.num_warps * arch.warp_size)
    if unrolled > MOST_UNROLLED:
        return (
            f"a thread multiplies {unrolled} weights by values in each step, over {MOST_UNROLLED}: "
            f"{arch.name} multiplies {c.dtype} on its vector units, and larger tiles spill"
        )
    if "latent" in c.words:
        return f"{arch.name} multiplies {c.dtype} on its vector units, and latent rows are too long"
    return None


def _steps(c: AttentionConfig, arch: Arch) -> str | None:
    if c.dtype in FP8 and c.tile_kv < 32:
        return f"products of {c.dtype} take 32 keys at least, not {c.tile_kv}"
    if c.split_len % c.tile_kv:
        return f"split_len = {c.split_len} is no multiple of tile_kv = {c.tile_kv}"
    return None


def _apart(p: AttentionProblem) -> tuple[str, int] | None:
    """An operand whose neighbours in a row are no neighbours in memory, and their distance."""
    return p.once(_first_apart)


def _first_apart(p: AttentionProblem) -> tuple[str, int] | None:
    names = ("q", "o") if "vectorised" in p.words else ("q", "k", "v", "o")
    found = ((name, strides_of(p, name)[3]) for name in names)
    return next((each for each in found if each[1] != 1), None)


def _neighbours(c: AttentionConfig, p: AttentionProblem) -> str | None:
    if c.alignment == 1 or (found := _apart(p)) is None:
        return None
    name, stride = found
    return f"elements of a row of {name} are {stride} apart; alignment 1 takes such rows"


BASIC = Pipeline(
    name="basic",
    kernel=Part(
        name=MAIN,
        kernel=f"{KERNELS}.basic:attention_basic",
        grid=common.by_tile,
        options=_options,
        own={"BY_FP16": _by_fp16, "ROLLED": _rolled, "DEPENDENT": _dependent},
    ),
    sibling="basic",
    needs=(),
    features=frozenset(FEATURES),
    masks=MASKS,
    schedulers=("tile", "split"),
    packs=(False, True),
    dtypes=_DTYPES,
    odd_rows=(),
    odd_columns=(),
    rules={"vector_products": _vector_products, "steps": _steps},
    supports={"neighbours": _neighbours},
    before=(),
    shared_memory=_shared_memory,
    resident=None,
    registers=_registers,
    pace=Pace(share=0.4, share_8_bit=0.4, serial=ATTENTION.SERIAL, tile_us=1.9),
    algorithms=_algorithms,
    tuned=_tuned,
)  # fmt: skip
