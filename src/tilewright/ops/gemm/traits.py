"""What learned selection is told of GEMMs (`tilewright.ops.protocols.Learning`): which problems are
of one kin, and how a kernel's tiles fill a problem and a device."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from tilewright.arch.model import Device
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.pool import Columns, Each
from tilewright.ops.tile_traits import aligned, of_product, of_ring

_RANGES = (1, 16, 128, 1024)
"""Ends of the ranges of M, by which a GEMM is bound by other things."""


def kin(p: GemmProblem) -> Hashable:
    """A layer's weights: its products differ in rows."""
    return p.n, p.k, p.layout, p.batch


def kind(p: GemmProblem) -> str:
    """The range of M."""
    low = 1
    for high in _RANGES:
        if p.m <= high:
            return f"M {high}" if low == high else f"M {low} to {high}"
        low = high + 1
    return f"M {low} and more"


def traits(p: GemmProblem, c: Columns, device: Device) -> Mapping[str, Each]:
    """Tiles, their steps, how far they fill the problem, and the device; how rows lie in lines."""
    tile = c.tile_m, c.tile_n, c.tile_k
    product = of_product((p.m, p.n, p.k), tile, c.split_k, p.batch, device)
    return {
        **product,
        **of_ring(tile, product["steps"], c.num_stages),
        "rows of a": aligned(p.lda, p.dtype_a),
        "rows of b": aligned(p.ldb, p.dtype_b),
        "rows of c": aligned(p.ldc, p.dtype_c),
    }
