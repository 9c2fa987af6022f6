"""What every test starts from: a home and a store of its own, no shipped tables, and GPU tests only
on request."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for _shared in ("gemm", "grouped_gemm", "tables"):  # the cases that several folders share
    sys.path.insert(0, str(Path(__file__).parent / _shared))


def pytest_collection_modifyitems(config, items):
    if _gpu_here():
        return
    skip = pytest.mark.skip(reason="needs a GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def _gpu_here() -> bool:
    from tilewright.arch.detect import live_devices
    from tilewright.errors import TilewrightError

    try:
        return bool(live_devices())
    except TilewrightError:
        return False


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    home = tmp_path_factory.mktemp("home")
    patch.setenv("TILEWRIGHT_HOME", str(home))
    patch.setenv("TILEWRIGHT_STORE", str(home / "store"))
    for name in ("TILEWRIGHT_TABLES", "TILEWRIGHT_BUNDLE", "TILEWRIGHT_BUNDLE_TRUSTED"):
        patch.delenv(name, raising=False)
    yield
    patch.undo()


@pytest.fixture(autouse=True, scope="session")
def _nothing_shipped(tmp_path_factory):
    """What is chosen does not depend on the tables that happen to come with the package."""
    from tilewright.tables import named

    patch = pytest.MonkeyPatch()
    patch.setattr(named, "FOLDER", tmp_path_factory.mktemp("nothing_shipped"))
    yield
    patch.undo()
