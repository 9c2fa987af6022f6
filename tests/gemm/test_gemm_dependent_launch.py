"""Kernels that may start before the kernel before them has ended: what they are compiled to, and
how a call says that B is constant. The simulation finds accesses that come too early."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from gemm_cases import config, dependent, sharing

from shared_builds import build_once
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.compile import Store, inspect
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.pipelines import warpgroups
from tilewright.ops.nouns import Call, View

SM_90 = arch("sm_90")
CASES = dependent()
ACCESS = re.compile(r"\b(UTMALDG|UTMASTG|UTMAREDG|LDG|STG|ATOMG|REDG?)\b")
"""Instructions of SASS that access global memory."""


def walking(pipeline: str, word: str, **fields: object):
    """A persistent kernel of small tiles."""
    tile = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "num_warps": 4, "num_stages": 3}
    how = {**tile, "scheduler": "persistent", "dependent_launch": word, **fields}
    return config(pipeline=pipeline, **how)


def few(pipeline: str, word: str, **fields: object):
    """A kernel for few rows."""
    how = {"scheduler": "tile", "group_m": 1, "tile_m": 16, "layout": "rcr", **fields}
    return walking(pipeline, word, **how)


KERNELS = [
    (walking("gluon_ws", "none"), "sm_90"),
    (walking("gluon_ws", "ahead"), "sm_90"),
    (walking("gluon_ws", "wait", tile_m=128, num_warps=8, epilogue="bias"), "sm_90"),
    (walking("gluon_ws", "ahead", tile_m=16, swap_ab=True), "sm_90"),
    (walking("gluon_pingpong", "ahead", num_warps=8), "sm_90"),
    (walking("tma", "wait"), "sm_90"),
    (walking("tma", "wait"), "sm_100"),
    (walking("tma", "none"), "sm_120"),
    (walking("tma", "wait"), "sm_120"),
    *((few("small_m", word), "sm_90") for word in ("none", "wait")),
    (few("small_m", "wait", tile_m=2, tile_n=2, tile_k=512, num_stages=1), "sm_90"),
    (few("small_m_tma", "wait"), "sm_90"),
]


@pytest.fixture(scope="module")
def built(store: Store):
    report = build_once(KERNELS, store)
    assert not report.failures, "\n".join(map(str, report.failures))
    return [(r.config, r.kernel, inspect(r.kernel, store, "sass")) for r in report.results]


@pytest.mark.turns(64)
def test_only_kernels_that_wait_are_launched_so(built):
    for made, kernel, sass in built:
        waits = made.dependent_launch != "none"
        assert kernel.pdl == waits, made.name
        assert ("ACQBULK" in sass, "PREEXIT" in sass) == (waits, waits), made.name


@pytest.mark.turns(48)
def test_triton_kernels_wait_before_any_access(built):
    for made, _, sass in built:
        if "gluon" not in made.pipeline and made.dependent_launch != "none":
            assert sass.index("ACQBULK") < ACCESS.search(sass).start(), made.name


@pytest.mark.turns(64)
def test_kernels_for_few_rows_let_go_behind_their_last_load_and_before_they_store(built):
    for made, _, sass in built:
        if not made.pipeline.startswith("small_m") or made.dependent_launch == "none":
            continue
        assert max(m.start() for m in re.finditer("LDG|UTMALDG", sass)) < sass.index("PREEXIT")
        assert sass.index("PREEXIT") < sass.rindex("STG"), made.name


@pytest.mark.turns(64)
def test_gluon_kernels_wait_in_each_partition_and_let_go_behind_all_loads(built):
    for made, _, sass in built:
        if "gluon" not in made.pipeline or made.dependent_launch == "none":
            continue
        assert sass.count("ACQBULK") >= 1 + made.num_warps // 4, made.name
        loads = [found.start() for found in re.finditer("UTMALDG", sass)]
        assert sass.index("PREEXIT") > max(loads), made.name
        early = min(loads) < sass.index("ACQBULK", sass.rindex("USETMAXREG", 0, min(loads)))
        assert early == (made.dependent_launch == "ahead"), made.name


def test_a_small_kernel_leaves_half_an_sm_to_the_next():
    for word, registers in (("none", 248), ("wait", 128), ("ahead", 128)):
        kernel = walking("gluon_ws", word)
        options = dict(FAMILY.sources(kernel, SM_90)["main"].options)
        assert min(options["maxnreg"], 248) == registers
        assert options.get("launch_pdl", False) == (word != "none")
    two = walking("gluon_ws", "ahead", tile_m=128, num_warps=8)
    assert dict(FAMILY.sources(two, SM_90)["main"].options)["maxnreg"] == 168
    assert warpgroups.options_of(4, 2) == (("num_warps", 4), ("maxnreg", 128))


@pytest.mark.turns(16)
@pytest.mark.parametrize(("kernel", "problem"), CASES[::5], ids=lambda x: getattr(x, "name", ""))
def test_their_siblings_on_a_cpu_are_right(kernel, problem):
    assert FAMILY.interpreted(kernel).dependent_launch == "none"
    result = verify.verify(Dispatcher(device=device("h200_sxm")), problem, kernel.name)
    assert result.ok, result


def test_the_cases_reach_every_pipeline_and_scheduler():
    met = {(c.pipeline, c.scheduler) for c, _ in CASES}
    assert met == {
        *(("gluon_ws", scheduler) for scheduler in ("persistent", "split_k", "stream_k")),
        *(("tma", scheduler) for scheduler in ("persistent", "stream_k")),
        ("gluon_pingpong", "persistent"),
        ("small_m", "tile"),
        ("small_m", "split_k"),
        ("small_m_tma", "tile"),
    }
    assert {c.swap_ab for c, _ in CASES if c.dependent_launch == "ahead"} == {False, True}
    assert all(FAMILY.supports(c, p, SM_90) for c, p in CASES)


# --- the promise ---------------------------------------------------------------------------------


def call(**options: object) -> GemmProblem:
    a, b = View((8, 64), (64, 1), "bf16", 0, "cpu"), View((64, 24), (1, 64), "bf16", 0, "cpu")
    return FAMILY.problem_of(Call((a, b), options=options))


def test_a_call_says_that_b_is_constant():
    assert not call().constant_b
    said = call(constant_b=True)
    assert said.constant_b and "B constant" in str(said) and "B constant" not in str(call())
    assert FAMILY.options(said) == {"constant_b": True} and FAMILY.options(call()) == {}
    words = {"m": "8", "n": "24", "k": "64", "constant_b": "true"}
    assert FAMILY.parse_problem(words, SM_90) == said
    assert FAMILY.parse_problem({**words, "constant_b": "false"}, SM_90) == call()


def test_a_promise_that_means_nothing_is_refused():
    for wrong in (1, "yes", None):
        with pytest.raises(BadArgument, match="is not true or false"):
            call(constant_b=wrong)
    with pytest.raises(BadArgument, match="constant_b = '1' is not true or false"):
        FAMILY.parse_problem({"m": "8", "n": "8", "k": "8", "constant_b": "1"}, SM_90)
    for fields in (
        {"pre_b": "mul"},
        {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"},
        {"layout": "rsr"},
        {"dtype_b": "int4", "scale_b": "128x1"},
    ):
        assert GemmProblem(64, 128, 128, **fields)
        with pytest.raises(BadArgument, match="constant_b lets kernels load a plain B early"):
            GemmProblem(64, 128, 128, **fields, constant_b=True)


def test_rows_of_the_problem_without_the_promise_answer_too():
    problem = GemmProblem(20, 256, 256, constant_b=True)
    plain = replace(problem, constant_b=False)
    found = {near.problem: near.how for near in FAMILY.nearby(problem)}
    assert found[plain] == "without constant_b"
    assert found[replace(problem, m=32)] == "padded to M = 32"
    assert found[replace(plain, m=32)] == "padded to M = 32, without constant_b"
    assert not any(near.problem.constant_b for near in FAMILY.nearby(plain))


# --- graphs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arch_name", "gpu"), [("sm_90", "h200_sxm"), ("gfx942", "mi300x")])
def test_a_call_is_one_kernel_or_two_and_no_fill(arch_name, gpu):
    """A fill would be a node of every graph that captures the call, replayed each time. It would
    also stand between two kernels, of which the second could then not start early."""
    for kernel, problem in (*sharing(arch_name), *(CASES if arch_name == "sm_90" else ())):
        launch = FAMILY.launch(kernel, problem, device(gpu))
        assert len(launch.steps) == (2 if kernel.two_stage else 1)
        assert all(t.initial in ("kept_zero", "anything") for t in launch.temporaries)
