"""Learned selection: when a model chooses, when it says nothing, and that damaged files of models
are refused."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted_model import planted
from typer.testing import CliRunner

from tilewright import arch, ops
from tilewright.canonical import canonical, sha256
from tilewright.cli.app import app
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, BadFile
from tilewright.select import trees as trees_module
from tilewright.select.constraints import Constraints
from tilewright.select.features import Described
from tilewright.select.learned import CAUTION, FARTHEST, Learned, judged
from tilewright.select.model import SCHEMA, Asked, Feature, Models, gather, load, save
from tilewright.select.trees import LEAF, Trees
from tilewright.verdict import YES, no

GEMM = ops.family("gemm")
H200 = arch.device("h200_sxm")
ARCH = arch.arch(H200.arch)
PROBLEMS = [GEMM.problem_type(m, 1024, 4096) for m in (64, 4096)]
PROBLEM = GEMM.problem_type(512, 1024, 4096)
CONFIGS = GEMM.default_space(PROBLEM, ARCH).expand(ARCH).configs
SERVING = [c for c in CONFIGS if GEMM.supports(c, PROBLEM, ARCH)]
FIRST = GEMM.rank(PROBLEM, SERVING, H200)[0][0]
OTHER = "basic"
MODEL = planted(PROBLEMS, CONFIGS, H200, OTHER)


def chosen(model: Any, problem: Any = PROBLEM, configs: Any = SERVING, **more: Any) -> list[Any]:
    return [*Learned(Models([model]), **more).order(problem, configs, H200)]


def why_silent(model: Any, problem: Any = PROBLEM, configs: Any = SERVING, **more: Any) -> str:
    learned = Learned(Models([model]), **more)
    assert [*learned.order(problem, configs, more.get("device", H200))] == []
    return learned.silence(problem, configs, H200)


# --- what it chooses --------------------------------------------------------------------------


def test_the_estimate_is_corrected_and_the_reason_has_both_figures():
    assert FIRST.pipeline != OTHER
    order = chosen(MODEL)
    assert order[0].config.pipeline == OTHER
    ours = GEMM.estimate(order[0].config, PROBLEM, H200).total_us
    first = GEMM.estimate(FIRST, PROBLEM, H200).total_us
    expected = ours * np.exp(-0.5)
    assert f"expected {expected:.1f} µs, estimated {ours:.1f} µs" in order[0].reason
    assert f"{FIRST.name}, {first:.1f} µs are expected" in order[0].reason
    ranked = GEMM.rank(PROBLEM, SERVING, H200)
    near = [c for c, estimate in ranked if estimate.total_us <= FARTHEST * first]
    assert {choice.config for choice in order} == {*near} < {*SERVING}
    of_one = [choice.config for choice in order if choice.config.pipeline == OTHER]
    assert of_one == [config for config in near if config.pipeline == OTHER]


def test_the_first_choice_is_ahead_where_no_record_has_the_library_ahead(monkeypatch: Any):
    """Where a record has, a model speaks if the library is not at hand, as on this machine."""
    planner = Dispatcher(device="h200_sxm", models=Models([MODEL])).planner
    monkeypatch.setattr(type(GEMM), "library_faster", lambda *_: no("record", "is not"))
    found = planner.ahead(PROBLEM, H200)
    assert found is not None and (found.selector, found.ahead) == ("learned", True)
    assert [choice.ahead for choice in chosen(MODEL)[:2]] == [True, False]
    assert planner.ahead(GEMM.problem_type(8192, 1024, 4096), H200) is None  # not taught
    monkeypatch.setattr(type(GEMM), "library_faster", lambda *_: YES)
    assert not any(choice.ahead for choice in chosen(MODEL))


def test_a_dispatcher_asks_tables_then_the_model_then_the_estimate():
    dispatcher = Dispatcher(device="h200_sxm", models=Models([MODEL]))
    plan = dispatcher.select(PROBLEM)
    assert (plan.selector, plan.config.pipeline) == ("learned", OTHER)
    said = dispatcher.explain(PROBLEM)
    assert said.chosen == plan.config.name
    assert [fate.by for fate in said.fates[:2]] == ["learned", "learned"]
    outside = replace(PROBLEM, m=5000, ldc=0)
    found = dispatcher.explain(GEMM.problem_type(8192, 1024, 4096))
    assert found.fates[0].by == "analytical"
    assert any("m 8192 is outside" in note for note in found.notes)
    assert dispatcher.select(GEMM.problem_type(outside.m, 1024, 4096)).selector == "analytical"
    assert [s.name for s in Dispatcher(models=Models([MODEL])).selector.selectors] == [
        "shipped", "learned", "analytical", "first fit",
    ]  # fmt: skip
    assert "learned" not in [s.name for s in Dispatcher().selector.selectors]


def test_a_model_of_tunings_kernels_too_is_asked_about_all_of_them(monkeypatch: Any):
    """The dispatcher's own space is cut here; tuning's has the rest."""
    space = GEMM.default_space(PROBLEM, ARCH)
    own = replace(space, constraints={**space.constraints, "own": lambda c: c.pipeline != OTHER})
    monkeypatch.setattr(type(GEMM), "default_space", lambda *_: own)
    monkeypatch.setattr(type(GEMM), "tuning_spaces", lambda *_: [space])
    wide = replace(MODEL, wide=True)
    (first,) = Learned(Models([wide])).recall(PROBLEM, H200)
    assert first.config == chosen(MODEL)[0].config and first.config.pipeline == OTHER
    dispatcher = Dispatcher(device="h200_sxm", models=Models([wide]))
    plan = dispatcher.select(PROBLEM)
    assert (plan.config, plan.selector) == (first.config, "learned")
    assert dispatcher.explain(PROBLEM).chosen == plan.config.name
    # without it, or where it is not believed or not taught, the dispatcher's space is all there is
    never, other = replace(wide, least_gain=1.0), GEMM.problem_type(8192, 1024, 4096)
    assert [c.config for c in Learned(Models([never])).recall(PROBLEM, H200)] == [FIRST]
    elsewhere = replace(wide, archs=("sm_80",))
    for model, problem in ((MODEL, PROBLEM), (elsewhere, PROBLEM), (wide, other)):
        assert not [*Learned(Models([model])).recall(problem, H200)]
        found = Dispatcher(device="h200_sxm", models=Models([model])).select(problem)
        assert found.config in own.expand(ARCH).configs
    limited = Dispatcher(
        device="h200_sxm", models=Models([wide]), constraints=Constraints(pipelines=("tma",))
    )
    assert limited.select(PROBLEM).config.pipeline == "tma"


def test_the_environment_names_models(monkeypatch: Any, tmp_path: Path):
    save(Models([MODEL]), tmp_path / "model.json")
    monkeypatch.setenv("TILEWRIGHT_MODELS", str(tmp_path / "model.json"))
    assert Dispatcher(device="h200_sxm").select(PROBLEM).selector == "learned"
    with pytest.raises(BadArgument, match="add 'learned'"):
        Dispatcher(selector="analytical", models=tmp_path / "model.json")
    monkeypatch.delenv("TILEWRIGHT_MODELS")
    with pytest.raises(BadArgument, match="needs models"):
        Dispatcher(selector="learned")


def test_the_shipped_models_choose_only_where_they_are_named(monkeypatch: Any):
    models = gather("shipped")
    assert models is not None and len(models) == 8
    for model in models:
        judged = model.made["judged"]
        assert judged["served"]["mean"] > judged["estimate"]["mean"], model.lesson
        assert {*model.silent_kinds} < {*judged["by_kind"]}
    assert "learned" not in [s.name for s in Dispatcher().selector.selectors]
    monkeypatch.setenv("TILEWRIGHT_MODELS", "shipped")
    dispatcher = Dispatcher(device="h200_sxm")
    chosen = [
        dispatcher.select(GEMM.problem_type(2, n, k)) for n, k in ((1536, 4608), (2880, 2880))
    ]
    assert "learned" in [plan.selector for plan in chosen]
    assert Dispatcher(device="mi300x").select(PROBLEM).selector != "learned"


@pytest.mark.parametrize(("head_dim", "speaks"), [(128, True), (88, False)])
def test_attention_of_head_dims_that_nobody_measured_is_left_to_the_estimate(
    head_dim: int, speaks: bool
):
    problem = ops.family("attention").problem_type(13, 16, 640, 640, head_dim, kv_heads=16, right=0)
    learned = Learned(gather("shipped") or Models([]))
    assert [one.selector for one in learned.recall(problem, H200)] == ["learned"] * speaks
    space = ops.family("attention").default_space(problem, ARCH).expand(ARCH).configs
    said = learned.silence(problem, space, H200)
    assert ("unlike the kernels" in said) != speaks


def test_the_shipped_models_are_of_todays_estimates():
    """A change of an estimate makes them stale, and dispatchers do not use them."""
    stale = [model.stale for model in gather("shipped") or () if model.stale]
    assert not stale, (
        "the estimates changed, and the shipped models did not: run `tilewright learn train "
        "benchmarks/results/learned_h200.parquet -o src/tilewright/select/models/sm_90.json`; "
        + "; ".join(stale)
    )


@pytest.mark.parametrize("moved", ["estimate", "answer", "kernel"])
def test_a_stale_model_is_not_used_and_says_so_once(moved: str, caplog: Any):
    one = MODEL.probes[0]
    changed = {
        "estimate": replace(one, estimated=(one.estimated[0] * 1.02, *one.estimated[1:])),
        "answer": replace(one, answers=(*one.answers[:-1], one.answers[-1] - 0.02)),
        "kernel": replace(one, kernels=("gemm_of_yore", *one.kernels[1:])),
    }
    stale = replace(MODEL, probes=(changed[moved], *MODEL.probes[1:]))
    assert MODEL.stale == ""
    assert "the model of gemm_bf16 is stale, train it again: " in stale.stale
    assert ("of 1 of 16 kernels" in stale.stale) == (moved != "kernel")
    dispatcher = Dispatcher(device="h200_sxm", models=Models([stale], "mine.json"))
    with caplog.at_level("WARNING", "tilewright"):
        chosen = [dispatcher.select(problem) for problem in (PROBLEM, *PROBLEMS)]
    assert "learned" not in {plan.selector for plan in chosen}
    assert [r.getMessage() for r in caplog.records] == [f"mine.json: not used: {stale.stale}"]
    assert any(stale.stale in note for note in dispatcher.explain(PROBLEM).notes)


def test_another_machines_last_bits_make_no_model_stale():
    """Nor do the digits that a file leaves out."""
    near = [
        replace(one, estimated=tuple(us * (1 + 1e-6) for us in one.estimated))
        for one in MODEL.probes
    ]
    assert replace(MODEL, probes=tuple(near)).stale == ""


# --- when it says nothing ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "because"),
    [
        ({"lesson": "gemm_fp16"}, "no model of gemm_bf16"),
        ({"archs": ("gfx942",)}, "measured on gfx942, not on sm_90"),
        ({"least_gain": 2.0}, "the estimate's first stays"),
        ({"silent_kinds": ("M 129 to 1024",)}, "not ahead on problems of kind M 129 to 1024"),
        ({"features": (Feature("problem.dtype_a", ("fp16",)),)}, "dtype_a 'bf16' was not among"),
        ({"features": (Feature("problem.m", (), 1, 511),)}, "m 512 is outside"),
        ({"features": (Feature("work.flops", (), 1, 2),)}, "flops .* is outside"),
        ({"features": (Feature("problem.no_such", (), 0, 1),)}, "no_such None is outside"),
        ({"features": (Feature("config.pipeline", (OTHER,)),)}, "unlike the kernels"),
        ({"features": (Feature("us", (), 0, 1),)}, "unlike the kernels"),
        ({"features": (Feature("config.no_such", (), 0, 1),)}, "unlike the kernels"),
    ],
)
def test_it_says_nothing_where_it_was_not_taught(change: dict[str, Any], because: str):
    import re

    alone = Trees((LEAF,), (0.0,), (0,), (0,), (0,))
    model = replace(MODEL, **change)
    if "features" in change:
        nothing = [replace(one, answers=(0.0,) * len(one.kernels)) for one in MODEL.probes]
        model = replace(model, trees=alone, probes=tuple(nothing))
    assert re.search(because, why_silent(model))


def test_a_kernel_unlike_those_seen_is_not_judged_and_goes_to_the_next_selector():
    seen = tuple(sorted({c.pipeline for c in CONFIGS} - {"tma"}))
    model = planted(PROBLEMS, [c for c in CONFIGS if c.pipeline != "tma"], H200, OTHER)
    assert "tma" in {c.pipeline for c in SERVING} and FIRST.pipeline in seen
    assert {choice.config.pipeline for choice in chosen(model)} <= set(seen)


def test_where_a_record_has_the_vendors_library_ahead_it_says_nothing(monkeypatch: Any):
    monkeypatch.setattr(type(GEMM), "library_faster", lambda *_: YES)
    assert "vendor's library ahead" in why_silent(MODEL, offers=lambda *_: SERVING[0])
    assert chosen(MODEL, offers=lambda *_: "no library is at hand")
    monkeypatch.setattr(type(GEMM), "library_faster", lambda *_: no("record", "is not"))
    assert chosen(MODEL, offers=lambda *_: SERVING[0])


@pytest.mark.parametrize("model", [MODEL, replace(MODEL, least_gain=2.0)])
def test_a_plan_takes_estimates_once_whether_the_model_chooses_or_not(model: Any, monkeypatch: Any):
    assert model.stale == ""  # which takes estimates of its probes, once in a process
    counted, rank = [], type(GEMM).rank
    monkeypatch.setattr(type(GEMM), "rank", lambda *asked: counted.append(asked) or rank(*asked))
    chain = ("learned", "analytical")
    chosen = Dispatcher(device="h200_sxm", models=Models([model]), selector=chain).select(PROBLEM)
    assert (chosen.selector, len(counted)) == ("learned" if model is MODEL else "analytical", 1)


@pytest.mark.parametrize("apart", [0.0, 0.1, 0.9])
def test_the_more_its_halves_disagree_the_less_it_expects(apart: float):
    """One half expects that gain more, the other that much less: their mean is the same."""
    first, second = pairwise((*MODEL.trees.roots, len(MODEL.trees.feature)))
    values = [
        value + (0 if feature >= 0 or not value else apart / 2 if at < first[1] else -apart / 2)
        for at, (feature, value) in enumerate(
            zip(MODEL.trees.feature, MODEL.trees.threshold, strict=True)
        )
    ]
    model = replace(MODEL, trees=replace(MODEL.trees, threshold=tuple(values)))
    assert second[1] == len(values)
    found = judged(model, Described(PROBLEM, SERVING, H200))
    assert not isinstance(found, str)
    best = GEMM.estimate(chosen(MODEL)[0].config, PROBLEM, H200).total_us
    of_first = GEMM.estimate(FIRST, PROBLEM, H200).total_us
    gain = np.log(of_first / best) + 0.5 - CAUTION * apart
    assert found.gain == pytest.approx(max(gain, 0), abs=1e-6)
    assert (found.order[0] == found.first) == (gain < 0) == (apart == 0.9)


def test_no_candidates():
    assert "no kernel" in why_silent(MODEL, configs=[])


# --- trees ------------------------------------------------------------------------------------


def grown(rng: random.Random, features: int, trees: int) -> Trees:
    """Trees by chance, of a few nodes each."""
    feature: list[int] = []
    threshold: list[float] = []
    left: list[int] = []
    right: list[int] = []

    def add(deep: int) -> int:
        at = len(feature)
        inner = deep < 5 and rng.random() < 0.8
        feature.append(rng.randrange(features) if inner else LEAF)
        threshold.append(rng.gauss(0, 1))
        left.append(0)
        right.append(0)
        if inner:
            left[at], right[at] = add(deep + 1), add(deep + 1)
        return at

    roots = [add(0) for _ in range(trees)]
    return Trees(*map(tuple, (feature, threshold, left, right, roots)))


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 130])
def test_c_and_numpy_give_the_same_bits(count: int):
    assert trees_module.walker() is not None
    rng = random.Random(count)
    found = grown(rng, 7, 40)
    found.check(7, "here")
    x = np.array([[rng.gauss(0, 1) for _ in range(7)] for _ in range(count)]).reshape(count, 7)
    x[:, ::3] = x[:1, ::3]  # as of a problem that all kernels share
    assert found.halves(x).tolist() == found.in_numpy(x).tolist()
    # One by one: no row depends on others.
    assert [found.values(x[i : i + 1])[0] for i in range(count)] == found.values(x).tolist()
    nodes = [by_hand(found, row) for row in x.tolist()]
    assert found.halves(x).T.tolist() == nodes
    assert found.values(x).tolist() == [one + other for one, other in nodes]


def test_a_copy_of_trees_that_walked_has_addresses_of_its_own():
    found, x = grown(random.Random(1), 3, 5), np.zeros((2, 3))
    told = found.values(x)
    copied = pickle.loads(pickle.dumps(found))
    assert copied == found and "_packed" not in vars(copied)
    assert copied.values(x).tolist() == told.tolist()


def by_hand(found: Trees, row: list[float]) -> list[float]:
    """Of each half of the trees."""
    total = [0.0, 0.0]
    for number, root in enumerate(found.roots):
        at = root
        while found.feature[at] != LEAF:
            right = row[found.feature[at]] > found.threshold[at]
            at = (found.right if right else found.left)[at]
        total[number >= len(found.roots) // 2] += found.threshold[at]
    return total


def test_without_a_compiler_numpy_walks(monkeypatch: Any):
    with_c = [choice.config for choice in chosen(MODEL)]
    monkeypatch.setattr(trees_module, "walker", lambda: None)
    assert [choice.config for choice in chosen(MODEL)] == with_c


def test_columns_of_a_part_of_a_pool_are_those_of_its_configs():
    described = Described(PROBLEM, CONFIGS, H200)
    part = Described(PROBLEM, CONFIGS[::3], H200)
    names = described.names()
    assert "term.memory" in names and "trait.waves" in names and "config.tile_m" in names
    features = [
        Feature(name, (), -1e30, 1e30)
        for name in names
        if not isinstance(described.column(name), str)
        and np.asarray(described.column(name)).dtype.kind != "U"
    ]
    whole, seen = Asked(features).rows(described)
    some, _ = Asked(features).rows(part)
    assert seen.all() and np.isfinite(whole).all()
    by_config = dict(zip(described.pool, whole.tolist(), strict=True))
    assert [by_config[config] for config in part.pool] == some.tolist()


def test_the_same_is_chosen_however_candidates_are_ordered():
    first = chosen(MODEL)[0].config
    assert chosen(MODEL, configs=SERVING[::-1])[0].config == first
    found = judged(MODEL, Described(PROBLEM, SERVING, H200))
    assert not isinstance(found, str)


# --- files ------------------------------------------------------------------------------------


def test_a_file_gives_back_the_models(tmp_path: Path):
    save(Models([MODEL]), tmp_path / "one.json")
    found = load(tmp_path / "one.json")
    assert [*found] == [MODEL]
    assert found.digest == Models([MODEL]).digest
    save(found, tmp_path / "two.json")
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_two_models_of_a_class_are_refused(tmp_path: Path):
    save(Models([MODEL]), tmp_path / "one.json")
    with pytest.raises(BadArgument, match="two models of gemm_bf16"):
        Dispatcher(models=[tmp_path / "one.json", tmp_path / "one.json"])


def written(path: Path, model: Any, more: dict[str, Any] | None = None) -> Path:
    """A file with this model and its right digest. more: what it has besides or instead."""
    text, more = canonical(model), more or {}
    of_class = {"family": "gemm", "digest": sha256(text), "model": text.decode()}
    own = {field: more.get(field, stated) for field, stated in of_class.items()}
    document = {"tilewright_models": SCHEMA, "models": {"gemm_bf16": own}}
    rest = {field: stated for field, stated in more.items() if field not in own}
    path.write_text(json.dumps(document | rest))
    return path


def changed(**trees: Any) -> Any:
    """The model with the first of its two trees, changed."""
    stated = json.loads(json.dumps(asdict(MODEL)))
    nodes = stated["trees"].pop("roots")[1]
    first = {name: values[:nodes] for name, values in stated["trees"].items()}
    stated["trees"] = {**first, "roots": [0], **trees}
    return stated


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        (changed(), {"digest": "0" * 64}, "the model of 'gemm_bf16': was changed or damaged"),
        (changed(), {"model": "{"}, "changed or damaged"),
        (changed(), {"model": "{", "digest": sha256(b"{")}, "line 1, column 2"),
        (changed(), {"family": "conv"}, "it is of 'gemm_bf16', of operation 'gemm'"),
        (changed() | {"lesson": "gemm_fp16"}, {}, "it is of 'gemm_fp16', of operation 'gemm'"),
        (changed(), {"tilewright_models": 1}, "its schema is 1.* train the models again"),
        (changed(), {"more": 1}, "unknown field 'more'"),
        (changed(), {"models": []}, "models"),
        ({}, {}, "missing field 'lesson'"),
        (changed(left=[1, 0, 2, 0, 0]), {}, "children of node 2 are 2 and 4"),
        (changed(right=[2, 0, 5, 0, 0]), {}, "children of node 2 are 3 and 5"),
        (changed(left=[2, 0, 3, 0, 0]), {}, "a node of the tree at 0 has not one parent"),
        (changed(roots=[0, 2]), {}, "children of node 0 are 1 and 2"),
        (changed(roots=[1]), {}, "roots do not rise from 0"),
        (changed(roots=[0, 0]), {}, "roots do not rise from 0"),
        (changed(feature=[99, -1, 0, -1, -1]), {}, r"feature\[0\] is 99"),
        (changed(feature=[-2, -1, 0, -1, -1]), {}, r"feature\[0\] is -2"),
        (changed(left=[1, 2, 3, 0, 0]), {}, "node 1 is a leaf with children"),
        (changed(roots=[0, 5]), {}, "roots do not rise from 0 to below 5"),
        (changed(threshold=[0.5, 0.0]), {}, "threshold has 2 values of 5 nodes"),
        (asdict(replace(MODEL, least_gain=-1.0)), {}, "least_gain is -1.0"),
        (asdict(replace(MODEL, features=())), {}, "features are 1 to"),
        (asdict(replace(MODEL, archs=())), {}, "names no architecture"),
        (asdict(replace(MODEL, probes=())), {}, "has no probes"),
        (
            asdict(replace(MODEL, probes=(replace(MODEL.probes[0], answers=()),))),
            {},
            "a probe has 8 kernels, 8 estimates and 0 answers",
        ),
        (asdict(replace(MODEL, features=MODEL.features[:1] * 2)), {}, "a name of its own"),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, model: Any, more: Any, said: str):
    with pytest.raises(BadFile, match=said) as raised:
        [*load(written(tmp_path / "model.json", model, more))]
    assert "\n" not in str(raised.value)


def test_a_class_is_read_when_a_problem_of_it_is_met(tmp_path: Path):
    """So what is wrong with another one is said where that is asked for, and by `learn explain`."""
    path = tmp_path / "models.json"
    save(Models([MODEL, replace(MODEL, lesson="gemm_fp16")]), path)
    document = json.loads(path.read_text())
    document["models"]["gemm_fp16"]["model"] += " "
    path.write_text(json.dumps(document))
    models = load(path)
    assert len(models) == 2
    dispatcher = Dispatcher(device="h200_sxm", models=models)
    assert dispatcher.select(PROBLEM).selector == "learned"
    said = "models.json: the model of 'gemm_fp16': was changed or damaged"
    with pytest.raises(BadFile, match=said):
        dispatcher.select(replace(PROBLEM, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16"))
    shown = CliRunner().invoke(app, ["learn", "explain", str(path)])
    assert shown.exit_code != 0 and said in shown.output.replace("\n", " ")


@pytest.mark.turns(80)
def test_no_mutation_of_a_file_raises_another_error(tmp_path: Path):
    rng, path = random.Random(0), tmp_path / "model.json"
    save(Models([MODEL]), path)
    whole = path.read_bytes()
    refused = 0
    for trial in range(5000):
        if trial % 2:
            content = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(content))
                content[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
            path.write_bytes(content)
        else:
            model = json.loads(json.dumps(asdict(MODEL)))
            mutate(model, rng)
            written(path, model)
        try:
            found = load(path)
            assert len([*found]) == len(found)
        except BadFile as error:
            refused += 1
            assert "\n" not in str(error)
        else:  # whatever it says, choosing by it ends
            Learned(found).silence(PROBLEM, SERVING[:20], H200)
    assert 2000 < refused < 5000


def mutate(value: Any, rng: random.Random) -> None:
    """Change something in lists and objects inside one another."""
    keys = [*value] if isinstance(value, dict) else [*range(len(value))]
    if not keys:
        return
    key = rng.choice(keys)
    inner = value[key]
    if isinstance(inner, dict | list) and inner and rng.random() < 0.8:
        mutate(inner, rng)
    elif rng.random() < 0.2:
        del value[key]
    else:
        value[key] = rng.choice(
            [None, True, -1, 0, 1, 3, 7, 10**9, 2**63, -1e300, 0.5, "", "gemm", [], {}, [inner]]
        )
