"""Choosing by tables: who answers, in which order, with which words, among which kernels."""

from __future__ import annotations

import os

import pytest
from gemm_cases import config
from table_cases import DEEP, H20, H100, H200, PLAIN, WIDE, gemm, kernel, row

from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, BadFile
from tilewright.ops.gemm import FAMILY
from tilewright.registry import Registry
from tilewright.select import Chain, Choice, FirstFit
from tilewright.select.analytical import Analytical
from tilewright.select.configured import configured
from tilewright.select.constraints import Constraints
from tilewright.select.tuned import Tuned
from tilewright.tables import file, own
from tilewright.tables.table import Table

UNUSUAL = kernel(tile_m=32, num_warps=2, group_m=5)
"""A kernel that no default space has."""


def tuned(*rows, registry=None, on=H200, **options) -> Dispatcher:
    return Dispatcher(registry, on, tables=Table.of(rows, "mine.twt"), **options)


def over(*names) -> Registry:
    return Registry("r").register_all(names)


# --- the choice and its words --------------------------------------------------------------


def test_the_row_of_this_problem_on_this_gpu_decides():
    plan = tuned(row(gemm(512), UNUSUAL, 10.0)).select(gemm(512))
    assert plan.config.name == UNUSUAL and plan.selector == "tuned"
    assert plan.reason == "exact row of mine.twt: 10 µs ± 1.0%, 26.84 TFLOP/s"
    assert plan.launch == FAMILY.launch(plan.config, gemm(512), H200)


def test_a_padded_row_decides_and_says_so():
    plan = tuned(row(gemm(512), UNUSUAL)).select(gemm(500))
    assert plan.config.name == UNUSUAL
    assert plan.reason.startswith("padded to M = 512 of mine.twt: ")
    assert plan.launch == FAMILY.launch(plan.config, gemm(500), H200)


def test_two_gpus_of_one_arch_have_their_rows_and_a_third_borrows_and_says_what_it_may_lose():
    rows = (row(gemm(512), WIDE), row(gemm(512), UNUSUAL, on=H20))
    assert tuned(*rows, on=H200).select(gemm(512)).config.name == WIDE
    assert tuned(*rows, on=H20).select(gemm(512)).config.name == UNUSUAL
    third = tuned(*rows, on=H100).select(gemm(512))
    assert third.config.name == WIDE
    assert third.reason.startswith("borrowed from NVIDIA H200 (distance ")
    space = [f.name for f in tuned(*rows, on=H100).explain(gemm(512)).fates if f.fate != "refused"]
    kernels = (third.config, *(FAMILY.parse_name(name) for name in space))
    own, *times = (FAMILY.estimate(kernel, gemm(512), H100).total_us for kernel in kernels)
    assert third.reason.endswith(f"; expected to lose {1 - min(times) / own:.0%} here")


def test_a_miss_falls_to_the_estimate():
    plan = tuned(row(gemm(512), UNUSUAL)).select(gemm(5000))
    assert plan.selector == "analytical"
    assert plan.config == Dispatcher(device=H200).select(gemm(5000)).config


def test_explain_shows_the_choice_its_ties_and_what_would_come_next():
    story = tuned(row(gemm(512), UNUSUAL, ties=(WIDE,))).explain(gemm(512))
    assert story.chosen == UNUSUAL and story.fates[0].by == "tuned"
    assert (story.fates[1].name, story.fates[1].fate) == (WIDE, "candidate")
    assert story.fates[1].reason.endswith(f"not told from {UNUSUAL}")
    assert story.fates[2].by == "analytical" and story.counts().get("passed over") is None
    without = Dispatcher(device=H200).explain(gemm(512))
    assert {f.name for f in without.fates} | {UNUSUAL, WIDE} == {f.name for f in story.fates}


def skipped(story) -> list[tuple[str, str, str]]:
    return [(f.name, f.by, f.reason) for f in story.fates if f.fate == "skipped"]


