"""What the kernels are built to: nothing of the default space's tiles for a dense layer spills, and
shared memory is as the rule says."""

from __future__ import annotations

from dataclasses import replace

import pytest

import selection
from shared_builds import build_once
from tilewright import ops
from tilewright.arch import arch
from tilewright.ops.conv import ConvProblem, pipelines
from tilewright.ops.nouns import MAIN

FAMILY = ops.family("conv")
ARCHS = selection.architectures(("sm_90", "gfx942", "gfx1201"))
DENSE = ConvProblem(8, 128, 128, (32, 32), (3, 3), pad=(1, 1))
PROBLEMS = (
    DENSE,
    replace(DENSE, direction="data", stride=(2, 2)),
    replace(DENSE, direction="weights"),
    replace(DENSE, groups=128),
    replace(DENSE, groups=128, direction="weights"),
    replace(DENSE, c=3, epilogue="col_scale+bias+relu"),
)


def kernels(name):
    """The first kernel of each problem's default space: the largest tile."""
    this = arch(name)
    problems = selection.some(PROBLEMS, 3)
    return [FAMILY.default_space(p, this).expand(this).configs[0] for p in problems]


@pytest.fixture(scope="module")
def built(store):
    report = build_once([(c, name) for name in ARCHS for c in kernels(name)], store)
    return {(r.arch.name, r.name): r for r in report.results if r.part == MAIN}


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("name", "config"), [(name, c) for name in ARCHS for c in kernels(name)], ids=str
)
def test_nothing_spills_and_shared_memory_is_as_said(name, config, built):
    result = built[name, config.name]
    assert result.kernel is not None, result.reason
    assert result.kernel.resources.spill_bytes == 0
    if config.pipeline == "implicit" and config.alignment == 16 and arch(name).async_mma:
        assert result.kernel.shared == pipelines.of(config).shared_memory(config, arch(name))


@pytest.mark.turns(12)
@pytest.mark.parametrize(("c", "k"), [(64, 65), (63, 65)])
def test_no_tile_spills_where_elements_move_one_by_one(store, c, k):
    """Of odd channels, read or made."""
    this = arch("sm_90")
    space = FAMILY.default_space(replace(DENSE, c=c, k=k), this).expand(this)
    mine = [x for x in space.configs if x.pipeline == "implicit" and not x.merged]
    assert mine
    for result in build_once([(x, "sm_90") for x in selection.some(mine, 4)], store).results:
        assert result.ok and result.kernel.resources.spill_bytes == 0, result
