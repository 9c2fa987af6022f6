"""The contenders of `on_gpu`: the interpreter in place of a GPU, and a clock that stands still."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_rivals import on_torch

import comparison
import gpu_bench
import on_gpu
import rivals
import steps
import tilewright as tw
from cases import Case, Contest, InGraphs
from comparison import compared
from gpu_bench import CHOSEN, OURS, PLACES
from tilewright import errors, verify
from tilewright.arch import device
from tilewright.compile import Store
from tilewright.measure import timing
from tilewright.measure.measurement import Settings
from tilewright.ops.gemm import GemmProblem
from tilewright.pointer_array import Pointers
from tilewright.preparing import Measured
from tilewright.tables import file
from tilewright.tables.row import Row
from tilewright.tables.table import Table
from tilewright.tune.search import Effort

torch = pytest.importorskip("torch")

PROBLEM = GemmProblem(32, 32, 32, "bf16")
QUICK = Settings(warm_up_seconds=0, min_samples=2, max_samples=2)


class Clock:
    """A timer that runs a call and says that it took 10 µs."""

    def once(self, call):
        return self.queue(call)

    def queue(self, call):
        call()
        return 10.0

    def read(self, queued):
        return list(queued)

    def late(self, queued):
        return 0


def no_library(backend):
    raise errors.LibraryRefused("there is no library here")


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """A bench whose GPU is the interpreter. Kernels in `bench.unbuilt` cannot be built."""
    unbuilt: set[str] = set()
    told: list[list[str]] = []

    def built(wanted, store, progress, workers):
        told.append([c.name for c, _ in wanted])
        for number in range(len(wanted)):
            progress(None, number + 1, len(wanted))
        rows = [SimpleNamespace(config=c, ok=c.name not in unbuilt) for c, _ in wanted]
        return SimpleNamespace(results=rows)

    monkeypatch.setattr(on_gpu, "GPU", "cpu")
    monkeypatch.setattr(gpu_bench, "live_device", lambda index: device("h200_sxm"))
    monkeypatch.setattr(gpu_bench.libraries, "present", no_library)
    monkeypatch.setattr(gpu_bench, "build", built)
    monkeypatch.setattr(on_gpu, "BRIEF", QUICK)
    monkeypatch.setattr(comparison, "EFFORT", Effort(first=1, step=1, patience=1))
    for name in ("LEAST_ROUNDS", "MOST_ROUNDS"):
        monkeypatch.setattr(comparison, name, 4)
    monkeypatch.setattr(timing, "flusher", lambda l2_bytes, place: lambda: None)
    monkeypatch.setattr(timing, "Events", lambda flush, place: Clock())
    monkeypatch.setattr(timing, "Graphs", lambda flush, place, copies: Clock())
    monkeypatch.setattr(timing, "copies_to_rotate", lambda inputs, l2: 2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 24, 1 << 24))
    made = on_gpu.CaseBench(Store(tmp_path / "store"))
    made.unbuilt, made.told = unbuilt, told
    return made


def case(**more) -> Case:
    usual = {
        "operands": lambda problem, seed, device: on_torch(problem, seed),
        "only": lambda c: c.pipeline == "basic" and c.scheduler == "tile",
    }
    return Case("toy", "a toy", "torch", lambda: [PROBLEM], **{**usual, **more})


@pytest.mark.turns(48)
def test_kernels_are_searched_checked_and_timed_both_ways(bench):
    said = []
    stage = on_gpu.OnGpu(case(), PROBLEM, bench, 5, said.append)
    row = compared(str(PROBLEM), stage)
    assert row.wrong == {}
    assert 2 <= row.tried <= 3
    assert set(row.samples) == {"calls", "graphs"}
    for samples in row.samples.values():
        assert set(samples) == {*row.ours, "torch.mm"}
        assert {len(taken) for taken in samples.values()} == {4}
    found = row.ratio("calls", "ours")
    assert found.vendor == "torch.mm"
    assert stage.config(found.kernel).name == found.kernel
    assert any("torch.mm" in text for text in said)
    bench.release()


@pytest.mark.turns(32)
def test_a_wrong_contender_is_told_and_left_out(bench):
    def liar(problem, bench):
        return {"liar": lambda inputs, outputs: lambda: torch.ones(32, 32, dtype=torch.bfloat16)}

    def breaks(problem, bench):
        return {"breaks": lambda inputs, outputs: lambda: torch.mm(1, 2)}

    def absent(problem, bench):
        raise rivals.Absent("absent", "No module named 'absent'")

    vendor = (rivals.torch_calls, liar, breaks, absent)
    row = compared("p", on_gpu.OnGpu(case(vendor=vendor), PROBLEM, bench, 5, lambda text: None))
    assert row.vendor == ("torch.mm",)
    assert "outside tolerance" in row.wrong["liar"]
    assert "TypeError" in row.wrong["breaks"]
    assert row.wrong["absent"] == "not here: No module named 'absent'"
    loose = case(vendor=(liar,), exact=False)
    row = compared("p", on_gpu.OnGpu(loose, PROBLEM, bench, 5, lambda text: None), ("calls",))
    assert row.vendor == ("liar",)


def test_a_kernel_that_cannot_be_built_is_told(bench):
    stage = on_gpu.OnGpu(case(), PROBLEM, bench, 5, lambda text: None)
    first = stage.field.starters[0] if stage.field.starters else stage.field.ours[0]
    bench.unbuilt.add(first)
    assert stage.tried([first]) == {first: None}
    assert first in stage.wrong


@pytest.mark.turns(24)
@pytest.mark.parametrize("ours", ["answered", "estimated", "learned"])
def test_a_dispatchers_answers_are_contenders(bench, ours, monkeypatch):
    asked = []

    def dispatched(label, dispatcher, problem):
        asked.append(label)
        config = dispatcher.select(problem).config
        bind = lambda inputs, outputs: lambda: torch.mm(inputs["A"], inputs["B"])  # noqa: E731
        return SimpleNamespace(bind=bind, config=config)

    monkeypatch.setattr(on_gpu, "dispatched", dispatched)
    row = compared("p", on_gpu.OnGpu(case(ours=ours), PROBLEM, bench, 5, lambda text: None))
    assert (row.ours, row.with_library) == ((OURS,), (CHOSEN,))
    chosen = [each[0].select(PROBLEM).config for each in bench.answers[ours].values()]
    assert chosen[0] == chosen[1] and {*asked} == {OURS}  # one kernel is timed once
    assert row.samples["calls"][OURS] == row.samples["calls"][CHOSEN]


def test_places_are_elsewhere_and_copies_share_one_output(bench):
    stage = on_gpu.OnGpu(case(), PROBLEM, bench, 5, lambda text: None)
    places = stage._spread()
    assert len({x.inputs["A"].data_ptr() for x in places}) == PLACES
    assert len({x.outputs["C"].data_ptr() for x in places}) == PLACES
    copies = stage._copies()
    assert len({x.inputs["A"].data_ptr() for x in copies}) == len(copies) == 2
    assert len({x.outputs["C"].data_ptr() for x in copies}) == 1
    assert torch.equal(copies[0].inputs["A"], copies[1].inputs["A"])


def test_operands_are_drawn_once_and_copied_with_what_they_share(bench):
    drawn = []

    def operands(problem, seed, device):
        drawn.append(seed)
        made = on_torch(problem, seed)
        made.inputs["A"] = made.inputs["A"].expand(32, 32)
        made.inputs["again"] = made.inputs["B"][:, 1:]
        return made

    stage = on_gpu.OnGpu(case(operands=operands), PROBLEM, bench, 5, lambda text: None)
    places, copies = stage._spread(), stage._copies()
    assert drawn == [5]
    for each in (*places, *copies):
        a, b, again = (each.inputs[name] for name in ("A", "B", "again"))
        assert a.stride() == places[0].inputs["A"].stride()
        assert torch.equal(b, places[0].inputs["B"])
        assert again.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        assert torch.equal(again, b[:, 1:])


def test_operands_of_pointers_are_drawn_again(bench):
    drawn = []

    def operands(problem, seed, device):
        drawn.append(seed)
        made = on_torch(problem, seed)
        made.inputs["rows"] = Pointers(None, (0, 2), (1,), None, 16, "cuda:0")
        return made

    stage = on_gpu.OnGpu(case(operands=operands), PROBLEM, bench, 5, lambda text: None)
    stage._another()
    assert drawn == [5, 5]


@pytest.mark.turns(24)
def test_rivals_of_ours_compute_another_problem_on_the_same_operands(bench, monkeypatch):
    monkeypatch.setattr(rivals, "OWN", 1)
    monkeypatch.setattr(rivals, "_GPU", "cpu")
    of = rivals.own_kernels(
        lambda c: c.pipeline == "basic", of=lambda p: replace(p, constant_b=False)
    )
    row = compared(
        "p", on_gpu.OnGpu(case(vendor=(of,)), PROBLEM, bench, 5, lambda text: None), ("calls",)
    )
    (name,) = row.vendor
    assert name.startswith("rival gemm_")
    scaled = GemmProblem(32, 32, 32, "bf16", epilogue="bias")
    found = rivals.without_epilogue(scaled, bench)
    operands = on_torch(scaled)
    ((bare, bind),) = found.items()
    got = bind(operands.inputs, operands.outputs)()
    plain = operands.inputs["A"].double() @ operands.inputs["B"].double()
    assert "epi" not in bare
    assert verify.compare(got, plain, verify.tolerance(rivals.bare_of(scaled), None)).ok


@pytest.mark.turns(12)
@pytest.mark.parametrize("ours", ["searched", "answered"])
def test_what_is_surely_wanted_is_built_at_once(bench, ours):
    """What a problem then tries first is there."""
    others = [GemmProblem(32, 32, k, "bf16") for k in (32, 64)]
    bench.prepare(case(ours=ours, only=None), others, lambda text: None)
    (first,) = bench.told
    assert len({*first}) == len(first)
    stage = on_gpu.OnGpu(case(ours=ours, only=None), others[1], bench, 5, lambda text: None)
    asked = (
        [stage.config(stage.field.ours[0]), stage.config(stage.field.library[0])]
        if ours == "answered"
        else map(stage.config, (*stage.field.starters, stage.field.ours[0]))
    )
    assert {config.name for config in asked} <= {*first}


def test_of_a_case_that_is_prepared_dispatchers_choose_what_was_measured(bench, monkeypatch):
    winner, said = bench.job(PROBLEM).candidates[-1].name, []

    def measured(dispatcher, problems, how, table, shown):
        with shown.measuring() as told:
            told(None, 50, 100)
        file.save(Table.of([Row(bench.device, PROBLEM, winner, (), 9.0, (8.9, 9.1))]), table)
        return Measured(str(table), rows=1, changed=1, seconds=7.0)

    monkeypatch.setattr(gpu_bench.ahead, "measured", measured)
    before = bench.answers["prepared"][CHOSEN][0].select(PROBLEM)
    note = bench.prepare(case(ours="prepared"), [PROBLEM], said.append)
    assert note.startswith("prepared in 7.0 s a problem") and "1 of 1 choose another" in note
    assert "    50 of 100" in said
    for dispatchers in bench.answers["prepared"].values():
        assert {one.select(PROBLEM).config.name for one in dispatchers} == {winner}
    assert before.config.name != winner and winner in bench.told[-1]
    assert bench.prepare(case(ours="estimated"), [PROBLEM], said.append) == ""


def test_of_a_case_that_is_prepared_the_estimates_choice_is_timed_beside(bench, monkeypatch):
    def dispatched(label, dispatcher, problem):
        config = dispatcher.select(problem).config
        bind = lambda inputs, outputs: lambda: torch.mm(inputs["A"], inputs["B"])  # noqa: E731
        return SimpleNamespace(bind=bind, config=config)

    winner = bench.job(PROBLEM).candidates[-1]
    measured = Row(bench.device, PROBLEM, winner.name, (), 9.0, (8.9, 9.1))
    file.save(Table.of([measured]), bench._table)
    for each in bench.answers["prepared"].values():
        for dispatcher in each:
            dispatcher.read_tables()
    monkeypatch.setattr(on_gpu, "dispatched", dispatched)
    stage = on_gpu.OnGpu(case(ours="prepared"), PROBLEM, bench, 5, lambda text: None)
    estimated = OURS + comparison.BY_ESTIMATE
    assert stage.config(OURS) == winner != stage.config(estimated)
    row = compared("p", stage)
    assert row.ratio("calls", "ours").kernel == OURS
    assert row.ratio("calls", "ours", named=comparison.BY_ESTIMATE).kernel == estimated


def test_building_is_told_so_that_it_is_not_taken_for_a_hang(bench):
    said = []
    configs = [replace(bench.job(PROBLEM).candidates[0], group_m=n) for n in range(1, 121)]
    bench.built(configs, said.append)
    assert said == ["    built 50 of 120", "    built 100 of 120"]


def test_nothing_is_made_where_there_is_nobody_to_compare_with(bench, monkeypatch):
    def absent(problem, bench):
        raise rivals.Absent("absent", "No module named 'absent'")

    monkeypatch.setattr(verify, "reference", None)
    with pytest.raises(comparison.NothingToCompare, match="absent is not here"):
        on_gpu.OnGpu(case(vendor=(absent,)), PROBLEM, bench, 5, lambda text: None)


@pytest.mark.parametrize("replayed", [False, True])
def test_a_program_says_the_kernels_that_it_chose(monkeypatch, replayed):
    """Also one whose steps replay what ran while they were made."""
    place = object.__new__(gpu_bench.Bench)
    monkeypatch.setattr(gpu_bench, "stepped", lambda calls: {"ours": [1.0]})
    a, b = np.ones((16, 32), np.float32), np.ones((32, 16), np.float32)

    def make():
        made = tw.gemm(a, b)
        return {"ours": (lambda: made) if replayed else lambda: tw.gemm(a, b), "vendor": list}

    samples, used = place.stepped(make)
    assert samples == {"ours": [1.0]}
    (config,) = used.values()
    assert (config.family, config.dtype_a) == ("gemm", "fp32")


def test_steps_in_graphs_are_timed_call_by_call(monkeypatch):
    """What is beside is no vendor; the kernels that ours chose belong to the result."""
    us = {"ours": 40.0, "torch": 80.0, "triton": 60.0}
    a, b = np.ones((16, 32), np.float32), np.ones((32, 16), np.float32)
    given = {name: lambda: tw.gemm(a, b) for name in us}

    class Said(Clock):
        def queue(self, call):
            return call()

    monkeypatch.setattr(steps, "in_graphs", lambda calls: {n: lambda n=n: us[n] for n in calls})
    monkeypatch.setattr(timing, "Events", lambda flush, place: Said())
    monkeypatch.setattr(steps, "REPLAY_SECONDS", 180e-6 * 20)
    fixed = steps.fixed
    monkeypatch.setattr(steps, "fixed", lambda rounds: replace(fixed(rounds), warm_up_seconds=0))
    place = object.__new__(on_gpu.CaseBench)
    monkeypatch.setattr(gpu_bench.Bench, "release", lambda self: None)
    asked = []

    def contest(*words):
        asked.append(words[:2])
        return Contest(given, 4, ("torch",), {"other": "not here"})

    graphs = InGraphs("toy", "toys", "torch", ("cell",), contest, asked.append, None, "by chance")
    row, used = place.compared(graphs, "cell", 7, print)
    assert asked == [("cell", 7)]
    assert len(row.samples["graphs"]["ours"]) == 20
    assert row.ratio("calls", "ours") is None
    assert row.ratio("graphs", "ours").us == 10.0
    assert row.ratio("graphs", "ours").ratio == pytest.approx(2.0)
    assert row.ratio("graphs", "ours", ("triton",)).ratio == pytest.approx(1.5)
    assert row.wrong == {"other": "not here"} and not row.late
    (config,) = used.values()
    assert config.family == "gemm"


def test_kernels_that_steps_in_graphs_ask_for_are_built_once(bench, monkeypatch):
    graphs = InGraphs(
        "toy", "toys", "torch", ("a", "b"), None, lambda name: [PROBLEM], None, "by chance"
    )
    wanted = bench.wanted(graphs, ["a", "b"])
    assert [c.name for c in wanted] == [
        tw.Dispatcher(device=bench.device).select(PROBLEM).config.name
    ]
    built = []
    monkeypatch.setattr(gpu_bench.Bench, "built", lambda self, some, say: built.append(some))
    assert bench.prepare(graphs, ["a"], print) == "by chance"
    assert [c.name for (c,) in built] == [wanted[0].name]


@pytest.mark.turns(24)
def test_a_problem_leaves_its_row_and_the_kernels_that_were_picked(bench):
    row, used = bench.compared(case(), PROBLEM, 5, lambda text: None)
    picked = {row.ratio(way, "ours").kernel for way in row.samples}
    assert set(used) == picked
    assert all(config.name == name for name, config in used.items())


def test_host_times_are_per_call():
    called = []
    host = steps.Host(calls=5, wait=lambda: called.append("wait"))
    us = host.queue(lambda: called.append("call"))
    assert called == ["wait", *["call"] * 5]
    assert us > 0


def test_a_step_ends_with_its_work(monkeypatch):
    told = []
    monkeypatch.setattr(steps, "synchronize", lambda: told.append("wait"))
    monkeypatch.setattr(steps, "STEPS", replace(QUICK, min_samples=4, max_samples=4))
    found = steps.stepped({"ours": lambda: told.append("step")})
    assert len(found["ours"]) == 4
    assert told == ["wait", "step", "wait"] * 4


def test_fixed_rounds_take_no_more_and_no_less():
    us = {"slow": 30.0, "fast": 1.0}

    class Said(Clock):
        def queue(self, call):
            return call()

    calls = {name: [lambda name=name: us[name]] for name in us}
    taken = timing.measure(calls, Said(), replace(steps.fixed(14), warm_up_seconds=0))
    assert {name: len(series.samples_us) for name, series in taken.items()} == dict.fromkeys(us, 14)
