"""What learned selection is told of convolutions (see `tilewright.ops.protocols.Learning`): which
layers are of one kin, and how a kernel's tiles fill a layer and a device."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

from tilewright.arch.model import Device
from tilewright.ops.conv.config import GEMM, ConvConfig
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.pool import Columns, Each, each
from tilewright.ops.tile_traits import of_product

STEM = 4
"""Most channels of a stem."""


def kin(p: ConvProblem) -> Hashable:
    """A layer: its channels, groups, filter, and how that walks. Images differ in number and
    size."""
    return p.c, p.k, p.groups, p.filter, p.stride, p.pad, p.pad_after, p.dilation


def kind(p: ConvProblem) -> str:
    """The kind of layer."""
    if p.depthwise:
        return "depthwise"
    if p.groups > 1:
        return "grouped"
    if min(p.c, p.k) <= STEM:
        return "stem"
    if p.taps == 1:
        return "1x1"
    return "strided" if math.prod(p.stride) > 1 else "dense"


def traits(p: ConvProblem, c: Columns, device: Device) -> Mapping[str, Each]:
    """Those of the product of matrices that each group is, and what makes the layer none."""
    pixels = p.n * math.prod(p.out_sizes)
    rows, columns, depth = {
        "forward": (pixels, p.group_k, p.group_c * p.taps),
        "data": (p.n * math.prod(p.spatial), p.group_c, p.group_k * p.taps / p.classes),
        "weights": (p.group_k, p.group_c * p.taps, pixels),
    }[p.direction]
    tile = each(c, _rows), each(c, _columns), each(c, _step)
    return {
        **of_product((rows, columns, depth), tile, each(c, _split), p.groups, device),
        "taps": p.taps,
        "step of a filter": math.prod(p.stride),
        "pixels": math.prod(p.out_sizes),
        "warps": each(c, _warps),
        "stages": each(c, _stages),
        "layout steps": each(c, _turned),
    }


def _kernel(c: ConvConfig) -> ConvConfig:
    """The kernel with the tiles: GEMM's, where that computes the layer."""
    kernel: ConvConfig = c.gemm_config if c.pipeline == GEMM else c  # type: ignore[assignment]
    return kernel


def _rows(c: ConvConfig) -> int:
    return max(1, _kernel(c).tile_m)


def _columns(c: ConvConfig) -> int:
    return max(1, _kernel(c).tile_n)


def _step(c: ConvConfig) -> int:
    return max(1, _kernel(c).tile_k)


def _split(c: ConvConfig) -> int:
    return getattr(_kernel(c), "split_k", 1)


def _warps(c: ConvConfig) -> int:
    return _kernel(c).num_warps


def _stages(c: ConvConfig) -> int:
    return _kernel(c).num_stages


def _turned(c: ConvConfig) -> int:
    return len(c.turned)
