"""What the GPU tests of a module share: a store, and a dispatcher whose kernels are built."""

from __future__ import annotations

import pytest
from gpu_arch import ARCH

from tilewright.build import Store, build
from tilewright.dispatch import Dispatcher


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def dispatcher(request, store) -> Dispatcher:
    """With the kernels of the module's CASES, pairs of a config and a problem, in its store."""
    kernels = [(kernel, ARCH) for kernel, _ in request.module.CASES]
    build(kernels, store=store).raise_if_failed()
    return Dispatcher(store=store)
