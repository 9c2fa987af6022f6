"""What declared operations are compared with: every operation has cases and a form of torch's, and
the forms compute the same."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_on_gpu import bench  # noqa: F401
from test_rivals import on_torch

import cases
import comparison
import declared_cases
import declared_report
import rivals
import rivals_declared
import run_file
from gpu_bench import CHOSEN, OURS
from near import TIED, far
from tilewright import ops, verify
from tilewright.measure.contenders import results

torch = pytest.importorskip("torch")
forms = pytest.importorskip("forms")

PAGES = runpy.run_path(str(Path(__file__).parents[1] / "declared/page_cases.py"))
PROBLEMS = PAGES["problems"]()
FIRST = [*{p.family: p for p in reversed(PROBLEMS)}.values()]
EVERY = cases.every()
REFUSED = "pad should be smaller than or equal to half of kernel size"
"""What torch does not pool in three dimensions, although the windows of a dilation reach so far."""
ENDS = ("", "-searched", "-stated")
CASES = [one for one in EVERY.values() if one.name.startswith(declared_cases.PREFIX)]


def test_no_operation_is_left_out():
    named = {one.name for one in CASES}
    titles = {name: f"declared-{name.replace('_', '-')}" for name in ops.declared()}
    assert [name for name in titles if name not in forms.FORMS] == []
    assert named == {f"{title}{end}" for title in titles.values() for end in ENDS}
    assert [name for name in forms.FORMS if name not in titles] == []


def in_fp32(problem):
    """The same problem in fp32, where torch's calls round nothing between them."""
    names = ops.family(problem.family).declared.dtype_fields
    return replace(
        problem, **{n: "fp32" for n in names if getattr(problem, n, "") in ("bf16", "fp16")}
    )


@pytest.mark.grid(4)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_form_computes_what_the_operation_does(problem):
    for p in (problem, in_fp32(problem)):
        operands = on_torch(p)
        wanted = verify.reference(p, operands.inputs)
        try:
            found = results(p, operands, rivals_declared.call(p, operands.inputs)())
        except RuntimeError as error:
            assert REFUSED in str(error)
            continue
        assert {n: (x.dtype, x.shape) for n, x in found.items()} == {
            n: (x.dtype, x.shape) for n, x in operands.written(p).items()
        } | {n: (x.dtype, x.shape) for n, x in operands.outputs.items()}
        assert not far(p, found, wanted)
        if p == in_fp32(problem):
            sure = {n: found[n] for n in found.keys() - {*TIED.get(p.family, ())}}
            assert not sure or (check := verify.compare_all(p, None, sure, wanted)).ok, check


@pytest.mark.parametrize("name", ["hstu_attention", "hstu_attention_backward"])
def test_rows_behind_the_last_sequence_are_of_none(name):
    """As many as no sequence has: a form that reads them ends a GPU's process."""
    p = ops.family(name).problem_type(
        rows=600, bounds=65, heads=1, head_dim=16, head_dim_v=16, dtype="fp32"
    )
    every = (on_torch(p, seed) for seed in range(20))
    operands = next(o for o in every if p.rows - int(o.inputs["offsets"][-1]) > 40)
    found = results(p, operands, rivals_declared.call(p, operands.inputs)())
    check = verify.compare_all(p, None, found, verify.reference(p, operands.inputs))
    assert check.ok, check


def test_what_is_far_is_told():
    p = ops.family("rms_norm").problem_type(rows=4, columns=32, dtype="bf16")
    wanted = {"y": np.linspace(-1, 1, 128).reshape(4, 32)}
    assert not far(p, {"y": np.float32(wanted["y"] * 1.05)}, wanted)
    assert far(p, {"y": np.float32(wanted["y"] * 1.15)}, wanted).startswith("y is outside")


@pytest.mark.turns(48)
@pytest.mark.parametrize("problem", FIRST, ids=lambda p: p.family)
def test_a_form_is_compiled_whole(problem, monkeypatch):
    """Traced as for a GPU; the compiler behind it takes too long here."""
    whole = torch.compile
    monkeypatch.setattr(
        torch, "compile",
        lambda function, options, **how: whole(function, backend="eager", **how),
    )  # fmt: skip
    operands = on_torch(problem)
    (bind,) = rivals_declared.compiled(problem, None).values()
    wanted = rivals_declared.call(problem, operands.inputs)()
    found = bind(operands.inputs, operands.outputs)()
    torch._dynamo.reset()
    if wanted is not None:  # it did not write in place
        torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.turns(48)
@pytest.mark.grid(1)
@pytest.mark.parametrize("problem", FIRST, ids=lambda p: p.family)
def test_every_operation_is_compared(problem, bench, monkeypatch):  # noqa: F811
    """Its outputs in place and those that are made, in the interpreter beside torch."""
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    monkeypatch.setattr(rivals, "_GPU", "cpu")
    usual = EVERY[declared_cases.PREFIX + problem.family.replace("_", "-")]
    vendor = usual.vendor[:2]  # libraries are of GPUs
    case = replace(
        usual, operands=lambda problem, seed, device: on_torch(problem, seed), vendor=vendor
    )
    row, _ = bench.compared(replace(case, ways=("calls",)), problem, 5, lambda text: None)
    assert row.wrong == {}
    assert {rivals_declared.EAGER, rivals_declared.COMPILED} == {*row.vendor}


