"""Tables: rows by (device, problem), in memory and in files."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest
from table_cases import DEEP, H20, H100, H200, PLAIN, WIDE, gemm, row

from tilewright.errors import BadArgument, BadFile
from tilewright.ops.grouped_gemm import GroupedGemmProblem
from tilewright.tables import file, packed
from tilewright.tables.table import Table

LIST = GroupedGemmProblem("list", sizes=((1, 64, 64), (7, 128, 64)))
SORTED = GroupedGemmProblem("contiguous", groups=8, m=100, n=512, k=256)


def some_rows():
    """Two devices, two families, every optional part present and absent."""
    return [
        row(gemm(64), ties=(WIDE, DEEP)),
        row(gemm(128), WIDE, 12.0, error=None, driver="570.1"),
        row(gemm(128), DEEP, 21.0, on=H20, ties=(PLAIN,), timed='{"cache":"flushed"}'),
        row(gemm(300, epilogue="bias"), measured_at="2026-01-02T03:04:05.678+00:00"),
        row(gemm(300, batch=4), versions=()),
        row(gemm(400), "gemm_of_a_library", ties=("gemm_of_it_too",), ours=WIDE),
        row(LIST, "a_grouped_kernel"),
        row(SORTED, "a_grouped_kernel", on=H20),
    ]


def test_a_row_is_found_by_its_problem_and_device_and_by_nothing_less():
    table = Table.of(some_rows())
    for each in some_rows():
        assert table.get(each.problem, each.device) == each
        assert table.get(replace(each.problem), each.device) == each  # equal, not the same object
    assert table.get(gemm(64), H20) is None
    assert table.get(gemm(64), replace(H200, compute_units=16, partition="1g.18gb")) is None
    assert table.get(gemm(64), H100) is None
    assert table.get(gemm(65), H200) is None
    assert table.get(gemm(64, epilogue="bias"), H200) is None
    assert table.get(gemm(64, lda=1024), H200) is None


def test_a_table_equals_tables_of_its_rows_alone():
    one = Table.of([row(gemm(64))])
    assert one == Table.of([row(gemm(64))]) and one != Table.of([])
    assert one != "a table" and one != one.digest


def test_what_was_found_is_found_again():
    table, problem = Table.of(some_rows()), gemm(64)
    found = table.get(problem, H200)
    assert table.get(problem, H200) is found
    on_another = table.get(problem, H20)
    assert on_another is None and table.get(problem, H200) is found


def test_an_equal_problem_is_found_again_without_a_search(monkeypatch):
    table = Table.of(some_rows())
    found, missed = table.get(gemm(64), H200), table.get(gemm(65), H200)
    monkeypatch.setattr(packed.Packed, "find", None)
    assert table.get(gemm(64), replace(H200)) is found
    assert table.get(gemm(65), H200) is missed is None


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("tilewright.tables.table.MOST_SEEN", 10)
    table = Table.of(some_rows())
    for m in range(1, 100):
        table.get(gemm(m), H200)
        assert len(table._seen) <= 10
    assert table.get(gemm(64), H200) == some_rows()[0]


@pytest.mark.turns(24)
def test_threads_may_ask_at_once(monkeypatch):
    """While what is remembered is forgotten again and again."""
    monkeypatch.setattr("tilewright.tables.table.MOST_SEEN", 3)
    table = Table.of(row(gemm(m), us=m) for m in range(1, 9))

    def ask(seed):
        draw = random.Random(seed)
        asked = [draw.randint(1, 12) for _ in range(2000)]
        return [(m, table.get(gemm(m), H200)) for m in asked]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(ask, range(8)):
            assert all((r.median_us if r else None) == (m if m < 9 else None) for m, r in found)


def test_a_table_is_its_rows_in_any_order():
    rows = some_rows()
    table = Table.of(rows)
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        assert Table.of([*rows, rows[0]]).data == table.data  # a row given twice is one row
    assert len(table) == len(rows) and {*table} == {*rows}
    assert {*table.devices} == {H200, H20}
    changed = [*rows[1:], replace(rows[0], driver="another")]
    assert Table.of(changed).digest != table.digest


def test_an_empty_table_is_one():
    table = Table.of([])
    assert len(table) == 0 and [*table] == [] and table.get(gemm(64), H200) is None


def test_two_rows_of_one_problem_are_refused():
    with pytest.raises(BadArgument, match="two rows of one problem") as caught:
        Table.of([row(gemm(64)), row(gemm(64), WIDE)])
    assert PLAIN in str(caught.value) and WIDE in str(caught.value)


@pytest.mark.parametrize("ending", [".twt", ".json"])
def test_a_file_gives_the_same_table(tmp_path, ending):
    table, path = Table.of(some_rows()), tmp_path / f"t{ending}"
    file.save(table, path)
    back = file.load(path)
    assert back == table and {*back} == {*some_rows()} and back.digest == table.digest
    first = path.read_bytes()
    file.save(Table.of(reversed(some_rows())), path)
    assert path.read_bytes() == first
    assert {each for _, each in file.rows(path)} == {*some_rows()}


def test_what_no_row_says_is_not_in_the_file():
    """So a table without it has the digest that it had before there was such a field."""
    without = Table.of([one for one in some_rows() if not one.ours])
    assert len(msgspec.msgpack.decode(without.data)) == 9 and '"ours"' not in file.to_json(without)
    table = Table.of(some_rows())
    assert len(msgspec.msgpack.decode(table.data)) == 10 and '"ours"' in file.to_json(table)


def test_json_has_a_row_a_line(tmp_path):
    lines = file.to_json(Table.of(some_rows())).splitlines()
    assert sum(line.startswith('{"problem"') for line in lines) == len(some_rows())


def written(tmp_path, **changes):
    """A JSON file of one row, with changes to its line; None takes a field away."""
    document = json.loads(file.to_json(Table.of([row(gemm(64))])))
    line = {**document["rows"][0], **changes}
    document["rows"] = [{name: value for name, value in line.items() if value is not None}]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"problem": None}, "missing field 'problem'"),
        ({"problem": {"m": 1}}, "problem: a problem is an object that says its family"),
        ({"problem": {"family": "gem"}}, "problem: no operation family 'gem'"),
        (
            {"problem": {"family": "gemm", "m": 1, "n": 1, "k": 1, "q": 1}},
            "problem: unknown field 'q'",
        ),
        ({"problem": {"family": "gemm", "m": -1, "n": 1, "k": 1}}, "problem: m = -1"),
        ({"us": 1}, "unknown field 'us'"),
        ({"median_us": "fast"}, "median_us: Expected `float`"),
        ({"median_us": 99}, "gemm_.*no interval"),
        ({"device": 1}, "device: there is no number 1 among 1"),
        ({"made": -1}, "made: there is no number -1 among 1"),
    ],
)
def test_a_bad_row_is_an_error_with_its_place(tmp_path, change, says):
    with pytest.raises(BadFile, match=rf"t\.json: row 1: {says}"):
        file.load(written(tmp_path, **change))
    assert len(file.load(written(tmp_path))) == 1


def test_damage_anywhere_is_found(tmp_path):
    path = tmp_path / "t.twt"
    file.save(Table.of(some_rows()), path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(BadFile, match=r"t\.twt"):
            file.load(path)
    for size in (0, 5, 20, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(BadFile, match=r"t\.twt"):
            file.load(path)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.twt", b"twtable\n" + (2).to_bytes(4, "little") + bytes(32), "made by a newer"),
        ("t.twt", b"a,b,c\n", "does not begin as one"),
        ("t.json", b'{"schema": 2, "rows": []}', "made by a newer"),
        ("t.json", b'{"schema": "1", "rows": []}', "no version of tables"),
        ("t.json", b"[]", "is no table"),
        ("t.json", b'{"schema": 1, "devices": [], "rows": [{}]}', "its made are no list"),
        ("t.json", b'{"schema": 1, "devices": [{}], "made": [], "rows": []}', "missing field"),
        ("t.json", b"\xff", "not UTF-8 at byte 0"),
        ("t.json", b"{", "line 1, column 2"),
    ],
)
def test_a_file_that_is_no_table_is_an_error_that_names_it(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadFile, match=says) as caught:
        file.load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_or_named_so(tmp_path):
    with pytest.raises(BadFile, match=r"none\.twt: cannot be read: No such file"):
        file.load(tmp_path / "none.twt")
    with pytest.raises(BadArgument, match=r"ends in \.twt or \.json"):
        file.save(Table.of([]), tmp_path / "t.csv")


def test_json_with_two_rows_of_one_problem_is_refused_but_can_be_listed(tmp_path):
    path = tmp_path / "t.json"
    one, other = (file.to_json(Table.of([row(gemm(64), us=us)])) for us in (10.0, 11.0))
    path.write_text(one.replace("\n]}", ",\n" + other.splitlines()[-2] + "\n]}"))
    with pytest.raises(BadFile, match=r"t\.json: two rows of one problem"):
        file.load(path)
    assert [place.rpartition(": ")[2] for place, _ in file.rows(path)] == ["row 1", "row 2"]


def test_fields_of_another_version():
    """A field that came later is what a problem makes of its absence; one that went is an error."""
    table = Table.of([row(gemm(64)), row(gemm(96, batch=2))])
    fields = {c.field for f in table._packed._data.families for c in f.columns}
    assert "batch" in fields and "epilogue" not in fields and "precision" not in fields
    content = msgspec.msgpack.decode(packed.pack([row(gemm(64))]))
    [family] = content[1]
    old = [column for column in family[1] if column[0] != "stride_d"]  # 0, and not its default
    content[1] = [[family[0], old]]
    read = Table(msgspec.msgpack.encode(content), "here")
    assert [*read] == [row(gemm(64))] and read.get(gemm(64), H200) == row(gemm(64))
    assert read.get(gemm(64, batch=1, epilogue="bias"), H200) is None
    content[1] = [[family[0], [["stride_x", [0]], *old]]]
    with pytest.raises(BadFile, match="here: a gemm problem has no field 'stride_x' here"):
        Table(msgspec.msgpack.encode(content), "here")
    content[1] = [[family[0], [column for column in old if column[0] != "m"]]]
    with pytest.raises(BadFile, match="here: its gemm problems do not say their m"):
        Table(msgspec.msgpack.encode(content), "here")
