"""Algorithms of the vendor's library in tables and bundles: who chooses them, and who leaves them
out."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from bundle_cases import content
from cli_runner import Cli
from library_cases import SPLIT, amds, vendors
from table_cases import H100, H200, PLAIN, gemm, kernel, row

from tilewright import Constraints
from tilewright.arch import arch, device
from tilewright.bundle import write
from tilewright.compile import Store, build, build_keys, find
from tilewright.compile.pool import part_keys
from tilewright.dispatch import Dispatcher
from tilewright.errors import LibraryRefused
from tilewright.ops import library as library_module
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.registry import Registry
from tilewright.tables import file
from tilewright.tables.aiter import write_aiter
from tilewright.tables.table import Table

P = gemm(512)
THEIRS = vendors(P, SPLIT, 4)
AMDS = amds(P, workspace=4)
INPLACE = vendors(gemm(512, dtype_c="fp32"), SPLIT.__class__(1, 2, 3, 4, "inplace", 0, 0, 0, 0), 1)


def tuned(*rows, on=H200, **options) -> Dispatcher:
    return Dispatcher(device=on, tables=Table.of(rows, "mine.twt"), **options)


def test_a_row_of_an_algorithm_decides_and_is_explained():
    dispatcher = tuned(row(P, THEIRS.name, 10.0))
    plan = dispatcher.select(P)
    assert plan.config == THEIRS and plan.selector == "tuned"
    assert plan.launch.workspace_bytes == 4 << 20 and not FAMILY.sources(THEIRS, arch("sm_90"))
    found = dispatcher.explain(P)
    assert found.chosen == THEIRS.name and found.fates[0].reason.startswith("exact row of mine.twt")
    assert tuned(row(P, THEIRS.name)).select(gemm(500)).config == THEIRS


def test_a_row_of_amds_algorithm_decides_on_amd_unless_bits_must_repeat():
    mi300x = device("mi300x")
    rows = row(P, AMDS.name, 10.0, device=mi300x)
    plan = tuned(rows, on=mi300x).select(P)
    assert plan.config == AMDS and plan.selector == "tuned"
    for field in ("only_ours", "deterministic", "batch_invariant"):
        strict = tuned(rows, on=mi300x, constraints=Constraints(**{field: True}))
        assert strict.select(P).config.pipeline != "vendor"


def test_an_emulated_gpu_has_no_library():
    emulated = Dispatcher(device="emulated:mi300x")
    rows = row(P, AMDS.name, device=emulated.device_for_planning())
    on = Dispatcher(device="emulated:mi300x", tables=Table.of([rows]))
    skipped = [f for f in on.explain(P).fates if f.name == AMDS.name]
    assert [f.reason for f in skipped if "the emulator executes" in f.reason]
    assert on.select(P).config.pipeline != "vendor"
    a = np.zeros((16, 16), np.float32)
    name = amds(GemmProblem(16, 16, 16, "fp32", layout="rrr"), alignment=4).name
    with pytest.raises(LibraryRefused, match="the emulator executes"):
        on.run_named(name, a, a, out=a.copy())


def test_only_ours_takes_the_next_and_says_why():
    dispatcher = tuned(row(P, THEIRS.name, ties=(PLAIN,)), constraints=Constraints(only_ours=True))
    assert dispatcher.select(P).config.name == PLAIN
    skipped = [f for f in dispatcher.explain(P).fates if f.name == THEIRS.name]
    assert skipped[0].fate == "skipped" and "cublaslt13" in skipped[0].reason
    behind = tuned(row(P, THEIRS.name, ours=PLAIN), constraints=Constraints(only_ours=True))
    plan = behind.select(P)
    assert plan.config.name == PLAIN and plan.selector == "tuned"
    assert (
        plan.reason == f"exact row of mine.twt: the best that is built here, behind {THEIRS.name}"
    )
    assert tuned(row(P, THEIRS.name, ours=PLAIN)).select(P).config == THEIRS
    alone = tuned(row(P, THEIRS.name), constraints=Constraints(only_ours=True)).select(P)
    assert alone.selector != "tuned" and alone.config.pipeline != "vendor"


def test_bits_that_need_not_repeat_are_refused_where_they_must():
    p = gemm(512, dtype_c="fp32")
    free, strict = (
        tuned(row(p, INPLACE.name), constraints=Constraints(deterministic=wanted))
        for wanted in (False, True)
    )
    assert free.select(p).config == INPLACE and strict.select(p).config.pipeline != "vendor"
    invariant = tuned(row(P, THEIRS.name), constraints=Constraints(batch_invariant=True))
    assert invariant.select(P).config.pipeline != "vendor"


def test_without_a_row_the_choice_is_ours():
    for problem in (P, gemm(1), gemm(8192, 8192, 8192)):
        found = tuned(row(gemm(64, 4096), THEIRS.name)).explain(problem)
        assert not any("_vendor_" in fate.name for fate in found.fates)


def test_a_row_is_borrowed_as_any_other():
    plan = tuned(row(P, THEIRS.name), on=H100).select(P)
    assert plan.config == THEIRS and plan.reason.startswith("borrowed from NVIDIA H200")


def test_a_registry_may_hold_one_alone():
    registry = Registry("r").register_all([THEIRS.name])
    found = Dispatcher(registry, H200).explain(P)
    assert found.chosen == THEIRS.name and "at best" in found.fates[0].reason


def test_a_bundles_table_may_name_one(tmp_path):
    made = content(table=Table.of([row(P, THEIRS.name), row(gemm(64), PLAIN)]))
    path = tmp_path / "some.bundle"
    write(made, path)
    dispatcher = Dispatcher(device=H200, bundle=path)
    assert dispatcher.select(P).config == THEIRS
    assert dispatcher.select(gemm(64)).config.name == PLAIN
    assert (
        Dispatcher(device=H200, bundle=path, constraints=Constraints(only_ours=True))
        .select(P)
        .config.pipeline
        != "vendor"
    )


# --- nothing is built ---------------------------------------------------------------------------


def test_nothing_is_built_and_the_report_says_so(tmp_path):
    store = Store(tmp_path)
    report = build([(THEIRS, "sm_90")], store=store)
    (result,) = report.results
    assert (result.status, result.ok, result.kernel) == ("not needed", True, None)
    assert "cublaslt13" in result.reason and not report.kernels and not report.failures
    assert find(THEIRS, "sm_90", store) == {} and not [*store.entries()]
    (refused,) = build([(THEIRS, "gfx942")], store=store).results
    assert refused.status == "rejected" and find(THEIRS, "gfx942", store) is None


def test_the_librarys_version_stands_for_a_binary(monkeypatch):
    monkeypatch.setattr(library_module, "package", lambda kind: "nvidia-cublas 13.1.0")
    assert build_keys([THEIRS], "sm_90") == ["cublaslt13 nvidia-cublas 13.1.0"]
    sibling = FAMILY.interpreted(THEIRS)
    assert build_keys([THEIRS], "sm_90", interpreted=True) != build_keys([THEIRS], "sm_90")
    assert part_keys(THEIRS, "sm_90") == {} and sibling.pipeline == "basic"


# --- other tools --------------------------------------------------------------------------------


def test_tables_keep_rows_of_algorithms(tmp_path):
    table = Table.of(
        [row(P, THEIRS.name, ties=(PLAIN, kernel(num_warps=8))), row(gemm(64), AMDS.name)]
    )
    file.save(table, tmp_path / "t.twt")
    assert [*file.load(tmp_path / "t.twt")] == [*table]


def test_aiters_files_do_not_name_them(tmp_path):
    table = Table.of([row(gemm(64), THEIRS.name), row(gemm(128))])
    written = write_aiter(table, "bf16")
    [(_, why)] = written.left
    assert "cublaslt13" in why and written.count == 1


@pytest.mark.turns(24)
def test_of_such_a_row_the_best_kernel_of_ours_is_built(tmp_path):
    file.save(Table.of([row(P, THEIRS.name, ours=PLAIN)]), tmp_path / "t.twt")
    words = ("build", tmp_path / "t.twt", "--arch", "sm_90", "--store", tmp_path / "s")
    found = {one["name"]: one["status"] for one in Cli().json(*words)["results"]}
    assert found == {THEIRS.name: "not needed", PLAIN: "built"}


@pytest.mark.parametrize("command", ["show", "inspect", "build", "explain"])
def test_commands_say_that_the_library_computes_it(command, tmp_path, monkeypatch):
    cli, name, store = Cli(), THEIRS.name, ("--store", tmp_path / "store")
    if command == "show":
        assert "needs no build: cublaslt13 computes it" in cli("kernels", "show", name, *store)
    elif command == "inspect":
        words = ("kernels", "inspect", name, "--arch", "sm_90", "--what", "ptx")
        assert "has no code here: cublaslt13" in cli.fails(2, *words, *store)
    elif command == "build":
        words = ("build", name, "--arch", "sm_90", *store)
        assert "not needed" in cli(*words)
        assert cli.json(*words)["results"][0]["status"] == "not needed"
    else:
        path = tmp_path / "t.twt"
        file.save(Table.of([row(P, name)]), path)
        words = ("explain", "gemm", "m=512", "n=512", "k=512", "--table", path)
        words = (*words, "--device", "h200_sxm")
        assert cli.json(*words)["chosen"] == name
        assert cli.json(*words, "--only-ours")["chosen"] != name
