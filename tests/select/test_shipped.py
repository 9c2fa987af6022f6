"""Tables that come with the package: a selector of its own, after the user's tables."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

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
from tilewright.tables.named import name_of
from tilewright.tables.row import Row, meant, still_serves
from tilewright.tables.table import Table

WIDE_HALF = {"dtype_a": "fp16", "tile_n": 128}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Has a table of one row, for M = 64 on an H200."""
    monkeypatch.setattr(named, "FOLDER", tmp_path)
    monkeypatch.delenv("TILEWRIGHT_TABLES", raising=False)
    (tmp_path / "sm_90").mkdir()
    file.save(Table.of([row(gemm(64), WIDE)]), tmp_path / "sm_90" / "gemm_bf16.twt")
    return tmp_path


def test_a_shipped_row_answers_without_being_asked_for(folder):
    plan = Dispatcher(device=H200).select(gemm(64))
    assert (plan.selector, plan.config.name) == ("shipped", WIDE)
    assert plan.reason.startswith("exact row of shipped:sm_90/gemm_bf16: ")
    assert Dispatcher(device=H200).select(gemm(64, dtype_a="fp32")).selector == "analytical"
    assert Dispatcher(device=device("a100_sxm_80gb")).select(gemm(64)).selector == "analytical"
    assert Dispatcher(device=H200, selector="analytical").select(gemm(64)).selector == "analytical"


def test_a_row_in_bf16_answers_for_fp16_behind_fp16s_own(folder):
    half, file_of_fp16 = gemm(64, dtype_a="fp16"), folder / "sm_90" / "gemm_fp16.twt"
    plan = Dispatcher(device=H200).select(half)
    assert (plan.selector, plan.config) == ("shipped", FAMILY.parse_name(kernel(**WIDE_HALF)))
    assert plan.reason.startswith("in bf16 of shipped:sm_90/gemm_bf16: 10 µs")
    own = kernel(dtype_a="fp16")
    file.save(Table.of([row(half, own)]), file_of_fp16)
    shipped._read.cache_clear()
    plan = Dispatcher(device=H200).select(half)
    assert plan.config.name == own
    assert plan.reason.startswith("exact row of shipped:sm_90/gemm_fp16: ")
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
    (folder / "sm_90" / "gemm_int8.twt").write_text("{}")
    with pytest.raises(BadFile, match="shipped:sm_90/gemm_int8: is no table"):
        Dispatcher(device=H200).select(gemm(64, dtype_a="int8"))


PACKAGED = sorted((Path(tables.__path__[0]) / "shipped").rglob("*.twt"))

ROWS = {
    "shipped:sm_90/attention_backward_bf16": (20, "34bb0cebcd6f294bf1700b111f8630ed"),
    "shipped:sm_90/attention_bf16": (335, "06924aade9ab89e9305a341a4841062b"),
    "shipped:sm_90/col2im": (6, "00d238da2d9d2a6334e208c623495aae"),
    "shipped:sm_90/conv_bf16": (3317, "0e314f042e030f81a5c113eff94a8788"),
    "shipped:sm_90/cross_entropy": (6, "ee785fbb8af6c6a1d4b34666a615a0e7"),
    "shipped:sm_90/cross_entropy_backward": (4, "1cd1f50ead90b0e9227d14b6a6b9df3e"),
    "shipped:sm_90/elementwise_chain": (4, "d68743bc440b2d2f506c5f0b31ad29ea"),
    "shipped:sm_90/gated_activation": (36, "ef700a1f26175b1eb5f1768635af2fea"),
    "shipped:sm_90/gated_activation_backward": (3, "abf8c6c2d823fea46c5277c27c4bf770"),
    "shipped:sm_90/gemm_bf16": (7962, "a954126cf8a73df388fea2a6dc99b30e"),
    "shipped:sm_90/gemm_e4m3fn": (1499, "7506bd91f288099ec8ce6c6a9c585e47"),
    "shipped:sm_90/gemm_fp16": (382, "c9135aa7b385d5acc5f245a97af41cce"),
    "shipped:sm_90/gemm_int8": (584, "00892349ca9f3ed48c52f109c0557dde"),
    "shipped:sm_90/im2col": (5, "f1eb862fe8cfdc962bcd853f4ae87785"),
    "shipped:sm_90/layer_norm": (38, "622b9941d4449fb605c896a898c21376"),
    "shipped:sm_90/layer_norm_backward": (33, "8aa9ef7066b48742ea6fb98d0d3ffb6f"),
    "shipped:sm_90/log_softmax": (6, "3148b5151f1223cb0b4f758dded3bc98"),
    "shipped:sm_90/log_softmax_backward": (4, "f30d9698d14d64754b447d2b042e8056"),
    "shipped:sm_90/pool": (4, "44fc7242bebdd1ebab340e5b7b2e3d8b"),
    "shipped:sm_90/pool_backward": (2, "1134bf3371614619cecb49d9ea2e24fa"),
    "shipped:sm_90/quantise_rows": (49, "71140f4d1b73515db376a3cc11b3b669"),
    "shipped:sm_90/reduction": (8, "e0a075fabe1c8abe4649e9defa4ae002"),
    "shipped:sm_90/reduction_backward": (4, "1e4a9a9b8b16a4b213741c60b51a3944"),
    "shipped:sm_90/rms_norm": (41, "cc21ec59b8edb255d6b15627aa067687"),
    "shipped:sm_90/rms_norm_backward": (33, "df4ea709587ae2a8e9b8540544c8ae1f"),
    "shipped:sm_90/softmax": (6, "24450c281d176632906b2aeef4605b8b"),
    "shipped:sm_90/softmax_backward": (4, "e2f703616b030388e57caf401d93358a"),
    "shipped:sm_90/sort_by_expert": (16, "13889ee6023f37a9e7a8a79f6fef6be2"),
    "shipped:sm_90/strided_copy": (15, "dd252aef9ea940dd9fee88ab3a79fc7b"),
    "shipped:sm_90/topk": (3, "395bf87466c8a841df740475df5f8f74"),
    "shipped:sm_90/topk_routing": (24, "39f4ca4e4eecff37066aa895635865e5"),
}
"""What each table in the package holds: how many rows, and their digest (see `digest`). After a
change of rows, what the test below finds stands here. Anything else must not change them: neither
the reader, nor a problem's defaults, nor how files are written."""


