"""What the portable kernel is built to: nothing spills, and it takes the shared memory that its
record says. The long matrix is `f1dfe4c6:benchmarks/attention_builds.py`."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import selection
from shared_builds import build_once
from tilewright import ops
from tilewright.arch import arch
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.pipelines import basic
from tilewright.ops.nouns import MAIN

FAMILY = ops.family("attention")
ARCHS = selection.architectures(("sm_80", "sm_90", "gfx90a", "gfx942", "gfx1201"))
PROBLEM = AttentionProblem(2, 8, 1024, 1024, 64, 2, right=0, others="lse")


def kernels(name):
    """The largest and the smallest tile of the default space."""
    space = FAMILY.default_space(PROBLEM, arch(name))
    mine = [c for c in space.expand(arch(name)).configs if c.pipeline == "basic" and not c.pack]
    mine.sort(key=lambda c: c.tile_q * c.tile_kv)
    return [mine[0], mine[-1]]


@pytest.fixture(scope="module")
def built(store):
    report = build_once([(c, name) for name in ARCHS for c in kernels(name)], store)
    return {(r.arch.name, r.name): r for r in report.results if r.part == MAIN}


@pytest.mark.turns(32)
@pytest.mark.parametrize(
    ("name", "dtype", "head_dim"),
    [
        ("gfx1250", "bf16", 64),
        ("gfx1250", "bf16", 256),
        ("gfx1100", "bf16", 256),
        ("gfx1100", "fp32", 64),
        ("gfx1201", "fp32", 128),
        ("sm_90", "fp32", 128),
    ],
)
def test_no_tile_spills_where_products_take_most_registers(name, dtype, head_dim, store):
    """Vector units hold all operands of a product, RDNA 3 two copies of them, and a window takes
    most beside them."""
    this = arch(name)
    p = AttentionProblem(2, 8, 1024, 1024, head_dim, 2, left=512, right=0, dtype=dtype)
    found = [c for c in FAMILY.default_space(p, this).expand(this).configs if c.pack]
    built = [r for r in build_once([(c, name) for c in found], store).results if r.part == MAIN]
    assert built and all(r.kernel is not None for r in built)
    spilled = {r.name: r.kernel.resources.spill_bytes for r in built if r.kernel is not None}
    assert not any(spilled.values()), spilled


@pytest.mark.turns(12)
@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("name", "config"), [(name, c) for name in ARCHS for c in kernels(name)], ids=str
)
def test_nothing_spills_and_shared_memory_is_as_said(name, config, built):
    result = built[name, config.name]
    assert result.kernel is not None, result.reason
    assert result.kernel.resources.spill_bytes == 0
    said = basic.BASIC.shared_memory(config, arch(name))
    assert result.kernel.shared <= said <= 1.25 * result.kernel.shared


def test_rows_are_cut_as_the_kernel_cuts_them():
    from tilewright.ops.attention.kernels import keys

    for dim, size in itertools.product((8, 24, 40, 64, 80, 111, 160, 192, 256, 576), (1, 2, 4)):
        cut = keys.pieces(dim, 32 if size == 1 else 16)
        assert tuple(getattr(cut, "value", cut)) == basic.widths(dim, size)
        assert sum(basic.widths(dim, size)) >= dim


def config(**fields):
    named = {"dtype": "bf16", "head_dim": 64, "pipeline": "basic", **fields}
    return FAMILY.make_config({**FAMILY.axes(), **named}, arch("sm_90"))


@pytest.mark.parametrize(
    ("wrong", "right", "why"),
    [
        ({"tile_kv": 8}, {"tile_kv": 16}, "tile_kv = 8 is not from 16 to 512"),
        ({"tile_q": 8}, {"tile_q": 16}, "tile_q = 8 is not from 16 to 512"),
        ({"tile_q": 1024}, {"tile_q": 128}, "tile_q = 1024 is not from 16 to 512"),
        ({"tile_kv": 48}, {"tile_kv": 64}, "tile_kv = 48 is not a power of two"),
    ],
)
def test_tiles_have_sizes_that_kernels_have(wrong, right, why):
    verdict = FAMILY.judge(config(**wrong), arch("sm_90"))
    assert not verdict and why in verdict.reason
    assert FAMILY.judge(config(**right), arch("sm_90"))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"dtype": "e4m3fn", "tile_kv": 16}, {"dtype": "e4m3fn", "tile_kv": 32}),
        (
            {"scheduler": "split", "split_len": 96, "tile_kv": 64},
            {"scheduler": "split", "split_len": 128, "tile_kv": 64},
        ),
    ],
)
def test_steps_must_fit(wrong, right):
    verdict = FAMILY.judge(config(**wrong), arch("sm_90"))
    assert verdict.rule == "steps"
    assert FAMILY.judge(config(**right), arch("sm_90"))


def test_long_products_of_vector_units_are_refused():
    """Of fp32 on RDNA: Triton unrolls them, and they spill."""
    gfx1100 = arch("gfx1100")
    fields = {**FAMILY.axes(), "dtype": "fp32", "head_dim": 128, "tile_q": 16, "tile_kv": 16}
    fits = FAMILY.make_config({**fields, "num_stages": 1, "num_warps": 4}, gfx1100)
    assert FAMILY.judge(fits, gfx1100)
    verdict = FAMILY.judge(replace(fits, tile_kv=32), gfx1100)
    assert verdict.rule == "vector_products"
    assert "512 weights" in verdict.reason
    assert FAMILY.judge(
        FAMILY.make_config({**fields, "dtype": "bf16", "tile_kv": 32}, gfx1100), gfx1100
    )


def test_rows_whose_elements_are_apart_need_alignment_1():
    apart = AttentionProblem(1, 2, 8, 8, 64, q_strides=(8192, 1024, 512, 8))
    sm_90 = arch("sm_90")
    verdict = FAMILY.supports(config(alignment=16), apart, sm_90)
    assert verdict.rule == "neighbours"
    assert "8 apart" in verdict.reason
    assert FAMILY.supports(config(alignment=1), apart, sm_90)
