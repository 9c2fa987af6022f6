"""The records of GEMM pipelines: complete, used, true to their kernels; and how one is added."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
from pathlib import Path

import pytest
from gemm_cases import config
from toy_pipeline import FIELDS, TOY

from shared_builds import build_once
from tilewright import ops
from tilewright.arch import arch, archs
from tilewright.compile import inspect
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.config import SHARING
from tilewright.ops.gemm.pipelines import PIPELINES
from tilewright.ops.gemm.pipelines.constants import SHARED
from tilewright.ops.gemm.pipelines.record import Pipeline
from tilewright.ops.gemm.rules import LEGALITY
from tilewright.ops.gemm.source import source
from tilewright.ops.grouped_gemm import FAMILY as GROUPED
from tilewright.ops.grouped_gemm import source as grouped_source
from tilewright.ops.grouped_gemm.pipelines import PIPELINES as GROUPED_PIPELINES
from tilewright.ops.grouped_gemm.pipelines import GroupedPipeline

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


def parameters(module, function):
    """Names of a kernel's parameters, read from its file."""
    found = importlib.util.find_spec(module)
    tree = ast.parse(Path(found.origin).read_text())
    kernels = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return [argument.arg for argument in kernels[function].args.args]


def declared(compiled):
    """Parameters of a `KernelSource`; a tuple's elements are one."""
    return list(dict.fromkeys(name.partition(".")[0] for name, _ in compiled.signature))


# --- the records there are ----------------------------------------------------------------------


def test_every_pipeline_has_an_example():
    assert [*EXAMPLES] == [*PIPELINES]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_record_tells_a_kernel_exactly_its_parameters(pipeline):
    kernel, name = example(pipeline)
    made = source(kernel, arch(name))
    assert declared(made) == parameters(PIPELINES[pipeline].module, PIPELINES[pipeline].function)


@pytest.mark.parametrize("pipeline", GROUPED_PIPELINES)
def test_a_grouped_record_tells_a_kernel_exactly_its_parameters(pipeline):
    record = GROUPED_PIPELINES[pipeline]
    fields = {"pipeline": pipeline, "tile_m": 64, "tile_n": 64, "num_warps": 4}
    kernel = GROUPED.make_config({**GROUPED.axes(), **fields}, arch("sm_90"))
    made = grouped_source.source(kernel, arch("sm_90"))
    assert declared(made) == parameters(record.module, record.function)
    assert GROUPED.interpreted(kernel).pipeline == record.sibling


@pytest.mark.turns(16)
def test_every_pipeline_compiles_where_its_record_says_that_it_runs(store):
    made = [example(pipeline) for pipeline in PIPELINES]
    results = build_once(made, store).results
    assert [str(result) for result in results if not result.ok] == []


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_sibling_is_in_triton_and_legal_where_the_kernel_is(pipeline):
    record = PIPELINES[pipeline]
    kernel, name = example(pipeline)
    assert PIPELINES[record.sibling].language == "triton"
    played = FAMILY.interpreted(kernel)
    assert played.pipeline == record.sibling
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
    if "extra" not in record.arguments:
        verdict = FAMILY.judge(dataclasses.replace(kernel, epilogue="bias"), arch(name))
        assert verdict.rule == record.own_words.get("epilogue", "combination")


def test_every_shared_constant_has_a_kernel():
    assert {*SHARED} <= {name for record in PIPELINES.values() for name in record.constants}


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


@pytest.mark.turns(8)
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
    from tilewright.arch import device

    h200 = device("h200_sxm")
    assert FAMILY.estimate(kernel, problem, h200).total_us > 0
    (step,) = FAMILY.launch(kernel, problem, h200).steps
    assert step.grid == (16, 1, 1)
    assert len(step.arguments) == len(source(kernel, this).arguments)


def test_without_its_record_no_name_says_it():
    with pytest.raises(UnknownName):
        FAMILY.parse_name(config().name.replace("_basic_", "_toy_"))
    with pytest.raises(BadArgument, match=r"there is no pipeline 'toy'; known: basic, "):
        FAMILY.judge(dataclasses.replace(config(), pipeline="toy"), arch("sm_90"))


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Pipeline)])
def test_a_forgotten_field_is_an_error_that_names_it(field):
    left = {name: value for name, value in FIELDS.items() if name != field}
    with pytest.raises(TypeError, match=rf"'{field}'"):
        Pipeline(**left)


def test_grouped_records_have_no_defaults_either():
    for record in (Pipeline, GroupedPipeline):
        for field in dataclasses.fields(record):
            assert field.default is field.default_factory is dataclasses.MISSING, field.name


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schedulers": ()}, "schedulers: is empty"),
        ({"schedulers": ("tiles",)}, "schedulers: 'tiles' is not one of tile, persistent"),
        ({"schedulers": ("tile", "split_k")}, "reductions: is empty"),
        ({"reductions": ("linear",)}, "reductions: belong to schedulers that share tiles"),
        (
            {"schedulers": SHARING, "reductions": ("linear",)},
            "arguments: need 'sharing' for its schedulers and batchings",
        ),
        ({"batchings": ("none", "strided")}, "arguments: need 'batch'"),
        ({"arguments": ("pre_a",)}, "arguments: have both pre_a and pre_b"),
        ({"arguments": ("scales", "extra")}, "arguments: must be in the order rest, pre_a, pre_b"),
        ({"constants": ("TILE_M", "SIGN", "OTHER")}, "constants: 'OTHER' is not one of"),
        ({"constants": ("TILE_M",)}, "own_constants: 'SIGN' is not one of TILE_M"),
        ({"rules": {"toy": FIELDS["rules"]["combination"]}}, "rules: 'toy' is not one of"),
        ({"own_words": {"scheduler": "packed"}}, "own_words: 'packed' is not one of combination"),
        ({"traits": ("dots",)}, "traits: 'dots' is not one of b_in_words, shuffled_b, packed"),
        ({"reads": "descriptors"}, "boxes: are of copies by descriptors"),
        ({"language": "gluon"}, "sibling: is the pipeline itself in Triton"),
        ({"rates": None}, "rates: are of estimate tiled"),
        ({"grids": ("few bits",)}, "grids: 'few bits' is not one of whole"),
    ],
)
def test_a_record_that_cannot_be_meant_is_refused_by_field(fields, said):
    with pytest.raises(BadArgument) as caught:
        Pipeline(**{**FIELDS, **fields})
    assert str(caught.value).startswith(f"pipeline toy: {said}")


def test_rules_that_records_extend_are_rules():
    extended = {rule for record in PIPELINES.values() for rule in record.rules}
    assert extended <= {name for name, _ in LEGALITY}
