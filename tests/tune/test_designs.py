"""Which kernels a sampled sweep measures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tilewright import arch, ops
from tilewright.errors import BadArgument, BadFile
from tilewright.measure import designs
from tilewright.measure.designs import Design, sample, spread

GEMM = ops.family("gemm")
H200 = arch.device("h200_sxm")
ARCH = arch.arch(H200.arch)
PROBLEMS = [GEMM.problem_type(m, 1024, 4096) for m in (1, 300, 4096)]


def candidates(problem: Any) -> tuple[Any, ...]:
    configs: tuple[Any, ...] = GEMM.default_space(problem, ARCH).expand(ARCH).configs
    return configs


def values(configs: Sequence[Any]) -> int:
    """How many values the axes of these have, all together."""
    return sum(len({getattr(c, f.name) for c in configs}) for f in fields(configs[0]))


@pytest.fixture(scope="module", autouse=True)
def _scipy() -> None:
    pytest.importorskip("scipy")


@pytest.mark.parametrize("method", designs.METHODS)
def test_each_problem_has_the_estimates_first_and_others_far_apart(method: Any) -> None:
    found = sample(PROBLEMS, candidates, H200, Design(24, method, first=4))
    assert [problem for problem, _ in found.pairs] == PROBLEMS
    for problem, chosen in found.pairs:
        served = [c for c in candidates(problem) if GEMM.supports(c, problem, ARCH)]
        ranked = GEMM.rank(problem, served, H200)
        assert list(chosen[:4]) == [config for config, _ in ranked[:4]]
        assert len(set(chosen)) == 24
        times = {config: estimate.total_us for config, estimate in ranked}
        assert max(times[config] for config in chosen) < 5 * ranked[0][1].total_us
        # The first 24 by estimate are more alike than those that are spread.
        assert values(chosen) > values([config for config, _ in ranked[:24]])


def test_a_sample_of_two_families_has_kernels_of_both() -> None:
    attention = ops.family("attention")
    other = attention.problem_type(batch=1, heads=8, q_len=512, kv_len=512, head_dim=64)
    both = (
        *candidates(PROBLEMS[1]),
        *attention.default_space(other, ARCH).expand(ARCH).configs,
    )
    for problems in ([PROBLEMS[1], other], [other, PROBLEMS[1]]):
        found = sample(problems, lambda problem: both, H200, Design(6))
        assert [problem for problem, _ in found.pairs] == problems
        for problem, chosen in found.pairs:
            assert len(chosen) == 6 and {c.family for c in chosen} == {problem.family}


def test_the_same_design_chooses_the_same_and_another_seed_others() -> None:
    first, again, other = (
        sample(PROBLEMS, candidates, H200, Design(24, seed=seed)) for seed in (0, 0, 1)
    )
    assert first == again
    assert first.pairs != other.pairs


def test_a_pool_bounds_the_kernels_to_build() -> None:
    free = sample(PROBLEMS, candidates, H200, Design(40, first=2))
    pooled = sample(PROBLEMS, candidates, H200, Design(40, first=2, pool=20))
    assert len(pooled.configs) <= 20 + 2 * len(PROBLEMS) < len(free.configs)


def test_spread_takes_each_config_once_and_reaches_every_pipeline() -> None:
    configs = candidates(PROBLEMS[1])
    found = spread(configs, 64, Design(64))
    assert len(set(found)) == 64
    assert {c.pipeline for c in found} == {c.pipeline for c in configs}
    assert spread(configs[:3], 8, Design(8)) == [*configs[:3]]


def test_a_file_repeats_a_sample(tmp_path: Path) -> None:
    found = sample(PROBLEMS, candidates, H200, Design(12))
    path = tmp_path / designs.FILE
    found.save(path)
    assert designs.is_sample(str(path))
    assert not designs.is_sample(str(tmp_path))
    assert designs.load(path) == found
    assert found.legal("sm_90") == found
    assert found.legal("gfx942").count < found.count


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sample", 2),
        ("kernels", ["gemm_of_no_kind"]),
        ("kernels", []),
        ("kernels", 3),
        ("pairs", [{"problem": {"family": "gemm", "m": -1}, "kernels": [0]}]),
        ("pairs", [{"problem": {"family": "gemm", "m": 1, "n": 1, "k": 1}, "kernels": [-1]}]),
        ("pairs", [{}]),
        ("made", []),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / designs.FILE
    sample(PROBLEMS[:1], candidates, H200, Design(4)).save(path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {name: value}))
    with pytest.raises(BadFile):
        designs.load(path)


def test_a_design_that_makes_no_sense_is_refused() -> None:
    for wrong in ({"method": "grid"}, {"count": 0}, {"first": -1}, {"slowest": 1.0}):
        with pytest.raises(BadArgument):
            Design(**{"count": 8, **wrong})


def test_a_problem_that_no_kernel_serves_is_left_out() -> None:
    assert sample(PROBLEMS, lambda _: (), H200, Design(8)).pairs == ()
