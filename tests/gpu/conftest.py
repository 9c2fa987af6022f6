"""What the GPU tests share: a dispatcher whose kernels are built once by all processes of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_arch import ARCH

from shared_builds import build_once
from tilewright.build import Store
from tilewright.dispatch import Dispatcher


def pytest_collection_modifyitems(items):
    """Building, and waiting for what another process builds, does not count as a test's time."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(func_only=True))


class Sharing(Dispatcher):
    """Kernels that it is asked for later are built once too."""

    def _kernel(self, config, target):
        build_once([(config, target.arch)], self.store)
        return super()._kernel(config, target)


@pytest.fixture(scope="module")
def dispatcher(request, store: Store) -> Dispatcher:
    """With the kernels of the module's CASES, pairs of a config and a problem, in its store."""
    build_once([(kernel, ARCH) for kernel, _ in request.module.CASES], store).raise_if_failed()
    return Sharing(store=store)
