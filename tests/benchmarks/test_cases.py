"""The cases that the runner measures: they can be listed and stated on any machine."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import cases
import claims
import run
from cases import Case, HostTimes, InGraphs, Programs, host
from cases.gemm import last_wave, under_half_full
from cases.gemm_unseen import SEEDS, sizes, weights
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.measure.measurement import Environment
from tilewright.measure.sweep import Group
from tilewright.ops.library import library_of
from tilewright.tune.jobs import jobs_of

BENCHMARKS = Path(run.__file__).parent
EVERY = cases.every()
KERNELS = [case for case in EVERY.values() if isinstance(case, Case)]
H200 = Group(device("h200_sxm"), Environment(()))


def test_cases_are_imported_without_torch_and_triton():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['triton'] = None; import run; "
        "print(run.main(['--list']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0"


def test_names_of_claims_are_unique_and_can_be_names_of_files():
    names = [name for case in EVERY.values() for name in cases.claims_of(case)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert [
        name for name in names if name != name.lower() or not name.replace("-", "").isalnum()
    ] == []


def test_every_claim_has_a_case_or_a_record():
    """A claim without a case is of a script that is no more, or of a tool: its record says what it
    was."""
    of_cases = {name for case in EVERY.values() for name in cases.claims_of(case)}
    orphans = [
        claim.claim
        for claim in claims.load_all().values()
        if claim.claim not in of_cases and not claim.records
    ]
    assert orphans == []


@cache
def stated(name: str) -> list[object]:
    return list(EVERY[name].problems())


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize("case", KERNELS, ids=lambda case: case.name)
def test_problems_are_stated_once_and_can_be_served(case):
    problems = stated(case.name)
    assert problems
    assert len({*problems}) == len(problems)
    this = arch("sm_90")
    problem = problems[len(problems) // 2]  # planning one costs as much as stating all
    jobs, refused = jobs_of(H200, [problem], None)
    assert jobs, refused
    candidates = [c for c in jobs[0].candidates if not library_of(c)]
    if case.only:
        candidates = [c for c in candidates if case.only(c)]
    assert candidates, f"{problem} has no kernel that may take part"
    assert ops.family(problem.family).supports(candidates[0], problem, this)


@pytest.mark.turns(24)
def test_parts_have_problems_and_leave_some_out():
    for case in KERNELS:
        problems = stated(case.name) if case.parts else []
        for part in case.parts:
            beside_copies = case.name.startswith(("declared-", "published-")) and part.end.endswith(
                "copy"
            )
            if part.where and not beside_copies:  # these are of the sizes that happen to be large
                found = [p for p in problems if part.where(p)]
                assert 0 < len(found) < len(problems), f"{case.name}-{part.end}"


def test_last_waves_are_under_half_full_and_not_empty():
    problems = under_half_full()
    assert len(problems) == 24
    for p in problems:
        for tile in ((128, 128), (256, 128)):
            assert 0 < last_wave(p.m, p.n, tile)[1] < 0.5
    assert last_wave(132 * 128, 128, (128, 128)) == (1, 0)


def test_unseen_sizes_are_of_no_model_and_others_are():
    known = {*weights()}
    for seed in SEEDS:
        unseen, between = sizes(30, seed), sizes(30, seed, of_models=True)
        assert unseen == sizes(30, seed)
        assert not {(n, k) for _, n, k in unseen} & known
        assert {(n, k) for _, n, k in between} <= known
    assert sizes(30, SEEDS[0]) != sizes(30, SEEDS[1])
    assert all(m % 4 == n % 16 == k % 512 == 0 for m, n, k in sizes(30, 1, multiples=(4, 16, 512)))


def test_the_list_names_every_case_and_every_claim():
    text = run.listed(EVERY)
    for case in EVERY.values():
        for name in cases.claims_of(case):
            assert name in text
        assert case.says in text
    assert {type(case) for case in EVERY.values()} == {Case, HostTimes, InGraphs, Programs}


def test_cases_are_chosen_by_names_and_patterns():
    assert run.chosen(["gemm-int8"], EVERY) == ["gemm-int8"]
    found = run.chosen(["gemm-int8", "conv-dense-*", "conv-dense-data"], EVERY)
    assert found == ["gemm-int8", "conv-dense-forward", "conv-dense-data", "conv-dense-weights"]
    found = run.chosen(["declared-*softmax"], EVERY)
    assert found == ["declared-softmax", "declared-log-softmax"]
    assert run.chosen(["declared-soft*x-stated"], EVERY) == ["declared-softmax-stated"]
    with pytest.raises(SystemExit, match="no case nothing"):
        run.chosen(["gemm-int8", "nothing"], EVERY)
    with pytest.raises(SystemExit):
        run.main([])


def test_a_call_that_writes_nothing_is_not_timed():
    torch = pytest.importorskip("torch")
    a, b, out = torch.ones(2, 3), torch.ones(3, 2), torch.empty(2, 2)
    good = {"out": lambda: torch.mm(a, b, out=out), "new": lambda: torch.mm(a, b)}
    assert host.checked(good, a, b, out) == good
    with pytest.raises(AssertionError, match="idle"):
        host.checked({**good, "idle": lambda: out}, a, b, out)


@pytest.mark.turns(16)
def test_torch_s_functions_are_held_to_torch_s_results(monkeypatch):
    torch = pytest.importorskip("torch")
    assert all("ours" in name or "torch's" in name for name in host.functions("cpu"))
    monkeypatch.setattr(torch, "mm", lambda a, b: torch.zeros(16, 16).bfloat16())
    with pytest.raises(AssertionError, match="mm, ours"):
        host.functions("cpu")


def test_recorded_layers_are_held_to_torchs_results_and_gradients():
    torch = pytest.importorskip("torch")
    x, parameters = torch.ones(2, 2), [[torch.full((2, 2), 3.0)], [torch.full((2, 2), 2.0)]]

    def stack(call, part=1.0):
        def layer(x, w):
            kept = x * w
            return call(kept) + (kept - kept.detach()) * (part - 1)  # of another gradient

        return host.Stack(layer, x, parameters)

    assert not host.far(stack(lambda y: y), stack(lambda y: y), lambda x: x)
    assert "errors of" in host.far(stack(lambda y: y), stack(lambda y: 1.1 * y), lambda x: x)
    assert "errors of" in host.far(stack(lambda y: y), stack(lambda y: y, 1.2), lambda x: x)
    assert len(stack(lambda y: y).both()) == 3, "of x and both parameters"
