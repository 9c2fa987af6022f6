"""Answers to a record's questions that several kernels give alike: see `record.Pipeline`."""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.binder import Context, Value
from tilewright.ops.powers import power_of_two


def wide(size: int) -> int:
    """The least power of two that is no less, and at least 16: Triton's blocks are so long."""
    return max(16, power_of_two(size))


def triton_options(c: AttentionConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    return ("num_warps", c.num_warps), ("num_stages", c.num_stages)


def q_tiles(c: AttentionConfig, p: AttentionProblem) -> int:
    """Tiles of rows of the longest sequence and one head (packed: one head of keys)."""
    rows = p.q_len * (p.group if c.pack else 1)
    return -(-rows // c.tile_q)


def heads(c: AttentionConfig, p: AttentionProblem) -> int:
    """Heads that workgroups are told apart by."""
    return p.kv_heads if c.pack else p.heads


def by_tile(x: Context) -> int:
    """Tiles of Q, times heads, times splits, times sequences: y and z of a grid are too short."""
    c, p = x.config, x.problem
    return q_tiles(c, p) * heads(c, p) * int(p.batch) * x.splits


def accumulators(c: AttentionConfig, arch: Arch) -> int:
    """Registers for the scores and the sums of a tile."""
    columns = c.tile_kv + wide(c.head_dim_v)
    return c.tile_q * columns // (c.num_warps * arch.warp_size)


def joins_late(c: AttentionConfig) -> str | None:
    """Why a kernel that leaves sinks and O's scale to the part that combines splits does not have
    them; or None."""
    if c.scheduler != "split":
        for word in ("sinks", "oscale"):
            if word in c.words:
                return f"{word} joins where splits are combined, under scheduler split alone"
    return None
