"""`tune`, `retune` and `pretune`, through the interpreter."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from library_cases import SPLIT, vendors

from tilewright.arch import device
from tilewright.errors import NoDriver
from tilewright.measure import algorithms, places
from tilewright.measure import problems as problems_module
from tilewright.measure.algorithms import Offer
from tilewright.measure.devices import interpreted_device
from tilewright.measure.measurement import Environment
from tilewright.measure.results import Results
from tilewright.ops.gemm import GemmFamily, GemmProblem
from tilewright.runtime import libraries
from tilewright.space import KernelSpace
from tilewright.tables import file
from tilewright.tune import ahead
from tilewright.tune.tuner import SEARCH
from tilewright.tune.work import Work

AXES = {"tile_m": [16], "tile_n": [16, 32], "tile_k": [32], "num_warps": [1], "alignment": [1]}
QUICK = (
    "--devices", "cpu", "--settings", "min_samples=2", "--settings", "max_samples=2",
    "--settings", "warm_up_seconds=0", "--settings", "budget_seconds=0.05",
)  # fmt: skip


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Two kernels to choose from."""
    space = KernelSpace("gemm", {"dtype_a": ["fp32"], **AXES})
    monkeypatch.setattr(GemmFamily, "default_space", lambda self, problem, arch: space)
    monkeypatch.setattr(GemmFamily, "tuning_spaces", lambda self, problem, arch: [space])


@pytest.fixture
def shapes(tmp_path):
    path = tmp_path / "shapes.csv"
    path.write_text("m,n,k,dtype\n16,16,32,fp32\n32,16,32,fp32\n")
    return path


@pytest.mark.turns(12)
def test_tune_writes_a_table_and_goes_on(cli, shapes, tmp_path):
    table = tmp_path / "t.twt"
    words = ("tune", "--problems", shapes, "--table", table, *QUICK)
    plan = cli.json(*words, "--dry-run")
    assert (plan["problems"], plan["candidates"]) == (2, 4)
    assert sum(part["measurements"] for part in plan["devices"]) == 4
    assert plan["seconds"] > 0 and not table.exists()
    assert "2 problems, 4 candidates" in cli(*words, "--dry-run")
    document = cli.json(*words)
    assert len(document["rows"]) == 2 and document["measured"] >= 6 and document["ok"]
    assert all(row["final"] for row in document["rows"])
    assert len(file.load(table)) == 2 and (tmp_path / "t.sweep" / "results.db").is_file()
    how = json.loads(next(iter(file.load(table))).timed)
    assert how["race"] == SEARCH.race > 0 and how["min_samples"] == 2  # as said; else as searches
    again = cli.json(*words)
    assert again["measured"] == 0 and again["rows"][0]["from_table"]
    assert "kept" in cli(*words)
    # What was tuned is what is chosen.
    row = next(iter(file.load(table)))
    explained = cli.json("explain", "gemm", "m=16", "n=16", "k=32", "dtype=fp32", "--table", table)
    assert row.kernel.startswith("gemm_") and explained["chosen"]


@pytest.mark.turns(64)
def test_retune(cli, shapes, tmp_path):
    table = tmp_path / "t.twt"
    assert "does not exist: make it with tune" in cli.fails(2, "retune", table, *QUICK)
    cli("tune", "--problems", shapes, "--table", table, *QUICK)
    anew = cli.json("retune", table, "--out", tmp_path / "anew", *QUICK)
    assert len(anew["rows"]) == 2 and anew["measured"] >= 6
    assert cli.json("retune", table, *QUICK, "--dry-run")["problems"] == 2
    cli("retune", table, *QUICK)  # the row may be another's now, which is measured here too
    assert cli.json("retune", table, *QUICK)["measured"] == 0


