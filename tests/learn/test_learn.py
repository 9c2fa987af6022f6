"""Models from measurements: what is read, that nothing leaks from problems held out, and that what
is planted is learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import learned_cases
import numpy as np
import pytest
from learned_cases import GEMM, H200, PROBLEMS, QUICK, made

from tilewright import ops
from tilewright.errors import BadArgument, BadFile, TilewrightError
from tilewright.learn import judge, matrix, train
from tilewright.measure.results import Results
from tilewright.select.features import Described
from tilewright.select.model import Asked, Models, load, save

# --- what is read -------------------------------------------------------------------------------


@pytest.mark.turns(4)
def test_losers_are_kept_and_only_kernels_that_were_timed_are_learned_from(folder: Path):
    blocks = matrix.blocks(matrix.read([folder]))
    assert {block.problem for block in blocks} == {*PROBLEMS}
    for block in blocks:
        assert {*block.us} == {*learned_cases.configs(block.problem)}
        assert block.best_us == pytest.approx(
            min(learned_cases.us_of(config, block.problem) for config in block.us)
        )


def test_parquet_holds_the_same_with_its_provenance(folder: Path, tmp_path: Path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "measured.parquet"
    cells = [*matrix.read([folder])]
    assert matrix.write(cells, path, "1234") == len(cells)
    again = [*matrix.read([path])]
    assert again == cells
    assert {cell.status for cell in again} == {"ok", "crashed"}
    assert matrix.commit_of(path) == "1234" and matrix.commit_of(folder) == ""
    assert {cell.samples for cell in again if cell.us} == {3}


@pytest.mark.parametrize("name", ["problem", "device", "settings", "versions", "us", "kernel"])
def test_a_damaged_parquet_file_is_refused(folder: Path, tmp_path: Path, name: str):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "measured.parquet"
    matrix.write(matrix.read([folder]), path)
    table = pq.read_table(path)
    wrong: Any = -1.0 if name == "us" else None if name == "kernel" else "{"
    column = pa.array([wrong] * len(table), table.schema.field(name).type)
    at = table.schema.get_field_index(name)
    pq.write_table(table.set_column(at, table.schema.field(name), column), path)
    with pytest.raises(BadFile):
        [*matrix.read([path])]
    pq.write_table(table.drop_columns([name]), path)
    with pytest.raises(BadFile, match=f"no column {name}"):
        [*matrix.read([path])]
    path.write_bytes(b"PAR1 no parquet")
    with pytest.raises(BadFile):
        [*matrix.read([path])]


def test_times_of_two_ways_are_not_mixed(tmp_path: Path):
    problem = PROBLEMS[0]
    names = [config.name for config in learned_cases.configs(problem)[:4]]
    single = replace(QUICK, timer="events", cache="flushed")
    with Results(tmp_path, write=True) as results:
        results.add(made(name, problem, (1.0, 2.0, 3.0)) for name in names[:3])
        results.add(made(name, problem, (5.0, 6.0, 7.0), settings=single) for name in names)
        results.add([made(names[0], PROBLEMS[1], (1.0, 2.0, 3.0))])
    (block,) = matrix.blocks(matrix.read([tmp_path]))  # one kernel alone teaches nothing
    assert block.problem == problem and {*block.us.values()} == {6.0} and len(block.us) == 4


# --- problems held out --------------------------------------------------------------------------


def test_kin_are_held_out_together(sheets: list[train.Sheet]):
    parts = judge.folds(sheets, 3)
    assert sorted(number for part in parts for number in part) == [*range(len(sheets))]
    kins = [{GEMM.kin(sheets[n].block.problem) for n in part} for part in parts]
    assert sum(map(len, kins)) == len(set().union(*kins)) == 6
    assert {len(part) for part in parts} == {6}
    with pytest.raises(BadArgument, match="too few"):
        judge.folds(sheets, 7)


def test_kin_are_what_says_much_about_each_other():
    gemm, conv, attention = map(ops.family, ("gemm", "conv", "attention"))
    one = gemm.problem_type(64, 128, 256)
    assert gemm.kin(one) == gemm.kin(replace(one, m=65, alignment=0))
    assert gemm.kin(one) != gemm.kin(gemm.problem_type(64, 128, 512))
    layer = conv.problem_type(8, 64, 64, (32, 32), (3, 3), pad=(1, 1))
    assert conv.kin(layer) == conv.kin(replace(layer, n=16))
    assert conv.kin(layer) == conv.kin(replace(layer, spatial=(64, 64)))
    for name, value in (
        ("stride", (2, 2)),
        ("pad", (2, 2)),
        ("pad_after", (2, 1)),
        ("dilation", (2, 2)),
        ("groups", 2),
        ("filter", (5, 5)),
        ("c", 32),
    ):
        assert conv.kin(layer) != conv.kin(replace(layer, **{name: value})), name
    assert conv.lesson(layer) != conv.lesson(replace(layer, direction="weights"))
    heads = attention.problem_type(1, 32, 512, 512, 128)
    assert attention.kin(heads) == attention.kin(replace(heads, q_len=64, batch=4))
    assert attention.kin(heads) != attention.kin(replace(heads, kv_heads=8))
    backward = ops.family("attention_backward")
    gradients = backward.problem_type(1, 32, 512, 512, 128)
    assert backward.kin(gradients) == backward.kin(replace(gradients, batch=4, q_len=64))
    assert backward.kind(gradients) != backward.kind(replace(gradients, q_len=4096, kv_len=4096))


def test_a_problem_held_out_has_no_part_in_its_model_or_its_guard(
    sheets: list[train.Sheet], monkeypatch: Any
):
    seen: list[set[Any]] = []

    def trained(some: Any, *more: Any) -> Any:
        seen.append({sheet.block.problem for sheet in some})
        return len(seen) - 1

    asked: list[tuple[Any, int]] = []
    monkeypatch.setattr(judge, "train", trained)
    monkeypatch.setattr(judge, "verdict", lambda model, s: asked.append((s.block.problem, model)))
    monkeypatch.setattr(judge, "guard", len)
    found = judge.crossed(sheets, "gemm_bf16", 3)
    assert len(asked) == len(sheets)
    for problem, model in asked:
        assert GEMM.kin(problem) not in {GEMM.kin(other) for other in seen[model]}
    assert {*found.guards} == {12}


@pytest.fixture(scope="module")
def halves() -> list[train.Sheet]:
    """Problems of another class, of the kin of some of the sheets', whose kernels err alike."""
    names = {"dtype_a": "fp16", "dtype_b": "fp16", "dtype_c": "fp16"}
    problems = [replace(problem, **names) for problem in PROBLEMS[::2]]
    return [train.Sheet(learned_cases.block(problem)) for problem in problems]