@cache
def rows(path: Path) -> tuple[Row, ...]:
    return tuple(file.load(path))


def digest(found: Iterable[Row]) -> str:
    """Of all that the rows say, whatever the form of their file."""
    lines = (json.dumps([x.problem.family, x], default=given, sort_keys=True) for x in found)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def given(record: Any) -> dict[str, Any]:
    """The fields of a row, a problem or a device without those that have their default, so that a
    new field changes no digest."""
    values = ((f, getattr(record, f.name)) for f in fields(record))
    return {f.name: value for f, value in values if value != f.default}


def test_the_tables_in_the_package_are_these():
    assert {name_of(path) for path in PACKAGED} == {*ROWS}


@pytest.mark.grid(2)
@pytest.mark.parametrize("path", PACKAGED, ids=name_of)
def test_a_table_in_the_package_has_these_rows_in_the_bytes_that_are_written_here(path):
    """So a file that another version of the reader wrote, or something else, is not handed in."""
    assert (len(rows(path)), digest(rows(path))) == ROWS[name_of(path)]
    assert path.read_bytes() == file.to_bytes(Table.of(rows(path)))


@pytest.mark.turns(24)
@pytest.mark.parametrize("path", PACKAGED, ids=name_of)
def test_a_table_in_the_package_stands_where_it_is_looked_for_and_its_kernels_serve(path):
    every = 1 if selection.everything() else 16
    for one in rows(path)[selection.chance(path.name) % every :: every]:
        assert one.device.arch == path.parent.name
        assert path.stem == ops.family(one.problem.family).table(one.problem)
        for name in one.kernels:
            assert still_serves(name, one), (name, one.problem)


def test_the_report_beside_them_counts_these_rows():
    found = [row for path in PACKAGED for row in rows(path)]
    report = (PACKAGED[0].parent / "report.md").read_text()
    told = Counter()
    for gpu, count in re.findall(
        r"^\| `.*` \| (NVIDIA .*) \| (\d+) \| \d+ \| .* \|$", report, re.M
    ):
        told[gpu] += int(count)
    assert told == Counter(row.device.name for row in found)
    # Of what was compared, that whose kernel is the same still.
    kernels = {(row.problem, row.kernel) for row in found if row.device.name == H200.name}
    lines = choice_gain.rows("shipped_h200.json", "problems")
    same = sum((meant(x["problem"], "the record"), x["kernel"]) in kernels for x in lines)
    assert same > 3000
    assert re.search(r"^\| all \| (\d+) \|", report, re.M)[1] == str(same)


@pytest.mark.turns(48)
@pytest.mark.parametrize("path", PACKAGED, ids=name_of)
def test_a_dispatcher_takes_what_it_says(path, monkeypatch):
    monkeypatch.setattr(named, "FOLDER", path.parent.parent)
    for one in rows(path)[:: max(1, len(rows(path)) // 20)]:
        plan = Dispatcher(device=one.device).select(one.problem)
        assert (plan.selector, plan.config.name) == ("shipped", one.kernel)