@pytest.mark.turns(64)
def test_only_what_is_missing(cli, shapes, tmp_path):
    table = tmp_path / "t.twt"
    words = ("tune", "--problems", shapes, "--table", table, *QUICK, "--missing")
    assert len(cli.json(*words, "--effort", "quick")["rows"]) == 2
    shapes.write_text(shapes.read_text() + "48,16,32,fp32\n")
    assert cli.json(*words, "--dry-run")["skipped"] == 2
    document = cli.json(*words)
    assert (document["skipped"], len(document["rows"]), len(file.load(table))) == (2, 1, 3)
    assert "3 with a row" in cli(*words)


@pytest.mark.turns(48)
def test_a_space_says_what_to_choose_from(cli, shapes, tmp_path):
    space = tmp_path / "space.json"
    space.write_text(json.dumps({"family": "gemm", **AXES, "tile_m": [32], "dtype_a": ["fp32"]}))
    table = tmp_path / "t.twt"
    document = cli.json("tune", space, "--problems", shapes, "--table", table, *QUICK,
                        "--effort", "exhaustive")  # fmt: skip
    assert document["measured"] >= 2 * 3  # its two, and the usual choice


@pytest.mark.turns(24)
def test_what_nothing_supports_is_told_and_the_rest_goes_on(cli, tmp_path):
    path, table = tmp_path / "some.csv", tmp_path / "t.twt"
    path.write_text("m,n,k,dtype\n16,16,32,fp16\n16,16,32,fp32\n")
    words = ("tune", "--problems", path, "--table", table, *QUICK)
    text = cli(*words, code=1)
    assert "nothing supports gemm 16×16×32 fp16" in text and len(file.load(table)) == 1
    document = cli.json(*words, code=1)
    assert [one["problem"] for one in document["unsupported"]] == ["gemm 16×16×32 fp16 rcr"]


# --- pretune --------------------------------------------------------------------------------


@pytest.fixture
def sets(monkeypatch, tmp_path):
    for name, rows in (("tiny", "16,16,32,fp32"), ("full", "16,16,32,fp32\n32,16,32,fp32")):
        folder = tmp_path / "ops" / "gemm" / "sweeps" / name
        folder.mkdir(parents=True)
        (folder / "space.json").write_text("{}")
        (folder / "problems.csv").write_text(f"m,n,k,dtype\n{rows}\n")
    monkeypatch.setattr(problems_module, "_ROOT", tmp_path / "ops")
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))


@pytest.mark.usefixtures("sets")
def test_lists_of_modules():
    for words in ("gemm", "gemm:tiny", "all", " ALL ,", "gemm , gemm:tiny  all"):
        assert problems_module.modules(words) == ["gemm:tiny"]
    assert problems_module.modules("gemm:full,gemm nothing") == [
        "gemm:full",
        "gemm:tiny",
        "nothing",
    ]


@pytest.mark.turns(48)
@pytest.mark.usefixtures("sets")
def test_pretune_goes_on_past_a_module_that_fails(cli, tmp_path, monkeypatch):
    table = tmp_path / "p.twt"
    document = cli.json("pretune", "gemm:none, gemm:full", "--table", table, *QUICK, code=1)
    bad, good = document["modules"]
    assert "there is no set or profile 'gemm:none'" in bad["error"] and not bad["ok"]
    assert good["ok"] and len(file.load(table)) == 2
    assert "2 of 2 modules are done" in cli(
        "pretune", " gemm:full,", "all", "--table", table, *QUICK
    )
    said = cli("pretune", "what", code=1)  # before a GPU is looked for
    assert "failed or incomplete: what" in said and "is no module" in cli.result.stderr
    assert "which modules?" in cli.fails(2, "pretune")
    none = tmp_path / "none.twt"
    cli("pretune", "gemm:full", "--table", none, *QUICK, "--out", tmp_path / "o", "--budget", "0")
    assert not none.exists()  # nothing was begun, and that is no failure
    assert "names no set" in cli.fails(2, "pretune", " , ")


