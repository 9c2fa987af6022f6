"""Profiles: the kernels that an install of a framework builds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cli_runner import Cli

from tilewright import ops
from tilewright.arch import arch, device
from tilewright.errors import BadFile, UnknownName
from tilewright.measure.problems import load_problems, profiles, sets, shipped
from tilewright.plan import Planner

FAMILIES = [name for name in ops.families() if "all" in ops.family(name).profiles]
NAMES = [name for name in profiles() if not name.endswith(":all")]


def test_profiles_and_sets_have_different_names():
    assert not {*profiles()} & {*sets()}
    assert {"attention:flash", "attention:all", "gemm:pytorch"} <= {*profiles()}
    assert {"attention_backward:flash", "conv:resnet", "conv:pytorch"} <= {*profiles()}


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("on", ["sm_90", "gfx942"])
def test_a_profile_is_of_its_family_and_has_kernels(name, on):
    this, family = arch(on), ops.family(name.partition(":")[0])
    problems = load_problems([name], this).problems
    assert {type(p) for p in problems} == {family.problem_type}
    for problem in problems[:: max(1, len(problems) // 12)]:
        configs = family.default_space(problem, this).expand(this).configs
        assert any(family.supports(c, problem, this) for c in configs), problem


@pytest.mark.turns(16)
@pytest.mark.parametrize("family", FAMILIES)
def test_all_are_all(family):
    this = arch("sm_90")
    every = {*load_problems([f"{family}:all"], this).problems}
    each = [{*load_problems([n], this).problems} for n in NAMES if n.startswith(f"{family}:")]
    assert every == set().union(*each)
    assert all(ops.family(family).profiles[name].about for name in ops.family(family).profiles)


def test_every_kind_of_training_call_has_the_kernels_of_its_gradients():
    """Of FlashAttention's functions: prompts, with dropout, with ALiBi, with a soft cap, packed. Of
    PyTorch's: with a bias, and its gradient."""
    this = arch("sm_90")
    found = {*load_problems(["attention_backward:flash"], this).problems}
    assert {p.head_dim for p in found} == {32, 64, 96, 128, 192, 256}
    assert {p.features for p in found} == {
        "", "dropout", "alibi", "softcap", "packedq+packedkv", "dropout+packedq+packedkv",
        "softcap+packedq+packedkv",
    }  # fmt: skip
    assert {p.mask.kind for p in found} == {"none", "causal", "window"}
    biased = {
        p for p in load_problems(["attention_backward:pytorch"], this).problems if p.bias_shape
    }
    assert {p.grads for p in biased} == {"dq+dk+dv", "dq+dk+dv+dbias"}


@pytest.mark.turns(8)
def test_a_profiles_kernels_serve_other_sizes_of_its_kinds_of_layers():
    """Of audio: the layers of models that the profile does not list, in all directions."""
    this, of = arch("gfx942"), ops.family("conv")
    planner = Planner(None, device("mi300x"))
    chosen = [planner.select(p).config for p in load_problems(["conv:audio"], this).problems]
    built = {c.name: c for c in chosen if c.dtype == "bf16"}.values()
    layers = load_problems(["conv:full", "conv:transposed"], this).problems
    asked = [
        replace(p, direction=direction)
        for p in layers if len(p.spatial) == 1 and p.c > 1  # else an image model's
        for direction in ("forward", "data", "weights")
    ]  # fmt: skip
    assert len(asked) > 200
    assert all(any(of.supports(c, p, this) for c in built) for p in asked)


def test_types_that_an_architecture_does_not_take_are_left_out():
    with pytest.raises(BadFile, match="attention:fp8: no problem in it for sm_80"):
        load_problems(["attention:fp8"], arch("sm_80"))
    assert {p.dtype for p in load_problems(["attention:aiter"], arch("sm_80")).problems} == {
        "bf16", "fp16",
    }  # fmt: skip
    fnuz = load_problems(["attention:fp8"], arch("gfx942")).problems
    assert {p.dtype_kv for p in fnuz} == {"e4m3fnuz"}


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(UnknownName, match=r"'attention:flsh' \(did you mean 'attention:flash'"):
        shipped("attention:flsh", "problems.csv")
    assert shipped("attention:flash", "problems.csv") is None


def test_a_dry_run_lists_what_a_build_would_build(cli: Cli):
    words = ("build", "attention:fp32", "--arch", "gfx942")
    document = cli.json(*words, "--dry-run")
    (of,) = document["archs"]
    assert of["legal"] == len(of["kernels"]) > 10 and of["cached"] == 0
    assert all(name.startswith("attention_fp32_") for name in of["kernels"])
    text = cli(*words, "--dry-run", "--limit", "2")
    assert of["kernels"][1] in text and of["kernels"][2] not in text


def test_a_profile_is_an_input_of_a_registry(cli: Cli, tmp_path):
    file = tmp_path / "r.json"
    document = cli.json("registry", "export", "attention:fp32", "--arch", "sm_80", "-o", str(file))
    assert document["kernels"] > 10 and document["families"] == {"attention": document["kernels"]}
