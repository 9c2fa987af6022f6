"""What is built where nothing says for what but a list, with a GPU and without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import NAME
from table_cases import kernel, row

from tilewright.arch import Device, device, targets
from tilewright.arch.targets import VARIABLES
from tilewright.errors import NoDriver
from tilewright.ops.gemm import GemmProblem
from tilewright.tables import file
from tilewright.tables.aiter import write_aiter
from tilewright.tables.table import Table

LIST = "gfx942;gfx950"
SMALL = {"tile_m": 16, "tile_n": 32, "tile_k": 32, "alignment": 1}
ONE, TWO, THREE = (kernel(**SMALL, num_stages=n) for n in (1, 2, 3))
MI300X, MI355X, H200 = map(device, ("mi300x", "mi355x", "h200_sxm"))


@pytest.fixture(params=["no GPU", "an MI300X", "an H200"])
def here(request, monkeypatch) -> None:
    """A machine that has this. A list must not even look."""
    found: list[Device] = {"an MI300X": [MI300X], "an H200": [H200]}.get(request.param, [])

    def live() -> list[Device]:
        if not found:
            raise NoDriver("no GPU can be used here")
        return found

    for read in (targets.parse, targets.targets):
        monkeypatch.setattr(read, "__defaults__", (*read.__defaults__[:-1], live))


@pytest.fixture
def csvs(tmp_path: Path) -> list[Path]:
    """Two of aiter's files that name our kernels for two architectures."""

    def problem(m: int) -> GemmProblem:
        return GemmProblem(m, 32, 32)

    made = []
    for number, rows in enumerate(
        (
            [row(problem(16), ONE, on=MI300X), row(problem(32), TWO, on=MI355X)],
            [row(problem(48), TWO, on=MI300X), row(problem(64), THREE, on=MI355X),
             row(problem(64), THREE, on=H200)],
        )
    ):  # fmt: skip
        path = tmp_path / f"bf16_tuned_gemm_{number}.csv"
        path.write_text(write_aiter(rows, "bf16").text)
        made.append(path)
    return made


def content(store: Path) -> dict[str, bytes]:
    """Every file that stands for a kernel, by its place; signatures are of who built it."""
    files = [*store.glob("entries/*/*.json"), *store.glob("blobs/*/*")]
    return {str(p.relative_to(store)): p.read_bytes() for p in files}


BUILT: list[dict[str, bytes]] = []
"""What the first of the machines below built."""


@pytest.mark.turns(64)
@pytest.mark.parametrize("order", [1, -1])
def test_a_list_builds_the_same_bytes_everywhere_in_any_order_of_files(
    cli, here, csvs, tmp_path, monkeypatch, order
):
    monkeypatch.setenv(VARIABLES[1], LIST)
    store = tmp_path / "built"
    words = ("build", *csvs[::order], "--store", store, "--workers", 1)
    document = cli.json(*words)
    assert document["counts"] == {"built": 4}, "two for each; not those of the H200"
    assert [arch["arch"] for arch in document["archs"]] == LIST.split(";")
    BUILT.append(content(store))
    assert BUILT[-1] == BUILT[0] and len(BUILT[0]) > 4


@pytest.mark.turns(8)
def test_counts_of_compute_units_choose_among_a_tables_rows(cli, csvs, tmp_path):
    both = tmp_path / "both.twt"
    file.save(Table.of([row(GemmProblem(8, 8, 8), ONE, on=d) for d in (MI300X, MI355X)]), both)

    def legal(*words: object) -> list[int]:
        found = cli.json("build", *words, "--limit", 1, "--workers", 1)
        return [arch["legal"] for arch in found["archs"]]

    assert legal(*csvs, "--arch", "gfx942:304") == [2]
    assert legal(*csvs, both, "--arch", "gfx942; GFX950:256 ;gfx942") == [2, 3]
    said = cli.fails(2, "build", *csvs, both, "--arch", "gfx942:80")
    assert "has no row of our kernels for gfx942:80" in said


@pytest.mark.turns(24)
def test_kernels_of_a_table_that_are_gone_are_said(cli, tmp_path):
    old = tmp_path / "old.twt"
    file.save(Table.of([row(GemmProblem(8, 8, m), k) for m, k in ((8, ONE), (9, "gemm_old"))]), old)
    document = cli.json("build", old, "--arch", "sm_90", "--workers", 1)
    assert document["archs"][0]["legal"] == 1
    assert "gemm_old is skipped" in str(document["archs"][0]["notes"])


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "words",
    [
        ("build", NAME),
        ("expand", "--default", "gemm", "m=8", "n=8", "k=8"),
        ("registry", "export", NAME, "-o", "r.json"),
        ("sweep", NAME, "--problems", "p.csv", "--out", "out", "--compile-only"),
    ],
    ids=lambda words: words[0],
)
def test_every_command_that_builds_goes_by_the_list(cli, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("p.csv").write_text("m,n,k\n8,8,8\n")
    monkeypatch.setattr(targets, "live_devices", None)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(VARIABLES[0], "gfx942; gfx9000")
    said = cli.fails(2, *words)
    assert said.startswith("TILEWRIGHT_ARCHS: unknown architecture 'gfx9000'")
    monkeypatch.setenv(VARIABLES[0], "gfx942")
    found = cli.json(*words)
    if "archs" in found:
        assert [arch["arch"] for arch in found["archs"]] == ["gfx942"]


def test_no_list_and_no_gpu_says_both_ways_out(cli, monkeypatch):
    def none() -> list[Device]:
        raise NoDriver("no GPU can be used here")

    monkeypatch.setattr(targets.targets, "__defaults__", ({}, none))
    said = cli.fails(1, "build", NAME)
    assert "in TILEWRIGHT_ARCHS (gfx942,gfx950) or by --arch" in said and "driver visible" in said
