"""The records of GEMM pipelines: complete, used, true to their kernels; and how one is added."""

from __future__ import annotations

import dataclasses

import pytest
from gemm_cases import config
from toy_pipeline import FIELDS, TOY

from shared_builds import build_once
from tilewright import ops
from tilewright.arch import arch, archs, device
from tilewright.compile import inspect
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.binder import interface
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.catalogue import CATALOGUE
from tilewright.ops.gemm.config import SHARING
from tilewright.ops.gemm.legality import LEGALITY
from tilewright.ops.gemm.pipelines import PIPELINES
from tilewright.ops.gemm.pipelines.record import Pipeline
from tilewright.ops.grouped_gemm import FAMILY as GROUPED
from tilewright.ops.grouped_gemm import GroupedGemmProblem
from tilewright.ops.grouped_gemm.pipelines import PIPELINES as GROUPED_PIPELINES
from tilewright.ops.nouns import Descriptor, Pointer

WALKS = {"scheduler": "persistent"}
SCALES = {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128", "tile_k": 128}
EXAMPLES = {
    "basic": ("sm_80", {}),
    "tma": ("sm_90", {}),
    "tma_ws": ("sm_100", {"tile_m": 128, "tile_n": 128, **WALKS}),
    "gluon_ws": ("sm_90", WALKS),
    "gluon_pingpong": ("sm_90", {**WALKS, "num_warps": 8}),
    "small_m": ("gfx942", {"tile_m": 16, "group_m": 1}),
    "small_m_tma": ("sm_90", {"tile_m": 16, "group_m": 1}),
    "gluon_cdna": ("gfx942", WALKS),
    "gluon_scaled": ("sm_90", {**SCALES, **WALKS, "tile_n": 128}),
    "weights": ("sm_90", {"dtype_b": "int4"}),
    "mx": ("gfx950", {"dtype_a": "e2m1", "scale_a": "1x32-e8m0", "scale_b": "32x1-e8m0"}),
    "preshuffle": ("gfx942", {"layout": "rsr"}),
    "gluon_weights": ("sm_90", {"dtype_b": "int4", "tile_m": 8, "tile_k": 256}),
}
"""A legal config of each pipeline, for an architecture that has it."""


def example(pipeline):
    name, fields = EXAMPLES[pipeline]
    kernel = config(name, pipeline=pipeline, **fields)
    assert FAMILY.judge(kernel, arch(name)), FAMILY.judge(kernel, arch(name))
    return kernel, name


def kinds(passed):
    """What kinds of arguments a step passes, as Triton's types begin."""
    found = (
        {Pointer: "*", Descriptor: "tensordesc"}.get(type(one)) or getattr(one, "type", "")
        for one in passed
    )
    return [*found]


def taken(compiled):
    """The same of what a kernel takes."""
    return [
        next((word for word in ("*", "tensordesc") if kind.startswith(word)), kind)
        for _, kind in compiled.arguments
    ]


# --- the records there are ----------------------------------------------------------------------


def test_every_pipeline_has_an_example():
    assert [*EXAMPLES] == [*PIPELINES]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_launch_passes_what_a_kernel_takes(pipeline):
    kernel, name = example(pipeline)
    fields = {f.name for f in dataclasses.fields(GemmProblem)}
    same = {n: v for n, v in vars_of(kernel).items() if n in fields - {"alignment"}}
    problem = GemmProblem(16, 512, 1024, **same)
    h200 = dataclasses.replace(device("h200_sxm"), arch=name)
    (step,) = FAMILY.launch(kernel, problem, h200).steps
    assert kinds(step.arguments) == taken(FAMILY.sources(kernel, arch(name))["main"])


def vars_of(record):
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}


