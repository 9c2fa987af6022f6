"""What every test starts from: a home and a store of its own, no shipped tables, and GPU tests only
on request; and patience with a busy machine."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Before NumPy: its threads spin, and tests have a process for each CPU already. Small products
# are ten times as fast beside other work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TILEWRIGHT_UNTUNED", "0")  # nobody is to tune what tests make up
import pytest

import kept_spaces
import shared_builds

pytest_plugins = ("selection", "processor_time")

SHARED = (
    "attention",
    "attention_backward",
    "conv",
    "fuzz",
    "gemm",
    "grouped_gemm",
    "integrations",
    "moe",
    "simulate",
    "tables",
    "under_jax",
    "under_torch",
    "under_transformers",
    "words",
)
"""Folders with cases that others use too."""
# What is collected stays: to look through it for garbage costs a tenth of collection, and again in
# every test.
gc.disable()

for _shared in SHARED:
    sys.path.insert(0, str(Path(__file__).parent / _shared))


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_auto_num_workers() -> int:
    """One for each processor that this process may use."""
    return len(os.sched_getaffinity(0))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is not asked for takes no time."""
    if config.getoption("markexpr") == "not gpu" and collection_path.name == "gpu":
        return True
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Where no bytecode of tests is kept yet, the first process to collect writes it, and what else
    a collection leaves for the next. The other processes wait for it: they then take less."""
    kept = Path(importlib.util.cache_from_source(__file__)).parent
    with Path(__file__).open() as file:
        if not any(kept.glob("test_*-pytest-*.pyc")):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(file, fcntl.LOCK_SH)  # with all who wait
        return (yield)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # looked through less often than by default: little is garbage
    gc.enable()


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
    for name in ("TABLES", "BUNDLE", "BUNDLE_TRUSTED", "SHARED_STORE"):
        patch.delenv(f"TILEWRIGHT_{name}", raising=False)
    # Tests want the chosen kernel's results, not torch's while the kernel is being built.
    patch.setenv("TILEWRIGHT_WAITS", "1")
    _keep_native(patch, home, _shared(tmp_path_factory, "native"))
    yield
    patch.undo()


def _keep_native(patch, home, folder):
    """What is compiled from C and C++ into the tests' home, of which one takes 11 s, is kept in
    `folder` for the other processes and the next run. Its name there is a digest of its source."""
    from tilewright import native
    from tilewright.files import replacing

    compile_it = native._compile
    folder.mkdir(parents=True, exist_ok=True)

    def compile_once(source, target, *given):
        if not target.is_relative_to(home):  # a test's own home
            compile_it(source, target, *given)
            return
        kept = folder / target.parent.name / target.name
        with (folder / f"{target.parent.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                compile_it(source, kept, *given)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with replacing(target, mode=0o700) as file:
            file.write(kept.read_bytes())

    patch.setattr(native, "_compile", compile_once)


def _shared(tmp_path_factory, name):
    """A folder of all processes of the run; beside ``TILEWRIGHT_TEST_STORE``, if that names one, of
    the next runs too."""
    kept = os.environ.get("TILEWRIGHT_TEST_STORE")
    if kept:
        return Path(kept).with_name(name)
    base = tmp_path_factory.getbasetemp()
    return (base.parent if shared_builds.processes() > 1 else base) / name


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """For kernels that are built as they are by default: the processes of the run fill it together
    (`shared_builds.build_once`), each with a home of its own, so that its entries are trusted.

    Where ``TILEWRIGHT_TEST_STORE`` names a folder, the next run finds them: keys cover sources and
    compilers.
    """
    from tilewright.compile import Store

    base = tmp_path_factory.getbasetemp()
    own = (base.parent if shared_builds.processes() > 1 else base) / "store"
    return Store(os.environ.get("TILEWRIGHT_TEST_STORE") or own, trusted=True)


WORK_SECONDS = 5.0
"""A child process that may take less is one that a test lets hang."""
PATIENCE = 20


@pytest.fixture(autouse=True, scope="session")
def _patience():
    """What a child process may take for its work is many times what users wait for it."""
    from tilewright.child import Child

    request = Child.request

    def patient(self, message, blobs=(), timeout=None):
        longer = timeout is not None and timeout >= WORK_SECONDS
        return request(self, message, blobs, timeout * PATIENCE if longer else timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "request", patient)
        yield


@pytest.fixture(autouse=True, scope="session")
def _spaces_are_kept():
    with pytest.MonkeyPatch.context() as patch:
        kept_spaces.keep(patch)
        yield


@pytest.fixture(autouse=True, scope="session")
def _nothing_shipped(tmp_path_factory):
    """What is chosen does not depend on the tables that happen to come with the package."""
    from tilewright.tables import named

    patch = pytest.MonkeyPatch()
    patch.setattr(named, "FOLDER", tmp_path_factory.mktemp("nothing_shipped"))
    yield
    patch.undo()
