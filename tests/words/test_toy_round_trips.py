"""Fields that may be None, tuples and floats, and fields called as columns are, go round through
every form that a problem takes."""

from __future__ import annotations

import csv
import json
import tempfile
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import H200, row
from toy_family import ToyConfig, ToyProblem, plant

from tilewright import capturing
from tilewright.arch import arch
from tilewright.cells import plain
from tilewright.errors import BadArgument, EmptySpace
from tilewright.measure.export import columns, export
from tilewright.measure.filters import Filters
from tilewright.measure.measurement import Environment, Measurement, Settings, problem_text
from tilewright.measure.problems import load_problems
from tilewright.measure.results import Results, read_problem
from tilewright.ops.problem import Problem
from tilewright.report.data import gather
from tilewright.tables import file
from tilewright.tables.row import meant, said
from tilewright.tables.table import Table

COUNTS = st.integers(1, 2**31)
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
PROBLEMS = st.builds(
    ToyProblem,
    tokens=st.tuples(COUNTS, COUNTS),
    heads=COUNTS,
    scale=FLOATS,
    limit=st.none() | COUNTS,
    window=st.none() | st.lists(COUNTS, max_size=3).map(tuple),
    softcap=st.none() | FLOATS | COUNTS,
    status=TEXT,
    kernel=COUNTS,
    median_us=st.none() | FLOATS,
)
LISTS = st.lists(PROBLEMS, min_size=1, max_size=6, unique=True)
PLAIN = ToyProblem((256, 512))
FEW = settings(max_examples=20)  # each writes files
FULL = ToyProblem((8, 8), 2, 0.1, 5, (1, 2), 30, "full", 7, 2.5)


@contextmanager
def planted():
    """For properties, which fixtures of one function do not fit."""
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        yield


def measured(problem: ToyProblem, kernel: str = "toy_b16_m2") -> Measurement:
    return Measurement(
        kernel, problem, H200, Environment(()), Settings(), "ok",
        samples_us=(9.0, 10.0, 11.0), interval_us=(9.0, 11.0),
    )  # fmt: skip


@contextmanager
def results(problems):
    with tempfile.TemporaryDirectory() as folder, Results(folder, write=True) as found:
        found.add(map(measured, problems))
        yield found


@given(PROBLEMS)
def test_texts_and_plain_data(problem):
    with planted():
        data = json.loads(json.dumps(said(problem)))
        assert meant(data, "here") == problem
        assert read_problem(problem_text(problem), "here") == problem
        assert problem_text(meant(data, "here")) == problem_text(problem)


def test_a_whole_number_in_a_float_field_is_no_other_problem():
    whole, exact = replace(FULL, scale=2, softcap=30), replace(FULL, scale=2.0, softcap=30.0)
    assert problem_text(whole) == problem_text(exact) and whole == exact
    assert Table.of([row(whole)]).digest == Table.of([row(exact)]).digest
    assert type(whole.limit) is int, "a field of whole numbers keeps them"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"scale": 0.0}, {"scale": -0.0}),
        ({"softcap": -0.0}, {"softcap": 0.0}),
        ({"bias": 1}, {"bias": 1.0}),
    ],
)
def test_values_that_compare_equal_are_told_apart(one, other, tmp_path):
    """Whatever was kept first: a text, a row or a file has the sign and the kind of its own."""
    first, second = replace(FULL, **one), replace(FULL, **other)
    assert first != second and len({first, second}) == 2
    assert first == replace(FULL, **one) and hash(first) == hash(replace(FULL, **one))
    for problem, value in ((first, one), (second, other)):
        (name,) = value
        assert repr(json.loads(problem_text(problem))[name]) == repr(value[name])
    with planted(), results([first, second]) as found:
        assert export(found, tmp_path / "r.csv") == 2
        with (tmp_path / "r.csv").open(newline="") as read:
            cells = [row[next(iter(one))] for row in csv.DictReader(read)]
        assert cells == [str(*one.values()), str(*other.values())]


