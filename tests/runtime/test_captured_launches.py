"""What a capture sees of a dispatcher's launches, by every path, with a stand-in for the driver."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from test_bound import StandIn, bound

import tilewright
from tilewright import arrays, capturing
from tilewright.capturing import load
from tilewright.dispatch import Dispatcher, _Fast, _Ready
from tilewright.ops.family import WORKSPACE, Launch, Pointer
from tilewright.runtime.launcher import launcher
from tilewright.runtime.workspace import Workspaces

torch = pytest.importorskip("torch")


@pytest.fixture
def dispatcher(monkeypatch) -> Dispatcher:
    """One that takes CPU tensors for a GPU's; products of 16 columns need a workspace."""
    made = Dispatcher(device="h200_sxm")
    native, fast = launcher(), object.__new__(_Fast)
    fast.call, fast.describe = native.call, native.describe
    fast.current_stream, fast.several_gpus = (lambda index: 5), False
    fast.torch = (fast.current_stream, None, lambda: False, lambda: False)
    made._fast = fast

    def prepare(problem, config, index, views):
        scratch = 64 if problem.n == 16 else 0
        arguments = (Pointer(WORKSPACE if scratch else 0), Pointer(2))
        launch = Launch((1, 1, 1), arguments, workspace_bytes=scratch)
        plan = dataclasses.replace(made.select(problem), launch=launch)
        plans.setdefault(problem, plan)
        sizes = tuple(high - low for low, high in map(arrays.span, views))
        return _Ready(plans[problem], bound(StandIn("<Q", "<Q"), launch, sizes), 0)

    plans, view, empty = {}, arrays.view, arrays.empty
    monkeypatch.setattr(made, "_prepare", prepare)
    monkeypatch.setattr(arrays, "view", lambda x: dataclasses.replace(view(x), device="cuda:0"))
    monkeypatch.setattr(arrays, "empty", lambda shape, device, like: empty(shape, "cpu", like))
    monkeypatch.setattr(Workspaces, "address", lambda self, launch, user, stream, current: 0x9000)
    return made


def test_every_call_is_counted_by_whichever_path(dispatcher, tmp_path):
    a, narrow, wide = (torch.ones(16, n, dtype=torch.bfloat16) for n in (16, 16, 32))

    def call(b, times, **options):
        for _ in range(times):
            out = torch.empty(16, b.shape[1], dtype=torch.bfloat16)
            dispatcher.run("gemm", a, b, out=out, **options)

    call(wide, 3)  # ready before the capture begins
    assert len(dispatcher._launches.known) == 1
    with tilewright.capture(tmp_path / "a.jsonl"):
        call(wide, 5)  # launched by compiled code, but for the first
        assert len(dispatcher._launches.known) == 1
        call(narrow, 4)  # by `_run_cached`, since its workspace is kept by nobody
        call(wide, 2, stream=7)
        for _ in range(3):
            dispatcher.run("gemm", a, wide)  # no out: the long way each time
    call(wide, 3)
    counts = {problem.n: count for problem, count in load(tmp_path / "a.jsonl").items()}
    assert counts == {32: 10, 16: 4}


def test_a_call_is_met_by_a_capture_that_begins_before_its_launch_is_kept(dispatcher, tmp_path):
    a, wide = (torch.ones(16, n, dtype=torch.bfloat16) for n in (16, 32))
    out, describe = torch.empty(16, 32, dtype=torch.bfloat16), dispatcher._fast.describe
    with contextlib.ExitStack() as stack:

        def begins(*given):
            if not capturing.active:
                stack.enter_context(tilewright.capture(tmp_path / "a.jsonl"))
            return describe(*given)

        dispatcher._fast.describe = begins
        dispatcher._first_run("gemm", None, (a, wide), out, None, {})
        assert capturing.active and not dispatcher._launches.known
        for _ in range(3):
            dispatcher.run("gemm", a, wide, out=out)
    assert [*load(tmp_path / "a.jsonl").values()] == [3]


def test_of_two_launches_of_a_call_the_first_is_kept_whole(dispatcher):
    a, b = torch.ones(16, 16, dtype=torch.bfloat16), torch.ones(16, 32, dtype=torch.bfloat16)
    out, launches = torch.empty(16, 32, dtype=torch.bfloat16), dispatcher._launches
    dispatcher._first_run("gemm", None, (a, b), out, None, {})
    [(key, ready)] = launches.ready.items()
    dispatcher._first_run("gemm", None, (a, b), out, None, {})  # a thread that found nothing too
    assert launches.ready == {key: ready} and launches.known == {key: ready.bound.native}
