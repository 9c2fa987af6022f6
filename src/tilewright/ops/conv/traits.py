"""What learned selection is told of convolutions (see `tilewright.ops.protocols.Learning`): which
layers are of one kin, and how a kernel's tiles fill a layer and a device."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

from tilewright.arch.model import Device
from tilewright.ops.conv.config import GEMM, ConvConfig
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.pool import Columns, Each, each
from tilewright.ops.tile_traits import aligned, of_product, of_ring

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
    """Each group is a product of matrices: its traits; those of a layer that a product has not;
    which of GEMM's kernels it is, where that computes the layer; how channels lie in lines."""
    pixels = p.n * math.prod(p.out_sizes)
    rows, columns, depth = {
        "forward": (pixels, p.group_k, p.group_c * p.taps),
        "data": (p.n * math.prod(p.spatial), p.group_c, p.group_k * p.taps / p.classes),
        "weights": (p.group_k, p.group_c * p.taps, pixels),
    }[p.direction]
    kernel = each(c, _kernel)  # once: all that follows is asked of it
    tile = each(kernel, _rows), each(kernel, _columns), each(kernel, _step)
    split, stages = each(kernel, _split), kernel.num_stages
    product = of_product((rows, columns, depth), tile, split, p.groups, device)
    return {
        **product,
        **of_ring(tile, product["steps"], stages),
        "channels of x": aligned(p.group_c, p.dtype_of("x")),
        "channels of y": aligned(p.group_k, p.dtype_of("y")),
        "taps": p.taps,
        "step of a filter": math.prod(p.stride),
        "pixels": math.prod(p.out_sizes),
        "warps": kernel.num_warps,
        "stages": stages,
        "kernel": kernel.pipeline,
        "scheduler": kernel.scheduler,
        "reduction": kernel.reduction,
        "store": each(kernel, _store),
        "split": split,
        "layout steps": each(c, _turned),
    }


def _kernel(c: ConvConfig) -> Any:
    """The kernel with the tiles: GEMM's, where that computes the layer. A library's algorithm has
    none; its columns are asked for with those of the kernels beside it."""
    return c if c.pipeline != GEMM or c.library else c.gemm_config


def _rows(kernel: Any) -> int:
    return max(1, int(kernel.tile_m))


def _columns(kernel: Any) -> int:
    return max(1, int(kernel.tile_n))


def _step(kernel: Any) -> int:
    return max(1, int(kernel.tile_k))


def _split(kernel: Any) -> int:
    return int(getattr(kernel, "split_k", 1))


def _store(kernel: Any) -> str:
    return str(getattr(kernel, "store", ""))


def _turned(c: ConvConfig) -> int:
    return len(c.turned)