@pytest.mark.parametrize("pipeline", GROUPED_PIPELINES)
def test_a_launch_passes_what_a_grouped_kernel_takes(pipeline):
    record, this = GROUPED_PIPELINES[pipeline], arch("sm_90")
    fields = {"pipeline": pipeline, "tile_m": 64, "tile_n": 64, "num_warps": 4}
    kernel = GROUPED.make_config({**GROUPED.axes(), **fields}, this)
    problem = GroupedGemmProblem("contiguous", groups=4, m=64, n=64, k=64)
    (step,) = GROUPED.launch(kernel, problem, device("h200_sxm")).steps
    assert kinds(step.arguments) == taken(GROUPED.sources(kernel, this)["main"])
    assert GROUPED.interpreted(kernel).pipeline == record.one.interpreted


@pytest.mark.turns(64)
def test_every_pipeline_compiles_where_its_record_says_that_it_runs(store):
    made = [example(pipeline) for pipeline in PIPELINES]
    results = build_once(made, store).results
    assert [str(result) for result in results if not result.ok] == []


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_sibling_is_in_triton_and_legal_where_the_kernel_is(pipeline):
    record = PIPELINES[pipeline]
    kernel, name = example(pipeline)
    assert record.in_triton == (interface(record.kernel).language == "triton")
    played = FAMILY.interpreted(kernel)
    assert played.pipeline == record.interpreted
    assert PIPELINES[played.pipeline].in_triton
    assert FAMILY.judge(played, arch(name)), FAMILY.judge(played, arch(name))


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_what_a_record_leaves_out_is_refused_by_the_rule_that_it_names(pipeline):
    record = PIPELINES[pipeline]
    kernel, name = example(pipeline)
    parts = {"split_k": 2, "reduction": "linear"}
    ways = {
        "tile": {},
        "persistent": {},
        "split_k": parts,
        "stream_k": {**parts, "split_k": 1},
    }
    usual = {"split_k": 1, "reduction": "none"}
    for scheduler, more in ways.items():
        other = dataclasses.replace(kernel, scheduler=scheduler, **{**usual, **more})
        verdict = FAMILY.judge(other, arch(name))
        if scheduler not in record.schedulers:
            assert verdict.rule == record.own_words.get("scheduler", "combination")
            assert pipeline in verdict.reason
    for reduction in ("atomic", "linear", "tree"):
        if "split_k" in record.schedulers and reduction not in record.reductions:
            shared = {"scheduler": "split_k", "split_k": 2, "reduction": reduction}
            verdict = FAMILY.judge(dataclasses.replace(kernel, **shared), arch(name))
            assert verdict.rule == record.own_words.get("reduction", "combination")
    if not record.takes("extra"):
        verdict = FAMILY.judge(dataclasses.replace(kernel, epilogue="bias"), arch(name))
        assert verdict.rule == record.own_words.get("epilogue", "combination")


def test_the_catalogue_has_what_some_kernel_takes():
    taken = (interface(record.kernel).parameters for record in PIPELINES.values())
    assert {*CATALOGUE} <= {name for parameters in taken for name in parameters}
    for record in PIPELINES.values():
        assert not {*record.own} & {*CATALOGUE}
        assert {*record.own} <= {*interface(record.kernel).parameters}


def test_what_records_need_are_words_of_some_data_file():
    for record in PIPELINES.values():
        for word in record.needs:
            assert any(arch(name).has(word) for name in archs()), (record.name, word)


def test_architectures_name_no_pipeline():
    assert "pipelines" not in {f.name for f in dataclasses.fields(arch("sm_90"))}
    assert not arch("gfx942").has("tma") and arch("gfx942").has("cdna")
    with pytest.raises(BadArgument, match="sm_90 has unknown feature 'tmaa'; known: tma"):
        dataclasses.replace(arch("sm_90"), features=("tmaa",))


# --- adding one ---------------------------------------------------------------------------------


@pytest.fixture
def toy(monkeypatch):
    """The pipeline of `toy_pipeline`, added as the guide says: a record and a kernel file."""
    monkeypatch.setitem(PIPELINES, "toy", TOY)