def test_explain_shows_a_row_whose_kernel_is_gone_and_the_row_that_answers_instead():
    rows = (row(gemm(500), "gemm_of_old", ties=(DEEP,)), row(gemm(512), "gemm_older"))
    story = tuned(*rows).explain(gemm(500))
    assert story.chosen == DEEP and story.notes == ()
    [(name, by, why)] = skipped(story)  # what stands behind the row that answered is not told
    assert (name, by) == ("gemm_of_old", "tuned")
    assert why.startswith("exact row of mine.twt: no_such_kernel: ")
    story = tuned(rows[1]).explain(gemm(500))
    [(name, _, why)] = skipped(story)
    assert name == "gemm_older" and why.startswith("padded to M = 512 of mine.twt: no_such_kernel")
    assert story.fates[0].by == "analytical"
    assert story.notes[0] == "tuned: no row of mine.twt answers"


def test_explain_shows_a_row_whose_kernel_no_longer_serves_or_does_not_serve_this_problem():
    unfit = kernel(pad_k=False)
    [(name, _, why)] = skipped(tuned(row(gemm(64, k=520), unfit)).explain(gemm(64, k=520)))
    assert name == unfit and "multiple of tile_k" in why
    aligned = kernel(layout="ccr", alignment=16)
    story = tuned(row(gemm(48, layout="ccr"), aligned)).explain(gemm(33, layout="ccr"))
    [(name, _, why)] = skipped(story)
    assert name == aligned and why.startswith("padded to M = 48 of mine.twt: vector_width: ")


def test_explain_shows_a_row_that_the_policy_of_versions_leaves_out():
    old = (("tilewright", "0.0.1"), ("triton", "3.0.0"))
    table = Table.of([row(gemm(64), UNUSUAL, ties=(WIDE,), versions=old)], "mine.twt")
    strict = Dispatcher(device=H200, selector=[Tuned(table, "same"), "analytical"])
    found = skipped(strict.explain(gemm(64)))
    assert [name for name, _, _ in found] == [UNUSUAL, WIDE]
    assert all("made with tilewright 0.0.1, triton 3.0.0; installed: " in why for *_, why in found)
    assert strict.explain(gemm(64)).notes == ("tuned: no row of mine.twt answers",)
    assert not skipped(Dispatcher(device=H200, selector=Tuned(table)).explain(gemm(64)))


def test_explain_shows_a_row_whose_kernel_may_not_be_used():
    mine = row(gemm(512), UNUSUAL)
    story = tuned(mine, constraints=Constraints(blocked=(UNUSUAL,))).explain(gemm(512))
    fates = [(f.fate, f.by) for f in story.fates if f.name == UNUSUAL]
    assert fates == [("skipped", "tuned"), ("refused", "blocked")]
    [(_, _, why)] = skipped(story)
    assert why == (
        f"exact row of mine.twt: 10 µs ± 1.0%, 26.84 TFLOP/s; blocked: is blocked by '{UNUSUAL}'"
    )
    [(name, _, why)] = skipped(tuned(mine, registry=over(PLAIN)).explain(gemm(512)))
    assert name == UNUSUAL and why.endswith("; registry: is not registered")


def test_explain_says_that_no_row_answers():
    story = tuned(row(gemm(512), UNUSUAL)).explain(gemm(5000))
    assert story.notes[0] == "tuned: no row of mine.twt answers" and not skipped(story)
    assert "\n  tuned: no row of mine.twt answers" in str(story)
    assert story.to_dict()["notes"] == [*story.notes]
    assert tuned(row(gemm(512), UNUSUAL)).explain(gemm(512)).notes == ()
    assert Dispatcher(device=H200, selector="analytical").explain(gemm(64)).notes == ()


def test_the_first_row_with_a_candidate_answers_alone():
    rows = (row(gemm(500), WIDE), row(gemm(512), UNUSUAL, ties=(DEEP,)))

    def order(*candidates):
        configs = [FAMILY.parse_name(name) for name in candidates]
        return [c.config.name for c in Tuned(Table.of(rows)).order(gemm(500), configs, H200)]

    assert order(PLAIN, DEEP, UNUSUAL, WIDE) == [WIDE]
    assert order(PLAIN, DEEP, UNUSUAL) == [UNUSUAL, DEEP]
    assert order(PLAIN) == []


@pytest.mark.turns(24)
def test_select_and_explain_agree():
    rows = (row(gemm(512), UNUSUAL), row(gemm(64), DEEP, on=H20), row(gemm(1024), "gemm_of_old"))
    for m in (512, 500, 64, 60, 1024, 4000):
        dispatcher = tuned(*rows)
        assert dispatcher.select(gemm(m)).config.name == dispatcher.explain(gemm(m)).chosen


