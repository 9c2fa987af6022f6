"""What a caller asks of kernels besides being right; every selector honours it."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from gemm_cases import config
from table_cases import H200, gemm, row

import tilewright
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, NoKernelFound, UnsupportedProblem
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.grouped_gemm import GroupedGemmProblem
from tilewright.ops.nouns import Call, View
from tilewright.registry import Registry
from tilewright.select import ByFunction, FirstFit
from tilewright.select.analytical import Analytical
from tilewright.select.constraints import Constraints
from tilewright.select.tuned import Tuned
from tilewright.tables.table import Table

PLAIN = config()
ATOMIC = config(scheduler="split_k", split_k=4, reduction="atomic", dtype_c="fp32")
LINEAR = config(scheduler="split_k", split_k=4, reduction="linear")
STREAM = config(scheduler="stream_k", reduction="linear")
TMA = config(pipeline="tma")
PROBLEM = GemmProblem(64, 64, 4096)


def over(*kernels, **options) -> Dispatcher:
    registry = Registry("r").register_all(kernels)
    return Dispatcher(registry, "h200_sxm", **{"selector": FirstFit(), **options})


def refusals(constraints, *kernels, problem=PROBLEM) -> dict[str, str]:
    story = over(*kernels, constraints=constraints).explain(problem)
    return {f.name: f.by for f in story.fates if f.fate == "refused"}


@pytest.mark.parametrize(
    ("constraints", "refused"),
    [
        (Constraints(), {}),
        (Constraints(graph_capturable=True), {}),
        (Constraints(max_workspace=0), {LINEAR: "max_workspace", STREAM: "max_workspace"}),
        (Constraints(pipelines=("tma", "gluon_ws")),
         dict.fromkeys((PLAIN, LINEAR, STREAM), "pipelines")),
        (Constraints(blocked=("*_split_k*", PLAIN.name)),
         dict.fromkeys((PLAIN, LINEAR), "blocked")),
        (Constraints(batch_invariant=True), {STREAM: "batch_invariant"}),
        (Constraints(deterministic=True), {}),
    ],
    ids=str,
)  # fmt: skip
def test_a_kernel_that_does_not_keep_to_it_is_refused_by_its_name(constraints, refused):
    found = refusals(constraints, PLAIN, LINEAR, STREAM, TMA)
    assert found == {kernel.name: rule for kernel, rule in refused.items()}


@pytest.mark.parametrize("field", ["deterministic", "batch_invariant"])
def test_sums_by_atomics_repeat_neither_themselves_nor_their_rows(field):
    problem = GemmProblem(64, 64, 4096, dtype_c="fp32")
    whole = config(dtype_c="fp32")
    constraints = Constraints(**{field: True})
    assert refusals(constraints, ATOMIC, whole, problem=problem) == {ATOMIC.name: field}
    assert over(ATOMIC, whole).select(problem).config == ATOMIC
    assert over(ATOMIC, whole, constraints=constraints).select(problem).config == whole


def test_a_launch_that_cannot_be_captured_is_refused(monkeypatch):
    launch = FAMILY.launch
    monkeypatch.setattr(
        type(FAMILY),
        "launch",
        lambda self, *given: replace(launch(*given), capturable=given[0] != PLAIN),
    )
    assert refusals(Constraints(graph_capturable=True), PLAIN, TMA) == {
        PLAIN.name: "graph_capturable"
    }
    assert refusals(Constraints(), PLAIN, TMA) == {}


EVERY_KIND = (
    gemm(512),
    gemm(4, dtype_a="fp16", epilogue="bias+gelu"),
    gemm(64, 64, 8192, dtype_c="fp32"),  # parts of sums, in a workspace
    gemm(64, batch=8),
    gemm(64, batch=8, batching="pointers"),
    gemm(64, dtype_a="e4m3fn", scale_a="1x128", scale_b="128x128"),
    gemm(8, dtype_b="int4", scale_b="128x1"),
    gemm(64, layout="rsr"),
    GroupedGemmProblem("contiguous", groups=8, m=100, n=512, k=256),
    GroupedGemmProblem("masked", groups=8, m=100, n=512, k=256),
    GroupedGemmProblem("list", sizes=((1, 64, 64), (7, 128, 64))),
)


@pytest.mark.grid(2)
@pytest.mark.parametrize("problem", EVERY_KIND, ids=str)
def test_all_launches_can_be_captured_since_they_follow_from_where_operands_lie(problem):
    """The operands here are addresses at which nothing lies: what reads them to plan cannot."""
    family = ops.family(problem.family)
    *inputs, out = (
        View(o.shape, o.strides, o.dtype, 1 << 40, "cuda:0", 16 * o.pointers)
        for o in family.operands(problem)
    )
    call = Call(tuple(inputs), outputs=(out,), options=family.options(problem))
    stated = family.problem_of(call)
    found = 0
    for name in ("h200_sxm", "mi300x"):
        on = device(name)
        for space in family.tuning_spaces(stated, arch(on.arch)):
            for one in space.expand(arch(on.arch)).configs:
                if family.supports(one, stated, arch(on.arch)):
                    found += 1
                    assert family.launch(one, stated, on).capturable, one.name
    assert found


WAITING = {"item", "tolist", "cpu", "numpy", "synchronize"}
"""Methods of tensors, streams and devices that make the host wait for a GPU."""


def test_nothing_on_the_way_of_a_launch_waits_for_the_gpu():
    root = Path(tilewright.__file__).parent
    runtime = [root / "runtime" / f"{name}.py" for name in ("bound", "workspace", "cuda", "hip")]
    for path in (
        root / "dispatch.py",
        root / "plan.py",
        *runtime,
        *root.glob("ops/*/operands.py"),
        *root.glob("ops/*/launch.py"),
    ):
        tree = ast.parse(path.read_text())
        # A workspace made during a capture is zeroed beside it, once, before the graph can run.
        tree.body = [node for node in tree.body if getattr(node, "name", "") != "_made_beside"]
        nodes = ast.walk(tree)
        called = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        assert not called & WAITING, f"{path}: {called & WAITING}"


@pytest.mark.parametrize(
    "selector",
    [
        FirstFit(),
        Analytical(),
        ByFunction(lambda problem, configs, device: configs),
        Tuned(Table.of([row(PROBLEM, LINEAR.name, ties=(PLAIN.name,))])),
    ],
    ids=lambda s: s.name,
)
def test_every_selector_honours_them(selector):
    blocked = Constraints(blocked=(LINEAR.name,))
    plan = over(LINEAR, PLAIN, selector=selector, constraints=blocked).select(PROBLEM)
    assert plan.config == PLAIN
    free = over(LINEAR, selector=selector).select(PROBLEM)
    assert free.config == LINEAR


def test_a_row_of_the_table_is_no_way_round_them():
    dispatcher = Dispatcher(
        device="h200_sxm",
        tables=Table.of([row(PROBLEM, LINEAR.name)]),
        constraints=Constraints(max_workspace=0),
    )
    story = dispatcher.explain(PROBLEM)
    assert {f.name: f.by for f in story.fates}[LINEAR.name] == "max_workspace"
    assert dispatcher.select(PROBLEM).launch.workspace_bytes == 0


def test_a_request_has_its_own():
    dispatcher = over(LINEAR, PLAIN)
    assert dispatcher.select(PROBLEM).config == LINEAR
    without = Constraints(max_workspace=0)
    assert dispatcher.select(PROBLEM, without).config == PLAIN
    assert dispatcher.explain(PROBLEM, without).chosen == PLAIN.name
    assert dispatcher.select(PROBLEM).config == LINEAR


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_workspace": -1}, "max_workspace = -1 is not a number of bytes"),
        ({"pipelines": ("tmaa",)}, r"no pipeline 'tmaa' \(did you mean 'tma'\?\); known: "),
        ({"pipelines": "tma"}, "pipelines = 'tma' is not several words"),
        ({"blocked": "gemm_*"}, "blocked = .* is not several words"),
    ],
)
def test_constraints_that_cannot_be_meant(fields, says):
    with pytest.raises(BadArgument, match=says):
        Constraints(**fields)


# --- batch-invariant -----------------------------------------------------------------------

INVARIANT = Constraints(batch_invariant=True)
MANY = (1, 7, 16, 64, 100, 256, 500, 4096, 10_000)


@pytest.mark.turns(32)
@pytest.mark.parametrize("layout", ["rcr", "ccr", "crc"])
@pytest.mark.parametrize(
    "dispatcher",
    [
        Dispatcher(device="h200_sxm", constraints=INVARIANT),
        Dispatcher(
            device="h200_sxm",
            constraints=INVARIANT,
            tables=Table.of([row(gemm(m, 4096, 4096), us=m) for m in (1, 64, 256, 4096)]),
        ),
    ],
    ids=["estimated", "tuned"],
)
def test_one_kernel_serves_every_m(dispatcher, layout):
    problems = [GemmProblem(m, 4096, 4096, layout=layout) for m in MANY]
    plans = [dispatcher.select(problem) for problem in problems]
    assert len({plan.config for plan in plans}) == 1
    free = Dispatcher(device="h200_sxm")
    assert len({free.select(problem).config for problem in problems}) > 1
    stories = [dispatcher.explain(problem) for problem in problems]
    assert len({tuple(story.fates) for story in stories}) == 1
    assert stories[0].chosen == plans[0].config.name
    assert "chosen for M = 256, as for every M" in plans[0].reason
    for plan, problem in zip(plans, problems, strict=True):
        assert plan.problem == problem
        assert plan.launch == FAMILY.launch(plan.config, problem, H200)


def test_a_kernel_for_few_rows_is_not_for_every_m():
    few = config(pipeline="small_m", tile_m=16, group_m=1)
    assert FAMILY.supports(few, GemmProblem(4, 512, 512), arch("sm_90"))
    assert few.name in refusals(INVARIANT, few, PLAIN, problem=GemmProblem(4, 512, 512))


def test_an_m_that_the_one_kernel_cannot_serve_is_an_error_not_another_kernel():
    wide = config(index_bits=64)
    huge = GemmProblem(2**21, 4096, 1024)
    assert over(PLAIN, wide).select(huge).config == wide
    invariant = over(PLAIN, wide, constraints=INVARIANT)
    assert invariant.select(GemmProblem(64, 4096, 1024)).config == PLAIN
    with pytest.raises(NoKernelFound, match=f"{PLAIN.name}, the kernel for every M"):
        invariant.select(huge)
    story = invariant.explain(huge)
    assert story.chosen == "" and story.fates[0].fate == "refused"


def test_groups_of_a_list_have_no_m_to_be_invariant_of():
    listed = GroupedGemmProblem("list", sizes=((1, 64, 64), (7, 128, 64)))
    with pytest.raises(UnsupportedProblem, match=r"\(batch_invariant\): the groups of a list"):
        Dispatcher(device="h200_sxm", constraints=INVARIANT).select(listed)
    sorted_rows = GroupedGemmProblem("contiguous", groups=8, m=100, n=512, k=256)
    few = replace(sorted_rows, m=3)
    plans = [
        Dispatcher(device="h200_sxm", constraints=INVARIANT).select(p) for p in (sorted_rows, few)
    ]
    assert plans[0].config == plans[1].config
