"""The kinds of a convolution's configs: kernels that are built here, GEMM's, and engines of the
vendor's library. Each is a record of what the family asks of a config."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace

from tilewright.arch.model import Arch, Device
from tilewright.ops import tile_sharing
from tilewright.ops.conv import launch, library, pipelines
from tilewright.ops.conv.config import GEMM, VENDOR, ConvConfig
from tilewright.ops.conv.pipelines import by_gemm
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate
from tilewright.ops.nouns import KernelSource, Launch
from tilewright.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What holds of configs of one kind, each a function as the family's method of this name.

    tile: None for the usual one: the fields that name a tile.
    """

    tile: Callable[[ConvConfig], Hashable]
    repeats: Callable[[ConvConfig], Verdict]
    sources: Callable[[ConvConfig, Arch], Mapping[str, KernelSource]]
    interpreted: Callable[[ConvConfig], ConvConfig]
    launch: Callable[[ConvConfig, ConvProblem, Device], Launch]
    estimate: Callable[[ConvConfig, ConvProblem, Device], Estimate]


def of(config: ConvConfig) -> Kind:
    """The kind of a config."""
    return {GEMM: _PRODUCTS, VENDOR: _ENGINES}.get(config.pipeline, _KERNELS)


_KERNELS = Kind(
    tile=lambda config: None,
    repeats=tile_sharing.repeats,
    sources=launch.sources,
    interpreted=lambda config: replace(pipelines.of(config).sibling(config), turned=config.turned),
    launch=launch.launch,
    estimate=launch.estimate,
)

_PRODUCTS = Kind(
    tile=lambda config: (
        config.direction,
        config.spatial_dims,
        config.turned,
        by_gemm.tile(config),
    ),
    repeats=by_gemm.repeats,
    sources=by_gemm.sources,
    interpreted=by_gemm.interpreted,
    launch=by_gemm.launch,
    estimate=by_gemm.estimate,
)

_ENGINES = Kind(
    tile=lambda config: None,
    repeats=library.repeats,
    sources=library.sources,
    interpreted=library.interpreted,
    launch=library.launch,
    estimate=library.estimate,
)
