"""`gluon_ws`: descriptors and wgmma, in Gluon, with the warps' roles written out, on Hopper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tilewright.arch import arch as known
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention.catalogue import q_strides
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.attention.operands import bias_of, strides_of
from tilewright.ops.attention.parts import KERNELS
from tilewright.ops.attention.pipelines import common
from tilewright.ops.attention.pipelines.record import Pace, Pipeline, Rule
from tilewright.ops.attention.pipelines.sections import section
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.binder import Box, Context, Described, Numbers, Part, Value
from tilewright.ops.nouns import MAIN

WARPGROUP = 4
"""Warps that issue one wgmma together."""

ROWS = 64
"""Rows of a tile that a group of warps multiplies."""

CHUNK = 64
"""Elements of which head dims are computed in multiples."""

SPAN = 128
"""Bytes of the widest rows that the copy engine swizzles. Wider ones lie in slabs of so many."""

MOST_DIM = 256

QUAD = 4
"""Keys whose weights are neighbours in a register of wgmma's 8-bit operand."""

ANY_STRIDE = 1024
"""The stride of a dimension of one element, which the copy engine takes."""

SPECIALISATION_BYTES = 1024
"""Shared memory beside the tiles: barriers, a message, and what the compiler hands to the warps."""

_REGISTERS = {1: 240, 2: 232, 3: 160}
"""Registers of a thread that multiplies, by groups: the kernel's own numbers."""

_BESIDE = 24
"""Registers of a thread that multiplies, beside sums, scores and weights."""

_PRODUCER = 32
"""Registers of a thread that loads beside one group: the kernel's own number."""

_MOST_RESIDENT = 3
"""Workgroups of one group on a compute unit. With four a thread would have 64 registers."""

_UNEQUAL = ("packedq", "usedq", "packedkv", "usedkv", "blocks")
"""Features by which tiles differ in length."""


def groups(c: AttentionConfig) -> int:
    """Groups of warps that multiply."""
    return c.num_warps // WARPGROUP


