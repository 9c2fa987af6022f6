"""Several tables as one, what is wrong with tables, and what changed between two."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from table_cases import DEEP, H20, H200, PLAIN, WIDE, gemm, kernel, row

from tilewright.errors import BadArgument
from tilewright.tables import file
from tilewright.tables.check import check
from tilewright.tables.diff import diff
from tilewright.tables.merge import merge
from tilewright.tables.table import Table


def write(path, *rows) -> str:
    """A table file; as JSON it may have several rows of one problem."""
    if path.suffix == ".twt":
        file.save(Table.of(rows), path)
    else:
        whole = {"schema": 1, "devices": [], "made": [], "rows": []}
        for number, one in enumerate(rows):
            alone = json.loads(file.to_json(Table.of([one])))
            alone["rows"][0].update(device=number, made=number)
            for name in ("devices", "made", "rows"):
                whole[name] += alone[name]
        path.write_text(json.dumps(whole))
    return str(path)


# --- merge ---------------------------------------------------------------------------------


def test_files_that_agree_merge_and_stay_as_they_are(tmp_path):
    shared = row(gemm(64))
    paths = [
        write(tmp_path / "a.twt", shared, row(gemm(128))),
        write(tmp_path / "b.json", shared, row(gemm(64), WIDE, on=H20)),
    ]
    before = [Path(path).read_bytes() for path in paths]
    merged = merge(paths)
    assert {*merged.table} == {shared, row(gemm(128)), row(gemm(64), WIDE, on=H20)}
    assert merged.repeated == 1 and merged.duplicates == ()
    assert merge(paths[::-1]).table.digest == merged.table.digest
    assert [Path(path).read_bytes() for path in paths] == before


def test_files_that_disagree_on_many_problems_name_the_first_and_count_the_others(tmp_path):
    sizes = [64 * i for i in range(1, 9)]
    paths = [
        write(tmp_path / f"{name}.twt", *(row(gemm(m), kernel, 10.0) for m in sizes))
        for name, kernel in (("a", PLAIN), ("b", WIDE))
    ]
    with pytest.raises(BadArgument) as caught:
        merge(paths)
    said = str(caught.value)
    assert said.startswith("8 problems have rows") and said.endswith("; and 3 more")
    assert said.count(f" has {WIDE}") == 5


def test_files_that_disagree_fail_with_every_row_and_file(tmp_path):
    paths = [
        write(tmp_path / "a.twt", row(gemm(64), PLAIN, 10.0), row(gemm(128), PLAIN, 20.0)),
        write(tmp_path / "b.json", row(gemm(64), WIDE, 9.0), row(gemm(128), WIDE, 20.5),
              row(gemm(64), DEEP, 11.0), row(gemm(256))),
    ]  # fmt: skip
    with pytest.raises(BadArgument) as caught:
        merge(paths)
    said = str(caught.value)
    assert said.startswith("2 problems have rows that say different things")
    for name, where, us in (
        (PLAIN, f"{paths[0]}: row 1", 10), (WIDE, f"{paths[1]}: row 1", 9),
        (DEEP, f"{paths[1]}: row 3", 11), (PLAIN, f"{paths[0]}: row 2", 20),
        (WIDE, f"{paths[1]}: row 2", 20.5),
    ):  # fmt: skip
        assert f"{where} has {name}, {us} µs" in said
    assert "more" not in said
    merged = merge(paths, "fastest")
    assert len(merged.table) == 3 and len(merged.duplicates) == 2
    assert merged.table.get(gemm(64), H200).kernel == WIDE
    assert merged.table.get(gemm(128), H200).kernel == PLAIN
    assert merge(paths[::-1], "fastest").table == merged.table
    with pytest.raises(BadArgument, match="'newest' is not one of fail, fastest"):
        merge(paths, "newest")


def test_of_equally_fast_rows_the_newest_is_kept(tmp_path):
    old, new = (row(gemm(64), name, measured_at=when)
                for name, when in ((WIDE, "2026-01-01"), (PLAIN, "2026-02-01")))  # fmt: skip
    for order in ((old, new), (new, old)):
        merged = merge([write(tmp_path / "a.json", *order)], "fastest")
        assert [*merged.table] == [new]


def test_of_rows_as_fast_and_as_new_the_first_by_kernel_is_kept(tmp_path):
    first, last = (row(gemm(64), name) for name in sorted((WIDE, PLAIN)))
    for order in ((first, last), (last, first)):
        assert [*merge([write(tmp_path / "a.json", *order)], "fastest").table] == [first]


# --- check ---------------------------------------------------------------------------------


def test_a_sound_table_has_no_findings_and_a_ratio_for_every_row(tmp_path):
    path = write(tmp_path / "a.twt", row(gemm(64), us=10.0), row(gemm(128), us=30.0))
    checked = check([path], lambda problem, device: ("its name", 20.0))
    assert checked.rows == 2 and checked.findings == ()
    assert [r.ratio for r in checked.ratios] == [0.5, 1.5]
    assert check([path]).ratios == ()


def test_everything_wrong_is_found_in_all_files_together(tmp_path):
    unfit = kernel(pad_k=False)
    elsewhere = replace(H200, arch="sm_99")
    paths = [
        write(tmp_path / "a.twt", row(gemm(64), "gemm_of_old", ties=(PLAIN,)),
              row(gemm(64, k=520), WIDE, ties=(unfit,))),
        write(tmp_path / "b.json", row(gemm(64), PLAIN), row(gemm(1), on=elsewhere)),
        str(tmp_path / "none.twt"),
    ]  # fmt: skip
    checked = check(paths, lambda problem, device: ("", 10.0))
    found = [(f.kind, f.where) for f in checked.findings]
    assert found == [
        ("file", paths[2]),
        ("kernel", f"{paths[0]}: row 1"),
        ("unsupported", f"{paths[0]}: row 2"),
        ("device", f"{paths[1]}: row 2"),
        ("duplicate", f"{paths[0]}: row 1, {paths[1]}: row 1"),
    ]
    says = {f.kind: f.says for f in checked.findings}
    assert "gemm_of_old" in says["kernel"] and "gemm 64×512×512" in says["kernel"]
    assert unfit in says["unsupported"] and "tile_k" in says["unsupported"]
    assert "sm_99" in says["device"] and "cannot be read" in says["file"]
    assert [r.where for r in checked.ratios] == [f"{paths[1]}: row 1"]


# --- diff ----------------------------------------------------------------------------------


def test_what_changed_and_whether_it_can_be_told():
    before = Table.of([row(gemm(m), us=10.0) for m in (1, 2, 3, 4, 5, 7)])
    after = Table.of(
        [
            row(gemm(1), us=10.0),
            row(gemm(2), WIDE, us=8.0),
            row(gemm(3), us=12.0),
            row(gemm(4), WIDE, us=10.1),  # intervals of 1 % each way overlap
            row(gemm(6), us=1.0),
            row(gemm(7), us=9.9),
            row(gemm(5), us=10.0, on=H20),
        ]
    )
    changes = {(c.problem.m, c.device.name): c for c in diff(before, after)}
    outcomes = {key: change.outcome for key, change in changes.items()}
    h200, h20 = H200.name, H20.name
    assert outcomes == {
        (1, h200): "same", (2, h200): "faster", (3, h200): "slower", (4, h200): "unclear",
        (5, h200): "removed", (6, h200): "added", (5, h20): "added",
        (7, h200): "unclear",
    }  # fmt: skip
    faster = changes[2, h200]
    assert faster.speedup == 10 / 8
    assert faster.speedup_interval == pytest.approx((9.9 / 8.08, 10.1 / 7.92))
    assert changes[5, h200].speedup is None and changes[6, h200].speedup_interval is None
    assert [c.speedup for c in diff(before, before)] == [1.0] * 6
