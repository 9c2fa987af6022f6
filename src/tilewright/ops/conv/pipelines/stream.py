"""Pipeline ``stream``: depthwise convolutions of one tap, whose result lies as their source does,
as one stream of products (kernels/stream.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Catalogue, Context, Numbers
from tilewright.ops.conv.catalogue import pointer
from tilewright.ops.conv.config import INDEX_BITS, ConvConfig
from tilewright.ops.conv.geometry import cdiv, channels_last
from tilewright.ops.conv.pipelines import common, pointers
from tilewright.ops.conv.pipelines.record import Pipeline, Row
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.division import dividing
from tilewright.ops.estimate import Estimates
from tilewright.ops.limits import INT32_SPAN
from tilewright.ops.pool import Each, Objections, because, each

PIPELINE = "stream"

VECTOR_BYTES = 16
"""Bytes of channels that a thread moves at once, at most."""


def _vectors(c: Any, p: ConvProblem) -> Each:
    return p.n * math.prod(p.out_sizes) * (p.c // c.tile_n)


_OWN: Catalogue = {
    # All its weights lie side by side, and the call's arrays are as aligned as its pixels are.
    "weights": pointer(lambda _: "w", lambda c: c.alignment),
    "vectors": Numbers("i32", lambda x: int(_vectors(x.config, x.problem))),
    "across": Numbers("i32", lambda x: x.problem.c // x.config.tile_n),
    "across_by": Numbers(("i32",) * 2, lambda x: dividing(x.problem.c // x.config.tile_n)),
}

_PARTS = (pointers.kernel("stream", "conv_stream", own=_OWN),)


def _tiles(c: Any, p: ConvProblem) -> Each:
    return cdiv(_vectors(c, p), c.tile_m)


# --- rules ----------------------------------------------------------------------------------------


def _objection(c: ConvConfig, arch: Arch) -> str | None:
    if c.direction == "weights":
        return f"pipeline {PIPELINE} makes no gradients of weights"
    if c.epilogue:
        return f"pipeline {PIPELINE} has no epilogue"
    if c.index_bits != INDEX_BITS[0]:
        return f"pipeline {PIPELINE} counts elements in {INDEX_BITS[0]} bits"
    return pointers.objection(c, arch)


@lru_cache(maxsize=1024)  # of each problem for all kernels
def refusal(p: ConvProblem) -> str | None:
    """Why `p` is no product of each element and its channel's weight, or None."""
    if p.taps > 1 or any(size != 1 for size in p.stride):
        return "a stream is of one tap and strides of 1"
    if any((*p.pad, *p.pad_after)):
        return "a stream has no padding"
    for name in "xwy":
        shape, given = p.shape_of(name), p.strides_of(name)
        plain = channels_last(shape[0], shape[1], shape[2:])
        if any(n > 1 and s != d for n, s, d in zip(shape, given, plain, strict=True)):
            return f"channels of {name} are not innermost, or it has gaps"
    return None


def _refusal(c: Any, p: ConvProblem) -> Objections:
    if (reason := refusal(p)) is not None:
        yield True, because(reason)
        return
    yield p.c % c.tile_n != 0, "vectors of {c.tile_n} channels do not divide {p.c}".format


# --- spaces ---------------------------------------------------------------------------------------

_WARPS, _MORE_WARPS = (4,), (2, 4, 8)
_EACH = (1, 2, 4)
"""Vectors of a thread."""


def answers(p: ConvProblem) -> bool:
    """Whether the default space has such kernels, and so none that look for pixels' places."""
    if not p.depthwise or p.direction == "weights" or p.epilogue or p.precision == "tf32":
        return False
    return refusal(p) is None and max(p.spans().values()) < INT32_SPAN


def _rows(p: ConvProblem, arch: Arch, tuned: bool) -> Iterator[Row]:
    if not answers(p):
        return
    most = VECTOR_BYTES // max(DTYPES[p.dtype].bytes, DTYPES[p.dtype_out].bytes)
    n = math.gcd(p.c, most)
    for warps, count in itertools.product(_MORE_WARPS if tuned else _WARPS, _EACH):
        m = count * warps * arch.warp_size
        yield (m, n, 1, warps, 1, PIPELINE, "tile", 1, False, *common.pixel_alignments(p))


# --- how long they take ---------------------------------------------------------------------------

VECTOR_INSTRUCTIONS, ELEMENT_INSTRUCTIONS, THREAD_INSTRUCTIONS = 16, 1, 13
"""Instructions of a lane: for each vector, for each of its elements, and before the first. Counted
in sm_90's code, which has 37 for a vector of 8 channels of 2 bytes, 109 for four, and 93 for four
of 4."""


def _estimates(x: Context) -> Estimates:
    c, p, device = x.config, x.problem, x.device
    instructions = c.tile_m * (VECTOR_INSTRUCTIONS + c.tile_n * ELEMENT_INSTRUCTIONS)
    instructions += c.num_warps * arch_called(device.arch).warp_size * THREAD_INSTRUCTIONS
    work = pointers.Work(
        steps=1,
        read=c.tile_m * c.tile_n * DTYPES[p.dtype].bytes,
        products=physics.lanes_us(instructions, device),
        resident=each(c, _resident, arch_called(device.arch)),
    )
    return pointers.estimates(x, work)


def _resident(c: ConvConfig, this: Arch) -> int:
    return pointers.resident(c, this, c.tile_m * c.tile_n, 0)


STREAM = Pipeline(
    name=PIPELINE,
    parts=lambda _: _PARTS,
    totals=(),
    words=frozenset({"depthwise"}),
    objection=_objection,
    refusal=_refusal,
    shared_memory=lambda _, __: 0,
    alignments=common.pixel_alignments,
    tiles=_tiles,
    steps=common.steps_of_pixels,
    rows=_rows,
    estimates=_estimates,
)