def width(c: AttentionConfig) -> int:
    """Elements of a row of Q and K that are multiplied; those beyond the head dim are zero."""
    return -(-c.head_dim // CHUNK) * CHUNK


def columns(c: AttentionConfig) -> int:
    """Columns of V and O that are computed."""
    return max(CHUNK, common.wide(c.head_dim_v))


def _box_width(c: AttentionConfig) -> int:
    """Tiles of shared memory have powers of two for sides; others lie in several. Keys of 8-bit
    types come in two boxes for a tile, which only follow each other in rows of one span."""
    if width(c) & (width(c) - 1):
        return CHUNK
    return min(width(c), SPAN) if _by_columns(c) else width(c)


def _q_bytes(c: AttentionConfig) -> int:
    return c.tile_q * width(c) * DTYPES[c.dtype].bytes


def _sums(c: AttentionConfig) -> int:
    """Bytes of the sums that are set aside: of 8-bit types."""
    return c.tile_q * columns(c) * 4 if DTYPES[c.dtype].bytes == 1 else 0


def _ring(c: AttentionConfig) -> int:
    """Bytes of the slots of K and V, and of a bias."""
    rows = c.num_stages * c.tile_kv * (width(c) + columns(c))
    return (rows + c.tile_q * c.tile_kv * ("bias" in c.words)) * DTYPES[c.dtype].bytes


def staging(c: AttentionConfig, arch: Arch) -> str:
    """How O leaves: through shared memory of its own; of 8-bit types, that of sums which are set
    aside; through Q's, if that is all there is; or, if it is as wide as registers make whole
    sectors of, straight from them (``none``)."""
    if DTYPES[c.dtype_o].bytes > 2:
        return "none"
    if _sums(c):
        return "sums"
    if _q_bytes(c) + _ring(c) + _own(c) + SPECIALISATION_BYTES <= arch.shared_memory:
        return "own"
    return "q" if columns(c) <= width(c) else "none"


def _own(c: AttentionConfig) -> int:
    return c.tile_q * columns(c) * DTYPES[c.dtype_o].bytes


def q_stages(c: AttentionConfig, arch: Arch) -> int:
    """Slots of Q. With two, which is one more than is computed, a group goes on to its next tile
    while the others are still at theirs."""
    return 2 if _with_q(c, arch, 2) <= _share(arch, resident(c, arch)) else 1


def resident(c: AttentionConfig, arch: Arch) -> int:
    """Workgroups that a compute unit holds. Of one group as many as registers and shared memory
    allow: one computes while another waits for its first keys or writes its last rows, which is
    most of the time of short sequences. With more groups there is one workgroup."""
    return next((n for n in range(_MOST_RESIDENT, 1, -1) if _fit(c, arch, n)), 1)


def _fit(c: AttentionConfig, arch: Arch, count: int) -> bool:
    """Whether `count` workgroups have room."""
    left = 2 * _launched(c, count) - _PRODUCER
    enough = groups(c) == 1 and left >= _registers(c, arch) + _BESIDE
    return enough and _with_q(c, arch, 1) <= _share(arch, count)


def _launched(c: AttentionConfig, count: int) -> int:
    """Registers of a thread at launch. The kernel has one more group than multiplies, for the
    producer, with its worth of registers; most of these go back to the others."""
    return 65536 // (32 * (c.num_warps + WARPGROUP) * count) // 8 * 8


def _share(arch: Arch, count: int) -> int:
    """Bytes of shared memory of each of `count` workgroups."""
    if count == 1:
        return arch.shared_memory
    return arch.shared_memory_per_cu // count - arch.shared_memory_reserved


def _with_q(c: AttentionConfig, arch: Arch, slots: int) -> int:
    own = _own(c) if staging(c, arch) == "own" else 0
    return slots * _q_bytes(c) + _ring(c) + _sums(c) + own + SPECIALISATION_BYTES


def _shared_memory(c: AttentionConfig, arch: Arch) -> int:
    return _with_q(c, arch, q_stages(c, arch))


def _registers(c: AttentionConfig, arch: Arch) -> int:
    """Scores and sums in fp32, and the weights of two blocks: while those of one are multiplied,
    the next are made from scores that are kept until they are right."""
    weights = 2 * c.tile_kv * DTYPES[c.dtype].bytes // 4
    threads = WARPGROUP * arch.warp_size
    return ROWS * (c.tile_kv + weights + columns(c)) // threads


def _warpgroups(c: AttentionConfig, arch: Arch) -> str | None:
    if c.num_warps not in (4, 8, 12):
        return f"pipeline gluon_ws multiplies with 4, 8 or 12 warps, not {c.num_warps}"
    if c.tile_q != ROWS * groups(c):
        return f"{c.num_warps} warps multiply {ROWS * groups(c)} rows, not {c.tile_q}"
    need = _registers(c, arch) + _BESIDE
    if need > (most := _REGISTERS[groups(c)]):
        return f"a thread needs about {need} registers; of {groups(c)} groups each has {most}"
    return None


def _dims(c: AttentionConfig, arch: Arch) -> str | None:
    for field in ("head_dim", "head_dim_v"):
        size = getattr(c, field)
        if size > MOST_DIM:
            return f"{field} = {size} is over {MOST_DIM}"
        if size % (least := 16 // DTYPES[c.dtype].bytes):
            return f"{field} = {size} is no multiple of {least}, the elements of 16 bytes"
    return None


def eight_bits(*refused: str) -> Rule:
    """wgmma reads 8-bit values by columns, and the kernel neither turns nor clears them. refused:
    features that values by columns do not go with."""

    def rule(c: AttentionConfig, arch: Arch) -> str | None:
        if c.dtype != "e4m3fn":
            return "scales are of operands in fp8" if c.words & {"tscale", "hscale"} else None
        if "bias" in c.words:
            return "keys of fp8 are in another order than those of a bias"
        if c.words.intersection(refused):
            return "values of fp8 lie by columns, which sequences of different lengths would share"
        if DTYPES[c.dtype_o].bytes < 2:
            return f"O in {c.dtype_o} is not written here"
        return None

    return rule


def _copies(c: AttentionConfig, arch: Arch) -> str | None:
    if c.alignment != 16:
        return "the copy engine needs an alignment of 16 bytes"
    if c.tile_kv > 256:
        return f"tile_kv = {c.tile_kv} is over 256, the most rows of one copy"
    return None


def _by_columns(of: AttentionConfig | AttentionProblem) -> bool:
    """Whether V lies column by column: so wgmma reads 8-bit operands."""
    return DTYPES[of.dtype_kv].bytes == 1


def views_exist(c: AttentionConfig, p: AttentionProblem, *names: str) -> str | None:
    """Why one of these operands (all, if none is named) has no descriptor."""
    return _without_view(p, names or ("q", "k", "v", "o")) or bias_copied(p)


@lru_cache(maxsize=256)  # of each problem for several tiles
def _without_view(p: AttentionProblem, names: tuple[str, ...]) -> str | None:
    for name in names:
        shape, strides = _rows(p, name)
        if 0 in shape:
            return f"{name} has no elements, so there is no descriptor of it"
        inner, what = (1, "rows") if _by_columns(p) and name == "v" else (3, "elements of a row")
        if strides[inner] != 1:
            return f"{what} of {name} are {strides[inner]} apart; the copy engine needs 1"
        if _by_columns(p) and name == "k" and shape[1] % QUAD:
            return f"{shape[1]} keys are no multiple of {QUAD}, by which keys of fp8 are copied"
        if any(size > 1 and not stride for size, stride in zip(shape, strides, strict=True)):
            return f"{name} repeats rows (a stride of 0), which the copy engine does not read"
    return None


def bias_copied(p: AttentionProblem) -> str | None:
    """Why the copy engine does not read a bias; None if it does, or there is none."""
    if not p.bias_shape:
        return None
    if p.bias_shape[2:]:
        return "a bias of one row for all queries is not copied in tiles"
    size = DTYPES[p.dtype].bytes
    shape, strides = bias_of(p)
    for count, stride in zip(shape[:3], strides[:3], strict=True):
        if count > 1 and (stride * size % 16 or not stride):
            return (
                f"rows of the bias are {stride * size} bytes apart, no multiple of the copy "
                "engine's 16"
            )
    return None


def _rows(p: AttentionProblem, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of an operand as (sequence, row, head, dim); packed rows are one
    sequence's."""
    of_q = name in ("q", "o")
    packed = ("packedq" if of_q else "packedkv") in p.words
    heads = p.heads if of_q else p.kv_heads
    dim = p.head_dim if name in ("q", "k") else p.head_dim_v
    rows = (p.total_q if of_q else p.total_kv) if packed else (p.q_len if of_q else p.kv_len)
    strides = q_strides(p) if name == "q" else strides_of(p, name)
    return (1 if packed else p.batch, rows, heads, dim), strides


def _boxes(c: AttentionConfig) -> Mapping[str, Box]:
    return {
        "q": (1, 1, ROWS, _box_width(c)),
        "k": (
            (1, 1, c.tile_kv // 4, 2, _box_width(c))
            if _by_columns(c)
            else (1, 1, c.tile_kv, _box_width(c))
        ),
        "v": (1, 1, columns(c), c.tile_kv) if _by_columns(c) else (1, 1, c.tile_kv, columns(c)),
        "o": (1, 1, ROWS, columns(c)),
        **({"bias": (1, 1, ROWS, c.tile_kv)} if "bias" in c.words else {}),
    }


def views(c: AttentionConfig, p: AttentionProblem) -> Mapping[str, Described]:
    """(sequence, head, row, dim). A dimension of one element may have any stride: it gets one that
    the copy engine takes."""
    found: dict[str, Described] = {}
    for name in ("q", "k", "v", "o"):
        (b, row, h, dim), strides = _rows(p, name)
        fit = [s if n > 1 else ANY_STRIDE for n, s in zip((b, row, h, dim), strides, strict=True)]
        if _by_columns(c) and name == "v":
            found[name] = Described((b, h, dim, row), (fit[0], fit[2], fit[3], 1))
        elif _by_columns(c) and name == "k":
            strides = (fit[0], fit[2], QUAD * fit[1], fit[1], 1)
            found[name] = Described((b, h, row // QUAD, QUAD, dim), strides)
        else:
            found[name] = Described((b, h, row, dim), (fit[0], fit[2], fit[1], 1))
    if p.bias_shape:
        shape, strides = bias_of(p)
        fit = [s if n > 1 else ANY_STRIDE for n, s in zip(shape[:3], strides[:3], strict=True)]
        found["bias"] = Described(shape, (*fit, 1))
    return found


def _tiles(c: AttentionConfig, p: AttentionProblem) -> int:
    """Tiles of all heads and sequences; no fewer than there are if lengths lie on the device."""
    tiles = common.q_tiles(c, p) * p.batch
    if "packedq" in p.words:
        tiles = min(tiles, p.total_q // c.tile_q + p.batch)
    return tiles * p.heads


def _grid(x: Context) -> int:
    tiles = _tiles(x.config, x.problem)
    return tiles if x.config.scheduler == "tile" else min(tiles, _at_once(x))


def _at_once(x: Context) -> int:
    """Workgroups that run at once."""
    return x.device.compute_units * resident(x.config, known(x.device.arch))


def _counted(c: AttentionConfig, arch: Arch) -> Value:
    """Whether tiles differ in length, so that whoever is free takes the next."""
    unequal = c.mask != "none" or bool(c.words.intersection(_UNEQUAL))
    return c.scheduler == "persistent" and unequal


def _turns(c: AttentionConfig, arch: Arch) -> bool:
    """Whether groups take turns: where it was faster (see the kernel)."""
    if _by_columns(c):
        return False
    return width(c) <= 128 if groups(c) == 3 else groups(c) == 2 and CHUNK < width(c) <= 128


def _options(c: AttentionConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    return ("num_warps", WARPGROUP), ("maxnreg", min(_launched(c, resident(c, arch)), 255))


def _algorithms(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    wide = max(p.head_dim, p.head_dim_v)
    tiles: tuple[tuple[int, int, int, int], ...]
    short: tuple[tuple[int, int, int, int], ...] = ()  # those that short sequences want
    if wide <= 64:
        tiles = ((192, 64, 12, 4), (128, 128, 8, 4))
        short = ((128, 64, 8, 4), (64, 64, 4, 3))
    elif wide <= 128 and p.dtype == "e4m3fn":
        tiles = ((192, 64, 12, 4), (128, 128, 8, 3))
    elif p.dtype == "e4m3fn":
        tiles = ((128, 64, 8, 2),)
    elif wide <= 128:
        tiles = ((128, 128, 8, 2),)
        short = ((128, 64, 8, 4), (192, 64, 12, 4))
    elif p.head_dim_v <= 128:
        tiles = ((128, 128, 8, 2), (128, 64, 8, 2))
    else:
        tiles = ((128, 64, 8, 2),)
    if p.block_size and p.block_size % (2 * ROWS):  # tiles lie within blocks
        short = (*short, (ROWS, ROWS, WARPGROUP, 3 if wide <= 128 else 2))
    found = [_fields(*one, scheduler) for one in tiles for scheduler in ("persistent", "tile")]
    return [*found, *(_fields(*one, "persistent") for one in short)]


def _tuned(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    return [
        _fields(ROWS * g, tile_kv, WARPGROUP * g, stages, scheduler)
        for g in (1, 2, 3)
        for tile_kv in (64, 128)
        for stages in (2, 3, 4)
        for scheduler in ("persistent", "tile")
    ]


def _fields(
    tile_q: int, tile_kv: int, num_warps: int, num_stages: int, scheduler: str
) -> Mapping[str, Any]:
    return {
        "tile_q": tile_q,
        "tile_kv": tile_kv,
        "num_warps": num_warps,
        "num_stages": num_stages,
        "scheduler": scheduler,
    }


_PACE = Pace(
    share=0.89,
    share_8_bit=0.64,
    serial=0.6,
    beside=0.35,
    instructions=12.4,
    rescales=False,
    in_use=0,
    tile_us=1.1,
)

GLUON_WS = Pipeline(
    name="gluon_ws",
    kernel=Part(
        name=MAIN,
        kernel=f"{KERNELS}.gluon_ws:attention_gluon_ws",
        grid=_grid,
        options=_options,
        own={
            "GROUPS": lambda c, _: groups(c),
            "PIECES": lambda c, _: width(c) // _box_width(c),
            "COLUMNS": lambda c, _: columns(c),
            "COUNTED": _counted,
            "TURNS": _turns,
            "STAGING": staging,
            "Q_STAGES": q_stages,
            "section": Numbers(
                "i32", lambda x: section(x.config, x.problem, x.device, _at_once(x))
            ),
        },
        boxes=_boxes,
        views=views,
    ),
    sibling="basic",
    needs=("tma", "wgmma"),
    features=frozenset(
        {
            "lse", "softcap", "bias", "blocks", "alibi", "sinks", "packedq", "packedkv", "usedq",
            "usedkv", "append", "rotaryi", "rotaryh", "tscale", "hscale",
        }
    ),
    masks=MASKS,
    schedulers=("persistent", "tile"),
    packs=(False,),
    dtypes=(("bf16", "bf16"), ("fp16", "fp16"), ("e4m3fn", "e4m3fn")),
    odd_rows=(192,),
    odd_columns=(),
    rules={
        "head_dim": _dims,
        "fp8": eight_bits("packedkv", "usedkv", "append", "rotaryi", "rotaryh"),
        "copies": _copies,
        "warpgroups": _warpgroups,
    },
    supports={"descriptors": views_exist},
    before=(),
    shared_memory=_shared_memory,
    resident=resident,
    registers=_registers,
    pace=_PACE,
    algorithms=_algorithms,
    tuned=_tuned,
)  # fmt: skip
