"""Profiles: every instance's fate, in order of time; where a time stands on the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.arch import device
from tilewright.errors import BadArgument
from tilewright.measure.measurement import Environment, Measurement, Settings
from tilewright.measure.profile import candidates, profile, supported
from tilewright.measure.roofline import position
from tilewright.measure.sweep import Group
from tilewright.ops.gemm import FAMILY, GemmProblem

H200 = device("h200_sxm")
GROUP = Group(H200, Environment((("triton", "3.6.0"),)))
PROBLEM = GemmProblem(512, 512, 512)
NAME = "gemm_rcr_{0}_{0}_{0}_fp32_{1}x64x64_w4_s3_tma_persistent_g8_direct_padmnk_al16"
FAST, SLOW, WRONG = (NAME.format("bf16", rows) for rows in (128, 64, 32))
OTHER = NAME.format("fp16", 64)
TIMES = {FAST: (9.0, 9.1, 9.2), SLOW: (12.0, 12.1, 12.2)}


class Crew:
    """Times as written above; what has none is wrong."""

    closed = False

    def run(self, tasks, known=frozenset()):
        for task in tasks:
            low, _, high = times = TIMES.get(task.kernel, (0.0, 0.0, 0.0))
            timed = task.kernel in TIMES
            yield Measurement(
                kernel=task.kernel,
                problem=task.problem,
                device=H200,
                environment=GROUP.environment,
                settings=Settings(),
                status="ok" if timed else "mismatch",
                samples_us=times if timed else (),
                interval_us=(low, high) if timed else (0.0, 0.0),
            )

    def close(self):
        self.closed = True


def test_every_instance_has_a_fate_and_the_timed_are_ranked():
    crew, told = Crew(), []
    configs = [FAMILY.parse_name(name) for name in (SLOW, OTHER, WRONG, FAST)]
    done = profile(PROBLEM, configs, GROUP, lambda: crew, told.append)
    assert [i.name for i in done.ranked] == [FAST, SLOW]
    assert done.alike == (FAST,)
    assert [(i.name, i.measurement.status) for i in done.failed] == [(WRONG, "mismatch")]
    assert [(i.name, i.verdict.rule) for i in done.unsupported] == [(OTHER, "signature")]
    assert len(told) == 3 and crew.closed
    assert [c.name for c in supported(PROBLEM, configs, H200)] == [SLOW, WRONG, FAST]


def test_nothing_supported_starts_no_crew():
    done = profile(PROBLEM, [FAMILY.parse_name(OTHER)], GROUP, lambda: pytest.fail("started"))
    assert not done.ranked and [i.name for i in done.unsupported] == [OTHER]
    with pytest.raises(BadArgument, match="no kernel"):
        profile(PROBLEM, [], GROUP, Crew)


def test_candidates_are_the_named_or_the_usual():
    assert [c.name for c in candidates(PROBLEM, H200, [FAST])] == [FAST]
    usual = candidates(PROBLEM, H200)
    assert len(usual) > 50
    every = [c.name for c in candidates(PROBLEM, H200, every=True)]
    assert {c.name for c in usual} < {*every} and len({*every}) == len(every)


@pytest.mark.parametrize(("m", "bound"), [(8192, "compute"), (1, "memory")])
def test_the_roofline_is_the_slower_of_computing_and_moving(m, bound):
    problem = GemmProblem(m, 8192, 8192)
    place = position(problem, H200, 2000.0)
    assert place.bound == bound
    assert place.memory_us == pytest.approx(problem.min_bytes / 4.8e12 * 1e6)
    assert place.share == pytest.approx(max(place.compute_us, place.memory_us) / 2000.0)
    assert place.flops == 2 * m * 8192 * 8192


def test_the_roofline_knows_tf32_and_says_where_there_is_no_peak():
    exact, rounded = (GemmProblem(4096, 4096, 4096, "fp32", precision=p) for p in ("ieee", "tf32"))
    assert position(rounded, H200, 1e3).compute_us < position(exact, H200, 1e3).compute_us / 4
    elsewhere = replace(H200, arch="sm_80")
    with pytest.raises(BadArgument, match="does not take e4m3fn"):
        position(GemmProblem(64, 64, 64, "e4m3fn"), elsewhere, 1.0)
