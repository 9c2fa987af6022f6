"""Garbage is not collected where that would invalidate a graph that is being captured."""

from __future__ import annotations

import gc
import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
import stand_in_gpu  # noqa: E402
from gemm_cases import config  # noqa: E402

from patience import until  # noqa: E402
from tilewright import child, garbage  # noqa: E402
from tilewright.compile import BuildReport, compilers  # noqa: E402
from tilewright.compile.builder import Builder  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BuildFailed  # noqa: E402
from tilewright.registry import Registry  # noqa: E402
from tilewright.runtime.cuda import CudaDriver  # noqa: E402
from tilewright.runtime.prepared import Prepared  # noqa: E402
from tilewright.standing import Background  # noqa: E402
from tilewright.torch import nodes  # noqa: E402

KERNEL = config(layout="rrr")
A, B = (torch.ones(size, dtype=torch.bfloat16) for size in ((16, 256), (256, 32)))


class Destroyed:
    """Garbage, as a graph in a circle is: it is noticed when it is collected."""

    def __init__(self, seen):
        self.circle, self.seen = self, seen

    def __del__(self):
        self.seen.append(threading.current_thread().name)


@pytest.fixture(autouse=True, scope="module")
def what_lives_is_not_looked_at():
    """Collecting among all that earlier tests left takes seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def collecting():
    gc.collect()
    assert gc.isenabled()
    yield
    assert gc.isenabled()


def enough_to_collect():
    """As many objects as make Python collect all garbage."""
    return [[] for _ in range(200_000)]


@pytest.fixture
def driver(monkeypatch):
    """A GPU whose stream a graph captures."""
    made = stand_in_gpu.install(monkeypatch, torch)
    made.captured, made.open = 1, 0

    @contextmanager
    def allowed():
        made.open += 1
        try:
            yield
        finally:
            made.open -= 1

    monkeypatch.setattr(made, "capture", lambda stream: made.captured)
    monkeypatch.setattr(made, "capture_allowed", allowed)
    return made


@pytest.mark.parametrize("captured", [0, 1])
def test_a_first_call_in_a_graph_builds_without_collecting(driver, store, captured):
    """Whichever thread makes the objects. Outside of a graph nothing is held."""
    driver.captured, destroyed, met = captured, [], []
    dispatcher = Dispatcher(Registry("one").register_all([KERNEL]), store=store)
    build = dispatcher.loader.kernels

    def kernels(wanted, target):
        Destroyed(destroyed)
        enough_to_collect()
        thread = threading.Thread(target=enough_to_collect)
        thread.start()
        thread.join()
        met.append((len(destroyed), gc.isenabled(), driver.open))
        return build(wanted, target)

    dispatcher.loader.kernels = kernels
    dispatcher.run("gemm", A, B, out=torch.zeros(16, 32, dtype=torch.bfloat16))
    assert met == [(0, False, 1)] if captured else met == [(1, True, 0)]
    assert not driver.open and len(driver.launches) == 1


def test_garbage_is_collected_again_after_a_call_that_failed(driver, store):
    dispatcher = Dispatcher(device="h200_sxm", store=store, build_missing=False)
    dispatcher.loader.kernels = lambda *_: (_ for _ in ()).throw(BuildFailed("no"))
    with pytest.raises(BuildFailed):
        dispatcher.run_named(KERNEL.name, A, B)
    assert gc.isenabled() and not driver.open


def test_garbage_is_held_until_the_last_lets_go():
    with garbage.uncollected():
        with garbage.uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with garbage.uncollected():
            pass
        assert not gc.isenabled(), "a caller who collects none keeps to that"
    finally:
        gc.enable()


@pytest.fixture
def begun(monkeypatch):
    """The threads that have begun as the library's own."""
    names = []
    monkeypatch.setattr(garbage, "_FIRST", [])
    garbage.first_in_threads(lambda: names.append(threading.current_thread().name))
    return names


def test_each_thread_of_the_librarys_own_begins_as_one(begun, monkeypatch):
    """So a caller's garbage that is collected on it does not invalidate a caller's graph."""
    plan = SimpleNamespace(config=KERNEL, device=SimpleNamespace(arch="sm_90"))
    behind = Background(lambda *_, **__: BuildReport((), 0.0), lambda *_: None)
    behind.start(plan)
    until(lambda: begun)
    assert begun == ["tilewright-background"]
    builder = Builder(*[None] * 4)
    with pytest.raises(AttributeError):  # it has no queue
        builder.run()
    compilers._end_old()
    with child.Child("tilewright.compile.worker"):
        pass
    assert len(begun) == 4 and begun[-1].startswith("tilewright-spawner")
    monkeypatch.setattr(nodes, "compiled", lambda: None)
    nodes._Nodes().begin(lambda: None).join()
    assert len(begun) == 5


def test_a_driver_allows_these_threads_what_captures_forbid(monkeypatch):
    monkeypatch.setattr(garbage, "_FIRST", [])
    modes = []
    exchange = lambda mode_at: modes.append(mode_at._obj.value)  # noqa: E731
    functions = {"cuThreadExchangeStreamCaptureMode": exchange}
    library = type("Library", (), {"__getattr__": lambda _, name: functions.get(name, _zero)})()
    monkeypatch.setattr("tilewright.runtime.cuda.library", lambda names, what: library)
    monkeypatch.setattr("tilewright.runtime.cuda.address_of", lambda function: 0)
    CudaDriver()
    assert not modes, "the caller's thread is left as it is"
    garbage.begin_thread()
    assert modes == [2], "relaxed"


def _zero(*_):
    return 0


def test_what_a_library_was_told_is_destroyed_where_captures_allow_it(driver):
    destroyed = []
    stack = ExitStack()
    stack.callback(lambda: destroyed.append(driver.open))
    ready = Prepared("a product", None, driver, None, stack)
    del ready
    assert destroyed == [1] and not driver.open