def test_sizes_are_drawn_anew():
    for name in ops.declared():
        case = EVERY[declared_cases.PREFIX + name.replace("_", "-")]
        count = 1 if name.startswith("hstu") else declared_cases.COUNT
        (known, *_), found = case.problems(), case.problems()[-count:]
        assert found == case.problems()[-count:]
        assert len({*found}) == count
        assert known in declared_cases.stated(name)
        assert not {*found} & {*declared_cases.stated(name)}


def test_published_sizes_are_of_their_operation():
    named = [name for name in EVERY if name.startswith(declared_cases.PUBLISHED)]
    assert named
    for name in named:
        found, family = EVERY[name].problems(), name.removeprefix(declared_cases.PUBLISHED)
        assert {p.family for p in found} == {family.replace("-", "_")}
        assert len({*found}) == len(found)


def test_a_copy_is_beside_what_exceeds_l2():
    case, small = EVERY["declared-rms-norm"], {"rows": 8, "columns": 64, "dtype": "bf16"}
    family = ops.family("rms_norm")
    large = family.problem_type(**small | {"rows": 1 << 22})
    (stated, *_) = declared_cases.stated("rms_norm")
    of = {part.end: part.where for part in case.parts}
    assert of["copy"](large) and of["drawn"](large)
    assert not of["copy"](family.problem_type(**small)) and not of["drawn"](stated)


@pytest.mark.parametrize("name", ["hstu-attention", "hstu-attention-backward"])
def test_torch_has_memory_for_padded_scores(name):
    stated = EVERY[f"declared-{name}-stated"].problems()
    usual = EVERY[f"declared-{name}"].problems()
    assert len(stated) == 3 and not {stated[-1]} & {*usual}
    assert stated[0] == usual[0]
    assert len(usual) == 2


def line(way, ours, compiled, copied, moved):
    return declared_report.Line(
        "", "", "", "", way, ours, None, compiled, None, copied, None, moved, 0.0, None, "yes"
    )


def test_how_far_ahead_of_compiled_torch_a_kernel_could_be():
    moved = 480_000_000  # 100 µs at the bandwidth of the data sheet
    found = [
        line("calls", 110.0, 110.0, 121.0, moved),  # all that there is: nobody was faster
        line("calls", 125.0, 120.0, 100.0, moved),
        line("calls", 2.0, 4.0, 1.0, 1000),  # in L2
        line("graphs", 110.0, 121.0, 132.0, moved),
        line("calls", 9.0, None, 1.0, moved),
    ]
    every, large, graphs, _ = declared_report.bounds(found)
    assert (every.count, every.least, every.under, every.by_sheet) == (3, 0.96, 1, None)
    assert large.count == 2 and large.enough == 1
    assert large.ratio == pytest.approx(0.96**0.5)
    assert large.by_copy == pytest.approx(1.2**0.5)
    assert large.by_sheet == pytest.approx((1.1 * 1.2) ** 0.5)
    assert large.compiled_share == pytest.approx((1.1 / 1.2) ** 0.5)
    assert graphs.by_sheet is None and graphs.by_copy == pytest.approx(1.1)


@pytest.mark.turns(24)
def test_a_problem_is_compared_and_reported(bench, monkeypatch, tmp_path):  # noqa: F811
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    monkeypatch.setattr(rivals, "_GPU", "cpu")
    problem = ops.family("rms_norm").problem_type(rows=4, columns=32, dtype="fp32", has_w=True)
    case = replace(
        EVERY["declared-rms-norm"],
        problems=lambda: [problem],
        operands=lambda problem, seed, device: on_torch(problem, seed),
    )
    row, used = bench.compared(case, problem, 5, lambda text: None)
    torches = (rivals_declared.EAGER, rivals_declared.COMPILED)
    assert row.vendor == torches and row.chosen_by == "analytical"
    assert {*row.samples["graphs"]} == {OURS, CHOSEN, *torches, rivals.COPY}
    for part in case.parts:
        assert comparison.summed([row], "calls", "ours", part.vendor).mean == 1.0
    said = {"cases": {case.name: {"rows": [run_file.document(row, used)]}}}
    monkeypatch.setattr(cases, "every", lambda: {case.name: case})
    found = [*declared_report.lines(said)]
    assert [line.way for line in found] == ["calls", "graphs"]
    one = found[0]
    assert (one.operation, one.dtype, one.verified) == ("rms_norm", "fp32", "yes")
    assert (one.ours_us, one.eager_us, one.compiled_us, one.copy_us) == (10.0,) * 4
    assert (one.ratio, one.share) == (1.0, 1.0)
    assert one.gb_s == pytest.approx((2 * 4 * 32 * 4 + 32 * 4) / 10 / 1e3)
    assert "rows=4 columns=32" in declared_report.table(found)
    medians = {"ours": 10.0, "torch": 30.0, "torch.compile": 20.0, rivals.COPY: 5.0}
    kept = {"us": {case.name: {str(problem): dict.fromkeys(("calls", "graphs"), medians)}}}
    calls, _ = declared_report.recorded(kept)
    assert (calls.compiled_us, calls.ratio, calls.share) == (20.0, 2.0, 0.5)
    bounds = [*declared_report.bounds(found)]
    assert [(b.problems, b.count, b.ratio, b.under) for b in bounds] == [("all", 1, 1.0, 0)] * 2
    case = replace(case, problems=list)
    monkeypatch.setattr(cases, "every", lambda: {case.name: case})
    with pytest.raises(SystemExit, match="check out its commit"):
        [*declared_report.lines(said)]