def test_a_proven_kernel_is_chosen_without_a_look_at_the_default_space(monkeypatch):
    monkeypatch.setattr(type(FAMILY), "default_space", None)
    assert tuned(row(gemm(512), UNUSUAL)).select(gemm(512)).config.name == UNUSUAL


def test_a_kernel_that_cannot_be_built_gives_way_to_its_tie():
    dispatcher = tuned(row(gemm(512), UNUSUAL, ties=(WIDE,)))
    assert dispatcher.select(gemm(512)).config.name == UNUSUAL
    dispatcher.planner._candidates.unbuildable[UNUSUAL, "sm_90"] = "no luck"
    dispatcher.planner._plans.clear()
    assert dispatcher.select(gemm(512)).config.name == WIDE
    fates = dispatcher.explain(gemm(512)).fates
    assert any((fate.name, fate.by, fate.reason) == (UNUSUAL, "build", "no luck") for fate in fates)


# --- registries ----------------------------------------------------------------------------


def test_of_a_registry_only_what_is_registered_is_used():
    rows = (row(gemm(512), UNUSUAL, ties=(DEEP,)),)
    assert tuned(*rows, registry=over(PLAIN, DEEP)).select(gemm(512)).config.name == DEEP
    plan = tuned(*rows, registry=over(PLAIN)).select(gemm(512))
    assert plan.config.name == PLAIN and plan.selector == "analytical"


def test_priority_comes_before_any_row():
    registry = over(PLAIN, WIDE)
    registry.set_priority(PLAIN, 1)
    assert tuned(row(gemm(512), WIDE), registry=registry).select(gemm(512)).config.name == PLAIN


# --- which selectors, in which order -------------------------------------------------------


def test_selectors_by_name_in_any_order():
    rows = (row(gemm(512), UNUSUAL),)
    registry = over(PLAIN, UNUSUAL)
    for wanted, by in (
        (None, "tuned"),
        ("tuned", "tuned"),
        (["tuned", "first_fit"], "tuned"),
        (["first_fit", "tuned"], "first fit"),
        (["analytical", "tuned"], "analytical"),
        ([FirstFit(), "tuned"], "first fit"),
    ):
        assert tuned(*rows, registry=registry, selector=wanted).select(gemm(512)).selector == by
    without_registry = tuned(*rows, selector=["analytical", "tuned"])
    assert without_registry.select(gemm(512)).selector == "analytical"
    assert isinstance(configured("analytical"), Analytical)
    names = [s.name for s in configured().selectors]
    assert names == ["shipped", "analytical", "first fit"]


def test_what_cannot_be_configured():
    table = Table.of([row(gemm(512))])
    with pytest.raises(BadArgument, match=r"no selector 'tunned' \(did you mean 'tuned'\?\)"):
        configured("tunned")
    with pytest.raises(BadArgument, match="'tuned' needs tables"):
        configured("tuned")
    for selector in ("first_fit", FirstFit(), lambda problem, configs, device: configs):
        with pytest.raises(BadArgument, match="does not read them"):
            configured(selector, table)


def test_a_chain_asks_the_next_about_those_the_first_left_out():
    class Picky:
        name = "picky"

        def order(self, problem, candidates, device):
            return FirstFit().order(problem, candidates[1:2], device)

    configs = [config(), config(num_stages=3), config(num_stages=4)]
    choices = [*Chain((Picky(), FirstFit())).order(gemm(512), configs, H200)]
    assert [c.config for c in choices] == [configs[1], configs[0], configs[2]]


@pytest.mark.parametrize(
    ("before", "known"),
    [((), "ab"), ((FirstFit(),), "a"), ((Analytical(),), "a")],
    ids=["nothing", "one that knows none of its own", "one that ranks all"],
)
def test_a_chain_recalls_until_a_selector_would_come_first(before, known):
    class Knowing:
        def __init__(self, name):
            self.name = name

        def order(self, problem, candidates, device):
            return ()

        def recall(self, problem, device):
            return [Choice(config(), self.name, "")]

    chain = Chain((Knowing("a"), *before, Knowing("b")))
    said = [choice.selector for choice in chain.recall(gemm(512), H200)]
    assert [name for name in said if name in "ab"] == [*known]


