"""Pipelines ``gluon_ws`` and ``gluon_pingpong``: tensor descriptors and wgmma, in Gluon, with the
warps' roles written out: some load, groups of four multiply. Under the second, each group has tiles
of its own."""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.ops import epilogues
from tilewright.ops.device.widths import wide
from tilewright.ops.gemm import clusters
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines import common, warpgroups
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates
from tilewright.ops.gemm.pipelines.warpgroups import (
    ODD_COLUMNS,
    ODD_ROWS,
    SPECIALISATION_BYTES,
    WARPGROUP,
    WARPGROUP_ROWS,
)


def _staging(c: GemmConfig) -> int:
    return common.staged(c, 2 * warpgroups.piece(c))


def _ws_shared_memory(c: GemmConfig, arch: Arch) -> int:
    exchanged = clusters.exchanged_bytes(c) if c.clustered else 0
    return common.ring(c, arch) + _staging(c) + exchanged + SPECIALISATION_BYTES


def _pingpong_shared_memory(c: GemmConfig, arch: Arch) -> int:
    return common.ring(c, arch) + 2 * _staging(c) + SPECIALISATION_BYTES  # each has its own tile


def _boxes(c: GemmConfig) -> tuple[int, int, int, int]:
    """B is copied in boxes of the first accumulator's columns; C leaves in pieces."""
    stored = warpgroups.piece(c) // epilogues.fold(c.epilogue)
    return c.tile_m, wide(c.tile_n), c.tile_k, stored


def _ws_boxes(c: GemmConfig) -> tuple[int, int, int, int]:
    """Each warp group's rows of A are a box."""
    rows, columns, k, stored = _boxes(c)
    return rows // warpgroups.groups(c), columns, k, stored


def _ws_overlaps(c: GemmConfig, arch: Arch) -> str | None:
    if c.scheduler == "tile":
        return "pipeline gluon_ws overlaps tiles of one workgroup, so it needs another scheduler"
    return None


def _ws_objection(c: GemmConfig, arch: Arch) -> str | None:
    if c.num_warps not in (WARPGROUP, 2 * WARPGROUP, 3 * WARPGROUP):
        return f"pipeline gluon_ws multiplies with 4, 8 or 12 warps, not {c.num_warps}"
    if (c.num_warps == 3 * WARPGROUP) != (c.tile_m == ODD_ROWS):
        return f"12 warps multiply {ODD_ROWS} rows, not {c.num_warps} warps {c.tile_m}"
    sums = common.accumulators(c, arch)
    return warpgroups.tile_objection(c, WARPGROUP_ROWS * warpgroups.groups(c), sums)


def _pingpong_objection(c: GemmConfig, arch: Arch) -> str | None:
    if c.num_warps != 2 * WARPGROUP or c.scheduler != "persistent":
        return (
            "pipeline gluon_pingpong has two groups of four warps that take turns: num_warps 8 "
            f"and scheduler persistent, not {c.num_warps} and {c.scheduler}"
        )
    return warpgroups.tile_objection(c, WARPGROUP_ROWS, _pingpong_accumulators(c, arch))


def _pingpong_accumulators(c: GemmConfig, arch: Arch) -> int:
    """A warp group has a tile of its own."""
    return common.with_unscaled(c, c.tile_m * c.tile_n // (WARPGROUP * arch.warp_size))


GLUON_WS = Pipeline(
    name="gluon_ws",
    kernel="tilewright.ops.gemm.kernels.gluon_ws:gemm_gluon_ws",
    sibling="tma",
    needs=("tma", "wgmma"),
    schedulers=("persistent", "split_k", "stream_k"),
    reductions=("atomic", "linear", "tree", "two_stage", "cluster"),
    stores=("direct", "split"),
    batchings=("none", "strided", "summed"),
    odd_rows=(ODD_ROWS,),
    odd_columns=ODD_COLUMNS,
    odd_warps=(3 * WARPGROUP,),
    rules={"combination": _ws_overlaps, "warpgroups": _ws_objection},
    own_words={"scheduler": "combination"},
    traits=("swaps", "walks_parts", "loads_apart", "ends_inside"),
    meetings=warpgroups.groups,
    shared_memory=_ws_shared_memory,
    boxes=_ws_boxes,
    options=warpgroups.options_beside,
    # Left free, the fit of this share and the next says 1.0 to 1.2: other terms decide.
    rates=Rates(share=1.0),
    grids=("whole",),
    worth_having={"whole": common.worth_through_descriptors},
)

GLUON_PINGPONG = Pipeline(
    name="gluon_pingpong",
    kernel="tilewright.ops.gemm.kernels.gluon_pingpong:gemm_gluon_pingpong",
    sibling="tma",
    needs=("tma", "wgmma"),
    schedulers=("persistent",),
    stores=("direct", "split"),
    batchings=("none", "strided", "summed"),
    odd_columns=ODD_COLUMNS,
    rules={"warpgroups": _pingpong_objection},
    own_words={"scheduler": "warpgroups"},
    traits=("swaps", "takes_turns", "loads_apart", "ends_inside"),
    shared_memory=_pingpong_shared_memory,
    accumulators=_pingpong_accumulators,
    boxes=_boxes,
    options=warpgroups.options,
    rates=Rates(share=1.0),
    worth_having={"whole": common.always},
)
