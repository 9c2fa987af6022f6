"""Two tables on the production path, through the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tables"))
import pytest
from table_cases import gemm, kernel, row

from tilewright.compile import Store
from tilewright.errors import BadArgument
from tilewright.measure.compare import judge
from tilewright.measure.devices import interpreted_device
from tilewright.tables.table import Table
from tilewright.tune import changes as module
from tilewright.tune.changes import Bench, changed, updated

HERE = interpreted_device("sm_90")
ONE, TWO = (kernel(tile_m=16, tile_n=n, tile_k=16, num_warps=1) for n in (16, 32))
SAME, OTHER, ALONE = gemm(16, 16, 16), gemm(32, 16, 16), gemm(48, 16, 16)
BEFORE = Table.of([row(SAME, ONE, on=HERE), row(OTHER, ONE, on=HERE), row(OTHER, ONE)])
AFTER = Table.of([row(SAME, ONE, 9.0, on=HERE), row(OTHER, TWO, on=HERE), row(ALONE, TWO, on=HERE)])


def test_only_rows_of_this_device_whose_kernels_differ():
    assert [(a.problem, a.kernel, b.kernel) for a, b in changed(BEFORE, AFTER, HERE)] == [
        (OTHER, ONE, TWO)
    ]


@pytest.fixture
def bench(tmp_path):
    return Bench(HERE, "cpu", Store(tmp_path), "graph", 7, 6)  # by the wall clock all the same


@pytest.mark.turns(24)
def test_both_run_as_dispatchers_run_them(bench):
    [one] = bench.measured(changed(BEFORE, AFTER, HERE), BEFORE, AFTER)
    assert one.found is not None and len(one.found.first_us) == 6 and not one.failed


def test_what_is_wrong_is_told_and_never_taken(bench, monkeypatch):
    def wrong(*_):
        raise BadArgument("planted")

    monkeypatch.setattr(module, "prepared", wrong)
    [one] = bench.measured(changed(BEFORE, AFTER, HERE), BEFORE, AFTER)
    assert one.found is None and one.failed == "planted" and not one.improves(0.0)
    assert updated(BEFORE, [one], 0.0) == BEFORE


@pytest.mark.parametrize(
    ("ratio", "taken"), [(1.2, True), (1.04, True), (1.02, False), (1.0, False), (0.8, False)]
)
def test_a_row_is_replaced_where_the_second_is_surely_faster(ratio, taken):
    [(old, new)] = changed(BEFORE, AFTER, HERE)
    found = judge([10.0] * 40, [10.0 * ratio] * 40)
    merged = updated(BEFORE, [module.Changed(OTHER, old, new, found)], 0.03)
    assert (merged.get(OTHER, HERE) == new) is taken
    assert len(merged) == 3 and merged.get(SAME, HERE) == BEFORE.get(SAME, HERE)
    # A median above the threshold does not do: the whole interval has to be.
    noisy = judge([10.0] * 40, [10.0 * ratio] * 21 + [10.0] * 19)
    assert updated(BEFORE, [module.Changed(OTHER, old, new, noisy)], 0.03) == BEFORE