def test_a_selector_says_once_for_a_plan_what_it_knows():
    """Also where its kernel serves another problem, so that the others are looked at."""

    class Knowing(FirstFit):
        asked = 0

        def recall(self, problem, device):
            self.__class__.asked += 1
            yield Choice(config(tile_k=64), "knowing", "", settled=problem.k % 64 == 0)

    for number, problem in enumerate((gemm(512), gemm(512, k=40)), 1):
        Dispatcher(device=H200, selector=Knowing()).select(problem)
        assert Knowing.asked == number
    Dispatcher(device=H200, selector=Knowing()).explain(gemm(512))
    assert Knowing.asked == 3


# --- where tables come from ----------------------------------------------------------------


def test_tables_in_the_users_folder_answer_where_none_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    usual = Dispatcher(device=H200)
    assert usual.select(gemm(512)).selector == "analytical"
    mine = own.usual(H200)
    assert mine.parent == tmp_path / "tables" and "h200" in mine.name
    file.save(Table.of([row(gemm(512), UNUSUAL, 10.0)]), mine)
    assert usual.select(gemm(512)).selector == "analytical", "what a dispatcher read, it keeps"
    usual.read_tables()
    for dispatcher in (usual, Dispatcher(device=H200)):
        plan = dispatcher.select(gemm(512))
        assert (plan.selector, plan.config.name, plan.measured_us) == ("tuned", UNUSUAL, 10.0)
    file.save(Table.of([row(gemm(512), WIDE, 9.0)]), tmp_path / "tables" / "more.twt")
    assert Dispatcher(device=H200).select(gemm(512)).config.name == WIDE  # the faster of all
    empty = Dispatcher(device=H200, tables=Table.of([]))
    assert empty.select(gemm(512)).selector != "tuned", "a table without rows is given too"
    other = tmp_path / "other.twt"
    file.save(Table.of([row(gemm(64), DEEP)]), other)
    for said in ("", str(other)):  # other tables, or none, are named
        monkeypatch.setenv("TILEWRIGHT_TABLES", said)
        assert Dispatcher(device=H200).select(gemm(512)).selector != "tuned"


def test_tables_from_the_environment_and_from_arguments(tmp_path, monkeypatch, caplog):
    one, two = tmp_path / "a.twt", tmp_path / "b.json"
    file.save(Table.of([row(gemm(512), UNUSUAL, 10.0)]), one)
    file.save(Table.of([row(gemm(512), WIDE, 9.0), row(gemm(64), DEEP)]), two)
    monkeypatch.setenv("TILEWRIGHT_TABLES", f"{one}")
    assert Dispatcher(device=H200).select(gemm(512)).config.name == UNUSUAL
    assert Dispatcher(device=H200, selector="first_fit").select(gemm(512)).selector == "first fit"
    assert Dispatcher(device=H200, tables=two).select(gemm(512)).config.name == WIDE
    assert not caplog.records
    monkeypatch.setenv("TILEWRIGHT_TABLES", os.pathsep.join(map(str, (one, two))))
    both = Dispatcher(device=H200)
    assert both.select(gemm(512)).config.name == WIDE  # the faster
    assert both.select(gemm(64)).config.name == DEEP
    said = " ".join(record.getMessage() for record in caplog.records)
    assert str(one) in said and str(two) in said and "the fastest is used" in said
    again = Dispatcher(device=H200).selector.selectors[0].table
    caplog.clear()
    assert [again.get(gemm(512), H200).kernel for _ in range(3)] == [WIDE] * 3
    assert len(caplog.records) == 1 and again.get(gemm(96), H200) is None
    monkeypatch.setenv("TILEWRIGHT_TABLES", str(tmp_path / "none.twt"))
    with pytest.raises(BadFile, match=r"^TILEWRIGHT_TABLES: .*none\.twt"):
        Dispatcher(device=H200)


def test_ranks_with_equal_tables_choose_the_same_from_any_split_into_files(tmp_path):
    rows = [row(gemm(m), us=10.0 + m) for m in (64, 128, 256)]
    paths = []
    for number, some in enumerate(([rows[2], rows[0]], [rows[1]])):
        paths.append(tmp_path / f"{number}.twt")
        file.save(Table.of(some), paths[-1])
    first, second = (
        Dispatcher(device=H200, tables=order).selector.selectors[0]
        for order in (paths, paths[::-1])
    )
    assert isinstance(first, Tuned) and isinstance(second, Tuned)
    assert first.table.digest == second.table.digest == Table.of(rows).digest
