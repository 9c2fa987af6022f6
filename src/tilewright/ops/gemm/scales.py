"""Block scales: operands in few bits, with a factor for every block of them.

A's scale of block r×c serves r rows and c columns of A [m, k], so that A's scales are a matrix
[⌈m/r⌉, ⌈k/c⌉]; B's likewise of B [k, n], [⌈k/r⌉, ⌈n/c⌉]. The result is that of the scaled operands,
A' = A·scale and B' = B·scale, element by element. A block is written ``"1x128"``, with the dtype of
the scales behind it where that is not fp32: ``"1x128-bf16"``. The forms in use:

    A 1x128, B 128x128    DeepSeek-V3 (arXiv:2412.19437, section 3.3.2): a scale for each token
                          and 128 of K, and for each 128×128 of the weights
    B 128x1               weights in groups of 128 along K, as GPTQ and AWQ store them
    A 1x32-e8m0, B 32x1-e8m0   the MX formats (OCP Microscaling Formats specification v1.0): powers
                          of two for each 32 of K, of fp8 or e2m1 elements

A scale that does not change along K belongs in the epilogue (``row_scale``, ``col_scale``,
``scale``), which costs nothing in the loop over K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.blocks import Block, parse
from tilewright.errors import BadArgument
from tilewright.ops import epilogues
from tilewright.ops.nouns import Operand, View

AMPLIFIES = 2.0
"""The factor by which the scales of one operand can raise an error relative to the result's rms,
for `tolerance`. It is reached where large scales coincide."""


class Scaled(Protocol):
    """A problem or a config with words for the scales of its operands."""

    @property
    def scale_a(self) -> str: ...
    @property
    def scale_b(self) -> str: ...


def count(of: Scaled) -> int:
    """Number of operands with scales: 0, 1 or 2. The scales are operands themselves."""
    return bool(of.scale_a) + bool(of.scale_b)


def k_block(of: Scaled) -> int:
    """Elements of K that a product of scales covers (the fewer of A's and B's); 0 without
    scales."""
    a, b = parse(of.scale_a), parse(of.scale_b)
    return min(a.columns if a else b.rows if b else 0, b.rows if b else a.columns if a else 0)


def amplification(of: Scaled) -> float:
    """The factor for `tolerance`; 0 without scales."""
    return AMPLIFIES ** count(of) if count(of) else 0.0


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of one operand of a problem.

    name: ``scale_a`` or ``scale_b``.
    block: rows and columns that one scale covers, and the scales' dtype.
    shape: the number of scales along rows and columns; of a grouped product, of groups before.
    strides: in elements.
    """

    name: str
    block: Block
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Elements from the first to past the last."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def operand(self) -> Operand:
        """The scales as an operand with random values near 1."""
        return Operand(self.name, self.shape, self.strides, self.block.dtype, values=(0.5, 2.0))


def of(problem: Any) -> tuple[Scales, ...]:
    """The scales of A and of B, as far as the problem has them, in the order of its operands."""
    p = problem
    found = []
    for name, word, shape, strides in (
        ("scale_a", p.scale_a, (p.m, p.k), p.strides_sa),
        ("scale_b", p.scale_b, (p.k, p.n), p.strides_sb),
    ):
        block = parse(word)
        if block is not None:
            found.append(Scales(name, block, block.shape(*shape), strides))
    return tuple(found)


def packed(word: str, rows: int, columns: int) -> tuple[int, ...]:
    """Strides of the packed, row-major scales of a rows × columns operand; () without scales."""
    block = parse(word)
    return (block.shape(rows, columns)[1], 1) if block else ()


