"""The default space has the rows that are worth having, in the order of all combinations."""

from __future__ import annotations

import itertools

import pytest

from tilewright.arch import arch
from tilewright.errors import EmptySpace
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmProblem, spaces
from tilewright.ops.grouped_gemm.pipelines import PIPELINES, on
from tilewright.space import KernelSpace

SIZES = {"groups": 4, "m": 64, "n": 512, "k": 512}
FP8 = {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}
GATED = {"epilogue": "swiglu", "gates_apart": True, "rows_a": 32}
KINDS = [
    ("sm_90", {"form": "contiguous"}),
    ("sm_90", {"form": "weights", "layout": "crr"}),
    ("sm_90", {"form": "gathered", "quant": "block", **GATED, **FP8}),
    ("sm_90", {"form": "masked", "dtype_b": "int4", "scale_b": "32x1-bf16"}),
    ("sm_80", {"form": "list", "sizes": ((64, 64, 64),)}),
    ("gfx942", {"form": "gathered", **GATED}),
]


@pytest.mark.grid(1)
@pytest.mark.parametrize(("name", "fields"), KINDS)
def test_the_same_kernels_are_kept_of_all_combinations(monkeypatch, name, fields):
    """Of few of the tiles, to take less time."""
    few = {"tile_m": (16, 64), "tile_n": (128, 256), "tile_k": (64, 128)}
    few |= {"num_warps": (4, 8), "num_stages": (2, 4)}
    monkeypatch.setattr(spaces, "TILES", few)
    monkeypatch.setattr(spaces, "_made", {})
    this = arch(name)
    problem = GroupedGemmProblem(**{**({} if fields["form"] == "list" else SIZES), **fields})
    space = FAMILY.default_space(problem, this)
    assert FAMILY.default_space(problem, this) is space
    pipelines = [one for one in on(this) if problem.form in PIPELINES[one].forms]
    assert [*few] == [axis for axis in FAMILY.axes() if axis in few]
    rest = {"store": spaces.STORES, "alignment": (16, 1), "index_bits": spaces.INDEX_BITS}
    whole = KernelSpace("grouped_gemm", {**space.axes, **few, "pipeline": pipelines, **rest})
    legal = [one for one in whole.expand(this).configs if spaces._kept(this, one)]
    assert [*space.expand(this).configs] == legal
    combinations = len([*itertools.product(*few.values(), pipelines, *rest.values())])
    assert len(space.linked[next(iter(space.linked))]) < combinations / 4


def test_a_space_without_kernels_says_why():
    """On sm_80 no kernel multiplies fp8."""
    problem = GroupedGemmProblem("contiguous", **SIZES, dtype_a="e4m3fn")
    with pytest.raises(EmptySpace, match="no config of the space is legal on sm_80: "):
        FAMILY.default_space(problem, arch("sm_80")).expand("sm_80")
