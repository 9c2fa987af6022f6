"""Tables that come with the package: a selector of its own, after the user's tables."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from table_cases import H20, H200, PLAIN, WIDE, gemm, kernel, row

import choice_gain
import selection
from tilewright import ops, tables
from tilewright.arch import device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadFile
from tilewright.ops.gemm import FAMILY
from tilewright.select import shipped
from tilewright.select.configured import NAMES
from tilewright.tables import file, named
from tilewright.tables.row import still_serves
from tilewright.tables.table import Table

WIDE_HALF = {"dtype_a": "fp16", "tile_n": 128}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Has a table of one row, for M = 64 on an H200."""
    monkeypatch.setattr(named, "FOLDER", tmp_path)
    monkeypatch.delenv("TILEWRIGHT_TABLES", raising=False)
    (tmp_path / "sm_90").mkdir()
    file.save(Table.of([row(gemm(64), WIDE)]), tmp_path / "sm_90" / "gemm_bf16.json")
    return tmp_path


def test_a_shipped_row_answers_without_being_asked_for(folder):
    plan = Dispatcher(device=H200).select(gemm(64))
    assert (plan.selector, plan.config.name) == ("shipped", WIDE)
    assert plan.reason.startswith("exact row of shipped sm_90/gemm_bf16.json: ")
    assert Dispatcher(device=H200).select(gemm(64, dtype_a="fp32")).selector == "analytical"
    assert Dispatcher(device=device("a100_sxm_80gb")).select(gemm(64)).selector == "analytical"
    assert Dispatcher(device=H200, selector="analytical").select(gemm(64)).selector == "analytical"


def test_a_row_in_bf16_answers_for_fp16_behind_fp16s_own(folder):
    half, file_of_fp16 = gemm(64, dtype_a="fp16"), folder / "sm_90" / "gemm_fp16.json"
    plan = Dispatcher(device=H200).select(half)
    assert (plan.selector, plan.config) == ("shipped", FAMILY.parse_name(kernel(**WIDE_HALF)))
    assert plan.reason.startswith("in bf16 of shipped sm_90/gemm_bf16.json: 10 µs")
    own = kernel(dtype_a="fp16")
    file.save(Table.of([row(half, own)]), file_of_fp16)
    shipped._read.cache_clear()
    plan = Dispatcher(device=H200).select(half)
    assert plan.config.name == own
    assert plan.reason.startswith("exact row of shipped sm_90/gemm_fp16.json: ")
    assert Dispatcher(device=H200).select(gemm(64)).config.name == WIDE


def test_another_gpu_of_the_architecture_borrows_it(folder):
    plan = Dispatcher(device=H20).select(gemm(64))
    assert plan.selector == "shipped" and "borrowed from NVIDIA H200" in plan.reason


def test_the_users_table_comes_first(folder):
    mine = Table.of([row(gemm(64), PLAIN), row(gemm(96), PLAIN)])
    dispatcher = Dispatcher(device=H200, tables=mine)
    assert dispatcher.select(gemm(64)).selector == "tuned"
    assert dispatcher.select(gemm(64)).config.name == PLAIN
    mine = Table.of([row(gemm(512), PLAIN)])
    assert Dispatcher(device=H200, tables=mine).select(gemm(64)).selector == "shipped"
    assert NAMES.index("tuned") < NAMES.index("shipped") < NAMES.index("analytical")


def test_it_is_read_once_and_damage_is_named(folder):
    first = [shipped._tuned(gemm(m), H200) for m in (64, 128)]
    assert first[0] is first[1] is not None
    (folder / "sm_90" / "gemm_int8.json").write_text("{}")
    with pytest.raises(BadFile, match=r"gemm_int8\.json: is no table"):
        Dispatcher(device=H200).select(gemm(64, dtype_a="int8"))


PACKAGED = sorted((Path(tables.__path__[0]) / "shipped").rglob("*.json"))


@pytest.mark.turns(8)
def test_there_are_tables_for_the_h200():
    """A row for most of the sizes that are to be had."""
    rows = {path.name: len(file.load(path)) for path in PACKAGED if path.parent.name == "sm_90"}
    assert rows["gemm_bf16.json"] > 1500 and rows["gemm_e4m3fn.json"] > 1400
    assert rows["gemm_int8.json"] > 500 and rows["gemm_fp16.json"] > 350
    by_int4 = file.load(next(path for path in PACKAGED if path.name == "gemm_bf16.json"))
    assert sum(row.problem.dtype_b == "int4" for row in by_int4) > 250


@pytest.mark.grid(2)
@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_table_in_the_package_stands_where_it_is_looked_for_and_its_kernels_serve(path):
    table = file.load(path)
    every = 1 if selection.everything() else 16
    for one in [*table][selection.chance(path.name) % every :: every]:
        assert one.device.arch == path.parent.name
        assert path.stem == ops.family(one.problem.family).table(one.problem)
        for name in one.kernels:
            assert still_serves(name, one), (name, one.problem)
    # Written anew it is the same, so that a change is one of rows.
    assert path.read_text() == file.to_json(table)


def test_the_report_beside_them_counts_these_rows():
    counted, kernels = Counter(), set()
    for path in PACKAGED:
        table = json.loads(path.read_text())
        for one in table["rows"]:
            gpu = table["devices"][one["device"]]["name"]
            counted[gpu] += 1
            kernels.add((json.dumps(one["problem"]), gpu, one["kernel"]))
    report = (PACKAGED[0].parent / "report.md").read_text()
    told = Counter()
    for gpu, rows in re.findall(r"^\| `.*` \| (NVIDIA .*) \| (\d+) \| \d+ \| .* \|$", report, re.M):
        told[gpu] += int(rows)
    assert told == counted
    # Of what was compared, that whose kernel is the same still.
    lines = choice_gain.rows("shipped_h200.json", "problems")
    same = sum((json.dumps(x["problem"]), H200.name, x["kernel"]) in kernels for x in lines)
    assert same > 3000
    assert re.search(r"^\| all \| (\d+) \|", report, re.M)[1] == str(same)


@pytest.mark.turns(4)
@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_dispatcher_takes_what_it_says(path, monkeypatch):
    monkeypatch.setattr(named, "FOLDER", path.parent.parent)
    rows = [*file.load(path)]
    for one in rows[:: len(rows) // 20]:
        plan = Dispatcher(device=one.device).select(one.problem)
        assert (plan.selector, plan.config.name) == ("shipped", one.kernel)
