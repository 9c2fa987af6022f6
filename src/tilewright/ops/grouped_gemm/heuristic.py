"""A first guess at a kernel's time: that of the GEMM with as many rows as its tiles have.

Sizes of groups are not known when a kernel is chosen, so rows are taken to be spread evenly. Every
group with rows has a tile that is not whole, which is what small tiles are for; and every such
group's B is read from memory, which no tile changes.
"""

from __future__ import annotations

from tilewright.arch.model import Device
from tilewright.ops.gemm import heuristic as gemm
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.grouped_gemm.config import GroupedGemmConfig
from tilewright.ops.grouped_gemm.problem import GroupedGemmProblem

WALK_SECONDS = 2e-6
"""What reading the groups' sizes and adding up their tiles takes."""


def estimate(config: GroupedGemmConfig, problem: GroupedGemmProblem, device: Device) -> float:
    """Seconds `config` should take for `problem` on `device`."""
    p, one = problem, problem.one
    if p.form == "list":
        rows = sum(-(-m // config.tile_m) for m, _, _ in p.sizes) * config.tile_m
        n, k = (sum(s[i] for s in p.sizes) // p.groups for i in (1, 2))
    else:
        used = p.groups if p.form == "masked" else max(1, min(p.groups, p.m))
        each = -(-(p.rows or 1) // used)
        rows = used * -(-each // config.tile_m) * config.tile_m
        n, k = p.n, p.k
    fold = max(1, n % 2 + 1) if one.n != one.columns else 1
    whole = GemmProblem(
        max(1, rows),
        max(1, n) * fold,
        max(1, k),
        dtype_a=p.dtype_a,
        dtype_c=p.dtype_c,
        layout=p.layout,
        precision=p.precision,
        epilogue=p.epilogue,
    )
    from_memory = gemm.LAUNCH_SECONDS + p.min_bytes / (device.bandwidth_gbs * 1e9)
    return WALK_SECONDS + max(gemm.estimate(config.one, whole, device), from_memory)
