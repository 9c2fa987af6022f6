"""Split-K whose workgroups are a cluster (reduction ``cluster``): the workgroups of a tile give
each other their sums through shared memory, and each stores its share of the tile's columns. The
kernel has no workspace, and the same bits come out every time (see `kernels/gluon_exchange`)."""

from __future__ import annotations

from tilewright.arch.model import Arch, Device
from tilewright.ops.gemm.config import GemmConfig

SIZES = (2, 4, 8)
"""Workgroups of a cluster: those that every GPU with clusters takes, in powers of two, since a
tile's columns are halved."""

LEAST_COLUMNS = 16
"""Columns of a workgroup's share, which leave in two pieces of 8."""


def columns(c: GemmConfig) -> int:
    """Columns of a tile that one workgroup stores."""
    return c.tile_n // c.split_k if c.clustered else c.tile_n


def exchanged_bytes(c: GemmConfig) -> int:
    """Shared memory for the sums that the others send."""
    return 4 * c.tile_m * columns(c) * (c.split_k - 1)


UNITS_IN_LARGE = 0.91
"""Share of a device's compute units that clusters of more than two workgroups can take: a cluster
lies in one GPC, whose numbers of SMs are no multiples of 4. On an H200 with 132, 30 clusters of
four ran at once and 32 did not."""


def places(c: GemmConfig, device: Device) -> int:
    """Workgroups of a kernel for which a device has compute units at once."""
    if not c.clustered:
        return device.compute_units
    units = device.compute_units if c.split_k == 2 else int(device.compute_units * UNITS_IN_LARGE)
    return max(1, units // c.split_k) * c.split_k


def objection(c: GemmConfig, arch: Arch) -> str | None:
    """Why the workgroups of a tile cannot be a cluster."""
    if not c.clustered:
        return None
    if c.split_k not in SIZES:
        said = ", ".join(map(str, SIZES))
        return f"split_k = {c.split_k} is no cluster's size; reduction cluster has {said}"
    if c.split_k > arch.max_ctas:
        return f"{arch.name} has clusters of up to {arch.max_ctas} workgroups, not {c.split_k}"
    if c.tile_n % c.split_k or columns(c) < LEAST_COLUMNS:
        return (
            f"{c.split_k} workgroups have {c.tile_n // c.split_k} columns each of a tile with "
            f"{c.tile_n}, under {LEAST_COLUMNS}"
        )
    return None
