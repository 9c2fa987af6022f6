"""Operands in few bits: weights in int4 or e2m1 (fp4), and the MX formats.

Two elements share a byte, neighbours along K, the one with the lower k in the lower four bits (see
`tilewright.packing`). So A [m, k] is an array of bytes [m, k/2], B [k, n] one of [k/2, n], and the
bytes of a row of A or a column of B are neighbours: K is the contiguous dimension. Such arrays do
not say what is in them, a call does: ``dtype_b="int4"``. In a problem, sizes and leading
dimensions count elements as everywhere.

    int4    two's complement, -8 … 7; only as B, with floats as A
    e2m1    ±0, 0.5, 1, 1.5, 2, 3, 4, 6; as B with floats as A, or as both

The MX formats (OCP Microscaling Formats specification v1.0) are e4m3fn, e5m2 or e2m1 elements with
one e8m0 scale for every 32 along K: scale_a=1x32-e8m0, scale_b=32x1-e8m0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright import blocks, packing
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES, dtype
from tilewright.errors import BadArgument
from tilewright.ops.gemm import scales
from tilewright.ops.nouns import Operand, View

PARTNERS: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("fp16", "bf16", "e4m3fn", "e5m2"), ("int4", "e2m1")
)
"""What B may be beside A's own dtype, by A's dtype."""

BYTES = "uint8"
"""The dtype that arrays of 4-bit elements have (torch's float4_e2m1fn_x2 apart)."""

PIPELINES = ("weights", "gluon_weights", "mx")
"""Pipelines for operands in few bits."""

MX_FORMATS = {"e4m3fn": "e4m3", "e5m2": "e5m2", "e2m1": "e2m1"}
"""Element types of the MX formats, as `tl.dot_scaled` calls them."""

MX_SCALES = ("1x32-e8m0", "32x1-e8m0")
"""Scales of A and of B in the MX formats."""

PLAIN_FORMATS = {"fp16": "fp16", "bf16": "bf16"}
"""What A may be without scales, beside a B in MX e2m1."""

LEAST_MX_K = 64
"""Elements of K that the block-scaled instructions take: 64 of e2m1 on sm_120, 64 or 128 on gfx950;
of less the compiler makes something else, or stops."""

LEAST_K = 16
"""Elements of K that a matrix instruction takes of 16-bit operands."""

MANY_ROWS = 64
"""Rows of a tile from which matrix instructions read converted weights from shared memory (wgmma):
each product of a unit takes a round trip through it, so that units are short."""

GLUON_TILE_K = 256
"""Elements of K in a step of gluon_weights: 128 bytes of a column of B, what a swizzle spans."""

LEAST_GROUP = 32
"""Elements of K in the shortest group of gluon_weights: two mma.sync's."""

MMA_ROWS = 16
"""Columns of B that mma.sync takes in the place of rows of C."""

MAX_SUMS = 32
"""Elements of C a thread of gluon_weights sums: with 64 it spilled."""

WIDE_ROWS = 32
"""Rows of a tile from which gluon_weights multiplies by wgmma: with 16 mma.sync was faster."""

WARP = 32

WORD = 32
"""Bits of the widest word that operands are unpacked from."""

_K_CONTIGUOUS = {"A": ("r", "row"), "B": ("c", "column")}


def concerns(problem: Any) -> bool:
    """Whether a problem or config has operands of 4 bits or in an MX format."""
    p = problem
    packed = any(DTYPES[d].packed > 1 for d in (p.dtype_a, p.dtype_b))
    return packed or (p.scale_a, p.scale_b) == MX_SCALES


def check(problem: Any) -> None:
    """Raise `BadArgument` unless a problem's 4-bit operands fill whole bytes along K."""
    p = problem
    for name, d, letter in zip("AB", (p.dtype_a, p.dtype_b), p.layout, strict=False):
        if DTYPES[d].packed == 1:
            continue
        needed, order = _K_CONTIGUOUS[name]
        if letter != needed:
            raise BadArgument(
                f"{name} is {d}, packed along K, so it must be {order}-major; layout {p.layout} "
                "says otherwise"
            )
        if p.k % 2:
            raise BadArgument(f"{name} is {d}, two to a byte along K, but k = {p.k} is odd")


def stored_as(problem: Any, field: str) -> int:
    """Elements of a stored one in the operand that has leading dimension `field`."""
    d = {"lda": problem.dtype_a, "ldb": problem.dtype_b}.get(field)
    return DTYPES[d].packed if d else 1


def stored(name: str, shape: tuple[int, int], ld: int, letter: str, d: str) -> Operand:
    """Operand `name` of `shape` and leading dimension `ld`, in 4-bit elements, as the bytes it
    is."""
    rows, columns = shape
    if letter == "r":
        return Operand(name, (rows, columns // 2), (ld // 2, 1), BYTES)
    return Operand(name, (rows // 2, columns), (1, ld // 2), BYTES)


def read(a: View, b: View, options: Mapping[str, Any]) -> tuple[View, View]:
    """A and B with the shapes, strides and dtypes of their elements, where `options` says what is
    packed in them. Raises `BadArgument`."""
    return _elements("A", a, options.get("dtype_a")), _elements("B", b, options.get("dtype_b"))


def _elements(name: str, view: View, said: str | None) -> View:
    option = f"dtype_{name.lower()}"
    if said is None:
        if view.dtype == BYTES:
            raise BadArgument(f"{name} is bytes; say what is packed in them, as {option}='int4'")
        said = view.dtype
    elif DTYPES[dtype(said).name].packed == 1 and view.dtype != said:
        raise BadArgument(f"{option} is {said}, but {name} is {view.dtype}")
    if DTYPES[said].packed == 1:
        return view
    if view.dtype not in (BYTES, said):
        raise BadArgument(f"{name} is {view.dtype}; {said} comes in bytes ({BYTES}), two in each")
    axis = 1 if name == "A" else 0
    rows_or_columns = 1 - axis
    if view.shape[axis] > 1 and view.strides[axis] != 1:
        raise BadArgument(
            f"{name} is {said} in bytes of shape {view.shape} with strides {view.strides}; K, "
            f"which is packed, must be contiguous: the strides of axis {axis} must be 1"
        )
    shape, strides = list(view.shape), list(view.strides)
    shape[axis] *= 2
    strides[axis] = 1
    strides[rows_or_columns] *= 2
    return replace(view, shape=(shape[0], shape[1]), strides=(strides[0], strides[1]), dtype=said)


def decoded(a: Any, b: Any, problem: Any) -> tuple[Any, Any]:
    """Float64 operands as a reference has them: those that are bytes, as what they hold."""
    if DTYPES[problem.dtype_a].packed > 1:
        a = packing.decode(a, problem.dtype_a, 1)
    if DTYPES[problem.dtype_b].packed > 1:
        b = packing.decode(b, problem.dtype_b, 0)
    return a, b


# --- how pipeline weights multiplies ---


def elementwise(config: Any) -> bool:
    """Whether pipeline weights multiplies the scales into the elements: powers of two, which bf16
    has, and for each word one."""
    words = (config.scale_a, config.scale_b)
    found = [block for block in map(blocks.parse, words) if block is not None]
    return (
        len(found) > 0
        and config.dtype_a != "fp16"
        and all(block.dtype == "e8m0" for block in found)
        and scales.k_block(config) >= WORD // 4
    )


def scales_elements(config: Any) -> bool:
    """Whether a config's kernel scales elements rather than the sums of a K step."""
    return config.pipeline == "mx" or (config.pipeline == "weights" and elementwise(config))


def scales_any_group(config: Any) -> bool:
    """Whether a K step of a config's kernel may have several groups."""
    if config.pipeline == "gluon_weights":
        return True  # see `_refused_gluon`
    whole = config.tile_k & (config.tile_k - 1) == 0  # and then made of whole groups
    return scales_elements(config) or (config.pipeline == "weights" and whole)


def part(config: Any) -> int:
    """Elements of K that pipeline weights sums before it scales: those of a group, or a K step."""
    group = 0 if elementwise(config) else scales.k_block(config)
    return int(min(config.tile_k, group or config.tile_k))


def multiplied_as(config: Any) -> str:
    """The dtype that pipeline weights converts operands to: bf16 for its range, or else fp16."""
    return "bf16" if config.dtype_a == "bf16" or elementwise(config) else "fp16"


# --- legality --------------------------------------------------------------------------------


def refused(config: Any, arch: Arch) -> str | None:
    """Why a config's pipeline cannot read its operands, or None."""
    c = config
    packed = [d for d in (c.dtype_a, c.dtype_b) if DTYPES[d].packed > 1]
    if c.pipeline == "mx":
        return _refused_mx(c, arch)
    if c.pipeline == "gluon_weights":
        return _refused_gluon(c)
    if c.pipeline == "gluon_scaled" and "e8m0" in c.scale_a + c.scale_b:
        return "pipeline gluon_scaled has no e8m0 scales; basic and tma have them"
    if c.pipeline != "weights":
        if packed:
            return f"pipeline {c.pipeline} reads whole elements; weights unpacks {packed[0]}"
        return None
    if not packed:
        return f"pipeline weights unpacks 4-bit operands; A and B are {c.dtype_a}"
    least = 2 * LEAST_K
    if part(c) < least:
        return (
            f"a K step within a group has {part(c)} elements, under {least}: those of a byte are "
            "multiplied apart"
        )
    return None


def _refused_mx(c: Any, arch: Arch) -> str | None:
    plain = c.dtype_a in PLAIN_FORMATS and c.dtype_b == "e2m1"
    for name, d in (("A", c.dtype_a), ("B", c.dtype_b)):
        if d not in MX_FORMATS and not plain:
            return f"pipeline mx takes {', '.join(MX_FORMATS)}; {name} is {d}"
    want = ("", MX_SCALES[1]) if plain else MX_SCALES
    if (c.scale_a, c.scale_b) != want:
        have, wanted = (
            " and ".join(word or "none" for word in words)
            for words in ((c.scale_a, c.scale_b), want)
        )
        return f"pipeline mx takes scales {wanted} with A in {c.dtype_a}, not {have}"
    if c.dtype_a == "fp16" and arch.dtypes["e4m3fn"].support == "refused":
        return f"the compiler makes fp16 of e2m1 by way of e4m3fn, which {arch.name} does not take"
    if c.tile_k < LEAST_MX_K:
        return f"tile_k = {c.tile_k} is under {LEAST_MX_K}, what a block-scaled instruction takes"
    return None


def _refused_gluon(c: Any) -> str | None:
    """What the kernel in Gluon asks of a config: words of B that are whole operands of mma.sync."""
    if c.dtype_a not in ("fp16", "bf16") or DTYPES[c.dtype_b].packed == 1:
        return (
            f"pipeline gluon_weights multiplies fp16 or bf16 by int4 or e2m1, not {c.dtype_a} by "
            f"{c.dtype_b}; weights has other mixtures"
        )
    if c.layout[0] != "r":
        return f"pipeline gluon_weights reads A in rows, but the layout is {c.layout}"
    block = blocks.parse(c.scale_b)
    if c.scale_a or (block and (block.columns != 1 or block.rows < LEAST_GROUP)):
        return (
            f"pipeline gluon_weights has no scales but B's for {LEAST_GROUP} of a column or more; "
            "weights has other blocks"
        )
    if c.reduction == "atomic":
        return "pipeline gluon_weights has reductions linear and tree; the compiler stops at atomic"
    if c.tile_k != GLUON_TILE_K:
        return f"pipeline gluon_weights reads {GLUON_TILE_K} of K at once, not {c.tile_k}"
    if c.tile_n < MMA_ROWS * c.num_warps:
        return f"{c.num_warps} warps of gluon_weights have {MMA_ROWS} columns each, over {c.tile_n}"
    sums = c.tile_m * c.tile_n // (WARP * c.num_warps)
    if sums > MAX_SUMS:
        return (
            f"{sums} sums a thread, over {MAX_SUMS}: those of a group and the operands of "
            "gluon_weights would not fit into registers beside them"
        )
    return None


def wide(config: Any) -> bool:
    """Whether gluon_weights multiplies by wgmma, which reads A from shared memory itself."""
    return config.tile_m >= WIDE_ROWS and scales.k_block(config) != LEAST_GROUP


def in_words(config: Any, i: int) -> int:
    """Elements of operand `i` (A, B or C) in a word, if the kernel's descriptor counts words; 0 if
    it counts elements."""
    return (
        WORD // DTYPES[config.dtype_b].bits if (config.pipeline, i) == ("gluon_weights", 1) else 0
    )


# --- what kernels are told -------------------------------------------------------------------


def constants(config: Any) -> list[tuple[str, int | bool | str]]:
    """The constants that only these kernels have."""
    c = config
    if c.pipeline == "gluon_weights":
        return [
            ("B_FORMAT", c.dtype_b),
            ("GROUP", scales.k_block(c)),
            ("WIDE", wide(c)),
            ("STAGES", c.num_stages),
        ]
    if c.pipeline == "mx":
        formats = MX_FORMATS | PLAIN_FORMATS
        return [("A_FORMAT", formats[c.dtype_a]), ("B_FORMAT", formats[c.dtype_b])]
    a, b = DTYPES[c.dtype_a], DTYPES[c.dtype_b]
    # Alignment under a word's 4 bytes: what is left is that two elements share a byte.
    unit = min(WORD // b.bits, part(c) // LEAST_K) if 8 * c.alignment >= WORD else 2
    if c.tile_m >= MANY_ROWS:
        unit = 2
    in_rows = c.layout[0] == "r" and (8 * c.alignment >= WORD or a.packed > 1)
    word_a = min(WORD, unit * a.bits) if in_rows else a.bits
    return [
        ("A_FORMAT", c.dtype_a if a.packed > 1 else ""),
        ("B_FORMAT", c.dtype_b),
        ("BF16", multiplied_as(c) == "bf16"),
        ("ELEMENTWISE", elementwise(c)),
        ("PART", part(c)),
        ("UNIT", unit),
        ("A_WORDS", unit * a.bits // word_a),
        ("A_WORD", word_a),
        ("B_WORD", unit * b.bits),
    ]