def test_other_classes_are_learned_from_without_kin_held_out(
    sheets: list[train.Sheet], halves: list[train.Sheet], monkeypatch: Any
):
    every: dict[str, Any] = {"gemm_bf16": sheets, "gemm_fp16": halves, "gemm_e4m3fn": ["another"]}
    assert judge.beside(every, "gemm_fp16") == sheets
    assert not judge.beside(every, "gemm_e4m3fn")
    layers: dict[str, Any] = {"conv_bf16_data": [1], "conv_fp16_data": [2], "conv_fp16_weights": []}
    assert judge.beside(layers, "conv_bf16_data") == [2]
    calls: list[tuple[set[Any], set[Any], Any]] = []

    def trained(some: Any, lesson: str, trees: int, grow: Any, beside: Any) -> Any:
        calls.append(tuple({GEMM.kin(s.block.problem) for s in side} for side in (some, beside)))
        return None

    monkeypatch.setattr(judge, "train", trained)
    monkeypatch.setattr(judge, "verdict", lambda *_: None)
    monkeypatch.setattr(judge, "guard", len)
    judge.crossed(halves, "gemm_fp16", 3, beside=sheets)
    assert len(calls) == 3
    for own, other in calls:
        assert other == own and len(own) < 6  # those held out are of the kin that lack


def test_other_classes_weigh_less_and_what_only_they_have_is_not_asked_about(
    sheets: list[train.Sheet], halves: list[train.Sheet]
):
    told: list[Any] = []

    def grow(x: Any, estimated: Any, us: Any, weights: Any, trees: int) -> Any:
        told.append((len(x), [*weights]))
        return learned_cases.STUMP, [1.0] * x[0].shape[1]

    own = [halves[0], halves[3]]  # of 64 rows
    model = train.train(own, "gemm_fp16", 2, grow, sheets)
    assert told == [(20, [1.0, 1.0] + [train.BESIDE] * 18)]
    assert model.made["beside"] == 18 and model.made["problems"] == 2
    ranges = {one.name: one for one in model.features}
    assert ranges["problem.dtype_a"].words == ("fp16",)
    assert ranges["problem.m"].high == 64
    assert "was not among" in model.unseen(sheets[0].described)  # a class is asked about its own
    assert not model.unseen(own[0].described)


def one(estimate: float, model: float, gain: float, kind: str = "") -> Any:
    return judge.Verdict(None, kind, None, None, None, (estimate, model), (1, 1), gain, "", 2)


