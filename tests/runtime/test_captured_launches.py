"""Calls of a dispatcher on a stand-in for a GPU, and what a capture sees of them by every path."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace

import pytest
from gemm_cases import config

from shared_builds import build_once

torch = pytest.importorskip("torch")
import stand_in_gpu  # noqa: E402
from stand_in_gpu import CURRENT_STREAM  # noqa: E402

import tilewright  # noqa: E402
from tilewright import capturing, loader, untuned  # noqa: E402
from tilewright.calls import spoken  # noqa: E402
from tilewright.capturing import load  # noqa: E402
from tilewright.compile import BuildReport, BuildResult  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument, BuildFailed, NoKernelFound, WrongDevice  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.registry import Registry  # noqa: E402

PLAIN = config(layout="rrr")
SHARING = config(layout="rrr", scheduler="split_k", split_k=2, reduction="linear")


SAID = spoken("gemm", {}, 1)


def operands(n: int):
    """Of a product of 16 rows and n columns, and a place for it."""
    a, b = (torch.ones(size, dtype=torch.bfloat16) for size in ((16, 256), (256, n)))
    return a, b, torch.zeros(16, n, dtype=torch.bfloat16)


@pytest.fixture
def driver(monkeypatch):
    return stand_in_gpu.install(monkeypatch, torch)


@pytest.fixture
def dispatcher(driver, store) -> Dispatcher:
    """Products of 16 columns need a workspace, others do not."""
    build_once([(PLAIN, "sm_90"), (SHARING, "sm_90")], store).raise_if_failed()

    def selector(problem, configs, gpu):
        return [SHARING if problem.n == 16 else PLAIN]

    registry = Registry("both").register_all([PLAIN, SHARING])
    return Dispatcher(registry, selector=selector, store=store)


@pytest.mark.turns(32)
def test_a_call_is_launched_on_the_current_stream_or_the_callers(dispatcher, driver):
    a, b, out = operands(32)
    for _ in range(3):
        assert dispatcher.run("gemm", a, b, out=out) is out
    assert dispatcher.run("gemm", a, b, out=out, stream=7) is out
    assert dispatcher.run("gemm", a, b, out=out, stream=SimpleNamespace(cuda_stream=9)) is out
    assert [seen["stream"] for seen in driver.launches] == [CURRENT_STREAM] * 3 + [7, 9]
    assert {seen["function"] for seen in driver.launches} == {78} and len(driver.loaded) == 1
    grid = dispatcher.select(GemmProblem(16, 32, 256, layout="rrr")).launch.steps[0].grid
    assert {seen["grid"] for seen in driver.launches} == {grid}
    assert len(dispatcher._launches.known) == 1


@pytest.mark.turns(32)
def test_what_an_estimate_chose_counts_as_untuned(dispatcher, driver, store, monkeypatch):
    monkeypatch.setattr(untuned, "_met", met := set())
    a, b, out = operands(32)
    dispatcher.run("gemm", a, b, out=out)
    assert met == set(), "the caller's function chose it"
    by_estimate = Dispatcher(dispatcher.registry, store=store)
    for _ in range(2):
        by_estimate.run("gemm", a, b, out=out)
    by_estimate.run_named(PLAIN.name, a, b, out=out)
    assert met == {GemmProblem(16, 32, 256, layout="rrr")}


@pytest.mark.turns(12)
def test_a_call_without_an_output_gets_one(dispatcher, driver):
    a, b, _ = operands(32)
    made = [dispatcher.run("gemm", a, b) for _ in range(3)]
    for out in made:
        assert (tuple(out.shape), out.dtype) == ((16, 32), torch.bfloat16)
    assert len(driver.launches) == 3 and len({out.data_ptr() for out in made}) == 3
    assert len(dispatcher._launches.known) == 1


def test_an_output_that_was_passed_is_no_model_for_outputs_that_are_made(dispatcher):
    a, b, _ = operands(32)
    wide = torch.zeros(16, 48, dtype=torch.bfloat16)[:, :32]
    dispatcher.run("gemm", a, b, out=wide)
    assert dispatcher.run("gemm", a, b).is_contiguous()
    assert dispatcher.run("gemm", a, b, out=wide) is wide
    assert dispatcher.run("gemm", a, b).is_contiguous()


def test_a_call_by_name_launches_that_kernel_and_is_kept_apart(dispatcher, driver):
    a, b, out = operands(32)
    dispatcher.run("gemm", a, b, out=out)
    for _ in range(2):
        assert dispatcher.run_named(SHARING.name, a, b, out=out) is out
    dispatcher.run("gemm", a, b, out=out)
    assert [seen["function"] for seen in driver.launches] == [78, 79, 79, 78]
    assert len(dispatcher._launches.ready) == 2


def test_launches_share_a_workspace_on_a_stream(dispatcher, driver):
    a, b, out = operands(16)
    need = dispatcher.select(GemmProblem(16, 16, 256, layout="rrr")).launch.workspace_bytes
    for _ in range(3):
        dispatcher.run("gemm", a, b, out=out)
    assert dispatcher.workspaces.bytes() == need > 0
    dispatcher.run("gemm", a, b, out=out, stream=7)
    assert dispatcher.workspaces.bytes() == 2 * need
    assert [seen["stream"] for seen in driver.launches] == [CURRENT_STREAM] * 3 + [7]


def test_an_output_over_an_operand_is_refused_though_the_call_is_known(dispatcher, driver):
    a, b, out = operands(256)
    a = torch.ones(256, 256, dtype=torch.bfloat16)[:16]
    dispatcher.run("gemm", a, b, out=out)
    with pytest.raises(BadArgument, match="shares memory"):
        dispatcher.run("gemm", a, b, out=b[:16])
    assert len(driver.launches) == 1
    # Bytes that lie between an operand's rows are not the operand's.
    memory = torch.ones(16, 512, dtype=torch.bfloat16)
    left, right = memory[:, :256], memory[:, 256:]
    for _ in range(2):
        dispatcher.run("gemm", left, b, out=right)
    assert len(driver.launches) == 3


def test_a_gradient_is_refused_though_the_call_is_known(dispatcher, driver):
    a, b, out = operands(32)
    dispatcher.run("gemm", a, b, out=out)
    a.requires_grad_()
    with pytest.raises(BadArgument, match="requires a gradient"):
        dispatcher.run("gemm", a, b, out=out)
    with torch.no_grad():
        dispatcher.run("gemm", a, b, out=out)
    assert len(driver.launches) == 2


def test_a_kernel_that_cannot_be_built_gives_way_to_the_next(driver, store, monkeypatch, caplog):
    build_once([(PLAIN, "sm_90")], store).raise_if_failed()
    real, asked = loader.build, []

    def build(requests, **options):
        asked.extend(requests)
        [(wanted, arch)] = requests
        if wanted == SHARING:
            failed = BuildResult(wanted, wanted.name, tilewright.arch.arch(arch), "failed")
            return BuildReport((failed,), 0.0)
        return real(requests, **options)

    monkeypatch.setattr(loader, "build", build)
    registry = Registry("both").register_all([SHARING, PLAIN])
    first_fit = Dispatcher(registry, selector="first_fit", store=store)
    a, b, out = operands(32)
    for _ in range(2):
        first_fit.run("gemm", a, b, out=out)
        first_fit.run("gemm", a, b)
    assert len(driver.launches) == 4 and [k for k, _ in asked] == [SHARING, PLAIN]
    assert SHARING.name in caplog.text
    story = first_fit.explain(GemmProblem(16, 32, 256, layout="rrr"))
    assert story.chosen == PLAIN.name


def test_a_dispatcher_that_does_not_build_says_what_to_do(driver, tmp_path, caplog):
    registry = Registry("one").register_all([PLAIN])
    empty = tilewright.Store(tmp_path / "empty")
    reader = Dispatcher(registry, store=empty, build_missing=False)
    a, b, out = operands(32)
    with pytest.raises(BuildFailed, match=r"is not in .*empty, and this dispatcher does not build"):
        reader.run_named(PLAIN.name, a, b, out=out)
    with pytest.raises(NoKernelFound):
        reader.run("gemm", a, b, out=out)
    assert "run `tilewright build`" in caplog.text and not driver.launches


def test_a_dispatcher_for_another_gpu_launches_nothing(driver, store):
    other = Dispatcher(device="mi300x", store=store)
    with pytest.raises(WrongDevice, match="gfx942"):
        other.run("gemm", *operands(32)[:2])
    assert not driver.launches


# --- captures ---------------------------------------------------------------------------------


def test_every_call_is_counted_by_whichever_path(dispatcher, driver, tmp_path):
    a, narrow, _ = operands(16)
    wide = operands(32)[1]

    def call(b, times, **options):
        for _ in range(times):
            out = torch.zeros(16, b.shape[1], dtype=torch.bfloat16)
            dispatcher.run("gemm", a, b, out=out, **options)

    call(wide, 3)  # ready before the capture begins
    assert len(dispatcher._launches.known) == 1
    with tilewright.capture(tmp_path / "a.jsonl"):
        call(wide, 5)  # launched by compiled code, but for the first
        assert len(dispatcher._launches.known) == 1
        call(narrow, 4)
        call(wide, 2, stream=7)  # by `_run_cached`
        for _ in range(3):
            dispatcher.run("gemm", a, wide)  # no out: the long way each time
    call(wide, 3)
    counts = {problem.n: count for problem, count in load(tmp_path / "a.jsonl").items()}
    assert counts == {32: 10, 16: 4}
    assert len(driver.launches) == 3 + 10 + 4 + 3


def test_a_call_is_met_by_a_capture_that_begins_before_its_launch_is_kept(dispatcher, tmp_path):
    a, wide, out = operands(32)
    dispatcher.run("gemm", *operands(16)[:2], out=operands(16)[2])
    dispatcher.forget_launches()
    describe = dispatcher._launches.fast.describe
    with contextlib.ExitStack() as stack:

        def begins(*given):
            if not capturing.active:
                stack.enter_context(tilewright.capture(tmp_path / "a.jsonl"))
            return describe(*given)

        dispatcher._launches.fast.describe = begins
        dispatcher._first_run("gemm", None, (a, wide), (out,), None, SAID)
        assert capturing.active and not dispatcher._launches.known
        for _ in range(3):
            dispatcher.run("gemm", a, wide, out=out)
    assert [*load(tmp_path / "a.jsonl").values()] == [3]


def test_of_two_launches_of_a_call_the_first_is_kept_whole(dispatcher):
    a, b, out = operands(32)
    dispatcher._first_run("gemm", None, (a, b), (out,), None, SAID)
    launches = dispatcher._launches
    [(key, ready)] = launches.ready.items()
    dispatcher._first_run(
        "gemm", None, (a, b), (out,), None, SAID
    )  # a thread that found nothing too
    assert launches.ready == {key: ready} and launches.known == {key: ready.bound.native}


def test_threads_that_call_at_once_are_all_launched_and_one_launch_is_kept(dispatcher, driver):
    a, b, out = operands(32)
    begin = threading.Barrier(4)

    def call() -> None:
        begin.wait()
        for _ in range(20):
            dispatcher.run("gemm", a, b, out=out)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(driver.launches) == 80 and len(dispatcher._launches.known) == 1
