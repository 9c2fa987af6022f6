"""What a kernel's build key depends on."""

from __future__ import annotations

import pytest

from tilewright.compile import key


@pytest.mark.parametrize("kernel", ["basic", "tma", "gluon_cdna"])
def test_a_kernels_key_covers_kernels_and_nothing_else(kernel):
    """A kernel that imported the rest of the package would be rebuilt at each change of it."""
    read = key.source_texts(f"tilewright.ops.gemm.kernels.{kernel}")
    ours = {name for name in read if name.startswith("tilewright")}
    kernels = ("tilewright.ops.gemm.kernels.", "tilewright.ops.device.")
    assert ours and all(name.startswith(kernels) for name in ours), ours
