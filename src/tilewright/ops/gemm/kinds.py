"""The kinds of a GEMM's configs: kernels that are built here, and algorithms of the vendor's
library. Each is a record of what the family asks of a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilewright.arch.model import Arch, Device
from tilewright.ops import tile_sharing
from tilewright.ops.device.widths import wide
from tilewright.ops.estimate import Estimate
from tilewright.ops.gemm import launch, legality, library, pipelines, sizes, support
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.library_config import VENDOR, VendorConfig
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.nouns import KernelSource, Launch
from tilewright.verdict import Verdict

Config = GemmConfig | VendorConfig
"""A kernel that is built here, or an algorithm of the vendor's library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What holds of configs of one kind, each a function as the family's method of this name.

    sums: the dtype that operands are rounded to, the parts of a sum that are summed on their own,
        and the elements of K whose products are summed before blocks of scales are applied, 0 if
        that is not known.
    """

    judge: Callable[[Any, Arch], Verdict]
    supports: Callable[[Any, GemmProblem, Arch], Verdict]
    repeats: Callable[[Any], Verdict]
    invariant: Callable[[Any], Verdict]
    sources: Callable[[Any, Arch], Mapping[str, KernelSource]]
    interpreted: Callable[[Any], GemmConfig]
    launch: Callable[[Any, GemmProblem, Device], Launch]
    estimate: Callable[[Any, GemmProblem, Device], Estimate]
    sums: Callable[[Any, GemmProblem], tuple[str, int, int]]


def of(config: Config) -> Kind:
    """The kind of a config."""
    return _ALGORITHMS if config.pipeline == VENDOR else _KERNELS


def _interpreted(config: GemmConfig) -> GemmConfig:
    record = pipelines.of(config)
    sibling = pipelines.PIPELINES[record.interpreted]
    # The sibling has no edges or warps that are no powers of two, and A's rows may be rows of
    # its matrix instruction where they are columns of this kernel's.
    least = 16 if record.has("transposed") and not sibling.has("transposed") else 1
    return replace(
        config,
        pipeline=sibling.name,
        num_warps=wide(config.num_warps),
        tile_m=max(least, wide(config.tile_m)),
        tile_n=wide(config.tile_n),
        # A sibling without several blocks of scales in a step has one.
        tile_k=config.tile_k if record.has("few_rows") else sizes.summed_k(config),
        # Interpreted workgroups run one after the other, and meet in memory.
        reduction="linear" if config.clustered else config.reduction,
        dependent_launch="none",
    )


def _estimate(config: GemmConfig, problem: GemmProblem, device: Device) -> Estimate:
    from tilewright.ops.gemm import estimate  # takes NumPy

    return estimate.estimate(config, problem, device)


def _sums(config: GemmConfig, problem: GemmProblem) -> tuple[str, int, int]:
    parts = sizes.most_parts(config, problem)
    return sizes.operand_dtype(config), parts, sizes.summed_k(config)


_KERNELS = Kind(
    judge=legality.judge,
    supports=support.supports,
    repeats=tile_sharing.repeats,
    invariant=tile_sharing.invariant,
    sources=launch.sources,
    interpreted=_interpreted,
    launch=launch.launch,
    estimate=_estimate,
    sums=_sums,
)

_ALGORITHMS = Kind(
    judge=library.judge,
    supports=library.supports,
    repeats=library.repeats,
    invariant=library.invariant,
    sources=lambda config, arch: {},
    interpreted=library.interpreted,
    launch=library.launch,
    estimate=library.estimate,
    sums=library.sums,
)
