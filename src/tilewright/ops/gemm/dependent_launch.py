"""Programmatic dependent launch (`GemmConfig.dependent_launch`): which kernels have it, and for
which problems.

A kernel with it may start while the kernel before it on its stream drains: it sets up barriers and,
with ``ahead``, loads the first tiles of B. Then it waits for the end of the kernel before
(`kernels/gluon_fill` says where). So results do not depend on it, whatever runs before and after.

The grid must be resident at once. Kernels for few rows need not be: each of their workgroups lets
the next kernel start only behind its last load. A workgroup that waits keeps its place, so
workgroups of a second wave would keep places that the kernel before still needs for its own.

Kernels for few rows wait without being asked (`usual`), except small ones on the vector units,
where each workgroup pays for the wait and has little to do. Measurements:
docs/notes/gemm-estimate.md.
"""

from __future__ import annotations

from tilewright.arch.model import Arch
from tilewright.ops.gemm import pipelines
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines.record import Pipeline

SHORT_WARPS = 4
"""Warps up to which a workgroup for one row of A is over so soon that waiting shows."""


def resident_once(c: GemmConfig) -> bool:
    """Whether the grid has at most as many workgroups as the device has compute units."""
    walks = c.scheduler == "split_k" and pipelines.of(c).has("walks_parts") and not c.clustered
    return walks or c.scheduler in ("persistent", "stream_k")


def waits(pipeline: Pipeline) -> bool:
    """Whether a pipeline's kernel can wait for the kernel before it in all warps that touch memory.
    Where the compiler sets warps apart, it also decides which of them wait."""
    return pipeline.takes("PDL") and "warp_specialize" not in pipeline.needs


def usual(pipeline: str, tile_m: int, num_warps: int, num_stages: int, arch: Arch) -> str:
    """What spaces have in `dependent_launch` unless they are asked for a value: what serves single
    calls and chains best."""
    record = pipelines.PIPELINES[pipeline]
    if not (record.has("few_rows") and waits(record) and arch.has("pdl")):
        return "none"
    short = tile_m == 1 and num_warps <= SHORT_WARPS and num_stages == 1
    return "none" if short else "wait"


def legal(c: GemmConfig, arch: Arch) -> str | None:
    """Why a kernel may not start before the one before it has ended."""
    if c.dependent_launch == "none":
        return None
    if not arch.has("pdl"):
        return f"{arch.name} has no programmatic dependent launch; leave dependent_launch out"
    record = pipelines.of(c)
    if not waits(record):
        others = ", ".join(name for name, p in pipelines.PIPELINES.items() if waits(p))
        return f"pipeline {c.pipeline} does not wait for the kernel before it; {others} do"
    if not (resident_once(c) or record.has("few_rows")):
        return (
            f"a kernel that waits for the one before it must be resident at once; scheduler "
            f"{c.scheduler} of {c.pipeline} launches a workgroup for each part of the work"
        )
    if c.dependent_launch == "ahead" and not record.has("loads_apart"):
        return f"pipeline {c.pipeline} loads A and B together; ahead needs warps that load"
    return None