@pytest.mark.turns(32)
def test_an_added_pipeline_builds_its_own_kernel(toy, tmp_path):
    from tilewright.compile import Store

    kernels = [(config(name, pipeline="toy"), name) for name in ("sm_90", "gfx942")]
    results = build_once(kernels, Store(tmp_path)).results
    assert [str(result) for result in results if not result.ok] == []
    for result, (form, word) in zip(results, (("ptx", "wgmma"), ("amdgcn", "v_mfma")), strict=True):
        text = inspect(result.kernel, Store(tmp_path), form)
        assert "gemm_toy" in text and word in text


def test_an_added_pipeline_is_named_listed_judged_estimated_and_launched(toy):
    kernel, this = config(pipeline="toy"), arch("sm_90")
    assert FAMILY.parse_name(kernel.name) == kernel
    assert "toy" in FAMILY.wildcard("pipeline", this) and "toy" in ops.pipelines(this)
    assert FAMILY.judge(kernel, this)
    for fields in (
        {"scheduler": "persistent"},
        {"epilogue": "bias"},
        {"batching": "strided"},
        {"pre_a": "add"},
        {"layout": "rrr"},
        {"store": "split"},
        {"alignment": 1},
        {"pad_m": False},
        {"swap_ab": True},
        {"dtype_b": "int4"},
        {"scale_a": "1x128"},
    ):
        verdict = FAMILY.judge(dataclasses.replace(kernel, **fields), this)
        assert not verdict and "toy" in verdict.reason, fields
    problem = GemmProblem(256, 256, 256)
    h200 = device("h200_sxm")
    assert FAMILY.estimate(kernel, problem, h200).total_us > 0
    (step,) = FAMILY.launch(kernel, problem, h200).steps
    assert step.grid == (16, 1, 1)
    assert kinds(step.arguments) == taken(FAMILY.sources(kernel, this)["main"])


def test_without_its_record_no_name_says_it():
    with pytest.raises(UnknownName):
        FAMILY.parse_name(config().name.replace("_basic_", "_toy_"))
    with pytest.raises(BadArgument, match=r"there is no pipeline 'toy'; known: basic, "):
        FAMILY.judge(dataclasses.replace(config(), pipeline="toy"), arch("sm_90"))


@pytest.mark.parametrize(
    "field", ["name", "kernel", "schedulers", "shared_memory", "rates", "worth_having"]
)
def test_a_forgotten_field_is_an_error_that_names_it(field):
    left = {name: value for name, value in FIELDS.items() if name != field}
    with pytest.raises(TypeError, match=rf"'{field}'"):
        Pipeline(**left)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schedulers": ()}, "schedulers: is empty"),
        ({"schedulers": ("tiles",)}, "schedulers: 'tiles' is not one of tile, persistent"),
        ({"schedulers": ("tile", "split_k")}, "reductions: is empty"),
        ({"reductions": ("linear",)}, "reductions: belong to schedulers that share tiles"),
        ({"batchings": ("stride",)}, "batchings: 'stride' is not one of none, strided"),
        ({"rules": {"toy": FIELDS["rules"]["combination"]}}, "rules: 'toy' is not one of"),
        ({"own_words": {"scheduler": "packed"}}, "own_words: 'packed' is not one of combination"),
        ({"traits": ("dots",)}, "traits: 'dots' is not one of b_in_words, shuffled_b, packed"),
        ({"grids": ("few bits",)}, "grids: 'few bits' is not one of whole"),
    ],
)
def test_a_record_that_cannot_be_meant_is_refused_by_field(fields, said):
    with pytest.raises(BadArgument) as caught:
        Pipeline(**{**FIELDS, **fields})
    assert str(caught.value).startswith(f"pipeline toy: {said}")


@pytest.mark.parametrize("record", PIPELINES.values(), ids=PIPELINES)
def test_a_kernel_takes_what_its_schedulers_and_batchings_need(record):
    if {*record.schedulers} & {*SHARING}:
        assert record.takes("partials") and record.takes("flags")
    if record.batchings != ("none",):
        assert record.takes("batch")
    assert record.takes("pre_a") == record.takes("pre_b")


def test_rules_that_records_extend_are_rules():
    extended = {rule for record in PIPELINES.values() for rule in record.rules}
    assert extended <= {name for name, _ in LEGALITY}