def test_the_least_gain_is_what_pays():
    right = [one(0.8, 1.0, 0.12), one(0.8, 1.0, 0.2)] * 4
    wrong = [one(1.0, 0.9, 0.011)] * 8
    assert 0.011 < judge.least_gain(right + wrong) <= 0.12
    assert judge.least_gain(wrong) == judge.GAINS[-1]
    assert judge.least_gain(wrong[:4] + [one(0.9, 1.0, 0.011)] * 4) == judge.GAINS[-1]  # by chance


def test_a_model_is_silent_on_kinds_of_which_it_is_behind_by_more_than_the_error():
    ahead = [one(0.8, 1.0, 0.2, "large")] * 8
    lost = [one(1.0, 0.9, 0.2, "small"), one(0.95, 1.0, 0.2, "small")]
    found = judge.guard(ahead + lost[:1])
    assert found.silent_kinds == ("small",)
    assert [v.chosen(found)[0] for v in (ahead[0], *lost)] == [1.0, 1.0, 0.95]
    assert judge.guard(ahead + lost).silent_kinds == ()  # two problems may be chance
    assert judge.guard(ahead * 4 + lost * 8 + lost[:1] * 8).silent_kinds == ("small",)


def test_the_worst_problems_say_why_the_estimates_first_stayed():
    best, second, third = (SimpleNamespace(name=name) for name in "abc")
    gained = replace(one(0.7, 0.9, 0.2), best=best, estimated=second, learned=third)
    found = [
        (gained, ""),
        (replace(gained, gain=0.01), "the least gain"),
        (replace(gained, kind="small"), "its kind"),
        (replace(gained, learned=second, gain=0.0), "the model has it first too"),
        (replace(gained, silent="m 1 is outside"), "the problem is outside what it learned from"),
    ]
    guards = (judge.Guard(0.05, ("small",)),) * len(found)
    listed = judge.worst(judge.Judged(tuple(v for v, _ in found), guards))
    assert sorted(said["stays"] for said in listed) == sorted(why for _, why in found)


# --- what is learned ----------------------------------------------------------------------------


def test_what_is_planted_is_learned_and_judged_on_problems_held_out(learned: Any):
    model, found = learned
    told = judge.report(found.verdicts, found.guards)
    assert told["problems"] == len(PROBLEMS) and told["candidates"] > 20
    assert told["estimate"]["mean"] + 2 < told["served"]["mean"] < told["learned"]["mean"] + 0.1
    assert told["served"]["top_1"] > told["estimate"]["top_1"]
    assert sum(g["problems"] for g in told["by_kind"].values()) == len(PROBLEMS)
    assert sum(g["problems"] for g in told["by_pipeline"].values()) == len(PROBLEMS)
    counts = {v.problem: v.candidates for v in found.verdicts}
    ranges = {"16 to 39": range(16, 40), "40 to 63": range(40, 64)}
    assert {word: g["problems"] for word, g in told["by_candidates"].items()} == {
        word: n for word, some in ranges.items() if (n := sum(c in some for c in counts.values()))
    }
    assert [judge._range(n) for n in (2, 15, 16, 63, 64)] == [
        "2 to 15", "2 to 15", "16 to 39", "40 to 63", "64 and more",
    ]  # fmt: skip
    assert next(iter(model.made["importance"])) == "config.pipeline"
    assert 0 < model.least_gain < 0.2
    assert (model.archs, model.devices) == (("sm_90",), (H200.name,))


def test_a_model_is_the_same_every_time(sheets: list[train.Sheet], learned: Any, tmp_path: Path):
    model, _ = learned
    assert train.train(sheets, "gemm_bf16", 20).trees == model.trees
    save(Models([model]), tmp_path / "model.json")
    assert [*load(tmp_path / "model.json")] == [model]


def test_the_trees_are_lightgbms(sheets: list[train.Sheet]):
    lightgbm = pytest.importorskip("lightgbm")
    features = train.features_of(sheets)
    x = np.concatenate([Asked(features).rows(sheet.described)[0] for sheet in sheets])
    y = np.concatenate([np.log(sheet.us) for sheet in sheets])
    booster = lightgbm.train(train.PARAMETERS, lightgbm.Dataset(x, y), 20)
    trees = train.trees_of(booster)
    trees.check(len(features), "here")
    assert max(map(trees.feature.__getitem__, trees.roots)) >= 0
    np.testing.assert_allclose(trees.values(x), booster.predict(x), rtol=0, atol=1e-12)
    assert trees.halves(x).tolist() == trees.in_numpy(x).tolist()


