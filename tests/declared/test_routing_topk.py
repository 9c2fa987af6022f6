"""`topk` of wide rows, which are sifted, and of short ones for large k, which are sorted: the same
as in rounds, whatever the values are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import selection
import tilewright as tw
from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.compile import build
from tilewright.declared.routing import topk
from tilewright.dispatch import Dispatcher

WIDE = {"rows": 3, "columns": 4100, "k": 32, "dtype": "fp32"}
SHORT = {"rows": 300, "columns": 144, "k": 64, "dtype": "fp32"}


def problem(**fields):
    return ops.family("topk").problem_type(**WIDE | fields)


def served(stated):
    this, family = arch("sm_90"), ops.family("topk")
    found = family.default_space(stated, this).expand(this).configs
    return [config for config in found if family.supports(config, stated, this)]


def require_right(x, k):
    values, places = tw.topk(x, k=k)
    wanted = torch.sort(x, dim=-1, descending=True, stable=True).indices[:, :k]
    assert torch.equal(places.long(), wanted)
    assert torch.equal(values.nan_to_num(7.0), x.gather(-1, wanted).nan_to_num(7.0))


def test_rows_are_sifted_where_rounds_cost_more():
    chosen = {
        (columns, k): topk.sifts(
            Dispatcher(device="h200_sxm").select(problem(columns=columns, k=k)).config
        )
        for columns in (1024, 8192)
        for k in (1, 32)
    }
    assert chosen == {(1024, 1): False, (1024, 32): True, (8192, 1): False, (8192, 32): True}


@pytest.mark.parametrize(
    ("columns", "k", "sorts"),
    [(144, 64, True), (500, 64, True), (100, 16, True), (100, 8, False), (64, 64, True)],
)
def test_short_rows_are_sorted_where_rounds_cost_more(columns, k, sorts):
    stated = problem(rows=4096, columns=columns, k=k)
    assert topk.sorts(Dispatcher(device="h200_sxm").select(stated).config) == sorts


def right(stated, configs):
    """Each that differs in more than warps, of which the interpreter has none."""
    dispatcher = Dispatcher(device="h200_sxm")
    different = {replace(config, num_warps=1): config for config in configs}
    for config in selection.some([*different.values()], 3):
        result = verify.verify(dispatcher, stated, config.name)
        assert result.ok, (config.name, result)


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("columns", "k", "dtype"), [(144, 64, "fp32"), (120, 33, "bf16"), (300, 100, "fp16")]
)
def test_every_kernel_that_sorts_is_right(columns, k, dtype):
    stated = problem(rows=5, columns=columns, k=k, dtype=dtype)
    configs = [config for config in served(stated) if topk.sorts(config)]
    assert configs
    right(stated, configs)


@pytest.mark.turns(4)
@given(
    seed=st.integers(0, 2**32 - 1),
    levels=st.sampled_from([1, 3, 40, 100_000]),
    special=st.lists(st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])),
)
@settings(
    max_examples=selection.share(6, 2), deadline=None, suppress_health_check=list(HealthCheck)
)
def test_values_that_are_sorted_may_be_anything(seed, levels, special):
    """Equal ones keep their order; of the least, what is masked off comes behind."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-levels, levels, (3, 70), generator=generator) / levels
    x[2] = -float("inf")
    for i, value in enumerate(special):
        x[0, (seed + 37 * i) % 70] = value
    require_right(x, 66)


@given(st.integers(2050, 8192), st.integers(1, 128), st.sampled_from(["fp32", "bf16"]))
@settings(max_examples=30, deadline=None)
def test_a_sifted_row_has_room_and_bits(columns, k, dtype):
    for config in served(problem(columns=columns, k=k, dtype=dtype)):
        if topk.sifts(config):
            assert config.BLOCK // topk.groups(config) <= 32
            assert k < topk.room(config) <= topk.groups(config)


@pytest.mark.turns(8)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("columns", "k"), [(4096, 32), (5424, 20), (7361, 8), (8191, 100)])
def test_every_kernel_is_right(columns, k, dtype):
    stated = problem(rows=2, columns=columns, k=k, dtype=dtype)
    configs = served(stated)
    assert any(map(topk.sifts, configs))
    right(stated, configs)


@pytest.mark.turns(4)
@given(
    seed=st.integers(0, 2**32 - 1),
    levels=st.sampled_from([1, 3, 40, 300, 100_000]),
    special=st.lists(st.sampled_from([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])),
    lowest=st.booleans(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_values_may_be_anything(seed, levels, special, lowest):
    """Few different values, which more elements reach than there is room for; rows of which most is
    masked off; numbers that are none."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-levels, levels, (2, 4100), generator=generator) / levels
    if lowest:
        x[1, torch.randperm(4100, generator=generator)[:4080]] = -float("inf")
    for i, value in enumerate(special):
        x[0, (seed + 997 * i) % 4100] = value
    require_right(x, 32)


@pytest.mark.parametrize("order", ["up", "down", "together"])
def test_the_largest_may_lie_anywhere(order):
    """Also side by side, so that few groups have them all, and more reach the bar than there is
    room for."""
    x = torch.arange(8192, dtype=torch.float32)[None].repeat(2, 1)
    if order == "down":
        x = x.flip(1)
    if order == "together":
        x[:, : 256 * 4] += 1e6 * (torch.arange(256 * 4) % 256 < 2)
    require_right(x.contiguous(), 32)


@pytest.mark.turns(48)
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942", "gfx950", "gfx1201"])
def test_it_is_built(target, store):
    config, short = (
        Dispatcher(device="h200_sxm").select(problem(**one)).config for one in (WIDE, SHORT)
    )
    assert topk.sifts(config) and topk.sorts(short)
    build([(config, target), (short, target)], store=store, workers=1).raise_if_failed()


@pytest.mark.turns(96)
@pytest.mark.parametrize("target", ["gfx942", "gfx1201"])
@pytest.mark.parametrize("columns", [144, 1040, 4100])
def test_it_is_right_in_emulation(target, columns, store):
    stated = problem(rows=2, columns=columns)
    emulated = Dispatcher(device=f"emulated:{target}", store=store)
    result = verify.verify(emulated, stated)
    config = emulated.select(stated).config
    assert topk.sorts(config) if columns == 144 else topk.sifts(config)
    assert result.ok and not result.findings, result
