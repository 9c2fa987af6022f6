"""What the interpreter measured says nothing of a GPU, whichever table it stands in."""

from __future__ import annotations

import json
import logging
import math

import pytest
from table_cases import DEEP, H100, H200, PLAIN, WIDE, gemm, row

from tilewright.arch.targets import Target
from tilewright.dispatch import Dispatcher
from tilewright.measure.devices import interpreted_device
from tilewright.tables import file, named
from tilewright.tables.aiter import write_aiter
from tilewright.tables.check import check
from tilewright.tables.diff import diff
from tilewright.tables.lookup import Lookup
from tilewright.tables.merge import gather, merge
from tilewright.tables.neighbours import distance, lenders
from tilewright.tables.table import Table

PLAYED = interpreted_device("sm_90")
PROBLEM = gemm(64)


@pytest.fixture
def path(tmp_path):
    """A table of the interpreter's rows, as `tune --devices cpu` has always written it."""
    target = tmp_path / "interpreted.json"
    file.save(Table.of([row(PROBLEM, DEEP, on=PLAYED), row(gemm(128), DEEP, on=PLAYED)]), target)
    return target


def test_the_interpreter_is_known_by_its_name(path):
    (device,) = json.loads(path.read_text())["devices"]
    assert device["name"] == "interpreter as NVIDIA H200"
    assert PLAYED.interpreted and not H200.interpreted


def test_it_lends_to_no_gpu_and_no_gpu_to_it():
    for gpu in (H200, H100):
        assert math.isinf(distance(PLAYED, gpu)) and math.isinf(distance(gpu, PLAYED))
        assert lenders(gpu, [PLAYED]) == lenders(PLAYED, [gpu]) == []
    assert lenders(H100, [PLAYED, H200]) == [(distance(H100, H200), H200)]
    assert not Target("sm_90").covers(PLAYED) and Target("sm_90").covers(H200)


@pytest.mark.parametrize("asked", [PROBLEM, gemm(60), gemm(100)], ids=str)
def test_no_lookup_finds_its_rows_for_a_gpu(path, asked, tmp_path):
    other = tmp_path / "other.twt"
    file.save(Table.of([row(gemm(8), PLAIN)]), other)
    for table in (file.load(path), gather([path, other]), merge([path, other]).table):
        assert not [*Lookup(table).all(asked, H200)]
    assert next(Lookup(file.load(path)).find(PROBLEM, PLAYED)).origin == "exact"


def test_a_plan_of_a_gpu_does_not_come_from_it(path, monkeypatch, caplog):
    """Neither from tables that are given, nor from one that is shipped."""
    folder = path.parent / "shipped" / "sm_90"
    folder.mkdir(parents=True)
    file.save(file.load(path), folder / "gemm_bf16.twt")
    monkeypatch.setattr(named, "FOLDER", folder.parent)
    with caplog.at_level(logging.INFO, "tilewright"):
        plan = Dispatcher(device=H200, tables=[path]).select(PROBLEM)
    assert plan.selector == "analytical"


def test_merging_and_comparing_keep_it_apart(path, tmp_path):
    gpus = tmp_path / "gpu.json"
    file.save(Table.of([row(PROBLEM, WIDE, us=1.0)]), gpus)
    both = merge([path, gpus])
    assert not both.duplicates and both.table.get(PROBLEM, PLAYED).kernel == DEEP
    changes = diff(file.load(path), file.load(gpus))
    assert {change.outcome for change in changes} == {"added", "removed"}


def test_no_estimate_is_compared_with_its_times(path):
    checked = check([path], lambda problem, device: (PLAIN, 1.0))
    assert (checked.rows, checked.findings, checked.ratios) == (2, (), ())


def test_aiter_is_told_nothing_of_it():
    written = write_aiter([row(PROBLEM, DEEP, on=PLAYED), row(PROBLEM, DEEP)], "bf16")
    assert written.count == 1
    [(left, why)] = written.left
    assert left.device == PLAYED and "by the interpreter" in why
