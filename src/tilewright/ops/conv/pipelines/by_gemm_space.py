"""The kernels that pipeline ``gemm`` (`by_gemm`) chooses from: those of GEMM's spaces for the
product, and for gradients of weights also kernels whose tiles are shared.

Where the arrays as they lie are no product whose rows are whole 16 bytes, layout steps may leave
one (`turnings`): of patches, of channels side by side, and of longer rows. A config names them
(`ConvConfig.turned`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.errors import EmptySpace
from tilewright.ops.conv import longer, patches, tapping, turning
from tilewright.ops.conv.config import ALIGNMENTS, LONGER, PATCHES, TAPS, WINDOWS, as_named, of_gemm
from tilewright.ops.conv.pipelines.record import LINKED, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.conv.product import product
from tilewright.ops.gemm import FAMILY as PRODUCTS
from tilewright.ops.gemm import pipelines
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.space import KernelSpace, of_rows

Tile = tuple[str, int, int, int, int, int, str]
"""Pipeline, rows, columns, bytes of K, warps, stages, store."""

SUMS: tuple[Tile, ...] = (
    ("gluon_ws", 64, 64, 128, 4, 13, "direct"),
    ("gluon_ws", 64, 128, 128, 4, 8, "direct"),
    ("gluon_ws", 128, 128, 128, 8, 6, "direct"),
    ("gluon_ws", 128, 256, 128, 8, 4, "split"),
    *(
        (pipeline, rows, columns, 128, warps, 3, "direct")
        for pipeline in ("basic", "tma", "gluon_cdna")
        for rows, columns, warps in ((64, 64, 4), (64, 128, 4), (128, 128, 8))
    ),
)
"""For gradients of weights, which are few tiles with sums over many pixels."""

SHARED = (("stream_k", 1, "linear"), ("stream_k", 1, "tree"), ("split_k", 16, "linear"))
"""Schedulers, parts of K, and how partial sums meet: orders that repeat bit for bit."""

APART: tuple[tuple[Tile, tuple[int, ...]], ...] = (
    (("gluon_ws", 64, 128, 128, 4, 7, "direct"), (8, 16, 32, 64, 128)),
    (("gluon_ws", 128, 128, 128, 8, 5, "direct"), (16, 32, 64, 128)),
    (("gluon_ws", 128, 256, 128, 8, 3, "split"), (16, 32, 64, 128)),
)
"""Tiles, and parts of K that a second kernel adds up, for sums over all images: few tiles in so
many parts that all compute units have some, down to one tile. The operands come from memory while
they are waited for, so 128×128 is for products without 256 columns: it reads a third more."""

NARROW: tuple[tuple[Tile, tuple[int, ...]], ...] = (
    (("basic", 16, 16, 512, 4, 4, "direct"), (64, 128)),
    (("basic", 32, 16, 512, 4, 4, "direct"), (64, 128)),
    (("basic", 16, 32, 512, 4, 4, "direct"), (64, 128)),
    (("basic", 32, 32, 256, 4, 4, "direct"), (64, 128)),
    (("basic", 16, 64, 512, 4, 4, "direct"), (64, 128)),
    (("basic", 64, 16, 512, 4, 4, "direct"), (64, 128)),
    (("basic", 16, 128, 256, 8, 4, "direct"), (32, 64, 128)),
    (("basic", 32, 128, 256, 8, 4, "direct"), (32, 64, 128)),
    (("basic", 64, 32, 256, 4, 4, "direct"), (64, 128)),
    (("basic", 128, 32, 256, 8, 4, "direct"), (32, 64, 128)),
)
"""Tiles and parts like `APART` for pixels that are one matrix, where filters or channels are up to
`FEWER`. Rows may be no whole 16 bytes, but are whole copies. Kernels that know any filter find the
place of each pixel for each copy, which takes three times as many instructions."""

FEW, FEWER = 64, 32
FEW_APART: tuple[tuple[Tile, tuple[int, ...]], ...] = (
    (("basic", 16, 16, 512, 4, 4, "direct"), (32, 128)),
    (("basic", 32, 16, 512, 4, 4, "direct"), (32, 128)),
    (("basic", 32, 32, 128, 4, 4, "direct"), (64, 128)),
    (("gluon_ws", 64, 32, 128, 4, 12, "direct"), (64, 128)),
    (("gluon_ws", 64, 64, 128, 4, 13, "direct"), (64, 128)),
)
"""Tiles and parts beside `APART` where channels and filters are up to `FEW`, and either up to
`FEWER`, as in the first layers of networks for phones: larger tiles are mostly empty there. The
stages are as many as cover the memory's latency."""

_ALGORITHM = (
    "pipeline", "tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "store",
    "scheduler", "split_k", "reduction",
)  # fmt: skip


