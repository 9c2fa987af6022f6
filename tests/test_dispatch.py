"""Choosing: candidates, priorities, selectors, explanations, caches; and running on the CPU."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from gemm_cases import config

from tilewright import arrays, dispatch, plan
from tilewright.arch import device
from tilewright.dispatch import Dispatcher
from tilewright.errors import (
    BadArgument,
    NoDriver,
    NoKernelFound,
    UnknownName,
    UnsupportedProblem,
    WrongDevice,
)
from tilewright.ops.gemm import GemmConfig, GemmProblem
from tilewright.registry import Registry
from tilewright.select import Chain, FirstFit
from tilewright.select.analytical import Analytical

SMALL, LARGE = config(), config(tile_m=128, tile_n=128, num_warps=8)
PROBLEM = GemmProblem(512, 512, 512)


def over(*kernels: GemmConfig, **options) -> Dispatcher:
    return Dispatcher(Registry("r").register_all(kernels), "h200_sxm", **options)


# --- choosing ------------------------------------------------------------------------------


def test_first_fit_takes_the_first_registered_that_serves():
    misfit = config(dtype_a="fp16")
    plan = over(misfit, LARGE, SMALL, selector=FirstFit()).select(PROBLEM)
    assert plan.config == LARGE and plan.selector == "first fit"


def test_the_default_takes_the_best_estimate():
    plan = over(SMALL, LARGE).select(GemmProblem(8192, 8192, 8192))
    assert plan.config == LARGE and plan.selector == "analytical" and "µs" in plan.reason
    assert over(SMALL, LARGE).select(GemmProblem(64, 64, 8192)).config == SMALL


def test_of_kernels_that_memory_holds_up_the_deepest_pipeline_is_taken():
    stages = [config(tile_n=256, num_stages=s, pipeline="tma") for s in (2, 4, 3)]
    story = over(*stages).explain(GemmProblem(64, 28672, 8192))
    assert [f.name for f in story.fates] == [stages[i].name for i in (1, 2, 0)]
    # A K of one step gives it nothing to load ahead: the wider tile has less to load.
    small = {"pipeline": "tma", "tile_n": 256, "dtype_c": "fp32", "store": "split"}
    wide, deep = (
        config(**small, tile_m=m, num_warps=m // 16, num_stages=s) for m, s in ((128, 3), (64, 4))
    )
    story = over(deep, wide).explain(GemmProblem(8192, 8192, 16, dtype_c="fp32"))
    assert story.chosen == wide.name


def test_where_estimates_are_equal_the_name_decides():
    twins = [config(group_m=g) for g in (16, 4)]
    problem = GemmProblem(256, 256, 256)
    found = [over(*order).explain(problem) for order in (twins, twins[::-1])]
    assert len({f.reason for f in found[0].fates}) == 1
    assert {story.chosen for story in found} == {min(k.name for k in twins)}
    wide = [config(group_m=g) for g in (16, 8)]  # of which 8 comes first for being the usual order
    assert over(*wide).explain(problem).chosen == wide[1].name


def test_the_reason_says_what_the_time_is_made_of():
    reason = over(LARGE).explain(GemmProblem(4096, 4096, 4096)).fates[0].reason
    assert re.fullmatch(
        r"estimated [\d.]+ µs: 1024 tiles in 8 waves, 97% full; bound by .*; "
        r"matrix units [\d.]+, shared memory .*L2 .*memory .*launch [\d.]+ µs",
        reason,
    ), reason


def test_priority_comes_before_any_estimate():
    registry = Registry("r").register_all([SMALL, LARGE])
    dispatcher = Dispatcher(registry, "h200_sxm")
    big = GemmProblem(8192, 8192, 8192)
    assert dispatcher.select(big).config == LARGE
    registry.set_priority(SMALL.name, 5)
    assert dispatcher.select(big).config == SMALL  # though its plan was cached


def test_a_function_of_the_users_ranks():
    def smallest_tile(problem, configs, gpu):
        assert gpu.name == device("h200_sxm").name
        return sorted(configs, key=lambda c: c.tile_m)

    plan = over(LARGE, SMALL, selector=smallest_tile).select(PROBLEM)
    assert plan.config == SMALL
    assert plan.selector == "user function" and plan.reason == "number 1 by smallest_tile"


def test_a_function_that_invents_kernels_is_refused():
    with pytest.raises(BadArgument, match="not one of the 1 candidates"):
        over(SMALL, selector=lambda problem, configs, gpu: [LARGE]).select(PROBLEM)


def test_a_chain_asks_until_one_has_an_opinion():
    class Silent:
        name = "silent"

        def order(self, problem, candidates, gpu):
            return []

    chain = Chain((Silent(), FirstFit(), Analytical()))
    assert over(SMALL, LARGE, selector=chain).select(PROBLEM).selector == "first fit"
    with pytest.raises(NoKernelFound, match="selector has no choice"):
        over(SMALL, selector=Chain((Silent(),))).select(PROBLEM)


def test_no_kernel_names_the_nearest_misses_and_why():
    near = config(pad_k=False)
    far = config(dtype_a="int8")
    with pytest.raises(NoKernelFound) as caught:
        over(far, near).select(GemmProblem(512, 512, 512 + 8))
    text = str(caught.value)
    assert text.index(near.name) < text.index(far.name)
    assert "k = 520 is not a multiple of tile_k = 64" in text


def test_an_empty_registry_says_so():
    with pytest.raises(NoKernelFound, match="registry is empty"):
        over().select(PROBLEM)


def test_without_a_registry_the_familys_own_space_serves():
    assert Dispatcher(device="h200_sxm").select(PROBLEM).config.pipeline == "gluon_ws"
    assert Dispatcher(device="mi300x").select(PROBLEM).config.pipeline == "basic"


def test_what_an_architecture_cannot_do_is_unsupported():
    with pytest.raises(UnsupportedProblem, match="e4m3fnuz"):
        Dispatcher(device="h200_sxm").select(GemmProblem(64, 64, 64, dtype_a="e4m3fnuz"))


def test_is_supported_answers_with_the_reason():
    dispatcher = over(SMALL)
    assert dispatcher.is_supported(PROBLEM)
    verdict = dispatcher.is_supported(GemmProblem(8, 8, 8, dtype_a="fp16"))
    assert not verdict and "dtype_a is bf16, the problem has fp16" in verdict.reason


@pytest.mark.turns(32)
def test_the_same_choice_in_any_process_and_order():
    kernels = [config(tile_m=m, tile_n=n) for m in (32, 64, 128) for n in (32, 64, 128)]
    here = over(*kernels).select(PROBLEM).config.name
    assert over(*reversed(kernels)).select(PROBLEM).config.name == here
    script = (
        "from tilewright.dispatch import Dispatcher; from tilewright.ops.gemm import GemmProblem;"
        "print(Dispatcher(device='h200_sxm').select(GemmProblem(512, 512, 512)).config.name)"
    )
    run = [sys.executable, "-c", script]
    names = {subprocess.run(run, capture_output=True, text=True).stdout for _ in range(2)}
    assert names == {Dispatcher(device="h200_sxm").select(PROBLEM).config.name + "\n"}


def test_devices_plan_differently():
    h200, h20 = (Dispatcher(device=name) for name in ("h200_sxm", "h20"))
    wide = GemmProblem(4096, 4096, 4096)
    assert h200.select(wide).launch.steps[0].grid == (132, 1, 1)
    assert h20.select(wide).launch.steps[0].grid == (78, 1, 1)


def test_an_unknown_device_lists_the_known():
    with pytest.raises(BadArgument, match="h200_sxm"):
        Dispatcher(device="h2oo")


def test_planning_imports_neither_torch_nor_triton():
    script = (
        "import sys; import tilewright as tw;"
        "d = tw.Dispatcher(device='mi300x'); d.explain(tw.GemmProblem(100, 100, 100));"
        "assert not {'torch', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# --- explaining ----------------------------------------------------------------------------


def test_explain_gives_every_kernels_fate_in_order():
    misfit = config(dtype_a="fp16")
    story = over(misfit, SMALL, LARGE).explain(GemmProblem(8192, 8192, 8192))
    assert [(f.name, f.fate) for f in story.fates] == [
        (LARGE.name, "chosen"),
        (SMALL.name, "candidate"),
        (misfit.name, "refused"),
    ]
    assert story.fates[2].by == "signature"
    assert story.chosen == LARGE.name
    assert story.counts() == {"chosen": 1, "candidate": 1, "refused": 1}
    assert story.to_dict()["chosen"] == LARGE.name
    assert LARGE.name in str(story)


def test_explain_tells_what_a_selector_left_out():
    only_small = lambda problem, configs, gpu: [c for c in configs if c == SMALL]  # noqa: E731
    story = over(LARGE, SMALL, selector=only_small).explain(PROBLEM)
    assert [f.fate for f in story.fates] == ["chosen", "passed over"]


def test_explain_works_where_nothing_fits():
    story = over(config(dtype_a="fp16")).explain(PROBLEM)
    assert story.chosen == "" and story.counts() == {"refused": 1}


# --- a limit on the workspace ---------------------------------------------------------------

SPLIT = config(scheduler="split_k", split_k=4, reduction="linear")
FEW_TILES = GemmProblem(64, 64, 4096)


def first_fit(*kernels: GemmConfig, **options) -> Dispatcher:
    return over(*kernels, selector=FirstFit(), **options)


def test_a_kernel_over_the_limit_is_refused_and_the_next_taken():
    free = first_fit(SPLIT, SMALL).select(FEW_TILES)
    need = free.launch.workspace_bytes
    assert free.config == SPLIT and need > 0
    assert first_fit(SPLIT, SMALL, max_workspace=need).select(FEW_TILES).config == SPLIT
    limited = first_fit(SPLIT, SMALL, max_workspace=need - 1)
    assert limited.select(FEW_TILES).config == SMALL
    story = limited.explain(FEW_TILES)
    assert [(f.name, f.fate) for f in story.fates] == [
        (SMALL.name, "chosen"),
        (SPLIT.name, "refused"),
    ]
    assert story.fates[1].by == "max_workspace"
    assert story.fates[1].reason == f"needs a workspace of {need} bytes, over {need - 1}"


def test_the_limit_is_of_the_launch_not_of_the_kernel():
    need = first_fit(SPLIT).select(FEW_TILES).launch.workspace_bytes
    limited = first_fit(SPLIT, SMALL, max_workspace=need)
    assert limited.select(FEW_TILES).config == SPLIT
    assert limited.select(GemmProblem(256, 256, 4096)).config == SMALL


def test_without_workspace_the_default_space_still_serves():
    problem = GemmProblem(32, 512, 8192)
    assert Dispatcher(device="h200_sxm").select(problem).launch.workspace_bytes
    plan = Dispatcher(device="h200_sxm", max_workspace=0).select(problem)
    assert plan.launch.workspace_bytes == 0


def test_where_all_kernels_are_over_the_limit_the_misses_say_so():
    with pytest.raises(NoKernelFound, match=r"max_workspace: needs a .* of \d+ bytes, over 0"):
        over(SPLIT, max_workspace=0).select(FEW_TILES)


def test_a_kernel_asked_for_by_name_keeps_to_the_limit_too():
    a, b = np.ones((64, 256), np.float16), np.ones((256, 64), np.float16)
    half = config(dtype_a="fp16", layout="rrr", scheduler="split_k", split_k=2, reduction="linear")
    need = over(half).select(GemmProblem(64, 64, 256, "fp16", layout="rrr")).launch.workspace_bytes
    out = over(half, max_workspace=need).run_named(half.name, a, b)
    assert (out == 256).all()
    with pytest.raises(UnsupportedProblem) as caught:
        over(half, max_workspace=1000).run_named(half.name, a, b)
    assert f"{half.name} for gemm 64×64×256" in str(caught.value)
    assert (
        f"needs a workspace of {need} bytes, over 1000: change the dispatcher's max_workspace"
        in str(caught.value)
    )


@pytest.mark.parametrize("limit", [-1, 1.5, True, "64 MiB"])
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit):
    with pytest.raises(BadArgument, match=r"max_workspace = .* is not a number of bytes"):
        Dispatcher(device="h200_sxm", max_workspace=limit)


# --- running on the CPU --------------------------------------------------------------------


@pytest.mark.turns(24)
def test_run_returns_out_itself_and_allocates_when_there_is_none():
    dispatcher = Dispatcher(device="h200_sxm")
    a = np.random.default_rng(0).standard_normal((40, 50), np.float32)
    out = np.full((40, 40), np.nan, np.float32)
    assert dispatcher.run("gemm", a, a.T, out=out) is out
    assert np.allclose(out, a @ a.T, atol=1e-4)
    assert np.array_equal(dispatcher.run("gemm", a, a.T), out)


def test_an_output_without_elements_is_returned_as_it_is():
    dispatcher = Dispatcher(device="h200_sxm")
    nothing, b = np.ones((0, 16), np.float32), np.ones((16, 8), np.float32)
    assert dispatcher.run("gemm", nothing, b).shape == (0, 8)
    out = np.empty((0, 8), np.float32)
    assert dispatcher.run("gemm", nothing, b, out=out) is out


def test_operands_that_are_neither_on_a_gpu_nor_on_the_cpu_are_refused(monkeypatch):
    view = arrays.view
    monkeypatch.setattr(arrays, "view", lambda x: replace(view(x), device="xpu:1"))
    x = np.ones((16, 16), np.float32)
    with pytest.raises(WrongDevice, match="on xpu:1; Tilewright runs on GPUs and the CPU"):
        Dispatcher(device="h200_sxm").run("gemm", x, x)


def test_torch_and_numpy_agree():
    torch = pytest.importorskip("torch")
    dispatcher = Dispatcher(device="h200_sxm")
    a = torch.randn(40, 64).bfloat16()
    out = dispatcher.run("gemm", a, a.T)
    assert isinstance(out, torch.Tensor) and out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), a.float() @ a.float().T, rtol=1e-2, atol=0.1)


def test_a_dlpack_object_is_accepted():
    torch = pytest.importorskip("torch")

    class Foreign:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    a = torch.randn(16, 16)
    out = Dispatcher(device="h200_sxm").run("gemm", Foreign(a), a)
    torch.testing.assert_close(out, a @ a, rtol=1e-4, atol=1e-4)


def test_run_named_uses_that_kernel_and_no_other(monkeypatch):
    dispatcher = over(SMALL, LARGE)
    used = []
    launch = dispatch.ops.family("gemm").__class__.launch

    def spy(self, chosen, problem, gpu):
        used.append(chosen)
        return launch(self, chosen, problem, gpu)

    monkeypatch.setattr(dispatch.ops.family("gemm").__class__, "launch", spy)
    problem_arrays = np.ones((64, 64), "float32")
    import ml_dtypes

    x = problem_arrays.astype(ml_dtypes.bfloat16)
    dispatcher.run_named(SMALL.name, x, x.T)
    assert used == [SMALL]
    with pytest.raises(UnknownName, match="has no kernel"):
        dispatcher.run_named(config(tile_k=32).name, x, x.T)


def test_tf32_is_asked_for_not_assumed():
    dispatcher = Dispatcher(device="h200_sxm")
    rng = np.random.default_rng(0)
    a = rng.standard_normal((64, 256), np.float32)
    exact = a.astype(np.float64) @ a.T.astype(np.float64)
    ieee = abs(dispatcher.run("gemm", a, a.T) - exact).max()
    tf32 = abs(dispatcher.run("gemm", a, a.T, precision="tf32") - exact).max()
    assert ieee < 1e-3 < tf32 < 0.3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d, x: d.run("gemm", x, x[:10]), "A's columns must equal B's rows"),
        (lambda d, x: d.run("gemm", x, x.astype("float16")), "A is fp32 but B is fp16"),
        (lambda d, x: d.run("gemm", x.astype("float64"), x), "float64 are not supported"),
        (lambda d, x: d.run("gemm", x, x, out=x[:, :8]), "out is 16×8 but A·B is 16×16"),
        (lambda d, x: d.run("gemm", x, x, out=x), "shares memory"),
        (lambda d, x: d.run("gemm", x[0, :8], x), "A's columns must equal B's rows"),
        (lambda d, x: d.run("gemm", x[::2, ::2], x[:8, :8]), "pass a contiguous copy"),
        (lambda d, x: d.run("gemm", x), r"takes 2 operands \(A, B\) and was given 1"),
        (lambda d, x: d.run("gemm", x, [[1.0]]), "operand 2 is a list"),
        (lambda d, x: d.run("gemm", x, x, precison="tf32"), "did you mean 'precision'"),
        (lambda d, x: d.run("gem", x, x), "did you mean 'gemm'"),
    ],
)
def test_bad_operands_get_one_clear_error(call, message):
    x = np.ones((16, 16), np.float32)
    with pytest.raises((BadArgument, UnknownName), match=message):
        call(Dispatcher(device="h200_sxm"), x)


def test_threads_share_a_dispatcher_on_the_cpu():
    dispatcher = Dispatcher(device="h200_sxm")
    wrong = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(5):
            a = rng.standard_normal((16 + seed, 32), np.float32)
            if not np.allclose(dispatcher.run("gemm", a, a.T), a @ a.T, atol=1e-4):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_the_default_space_has_kernels_for_few_tiles_and_for_odd_ones():
    hopper = Dispatcher(device="h200_sxm")
    shared = hopper.select(GemmProblem(512, 512, 8192)).config
    assert (shared.pipeline, shared.scheduler) == ("gluon_ws", "split_k")
    assert shared.reduction == "cluster"  # what is chosen unasked repeats bit for bit
    even = hopper.select(GemmProblem(2048, 2112, 7168)).config
    assert (even.tile_m, even.tile_n) == (192, 192)  # 121 tiles for 132 multiprocessors


def test_a_gpu_named_otherwise_than_the_one_there_is_refused(monkeypatch):
    monkeypatch.setattr(plan, "live_device", lambda index: device("h200_sxm"))
    with pytest.raises(WrongDevice, match=r"MI300X.*gfx942.*GPU 0.*H200"):
        Dispatcher(device="mi300x").planner.live(0)
    assert Dispatcher(device="h20").planner.live(0) == device("h20")  # same code, other size
    assert Dispatcher().planner.live(0) == device("h200_sxm")


def test_where_no_gpu_is_the_drivers_are_looked_for_once(monkeypatch):
    asked = []

    def none(index):
        asked.append(index)
        raise NoDriver("none")

    monkeypatch.setattr(plan.detect, "live_device", none)
    monkeypatch.setattr(plan, "_live_device", cache(plan._live_device.__wrapped__))
    for _ in range(2):
        with pytest.raises(NoDriver, match="none"):
            plan.live_device(0)
    assert asked == [0]


def test_plans_are_for_the_first_gpu_here_or_for_one_that_is_named(monkeypatch):
    here = {0: device("a100_sxm_80gb")}
    monkeypatch.setattr(plan, "live_device", lambda index: here[index])
    assert plan._planning_device.__wrapped__() == here[0]

    def none(index):
        raise NoDriver("none")

    monkeypatch.setattr(plan, "live_device", none)
    assert plan._planning_device.__wrapped__() == device(plan.PLANNING_DEVICE)
