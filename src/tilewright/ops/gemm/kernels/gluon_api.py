"""Gluon as the kernels use it: every name here whose spelling depends on the Triton release.

Written for Triton 3.6 (`triton.experimental.gluon`). Later releases rename some of these
(`async_copy_global_to_shared` became `async_load`); a new release is met by editing this file.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.language.nvidia.hopper.tma import (
    async_copy_global_to_shared as tma_load,
)
from triton.experimental.gluon.language.nvidia.hopper.tma import (
    async_copy_shared_to_global as tma_store,
)
from triton.experimental.gluon.language.nvidia.hopper.tma import store_wait as tma_store_wait

jit = gluon.jit
constexpr_function = gluon.constexpr_function
copy_load = async_copy.async_copy_global_to_shared
copy_arrive = async_copy.mbarrier_arrive

__all__ = [
    "constexpr_function",
    "copy_arrive",
    "copy_load",
    "fence_async_shared",
    "gl",
    "jit",
    "mbarrier",
    "mma_v2",
    "tma_load",
    "tma_store",
    "tma_store_wait",
    "warpgroup_mma",
    "warpgroup_mma_wait",
]
