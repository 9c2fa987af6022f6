"""Answers to a record's questions that several kernels give alike: see `record.Pipeline`."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.arch.model import Arch, Device
from tilewright.ops.attention.arguments import Value
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.pipelines.record import Box, Described
from tilewright.ops.attention.problem import AttentionProblem


def wide(size: int) -> int:
    """The least power of two that is no less, and at least 16: Triton's blocks are so long."""
    return max(16, 1 << (size - 1).bit_length())


def no_boxes(c: AttentionConfig) -> Mapping[str, Box]:
    return {}


def no_views(c: AttentionConfig, p: AttentionProblem) -> Mapping[str, Described]:
    return {}


def triton_options(c: AttentionConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    return ("num_warps", c.num_warps), ("num_stages", c.num_stages)


def q_tiles(c: AttentionConfig, p: AttentionProblem) -> int:
    """Tiles of rows of the longest sequence and one head (packed: one head of keys)."""
    rows = p.q_len * (p.group if c.pack else 1)
    return -(-rows // c.tile_q)


def heads(c: AttentionConfig, p: AttentionProblem) -> int:
    """Heads that workgroups are told apart by."""
    return p.kv_heads if c.pack else p.heads


def by_tile(
    c: AttentionConfig, p: AttentionProblem, device: Device, splits: int
) -> tuple[int, int, int]:
    """Tiles of Q, times heads, times splits, times sequences: y and z of a grid are too short."""
    return q_tiles(c, p) * heads(c, p) * p.batch * splits, 1, 1


def accumulators(c: AttentionConfig, arch: Arch) -> int:
    """Registers for the scores and the sums of a tile."""
    columns = c.tile_kv + wide(c.head_dim_v)
    return c.tile_q * columns // (c.num_warps * arch.warp_size)
