"""The layers that `fused-moe` compares compute the same, cells are drawn by a seed, and what is
built ahead is what is called."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_rivals import scaled_by_rows

import moe_layers
import rivals_declared
import rivals_moe
from cases import fused_moe as case
from moe_layers import LOADS, Cell, Model
from tilewright import capturing
from turn import Turn

SIZES = {
    "small": Model(64, 32, 6, 2),
    "small clamped": Model(64, 32, 6, 2, clamped=True),
    "blocks": Model(256, 128, 6, 2),
}


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    for name, size in SIZES.items():
        monkeypatch.setitem(moe_layers.MODELS, name, size)


def prepared(model, load="balanced", tokens=9):
    cell = Cell("fp8" if model == "blocks" else "bf16", model, 1, tokens, load)
    return cell, moe_layers.operands(cell, "cpu"), moe_layers.routings(cell, "cpu")


@pytest.mark.turns(24)
@pytest.mark.parametrize("model", SIZES)
@pytest.mark.parametrize("load", LOADS)
def test_all_sides_compute_what_is_right(model, load, monkeypatch):
    monkeypatch.setattr(torch, "_scaled_grouped_mm", scaled_by_rows)
    monkeypatch.setattr(moe_layers, "_compiled", lambda part: part)
    cell, given, routed = prepared(model, load)
    routed = routed[:1]
    ours = case.our_layers(cell, given)
    del ours[case.ATOMIC]  # is tried in the interpreter
    layers = {**ours, **moe_layers.torch_layers(cell, given)}
    assert len(layers) == (5 if model == "blocks" else 3)
    assert case.right(cell, given, layers, routed) == {}
    for layer in layers.values():
        assert layer(given.x, *routed[0]).dtype == torch.bfloat16


def test_what_is_not_right_is_left_out_and_ours_must_be():
    cell, given, routed = prepared("small")

    def absent(*operands):
        raise RuntimeError("not for this GPU")

    def nothing(x, weights, ids):
        return torch.full_like(x, torch.nan)

    layers = {"torch": absent, "torch, compiled": nothing}
    wrong = case.right(cell, given, layers, routed)
    assert wrong["torch"] == "not for this GPU" and "inf" in wrong["torch, compiled"]
    for name in (case.OURS, case.TRITON):
        with pytest.raises(ValueError, match=name):
            case.right(cell, given, {name: nothing}, routed)


@pytest.mark.turns(4)
@pytest.mark.parametrize("model", SIZES)
def test_kernels_that_are_built_ahead_are_those_of_calls(model, tmp_path, monkeypatch):
    cell, given, routed = prepared(model)
    with capturing.capture(path := tmp_path / "problems.jsonl"):
        case.our_layers(cell, given)[case.OURS](given.x, *routed[0])
    monkeypatch.setattr(case, "cells", lambda: {"cell": cell})
    assert {*capturing.load(path)} == {*case.asked("cell")}


def test_loads_are_what_they_say():
    moe_layers.MODELS["wide"] = Model(8, 8, 64, 4)
    counts = {}
    for load in LOADS:
        (_, ids), (_, others), *_ = moe_layers.routings(Cell("bf16", "wide", 1, 400, load), "cpu")
        assert all(len({*row}) == 4 for row in ids.tolist())
        assert not torch.equal(ids, others)
        counts[load] = ids.flatten().bincount(minlength=64)
    assert counts["skewed"].max() > 4 * counts["balanced"].max()
    assert [int((counts[load] == 0).sum()) for load in LOADS] == [0, 0, 32]


@pytest.mark.parametrize("dtype", moe_layers.DTYPES)
def test_cells_are_drawn_by_a_seed_and_cover_models_tokens_and_loads(dtype):
    drawn = moe_layers.drawn(dtype)
    assert drawn == moe_layers.drawn(dtype)
    assert [(cell.model, cell.ranks) for cell in drawn] == moe_layers.pairs(dtype)
    tokens = sorted(cell.tokens for cell in drawn)
    assert tokens[0] <= 2 and 2 * tokens[-1] > moe_layers.MOST_TOKENS
    assert all(b <= 8 * a for a, b in pairwise(tokens))
    loads = Counter(cell.load for cell in drawn)
    assert max(loads.values()) - min(loads.values()) <= 1 and len(loads) == len(LOADS)
    if dtype == "fp8":
        assert all(cell.sizes.hidden % 128 == cell.inner % 128 == 0 for cell in drawn)


# --- the rival in Triton ------------------------------------------------------------------------


def printed(script, **variables):
    """The lines of a script beside this file."""
    here = {"PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / script)], capture_output=True, text=True,
        env={**os.environ, **here},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.turns(8)
def test_the_rival_is_right_in_the_interpreter():
    found = dict(line.split(": ") for line in printed("moe_interpreted.py"))
    assert len(found) == 5
    for name, far in found.items():
        assert float(far) < (0.8 if name.startswith("fp8") else 0.01), name


@pytest.mark.turns(8)
def test_calls_find_the_kernels_that_were_built_ahead(tmp_path):
    lines = printed("moe_compiled.py", TRITON_CACHE_DIR=str(tmp_path))
    assert lines == ["2 2", "4 4"]


@pytest.mark.parametrize("eight", [False, True])
def test_blocks_are_those_of_engines_and_fit(eight):
    for m in rivals_moe.HEIGHTS:
        some = rivals_moe.blocks(m, 4096, eight)
        assert len({*some}) == len(some) >= 8
        for one in some:
            assert 4096 % one.k == 0
            size = one.stages * (one.m + one.n) * one.k * (1 if eight else 2)
            assert size <= rivals_moe.SHARED_BYTES
    uneven = rivals_moe.blocks(64, 720, False)
    assert uneven and {one.k for one in uneven} == {64}


def test_rows_of_blocks_follow_the_rows_of_experts():
    assert rivals_moe.heights(0.1) == (16, 32)
    assert rivals_moe.heights(40) == (64, 128)
    assert rivals_moe.heights(200) == (64, 128)
    assert rivals_moe.heights(2000) == (128,)


class Times:
    """A race that knows how long each call takes."""

    def __init__(self, us):
        self.us, self.asked = us, []

    def __call__(self, calls, settings):
        self.asked.append([*calls])
        return {name: self.us(name) for name in calls}


def test_a_race_finds_the_fastest_block_and_then_its_band():
    some = rivals_moe.blocks(64, 4096, False)
    best = some[7]

    def us(one):
        same = (one.n, one.k, one.warps, one.stages) == (best.n, best.k, best.warps, best.stages)
        return (5 if same else 10) + abs(one.band - 8) / 100

    race = Times(us)
    took, found = rivals_moe.fastest(some, lambda one: None, race)
    assert took == 5 and (found.n, found.k, found.band) == (best.n, best.k, 8)
    assert [len(asked) for asked in race.asked] == [len(some), 3, 3]


def test_all_that_a_race_compiles_is_built_ahead():
    cell = Cell("bf16", "gpt-oss-120b", 4, 16, "balanced")
    size = cell.sizes
    depths = (size.hidden, cell.inner)
    found = rivals_moe.builds(cell.tokens, size.k, size.experts, depths, False)
    for m in rivals_moe.heights(cell.tokens * size.k / size.experts):
        for depth in depths:
            for one in rivals_moe.blocks(m, depth, False):
                key = (one.m, one.n, one.k, one.warps, one.stages, depth % one.k == 0)
                assert any(
                    key == (b.block.m, b.block.n, b.block.k, b.block.warps, b.block.stages, b.even)
                    for b in found
                )


# --- a contest, without a GPU -------------------------------------------------------------------


def added(rows, places, weights):
    terms = rows[places.long()].float() * weights[..., None]
    return terms.sum(1).to(rows.dtype)


class Triton:
    """Ours in place of the layer in Triton."""

    first = second = rivals_moe.ANY

    def __init__(self, layer):
        self.call = layer

    def __call__(self, *given):
        return self.call(*given)


def test_a_contest_has_everybody_who_is_right(monkeypatch):
    cell, given, routed = prepared("small")
    asked = []

    def chosen(layer, x, weights, ids, race):
        asked.append((layer.k, layer.clamp, tuple(ids.shape), race))
        return Triton(case.our_layers(cell, given)[case.OURS])

    monkeypatch.setattr(case, "GPU", "cpu")
    monkeypatch.setattr(case, "cells", lambda: {"cell": cell})
    monkeypatch.setattr(rivals_moe, "on_device", lambda flush, place: (flush, place))
    monkeypatch.setattr(rivals_moe, "chosen", chosen)
    monkeypatch.setattr(moe_layers, "routings", lambda *words: routed[:1])
    monkeypatch.setattr(rivals_moe, "added_in_any_order", added)
    monkeypatch.setattr(moe_layers, "_compiled", wrongly)
    said = []
    found = case.contest("cell", 0, SimpleNamespace(flush="flush"), said.append)
    assert asked == [(2, None, (9, 2), ("flush", "cpu"))]
    assert [*found.calls] == [case.OURS, case.ATOMIC, case.TRITON, "torch"]
    assert found.vendor == ("torch",) and [*found.wrong] == ["torch, compiled"]
    assert found.count == cell.calls == 8
    found.calls["torch"]()
    assert any("raced in" in text for text in said)


def wrongly(part):
    """A part as a compiler that errs makes it."""

    def call(*given):
        made = part(*given)
        return made if isinstance(made, tuple) else made * 2

    return call


@pytest.mark.parametrize("model", SIZES)
def test_what_is_compiled_ahead_is_what_is_called(model, monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "_scaled_grouped_mm", scaled_by_rows)
    cell, given, routed = prepared(model)
    asked = []

    def compiled(part):
        def call(*given):
            asked.append((part.__name__, *map(told, torch.utils._pytree.tree_leaves(given))))
            return part(*given)

        return call

    def told(one):
        return (one.shape, one.stride(), one.dtype) if isinstance(one, torch.Tensor) else one

    monkeypatch.setattr(moe_layers, "_compiled", compiled)
    monkeypatch.setattr(rivals_declared, "time_alone", lambda turn: None)
    moe_layers.compile_ahead(cell, Turn(tmp_path / "gpu"), "cpu")
    before, asked[:] = {*asked}, []
    for layer in moe_layers.torch_layers(cell, given).values():
        layer(given.x, *routed[0])
    assert {*asked} == before and len(before) == (5 if model == "blocks" else 3)


def test_rivals_compile_a_part_for_each_cell_and_each_block_once():
    names = [name for name, cell in case.cells().items() if cell.dtype == "bf16"]
    jobs = case.ahead(names)
    parts, blocks = jobs[: len(names)], jobs[len(names) :]
    assert [str(job.args[0]) for job in parts] == names
    every = [one for job in blocks for one in job.args[0]]
    assert len({*every}) == len(every) > 50
    pickle.loads(pickle.dumps(jobs))  # they go to workers
