"""What tuning would be worth to a model that was listened to: no time without its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tilewright import capture_file, ops
from tilewright.arch import device
from tilewright.capture_file import Heard, Record, Recorded, Run, Unstated
from tilewright.cli.app import app
from tilewright.errors import BadArgument
from tilewright.plan import Planner
from tilewright.registry import Registry
from tilewright.report import listened
from tilewright.report.worth import gathered, worth
from tilewright.tables.row import Row
from tilewright.tables.table import Table

GPU = device("h200_sxm")
KERNEL = "gemm_rcr_bf16_bf16_bf16_fp32_128x128x64_w4_s3_basic_tile_g8_direct_padmnk_al16"
FAMILY: Any = ops.family("gemm")
BIG, SMALL = (FAMILY.problem_type(size, 256, 256) for size in (4096, 64))
HALF = FAMILY.problem_type(64, 64, 64, dtype_a="fp16")
"""It has no kernel in the registry."""


def planner(**keywords: Any) -> Planner:
    """With one kernel."""
    registry = Registry()
    registry.register(FAMILY.parse_name(KERNEL))
    return Planner(registry, GPU, **keywords)


def table(us: float) -> Table:
    return Table.of([Row(GPU, BIG, KERNEL, (), us, (us * 0.99, us * 1.01))])


def heard(name: str = GPU.name, steps: int = 4) -> Recorded:
    """A process of four steps, each with two big products, a small one and one in fp16."""
    return Recorded(
        {BIG: 8, SMALL: 4, HALF: 4},
        {
            BIG: Heard("aten.mm", 4, 4 * 50e-6, 1, 1.0, 8, {"gelu": 8}),
            SMALL: Heard("aten.addmm", 0, 0.0, 1, 20e-6),
            HALF: Heard("aten.mm", 2, 2 * 10e-6),
        },
        {BIG: 8, SMALL: 4, HALF: 4},
        (Run(name, "2.13.0", 1.0, steps, 0.002, (Unstated("aten.mm", "fp64", 2, 0.5),)),),
    )


def test_measured_times_and_estimates_are_told_apart() -> None:
    found = worth(heard(), planner(tables=table(30.0)), GPU)
    assert (found.per, found.steps, found.step_ms) == ("step", 4, 2.0)
    lines = {line.by + line.problem: line for line in found.lines}
    big, small = lines[f"aten.mm{BIG}"], lines[f"aten.addmm{SMALL}"]
    assert (big.count, big.theirs_ms, big.theirs_from) == (2, pytest.approx(0.1), "measured")
    assert (big.ours_ms, big.ours_from, big.chosen_by) == (0.06, "measured", "tuned")
    assert big.saves_ms == pytest.approx(0.04) and big.share == pytest.approx(0.05)
    assert big.seen == {"gelu": 8}
    assert (small.theirs_ms, small.theirs_from) == (pytest.approx(0.02), "measured early")
    config = FAMILY.parse_name(KERNEL)
    expected = FAMILY.estimate(config, SMALL, GPU).total_us
    assert (small.ours_ms, small.ours_from) == (pytest.approx(expected / 1e3), "estimated")
    none = lines[f"aten.mm{HALF}"]
    assert (none.kernel, none.ours_ms, none.ours_from, none.saves_ms) == ("", None, "none", None)
    assert "dtype_a is bf16, the problem has fp16" in none.chosen_by
    gains = [line.saves_ms for line in found.lines if line.saves_ms is not None]
    assert found.saves_ms == pytest.approx(sum(max(0.0, one) for one in gains))
    assert [line.saves_ms or 0 for line in found.lines] == sorted(
        (line.saves_ms or 0 for line in found.lines), reverse=True
    )
    assert found.untuned == 2


def test_a_kernel_that_is_slower_saves_nothing() -> None:
    found = worth(heard(), planner(tables=table(200.0)), GPU)
    (big,) = (line for line in found.lines if line.problem == str(BIG))
    assert big.saves_ms == pytest.approx(-0.3)
    assert 0 <= found.saves_ms < 0.02, "torch's call stays"


def test_times_of_another_device_are_not_compared() -> None:
    found = worth(heard("cpu"), planner(tables=table(30.0)), GPU)
    assert {line.theirs_ms for line in found.lines} == {None}
    assert {line.saves_ms for line in found.lines} == {None} and found.saves_ms == 0
    assert "not timed on that GPU" in listened.summary(found)


def test_steps_may_be_told_and_are_a_run_otherwise() -> None:
    assert worth(heard(), planner(), GPU, steps=2).lines[0].count in (4, 2)
    unknown = worth(heard(steps=0), planner(), GPU)
    assert (unknown.per, unknown.steps) == ("run", 1)
    told = worth(heard(), planner(), GPU, steps=8)
    assert (told.per, told.steps, told.step_ms) == ("step", 8, pytest.approx(125.0))


def test_what_was_only_captured_has_no_worth() -> None:
    with pytest.raises(BadArgument, match="no calls that were listened to"):
        worth(Recorded({BIG: 3}, {}, {}, ()), planner(), GPU)


def test_several_files_are_one() -> None:
    both = gathered([heard(), heard()])
    found = worth(both, planner(), GPU)
    assert (found.steps, found.lines[0].count) == (8, worth(heard(), planner(), GPU).lines[0].count)
    assert both.heard[BIG].timed == 8 and both.heard[BIG].seen == {"gelu": 16}
    assert found.unstated == (Unstated("aten.mm", "fp64", 4, 1.0),)


def test_the_page_has_every_problem_and_no_script() -> None:
    found = worth(heard(), planner(), GPU)
    page = listened.render(found)
    assert all(line.problem in page for line in found.lines)
    assert "<script" not in page and "default-src 'none'" in page and "fp64" in page


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.jsonl"
    of = heard()
    records = [Record(p, n, of.heard[p]) for p, n in of.counts.items() if p != HALF]
    capture_file.append(path, *records, *of.processes)
    return path


def test_the_command(file: Path, tmp_path: Path) -> None:
    page = tmp_path / "worth.html"
    words = ["listen", "report", str(file), "--device", "h200_sxm"]
    said = CliRunner().invoke(app, [*words, "--page", str(page)]).stdout
    assert str(BIG) in said and "measured early" in said and "estimated" in said
    assert f"tilewright tune --problems {file} --table mine.twt" in said
    assert str(BIG) in page.read_text()
    document = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert document["steps"] == 4 and document["step_ms"] == 2.0
    big, small = sorted(document["problems"], key=lambda one: -one["count"])
    assert (big["count"], big["theirs_from"]) == (2, "measured")
    assert (small["count"], small["theirs_from"]) == (1, "measured early")
    assert document["untuned"] == sum(one["ours_from"] != "measured" for one in (big, small))


def test_a_record_survives_the_file(file: Path) -> None:
    read, of = capture_file.read(file), heard()
    assert read.counts == {BIG: 8, SMALL: 4}
    assert read.heard == {p: h for p, h in of.heard.items() if p != HALF}
    assert read.processes == of.processes