def test_equal_settings_and_devices_have_one_text():
    for whole, exact in (
        (Settings(race=-0.0, budget_seconds=1), Settings(race=0.0, budget_seconds=1.0)),
        (replace(H200, bandwidth_gbs=4800), replace(H200, bandwidth_gbs=4800.0)),
        (
            replace(H200, matrix_tflops=(("bf16", 9),)),
            replace(H200, matrix_tflops=(("bf16", 9.0),)),
        ),
    ):
        assert whole == exact and repr(whole) == repr(exact)


def test_a_problem_of_one_field():
    @dataclass(frozen=True, slots=True, eq=False)
    class One(Problem):
        family: ClassVar[str] = "toy"
        size: int | None = None

        def _complete(self) -> None:
            pass

    assert One(3) == One(3) != One() and One(3).__reduce__() == (One, (3,))


@FEW
@given(LISTS)
def test_tables_of_both_forms(problems):
    with planted(), tempfile.TemporaryDirectory() as folder:
        keys = {replace(problem, scale=1.0) for problem in problems}
        table = Table.of(map(row, keys))
        assert {kept.problem for kept in table} == keys
        for name in ("t.twt", "t.json"):
            file.save(table, Path(folder, name))
            loaded = file.load(Path(folder, name))
            assert loaded == table
            for problem in problems:
                assert loaded.get(problem, H200).problem == replace(problem, scale=1.0)


def test_a_table_tells_equal_numbers_apart():
    with planted():
        keys = [replace(PLAIN, softcap=value) for value in (None, 0.0, -0.0)]
        keys += [replace(PLAIN, heads=9, bias=value) for value in (1, 1.0)]
        keys += [replace(PLAIN, heads=7, softcap=0.0)]
        table = Table.of(map(row, keys))
        for problem in keys:
            assert table.get(problem, H200).problem == problem
        assert table.get(replace(PLAIN, heads=7, softcap=-0.0), H200) is None


def test_rows_in_any_order_give_the_same_bytes():
    rows = [row(replace(PLAIN, limit=n, window=w)) for n in (None, 3) for w in (None, (), (2,))]
    assert Table.of(rows).data == Table.of(rows[::-1]).data


@FEW
@given(LISTS)
def test_lists_and_captures(problems):
    with planted(), tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "p.json")
        listed.write_text(json.dumps([{"family": "toy", **asdict(p)} for p in problems]))
        assert load_problems([listed], arch("sm_90")).problems == tuple(problems)
        captured = Path(folder, "p.jsonl")
        records = ({"problem": said(problem), "count": 1} for problem in problems)
        captured.write_text("".join(f"{json.dumps(one)}\n" for one in records))
        assert capturing.load(captured) == dict.fromkeys(problems, 1)


def test_floats_and_null_in_lists_of_problems(tmp_path):
    listed = tmp_path / "p.json"
    stated = [
        {"tokens": "8,8", "scale": 0.1249},
        {"tokens": [8, 8], "limit": None},
        {"heads": 2, "limit": None},
    ]
    listed.write_text(json.dumps(stated))
    found = load_problems([listed], arch("sm_90"), "toy").problems
    assert found == (ToyProblem((8, 8), scale=0.1249), ToyProblem((8, 8)), ToyProblem(heads=2))
    table = tmp_path / "p.csv"
    table.write_text('tokens,scale,limit\n"8,8",0.1249,\n"8,8",,3\n')
    found = load_problems([table], arch("sm_90"), "toy").problems
    assert found == (ToyProblem((8, 8), scale=0.1249), ToyProblem((8, 8), limit=3))


def titled(problem):
    """The problem's fields by their columns."""
    own = ("status", "kernel", "median_us")
    return {f"problem.{n}" if n in own else n: value for n, value in asdict(problem).items()}