def check(problem: Any) -> None:
    """Raise `BadArgument` unless the problem's blocks and strides of scales are valid."""
    p = problem
    if p.scale_a == p.scale_b == "" and p.strides_sa == p.strides_sb == ():
        return
    for name, word, field, strides in (
        ("scale_a", p.scale_a, "strides_sa", p.strides_sa),
        ("scale_b", p.scale_b, "strides_sb", p.strides_sb),
    ):
        if parse(word) is None and strides:
            raise BadArgument(f"{field} = {strides}, but there is no {name}")
        whole = isinstance(strides, tuple) and all(type(s) is int and s >= 0 for s in strides)
        if not whole or len(strides) not in (0, 2):
            raise BadArgument(f"{field} = {strides!r} is not a pair of strides, 0 or more")
    if count(p) and (p.batch != 1 or p.batching not in ("", "none")):
        raise BadArgument("operands with block scales have no batches; a problem is one GEMM")
    if count(p) and p.k == 0:
        raise BadArgument("a sum over nothing (k = 0) has no blocks to scale")
    taken = count(p) + len(epilogues.takes(p.epilogue))
    if taken > epilogues.MAX_OPERANDS:
        raise BadArgument(
            f"scales and epilogue '{p.epilogue}' take {taken} operands, over "
            f"{epilogues.MAX_OPERANDS}"
        )


def read(
    views: Sequence[View], blocks: Mapping[str, str], m: int, n: int, k: int
) -> dict[str, tuple[int, ...]]:
    """Check the arrays that a call passes as scales of an m × n × k product. Returns the strides of
    each; () without scales.

    blocks: the words of ``scale_a`` and ``scale_b``.

    Raises `BadArgument`.
    """
    found: dict[str, tuple[int, ...]] = {}
    given = iter(views)
    for (name, word), (rows, columns) in zip(blocks.items(), ((m, k), (k, n)), strict=True):
        block = parse(word)
        if block is None:
            found[name] = ()
            continue
        view = next(given)
        fits(name, word, view, block.shape(rows, columns), f"{rows}×{columns} operand")
        found[name] = view.strides
    return found


def fits(name: str, word: str, view: View, shape: tuple[int, ...], operand: str) -> None:
    """Raise `BadArgument` unless `view` can be the scales `name`, of blocks `word`.

    shape: that of the scales. operand: what they belong to, for the message.
    """
    block = parse(word)
    assert block is not None
    if view.shape != shape:
        raise BadArgument(
            f"{name} has shape {view.shape}; blocks of {block.rows}x{block.columns} on a "
            f"{operand} have scales of shape {shape}"
        )
    if view.dtype != block.dtype and (view.dtype, block.dtype) != ("uint8", "e8m0"):
        raise BadArgument(f"{name} is {view.dtype}, but '{word}' means {block.dtype} scales")
    if min(view.strides) < 0:
        raise BadArgument(f"{name} has strides {view.strides}; pass one that runs forward")


def dequantised(operand: Any, scales: Any, word: str) -> Any:
    """A float64 operand times its float64 scales, element by element (NumPy or torch)."""
    block = parse(word)
    assert block is not None
    rows, columns = operand.shape
    for axis, size in ((0, min(block.rows, rows)), (1, min(block.columns, columns))):
        if hasattr(scales, "repeat_interleave"):
            scales = scales.repeat_interleave(size, axis)
        else:
            scales = scales.repeat(size, axis)
    return operand * scales[:rows, :columns]


def names(of: Scaled) -> str:
    """The scales in a kernel's name: ``_sa1x128_sb128x128``."""
    said = (("sa", of.scale_a), ("sb", of.scale_b))
    return "".join(f"_{letter}{word}" for letter, word in said if word)


PATTERN = "".join(rf"(?:_s{x}(?P<scale_{x}>[1-9]\d*x[1-9]\d*(?:-[a-z0-9]+)?))?" for x in ("a", "b"))
"""Pattern that reads `names` back."""


def kernel_blocks(of: Scaled) -> str:
    """The kernels' constant SCALES: the blocks of A and B, ``"1x128,128x128"`` (0x0: no scales), or
    ``""`` if neither has scales."""
    if not count(of):
        return ""
    blocks = (parse(of.scale_a), parse(of.scale_b))
    return ",".join(f"{b.rows}x{b.columns}" if b else "0x0" for b in blocks)