def turnings(p: ConvProblem, tuned: bool = False) -> tuple[str, ...]:
    """The layout steps, as in `ConvConfig.turned`, that leave a product whose rows are whole 16
    bytes; none where `p` is one as its arrays lie. The first of a kind that does, and in a tuning
    longer rows of what is a product already: no figure says yet when they are worth their copies.
    """
    as_it_lies = product(p)
    if _whole_rows(as_it_lies):
        return ()
    can = p.once(turning.turnable)
    tried = [can] if can else []
    if cut := _cut(p, can):
        cut += "w" * (patches.row(p, True) != patches.columns(p))
        tried = [cut, cut + "y" * ("y" in can)]
    found = [*itertools.islice(filter(partial(_leave_whole_rows, p), tried), 1)]
    few = TAPS + "w" * ("w" in can)
    if _few_taps(p) and _leave_whole_rows(p, few):
        found.append(few)
    names = longer.needed(p) if tuned and not isinstance(as_it_lies, str) else ""
    if names and _leave_whole_rows(p, LONGER + names):
        found.append(LONGER + names)
    return tuple(found)


def _few_taps(p: ConvProblem) -> bool:
    """Whether filters have fewer taps together than x has channels, so that what the taps have is
    about as much as x."""
    return tapping.columns(p) <= p.c


MOST_GROWN = 2.5
"""Elements that windows have, over those of x or over those of the filters, whichever are more, up
to which they are cut out. Audio codecs have windows of twice their stride."""


def _cut(p: ConvProblem, can: str) -> str:
    """How x is cut into rows, if it is: of windows that overlap only where arrays lie with channels
    outside of their pixels, and so would be turned for kernels of other pipelines. A cut copies
    lines of pixels. The filters, which may have most of the elements, stay as they lie. A gradient
    of x of few channels is added up of such rows wherever they lie, as y, which has most of the
    elements, is read once then."""
    if patches.refusal(p) is None:
        return PATCHES
    if patches.windows_refusal(p) is not None:
        return ""
    if p.direction == "data" and patches.columns(p) <= p.k:
        return WINDOWS
    most = MOST_GROWN * max(math.prod(p.shape_of("x")), math.prod(p.shape_of("w")))
    by_lines = p.direction == "data" or p.strides_of("x")[-1] == 1
    return WINDOWS if can and by_lines and patches.grown(p) <= most else ""


def _leave_whole_rows(p: ConvProblem, how: str) -> bool:
    return turning.refusal(how, p) is None and _whole_rows(product(turning.inside(p, how)))


def _whole_rows(of: GemmProblem | str) -> bool:
    return not isinstance(of, str) and of.alignment == ALIGNMENTS[-1]


def rows(p: ConvProblem, arch: Arch, tuned: bool, turned: str = "") -> Iterator[Row]:
    """The kernels of GEMM's default space (or of those of a tuning, some twice) for the product
    that `p` is between layout steps; for the gradient of weights also kernels whose tiles are
    shared. Rows of `LINKED`, whether they serve these very sizes or not: so problems have the same
    candidates, and share what follows from them."""
    of = product(turning.inside(p, turned))
    if isinstance(of, str):
        return
    spaces = PRODUCTS.tuning_spaces(of, arch) if tuned else [PRODUCTS.default_space(of, arch)]
    if p.direction == "weights":
        spaces = [*spaces, _sums(of, arch)]
    for space in spaces:
        yield from _expanded(space, arch, p, turned)


def _sums(of: GemmProblem, arch: Arch) -> KernelSpace:
    """`SUMS` and `_apart`, with the default space's signature."""
    element, here = DTYPES[of.dtype_a].bytes, pipelines.on(arch)
    ways = [(tile, how) for tile in SUMS for how in SHARED]
    ways += [
        (tile, ("split_k", parts, "two_stage")) for tile, several in _apart(of) for parts in several
    ]
    rows = [
        (pipeline, m, n, k_bytes // element, *rest, *how)
        for (pipeline, m, n, k_bytes, *rest), how in ways
        if pipeline in here
    ]
    axes = PRODUCTS.default_space(of, arch).axes
    fixed = {axis: value for axis, (value,) in axes.items()} | {"alignment": of.alignment}
    return of_rows("gemm", fixed, _ALGORITHM, rows)


def _apart(of: GemmProblem) -> Sequence[tuple[Tile, tuple[int, ...]]]:
    """Tiles, and parts of K that a second kernel adds up, for a product of these sizes."""
    if of.batching == "summed":
        few = FEW_APART if max(of.m, of.n) <= FEW and min(of.m, of.n) <= FEWER else ()
        return (*(one for one in APART if of.n < 256 or one[0][1:3] != (128, 128)), *few)
    if of.batching == "none" and min(of.m, of.n) <= FEWER:
        return NARROW
    return ()


MOST_EXPANDED = 256
_kept: dict[tuple[Any, ...], Sequence[Row]] = {}
"""The kernels of spaces, by what `_expanded` takes: expanding one takes as long as planning ten
problems."""


def _expanded(space: KernelSpace, arch: Arch, p: ConvProblem, turned: str) -> Sequence[Row]:
    """The kernels of a space of GEMM's as rows of a convolution's."""
    made = (p.dtype_out, p.epilogue)
    key = (arch.name, p.direction, len(p.spatial), turned, *made, space.key)
    if key not in _kept:
        if len(_kept) >= MOST_EXPANDED:
            _kept.clear()
        try:
            kernels = space.expand(arch).configs
        except EmptySpace:
            kernels = ()
        configs = (
            of_gemm(p.direction, len(p.spatial), as_named(kernel, turned, *made), turned)
            for kernel in kernels
        )
        _kept[key] = [*map(attrgetter(*LINKED), configs)]
    return _kept[key]
