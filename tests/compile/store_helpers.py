"""Kernels made by hand, for tests that need no compiler."""

from __future__ import annotations

from tilewright.canonical import sha256
from tilewright.compile import Kernel, Resources
from tilewright.compile.kernel import TensorMap

FILES = {"cubin": b"\x7fELF machine code", "ptx": b".version 8.7\n", "llir": b"", "ttgir": b"g"}


def make_kernel(name: str = "fake_a", key: str = "") -> Kernel:
    return Kernel(
        name=name,
        arch="sm_90",
        key=key or sha256(name.encode()),
        triton="3.6.0",
        binary="cubin",
        entry="scale",
        num_warps=4,
        num_ctas=1,
        shared=1024,
        global_scratch=0,
        global_scratch_align=1,
        profile_scratch=0,
        profile_scratch_align=1,
        cooperative=False,
        pdl=False,
        arguments=(("x", "*fp32"), ("n", "i32")),
        tensor_maps=(TensorMap(3, 2, 10, (128, 64), False),),
        resources=Resources(32, 0, 0, 0, 0, 0),
        blobs={},
    )