def test_too_few_kernels_are_one_sentence(sheets: list[train.Sheet]):
    pytest.importorskip("lightgbm")
    two = [train.Sheet(replace(s.block, us=dict([*s.block.us.items()][:2]))) for s in sheets[:2]]
    with pytest.raises(TilewrightError, match="2 problems with 4 kernels are too few"):
        train.train(two, "gemm_bf16")


def test_residuals_are_centred_and_fast_kernels_weigh_more(sheets: list[train.Sheet]):
    for sheet in sheets[:3]:
        found, weights = train.residuals((np.log(sheet.described.us), np.log(sheet.us)))
        assert np.average(found, weights=weights) == pytest.approx(0)
        assert weights.max() == 1
        order = np.argsort(sheet.us)
        assert (np.diff(weights[order]) <= 0).all()


def test_the_objective_draws_choices_to_the_fastest_kernel():
    guess, log = np.log([2.0, 1.0, 3.0]), np.log([1.0, 1.2, 3.0])
    slope = train.listwise([(guess, log), (log, log)], [1.0, 1.0])
    first, bend = slope(np.zeros(6), None)
    light = train.listwise([(guess, log), (log, log)], [0.5, 1.0])(np.zeros(6), None)
    assert light[0][:3] == pytest.approx(first[:3] / 2)
    assert light[1] == pytest.approx(bend * [0.5, 0.5, 0.5, 1.0, 1.0, 1.0])
    assert first[0] > 0 > first[1] and bend.min() > 0  # the first is to be expected to be faster
    assert first[3:] == pytest.approx(np.zeros(3))  # nothing is wrong with exact estimates

    def loss(more: Any) -> float:
        def chance(x: Any) -> Any:
            q = np.exp(-x / train.SOFTNESS)
            return q / q.sum()

        return float(-(chance(log) * np.log(chance(guess + more))).sum())

    step = np.array([0.0, 1e-6, 0.0])
    by_difference = (loss(step) - loss(-step)) / 2e-6
    assert first[1] / train.SOFTNESS == pytest.approx(by_difference, rel=1e-4)


def test_no_feature_names_a_device(learned: Any):
    model, _ = learned
    assert {one.name.partition(".")[0] for one in model.features} <= {
        "problem", "config", "term", "trait", "work", "us",
    }  # fmt: skip
    problem, configs = PROBLEMS[0], learned_cases.configs(PROBLEMS[0])
    names = Described(problem, configs, H200).names()
    assert names == Described(problem, configs, replace(H200, name="another")).names()


def test_a_layer_by_gemm_is_told_which_kernel_of_gemm_it_is():
    conv = ops.family("conv")
    layer = conv.problem_type(64, 960, 1280, (1, 1), (1, 1))
    tile = "64x64x128_w4_s6"
    names = [
        f"conv_forward_2d_gemm_rcr_bf16_bf16_bf16_fp32_{tile}_{kernel}_tile_g1_direct_padmnk_al16"
        "_pdl-wait"
        for kernel in ("small_m", "small_m_tma")
    ]
    found = Described(layer, [conv.parse_name(name) for name in names], H200)
    assert sorted(found.column("trait.kernel")) == ["small_m", "small_m_tma"]
    assert found.column("trait.ring").tolist() == [(64 + 64) * 128 * 6] * 2
    assert found.column("trait.rounds").tolist() == pytest.approx([8 / 6] * 2)


def test_a_librarys_algorithms_beside_kernels_of_a_layer_are_not_described():
    conv = ops.family("conv")
    layer = conv.problem_type(64, 960, 1280, (1, 1), (1, 1))
    gemm = "conv_forward_2d_gemm_rcr_bf16_bf16_bf16_fp32"
    names = [
        f"{gemm}_vendor_cublaslt13_66_t7_s35_k1_none_z0_o2_i0_c5_ws0_al16",
        f"{gemm}_64x64x128_w4_s6_small_m_tile_g1_direct_padmnk_al16_pdl-wait",
        "conv_forward_2d_bf16_bf16_vendor_cudnn9_16_ws1_al16",
    ]
    found = Described(layer, [conv.parse_name(name) for name in names], H200)
    assert [config.name for config in found.pool] == names[1:2]
    assert [found.column(name) for name in found.names()]
    assert found.column("trait.tile rows").tolist() == [64]


@pytest.mark.parametrize(("n", "k", "rows"), [(4096, 4096, (128, 128)), (904, 72, (16, 16))])
def test_models_are_told_whether_rows_begin_where_lines_do(n: int, k: int, rows: tuple[int, int]):
    problem = GEMM.problem_type(16, n, k)
    found = Described(problem, learned_cases.configs(problem), H200)
    assert (found.column("trait.rows of a"), found.column("trait.rows of c")) == rows