def test_fields_with_the_names_of_columns_have_columns_of_their_own():
    with results([PLAIN, FULL]) as found:
        names = columns(found)
        assert len(set(names)) == len(names)
        assert names[:11] == ("kernel", *titled(PLAIN))
        assert {"status", "median_us", "problem.status", "problem.median_us"} <= {*names}


@FEW
@given(LISTS)
def test_csv(problems):
    with planted(), results(problems) as found:
        path = found.folder / "r.csv"
        assert export(found, path) == len(problems)
        with path.open(newline="") as read:
            rows = list(csv.DictReader(read))
        for cells, problem in zip(rows, problems, strict=True):
            assert (cells["kernel"], cells["status"]) == ("toy_b16_m2", "ok")
            for name, value in titled(problem).items():
                cell = plain(cells[name])
                want = json.dumps(value) if isinstance(value, tuple) else value
                assert cell == ("" if want is None else str(want)), name


@FEW
@given(LISTS)
def test_parquet(problems):
    parquet = pytest.importorskip("pyarrow.parquet")
    with planted(), results(problems) as found:
        path = found.folder / "r.parquet"
        assert export(found, path) == len(problems)
        for cells, problem in zip(parquet.read_table(path).to_pylist(), problems, strict=True):
            assert (cells["kernel"], cells["median_us"]) == ("toy_b16_m2", 10.0)
            for name, value in titled(problem).items():
                want = json.dumps(value) if isinstance(value, tuple) else value
                assert cells[name] == want, name


def test_parquet_of_whole_numbers_among_others(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    with results([replace(PLAIN, bias=1), replace(PLAIN, bias=0.5)]) as found:
        export(found, tmp_path / "r.parquet")
    cells = parquet.read_table(tmp_path / "r.parquet").to_pylist()
    assert [one["bias"] for one in cells] == [1.0, 0.5]


def test_parquet_of_a_field_with_values_of_several_kinds(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    several = [PLAIN, replace(PLAIN, kernel="auto")]
    with results(several) as found:
        export(found, tmp_path / "r.parquet")
    cells = parquet.read_table(tmp_path / "r.parquet").to_pylist()
    assert [one["problem.kernel"] for one in cells] == ["3", "auto"]
    assert len(Table.of(map(row, several))) == 2


@FEW
@given(LISTS)
def test_results_and_the_page(problems):
    with planted(), results(problems) as found:
        assert [m.problem for m in found.measurements()] == problems
        (setup,) = gather(found)["setups"]
        shown = [problem["name"] for problem in setup["problems"]]
        assert len({*shown}) == len(problems)
        for name in shown:
            assert name.startswith("toy ")


def test_results_are_asked_in_sql_for_any_field():
    with results([PLAIN, FULL]) as found:
        named = "json_extract(problem.text, '$.status')"
        _, rows = found.query(
            f"SELECT {named}, measurement.status FROM measurement "
            "JOIN problem ON problem.id = measurement.problem ORDER BY problem.id"
        )
        assert rows == [("causal", "ok"), ("full", "ok")]


CONFIGS = [ToyConfig(), ToyConfig(m=2, split=3), ToyConfig(m=2, split=8, status="x")]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("m == 2", [1, 2]),
        ("status == 'x'", [2]),
        ("split == None", [0]),
        ("split != None and split > 3", [2]),
        ("split in (None, 8)", [0, 2]),
    ],
)
def test_filters_say_any_field_and_none(where, kept):
    assert Filters(where=where).apply(CONFIGS)[0] == tuple(CONFIGS[i] for i in kept)


def test_none_is_in_no_order():
    with pytest.raises(BadArgument, match="'split > 3' cannot be evaluated for toy_b64_m1"):
        Filters(where="split > 3").apply(CONFIGS)
    with pytest.raises(EmptySpace):
        Filters(where="split != None and split > 9").apply(CONFIGS)


@given(st.builds(ToyConfig, COUNTS, COUNTS, st.none() | COUNTS))
def test_names(config):
    with planted():
        from tilewright import ops

        assert ops.family_of(config.name).parse_name(config.name) == config
