"""How a config of pipeline ``gluon_cdna`` maps onto the matrix units of CDNA.

The mapping gives the instruction that multiplies, how the warps divide the tile, and how much of K
a lane holds; kernels/gluon_cdna.py receives all of it. The rule that refuses configs without a
mapping is here too (`objection`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.gemm.config import GemmConfig

CHUNK_BYTES = 16
"""Bytes that a lane loads, stores in shared memory and reads from there at once."""

PLAIN_FP8_BYTES = 32
"""Most bytes of K for a plain fp8 MFMA; deeper instructions take scales."""

WMMA = 5
"""The first generation (gfx1250) with WMMA as matrix instructions, and with warps of 32 lanes."""

RESIDENT = 2
"""Waves per SIMD that the kernel is built for: with one, the compiler moves accumulators between
CDNA's two register files in the middle of the loop."""

OTHER_REGISTERS = {32: 34, 16: 50}
"""Registers beside accumulators, operands and tiles in flight, by the instruction's edge: with
fewer left, some of the built kernels spilled."""

PAIRING_REGISTERS = 16
"""Additional registers for an epilogue that pairs columns."""

PIECEMEAL_REGISTERS = 48
"""Registers for operands that are enough for the compiler if nothing else passes through
registers."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """The mapping of a config.

    mma: the instruction (m, n, k).
    warps_m: warps along M; the others lie along N.
    k_width: neighbours along K that a lane holds.
    format: format of the operands of an instruction that takes scales, else ``""``.
    """

    mma: tuple[int, int, int]
    warps_m: int
    k_width: int
    format: str


def mapping(config: GemmConfig, arch: Arch) -> Mapping:
    """The mapping of a legal config."""
    found = _mapping(config, arch)
    assert isinstance(found, Mapping), found
    return found


def objection(config: GemmConfig, arch: Arch) -> str | None:
    """The reason why `config` cannot be built for `arch`. None for an architecture without CDNA's
    instructions, which another rule refuses."""
    c = config
    if arch.cdna is None:
        return None
    if c.dtype_a != c.dtype_b:
        return f"pipeline gluon_cdna multiplies one dtype, not {c.dtype_a} by {c.dtype_b}"
    if c.precision == "tf32":
        return "pipeline gluon_cdna multiplies fp32 exactly; precision tf32 is basic's"
    if arch.cdna.direct_to_shared and c.num_stages < 2:
        return "pipeline gluon_cdna fills one stage while it reads another, so it needs 2 or more"
    if not arch.cdna.direct_to_shared and c.num_stages != 2:
        return f"pipeline gluon_cdna has 2 stages on {arch.name}, not {c.num_stages}"
    if epilogues.fold(c.epilogue) > 1 and c.layout[2] != "r":
        return f"epilogue {c.epilogue} pairs columns, which one lane holds only if C is row-major"
    found = _mapping(c, arch)
    if isinstance(found, str):
        return found
    bits = DTYPES[c.dtype_a].bits
    chunks = c.num_warps * arch.warp_size
    for operand, rows in (("A", c.tile_m), ("B", c.tile_n)):
        if rows * c.tile_k * bits // 8 < chunks * CHUNK_BYTES:
            return (
                f"the tile of {operand}, {rows}x{c.tile_k}, is under {CHUNK_BYTES} bytes for each "
                f"of {chunks} threads"
            )
    need = registers(c, arch, found)
    most = arch.registers_per_lane // RESIDENT
    if need > most:
        return f"about {need} registers a thread, over {most} with {c.num_warps} warps"
    return None


def registers(config: GemmConfig, arch: Arch, how: Mapping) -> int:
    """About how many registers a thread needs."""
    c = config
    assert arch.cdna is not None
    threads = c.num_warps * arch.warp_size
    bits = DTYPES[c.dtype_a].bits
    rows_m, rows_n = c.tile_m // how.warps_m, c.tile_n * how.warps_m // c.num_warps
    operands = (rows_m + rows_n) * c.tile_k * bits // (32 * arch.warp_size)
    needed = c.tile_m * c.tile_n // threads + OTHER_REGISTERS[how.mma[0]]
    needed += PAIRING_REGISTERS if epilogues.fold(c.epilogue) > 1 else 0
    if arch.cdna.direct_to_shared:
        multiplying = min(operands, PIECEMEAL_REGISTERS)
    else:
        under_way = (c.tile_m + c.tile_n) * c.tile_k * bits // (32 * threads)
        regrouped = bits == 8 and c.layout[:2] != "rc"
        multiplying = operands + (3 if regrouped else 2) * under_way
    # Where parts of a tile are added, a second tile is in registers.
    meeting = c.tile_m * c.tile_n // threads if c.scheduler == "split_k" else 0
    return needed + max(multiplying, meeting)


def _mapping(c: GemmConfig, arch: Arch) -> Mapping | str:
    """The mapping, or the reason why there is none."""
    edges = sorted(
        {s[0] for unit in arch.mma for s in unit.shapes if c.dtype_a in unit.dtypes}, reverse=True
    )
    for edge in (c.mma[0],) if c.mma[0] else edges:
        warps_m = _warps_m(c, edge)
        if warps_m:
            break
    else:
        return (
            f"tile {c.tile_m}x{c.tile_n} has no {edge}x{edge} instruction for each of "
            f"{c.num_warps} warps"
            if edges
            else f"{arch.name} has no matrix instruction for {c.dtype_a}"
        )
    depths = [
        shape[2]
        for unit in arch.mma
        for shape in unit.shapes
        if c.dtype_a in unit.dtypes and shape[0] == edge and c.tile_k % shape[2] == 0
    ]
    if not depths:
        return f"{arch.name} has no {edge}x{edge} instruction for {c.dtype_a} and this tile_k"
    depth = max(depths)
    dtype = DTYPES[c.dtype_a]
    lanes_k = arch.warp_size // edge
    assert arch.cdna is not None
    wmma = arch.cdna.generation >= WMMA
    width = min if wmma else max  # a lane of WMMA reads the K of a deep instruction in parts
    k_width = width(CHUNK_BYTES * 8 // dtype.bits, depth // lanes_k)
    if c.tile_k < k_width * lanes_k:
        return f"tile_k = {c.tile_k} is under {k_width * lanes_k}, what a warp reads at once"
    fp8 = dtype.kind == "float" and dtype.bits == 8
    scaled = fp8 and depth > PLAIN_FP8_BYTES and not wmma
    return Mapping(
        (edge, edge, depth), warps_m, k_width, c.dtype_a.removesuffix("fn") if scaled else ""
    )


def _warps_m(c: GemmConfig, edge: int) -> int:
    """Warps along M such that each warp has whole instructions and a part of the tile as square as
    possible (it then reads the least from shared memory); 0 if there are too many warps."""
    fitting = [
        1 << i
        for i in range(c.num_warps.bit_length())
        if edge << i <= c.tile_m and edge * c.num_warps <= c.tile_n << i
    ]
    return min(fitting, key=lambda w: (c.tile_m // w + c.tile_n * w // c.num_warps, w), default=0)