@pytest.mark.turns(48)
@pytest.mark.usefixtures("sets")
def test_pretune_by_the_environment_into_the_users_folder(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_PRETUNE", "gemm")
    document = cli.json("pretune", *QUICK)
    [made] = (tmp_path / "home" / "tables").glob("*.twt")
    assert document["modules"][0]["table"] == str(made) and len(file.load(made)) == 1


# --- prepare --measure ----------------------------------------------------------------------


@pytest.mark.turns(48)
def test_prepare_measures_what_has_no_row(cli, shapes, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    played = tmp_path / "played.json"
    played.write_text(json.dumps(asdict(interpreted_device("sm_90"))))
    table = tmp_path / "mine.twt"
    words = ("prepare", shapes, "--device", played, "--measure", "--table", table)
    document = cli.json(*words, "--candidates", 1, "--seconds", 600)
    said = document["measured"]
    assert (said["table"], said["rows"], said["wrong"], said["left"]) == (str(table), 2, [], [])
    assert said["seconds"] > 0 and {plan["by"] for plan in document["plans"]} == {"tuned"}
    assert all("exact row of" in plan["reason"] for plan in document["plans"])
    again = cli(*words)
    assert "0 problems measured" in again and f"rows in {table}" in again
    assert len(file.load(table)) == 2
    # Into the user's folder, where dispatchers look.
    cli("prepare", shapes, "--device", played, "--measure", "--seconds", 600)
    [mine] = (tmp_path / "home" / "tables").glob("*.twt")
    assert mine.stem.startswith("interpreter_as")
    assert "name one" in cli.fails(2, *words, "--table", tmp_path / "other.twt")


def test_only_gpus_of_this_machine_are_measured(cli, shapes, monkeypatch):
    words = ("prepare", shapes, "--device", "h20", "--measure")
    monkeypatch.setattr(ahead.devices, "gpus", list)
    assert "is no GPU of this machine" in cli.fails(2, *words)

    def without():
        raise NoDriver("no GPU can be used here")

    monkeypatch.setattr(ahead.devices, "gpus", without)
    assert "--devices" not in cli.fails(1, *words)  # which this command does not have
    assert "--devices cpu takes" in cli.fails(1, "tune", "--problems", shapes, "--table", "t.twt")


@pytest.mark.parametrize("option", ["--candidates", "--seconds"])
def test_what_belongs_to_measuring_is_refused_without_it(cli, shapes, option):
    said = cli.fails(2, "prepare", shapes, "--device", "h20", option, 3)
    assert f"{option} is for --measure, which is not given" in said


# --- table compare, table minimise ----------------------------------------------------------


@pytest.mark.turns(48)
def test_minimise_says_what_each_problem_loses(cli, shapes, tmp_path):
    cli("tune", "--problems", shapes, "--table", tmp_path / "t.twt", *QUICK)
    few = tmp_path / "few.json"
    words = ("table", "minimise", tmp_path / "t.sweep", "--within", 99, "-o", few)
    document = cli.json(*words)
    assert len(document["kernels"]) == 1 and document["exact"] and document["of"] == 2
    assert len(document["problems"]) == 2 and min(p["loss"] for p in document["problems"]) >= 0
    assert cli.json("registry", "check", few)
    assert "1 of 2 kernels, the fewest there can be" in cli(*words)
    assert "has no results" in cli.fails(2, "table", "minimise", tmp_path / "none")


@pytest.mark.turns(48)
def test_compare_tables_and_update(cli, shapes, tmp_path):
    from dataclasses import replace

    from tilewright.tables.table import Table

    before, after, new = (tmp_path / name for name in ("a.twt", "b.twt", "c.twt"))
    cli("tune", "--problems", shapes, "--table", before, *QUICK)
    [x, y] = file.load(before)
    names = {config.name for config in _two()}
    [other] = names - {x.kernel}
    file.save(Table.of([replace(x, kernel=other, ties=()), y]), after)
    words = ("table", "compare", before, after, "--on", "cpu", "--rounds", 6)
    document = cli.json(*words, "--update", new)
    assert (document["rows"], document["different"]) == (2, 1)
    [change] = document["changes"]
    assert (change["before"], change["after"]) == (x.kernel, other) and change["ratio"] > 0
    taken = file.load(new).get(x.problem, x.device).kernel == other
    assert taken == change["improves"]
    assert "2 rows of interpreter as" in cli(*words)
    assert "nothing to compare" in cli("table", "compare", before, before, "--on", "cpu")
    assert "is one of the tables" in cli.fails(2, *words, "--update", after)
    pair = cli.json("compare", before, after, "gemm", "m=16", "n=16", "k=32", "dtype=fp32",
                    "--on", "cpu", "--rounds", 6)  # fmt: skip
    assert str(before) in pair["first"] and str(after) in pair["second"]


def _two():
    from tilewright.arch import arch

    this = arch("sm_90")
    return KernelSpace("gemm", {"dtype_a": ["fp32"], **AXES}).expand(this).configs


@pytest.mark.turns(48)
def test_the_vendors_algorithms_are_candidates_unless_only_ours_are_wanted(
    cli, shapes, monkeypatch, tmp_path
):
    problems = [GemmProblem(m, 16, 32, "fp32") for m in (16, 32)]
    theirs = vendors(problems[0])
    asked = []

    def offered(self, group, given):
        if not given:
            return {}
        asked.append([*given])
        offers = {problems[0]: Offer((theirs,)), problems[1]: Offer(reason="it was planted")}
        self.offers += offers.values()
        return {problem: offer.configs for problem, offer in offers.items()}

    monkeypatch.setattr(Work, "_offered", offered)
    words = ("tune", "--problems", shapes, "--table", tmp_path / "t.twt", *QUICK)
    plan = cli.json(*words, "--dry-run")
    assert plan["candidates"] == 5 and plan["library"] == {
        "offered": 1, "none": {"it was planted": 1},
    }  # fmt: skip
    assert asked == [problems]
    text = cli(*words)
    assert "no algorithm of the vendor's library for 1 problem: it was planted" in text
    with Results(tmp_path / "t.sweep") as results:
        assert theirs.name in {m.kernel for m in results.measurements()}
    words = ("tune", "--problems", shapes, "--table", tmp_path / "u.twt", *QUICK, "--only-ours")
    assert cli.json(*words, "--dry-run")["candidates"] == 4 and len(asked) == 2
    # Kernels that are named are the only candidates.
    named = ("tune", theirs.name, "--problems", shapes, "--table", tmp_path / "v.twt", *QUICK)
    assert cli.json(*named, "--dry-run")["candidates"] >= 1 and len(asked) == 2


def test_the_interpreters_problems_are_nobodys_to_ask(cli, shapes, tmp_path):
    words = ("tune", "--problems", shapes, "--table", tmp_path / "t.twt", *QUICK, "--dry-run")
    assert cli.json(*words)["library"] == {"offered": 0, "none": {}}


def test_what_the_library_offers_is_listed(cli, monkeypatch):
    place = SimpleNamespace(
        backend="cuda", device=device("h200_sxm"), environment=Environment((), "")
    )
    monkeypatch.setattr(places, "parse", lambda words: [place])
    problem, seen = GemmProblem(64, 64, 64), []

    def offered(group, given, count):
        seen.append((group.device, given, count))
        return {problem: Offer((vendors(problem), vendors(problem, SPLIT, 1)))}

    monkeypatch.setattr(algorithms, "offered", offered)
    words = ("kernels", "offered", "gemm", "m=64", "n=64", "k=64")
    assert cli(*words).split() == [vendors(problem).name, vendors(problem, SPLIT, 1).name]
    assert cli.json(*words, "--count", 3)["reason"] == ""
    assert [count for *_, count in seen] == [libraries.ALGORITHMS, 3]
    monkeypatch.setattr(algorithms, "offered", lambda *_: {problem: Offer(reason="planted")})
    assert "no algorithm for gemm 64×64×64" in cli(*words, code=1)


def test_what_the_library_offers_needs_a_gpu(cli):
    words = ("kernels", "offered", "gemm", "m=64", "n=64", "k=64", "--devices", "cpu")
    assert "has no vendor's library: say a GPU" in cli.fails(1, *words)
