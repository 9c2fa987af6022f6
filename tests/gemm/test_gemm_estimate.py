"""The estimate of a GEMM's time: what follows from hardware, and how near it is to an H200."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from breakdowns import breakdown
from gemm_cases import config

import choice_gain
from tilewright.arch import arch, device, peak_tflops
from tilewright.arch.known import devices
from tilewright.dispatch import Dispatcher
from tilewright.errors import UnsupportedProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.breakdown import estimates
from tilewright.ops.gemm.estimate import keys, work
from tilewright.ops.gemm.rates import GEMM
from tilewright.ops.pool import Pool

H200 = device("h200_sxm")
TILE = config(tile_m=128, tile_n=128, num_warps=8, num_stages=3, pipeline="tma")
LARGE = GemmProblem(8192, 8192, 8192)


def us(kernel, problem, gpu=H200) -> float:
    return FAMILY.estimate(kernel, problem, gpu).total_us


def made(total, terms, *facts) -> Estimates:
    """The estimates of one kernel."""
    one = (np.array([us]) for us in terms)
    return estimates(np.array([total]), (*one,), *(np.array([fact]) for fact in facts))


def test_the_sentence_says_the_total_the_tiles_the_limiter_and_what_is_not_negligible():
    terms = (5.34, 5.0, 6.0, 0.04, 3.0, 1.5, 0.0, 2.5)
    assert str(made(17.25, terms, 264, 2, 0.995).one(0)) == (
        "17.2 µs: 264 tiles in 2 waves, 100% full; bound by L2; matrix units 5.3, "
        "shared memory 5.0, L2 6.0, memory 3.0, fill and drain 1.5, launch 2.5 µs"
    )
    alone = made(17.25, (*terms[:6], 7.0, 2.5), 1, 1, 1 / 132).one(0)
    assert "1 tile in 1 wave, 1% full; bound by L2" in str(alone)
    assert "putting sums together 7.0" in str(alone)


def test_tiles_fill_waves_and_the_busiest_unit_decides():
    walks = replace(TILE, scheduler="persistent")
    one, two = (breakdown(walks, GemmProblem(128, 128 * n, 8192), H200) for n in (132, 133))
    assert one.facts == ("132 tiles in 1 wave", "100% full")
    assert two.facts == ("133 tiles in 2 waves", "50% full")
    assert two.compute_us == 2 * one.compute_us and two.total_us > 1.5 * one.total_us


def test_each_limit_decides_where_it_should():
    for word, kernel, problem in (
        ("launch", TILE, GemmProblem(64, 64, 64)),
        ("memory", TILE, GemmProblem(128, 65536, 8192)),
        ("L2", replace(TILE, tile_m=64, tile_n=64, num_warps=4), LARGE),
        ("waiting for loads", replace(TILE, num_stages=2), GemmProblem(128, 128, 16384)),
        ("matrix units", replace(TILE, tile_n=256, pipeline="basic"), LARGE),
    ):
        assert breakdown(kernel, problem, H200).limiter == word


def test_a_step_waits_less_the_deeper_the_pipeline_is():
    alone = GemmProblem(128, 128, 16384)
    found = [breakdown(replace(TILE, num_stages=s), alone, H200) for s in (2, 3, 5)]
    assert [e.latency_us for e in found] == sorted((e.latency_us for e in found), reverse=True)
    assert found[0].latency_us > 1.8 * found[1].latency_us


def named(words: str):
    return FAMILY.parse_name(f"gemm_rcr_bf16_bf16_bf16_fp32_{words}_padmnk_al16")


WHOLE = named("64x128x64_w4_s8_gluon_ws_persistent_g8_direct")
CLUSTER = named("64x128x64_w4_s8_gluon_ws_split_k4_cluster_g8_direct")


def test_in_one_wave_a_step_takes_what_memory_takes_over_the_stages():
    """An H200 took 31.1, 28.4 and 26.7 µs with 6, 7 and 8 stages."""
    one = GemmProblem(512, 1024, 7168)
    steps = 7168 // 64
    found = [breakdown(replace(WHOLE, num_stages=s), one, H200) for s in (6, 7, 8)]
    assert [e.waves for e in found] == [1, 1, 1]
    assert [e.latency_us * s / steps for e, s in zip(found, (6, 7, 8), strict=True)] == (
        pytest.approx([1.27] * 3, abs=0.01)
    )
    assert [e.total_us for e in found] == pytest.approx([31.1, 28.4, 26.7], rel=0.1)


def test_a_wave_of_whole_small_tiles_goes_before_halves_of_large_ones():
    """An H200 took 31.7 µs, and 33.2 and 34.6 in halves."""
    halves = named("128x128x64_w8_s6_gluon_ws_split_k2_linear_g8_direct")
    clusters = named("128x128x64_w8_s5_gluon_ws_split_k2_cluster_g8_direct")
    deep = GemmProblem(1024, 1024, 8192)
    assert us(WHOLE, deep) < min(us(halves, deep), us(clusters, deep))


def test_clusters_meet_once_for_each_wave():
    one, three = (breakdown(CLUSTER, GemmProblem(m, 1024, 8192), H200) for m in (192, 576))
    assert (one.waves, three.waves) == (1, 3)
    assert three.meeting_us == pytest.approx(3 * one.meeting_us)


def test_workgroups_that_share_a_unit_hide_each_others_waits():
    small = replace(TILE, tile_m=64, tile_n=64, num_warps=4)
    many = GemmProblem(2048, 2048, 4096)
    assert us(small, many) < 0.8 * us(replace(small, scheduler="persistent"), many)


def test_warps_that_feed_the_matrix_units_read_what_they_share_again():
    rows = replace(TILE, tile_m=16, tile_n=32, tile_k=128, num_warps=4)
    few = GemmProblem(12, 8704, 4096)
    found = [breakdown(replace(rows, num_warps=w), few, H200) for w in (4, 8)]
    assert found[1].shared_us > 1.5 * found[0].shared_us
    # Those for few rows share out K, and read nothing twice.
    shared_out = replace(rows, pipeline="small_m", tile_n=16, group_m=1)
    found = [breakdown(replace(shared_out, num_warps=w), few, H200) for w in (4, 8)]
    assert found[0].shared_us == found[1].shared_us > 0


def test_few_rows_are_the_columns_of_the_matrix_instructions():
    few = GemmProblem(8, 8704, 4096)
    wide = replace(TILE, tile_m=8, tile_n=64, num_warps=4, pipeline="small_m_tma", group_m=1)
    by_rows = replace(TILE, tile_m=16, tile_n=64, num_warps=4)
    products = [breakdown(k, few, H200).compute_us for k in (wide, by_rows)]
    assert products[0] < 0.7 * products[1]
    # Half of the compute units with two tiles' columns each ask memory for less at once.
    narrow, broad = replace(wide, num_stages=6), replace(wide, tile_n=128)
    assert us(narrow, few) < us(broad, few)


def test_of_equal_estimates_the_deeper_ring_goes_first_where_it_takes_nothing_from_others():
    ring = replace(TILE, pipeline="gluon_pingpong", scheduler="persistent", num_stages=4)
    deep = replace(ring, num_stages=6, store="split")
    assert us(ring, LARGE) == us(deep, LARGE)
    assert [c for c, _ in FAMILY.rank(LARGE, [ring, deep], H200)] == [deep, ring]


TIED = replace(
    breakdown(TILE, LARGE, H200), compute_us=9.0, shared_us=1.0, l2_us=5.0, latency_us=3.0
)


def key(kernel, found, problem):
    """What a kernel is sorted by, without its name."""
    found = keys([kernel], made(found.total_us, astuple(found)[:8], 1, 1, 1), problem)
    return tuple(of_one.item() for of_one in found)[:-1]


def test_of_equal_estimates_the_kernel_whose_next_slowest_resource_is_least_loaded_goes_first():
    found = [TIED, replace(TIED, l2_us=6.0), replace(TIED, l2_us=4.0), replace(TIED, shared_us=2.0)]
    kept, more, less, third = (key(TILE, one, LARGE) for one in found)
    assert less < kept < more and third == kept
    assert key(TILE, replace(TIED, compute_us=8.0), LARGE) == kept
    few = replace(TILE, tile_m=8, tile_n=64, num_warps=4, pipeline="small_m_tma", group_m=1)
    assert len({key(few, one, GemmProblem(8, 8192, 8192)) for one in found}) == 1


def test_of_equal_estimates_descriptors_go_before_pointers():
    assert key(TILE, TIED, LARGE) < key(replace(TILE, pipeline="basic"), TIED, LARGE)


def test_of_equal_estimates_fewer_steps_of_k_go_first_where_a_workgroup_has_a_unit_to_itself():
    def order(**fields):
        return key(replace(TILE, **fields), TIED, LARGE)

    alone = {"scheduler": "persistent"}
    assert order(tile_k=128, **alone) < order(tile_k=64, **alone)
    assert order(tile_k=128) == order(tile_k=64)


def test_workgroups_side_by_side_fill_once_for_each_round():
    small = replace(TILE, tile_m=64, tile_n=64, num_warps=4)
    one, many = (breakdown(small, GemmProblem(64 * n, 64 * 132, 512), H200) for n in (1, 40))
    held = work(small, LARGE, H200).resident
    assert held > 2 and one.waves == 1 and many.waves == 40
    for waves, rounds in (
        (held, 1),
        (held + 1, 2),
        (held + 2, 2),
        (2 * held, 2),
        (2 * held + 1, 3),
    ):
        found = breakdown(small, GemmProblem(64 * waves, 64 * 132, 512), H200)
        assert found.fill_us == pytest.approx(rounds * one.fill_us), waves


@pytest.mark.parametrize(("name", "gpu"), [("sm_90", "h200_sxm"), ("gfx942", "mi300x")])
def test_loads_of_elements_and_offsets_of_64_bits_take_longer_by_their_factors(name, gpu):
    def running(**fields):
        found = breakdown(config(name, dtype_a="fp16", **fields), LARGE, device(gpu))
        return found.total_us - found.launch_us

    by_alignment = {alignment: running(alignment=alignment) for alignment in (1, 2, 4, 16)}
    assert by_alignment[4] == by_alignment[16]
    assert by_alignment[1] == by_alignment[2] == pytest.approx(by_alignment[4] / GEMM.ELEMENTWISE)
    wide = GEMM["WIDE_INDEX"][arch(name).backend]
    assert running(index_bits=64) == pytest.approx(running() / wide)


def test_groups_of_more_rows_than_there_are_read_as_one_group_of_them_all():
    wide = GemmProblem(512, 65536, 16384)  # four rows of tiles
    four, eight, two = (
        breakdown(replace(TILE, group_m=n), wide, H200).memory_us for n in (4, 8, 2)
    )
    assert eight == four != two


def test_memory_is_asked_again_for_what_l2_cannot_keep():
    row = replace(TILE, group_m=1)
    square, fits = GemmProblem(16384, 16384, 16384), GemmProblem(2048, 2048, 2048)
    grouped, strip = (breakdown(k, square, H200).memory_us for k in (TILE, row))
    least = square.min_bytes / H200.bandwidth_gbs / 1e3
    assert least < grouped < strip
    assert breakdown(TILE, fits, H200).memory_us == fits.min_bytes / H200.bandwidth_gbs / 1e3


def test_sharing_a_tile_costs_a_meeting_and_pays_where_k_is_long():
    whole = replace(TILE, tile_m=64, num_warps=4, pipeline="gluon_ws", scheduler="persistent")
    parts = {
        (n, how): replace(whole, scheduler="split_k", split_k=n, reduction=how)
        for n in (2, 8)
        for how in ("linear", "tree")
    }
    short, long = GemmProblem(256, 256, 256), GemmProblem(256, 256, 16384)
    assert us(whole, short) < us(parts[8, "linear"], short)
    assert us(parts[8, "linear"], long) < us(parts[2, "linear"], long) < us(whole, long)
    meetings = {key: breakdown(k, long, H200).meeting_us for key, k in parts.items()}
    order = [(2, "tree"), (2, "linear"), (8, "linear"), (8, "tree")]
    assert sorted(meetings, key=meetings.__getitem__) == order
    broad = {how: replace(parts[8, how], tile_m=256, tile_n=256) for how in ("linear", "tree")}
    meetings = {how: breakdown(k, long, H200).meeting_us for how, k in broad.items()}
    assert meetings["tree"] < meetings["linear"]  # whose last one reads seven large partial sums
    assert breakdown(whole, long, H200).meeting_us == 0
    # A workgroup that walks from part to part meets the others in each.
    walked = GemmProblem(64 * 3 * 33, 128, 16384)
    once, each = (breakdown(parts[2, "linear"], p, H200) for p in (long, walked))
    assert (once.waves, each.waves) == (1, 2)
    assert each.meeting_us == 2 * once.meeting_us


def test_rows_that_lie_across_k_are_narrow_in_narrow_accumulators():
    """A tile of 160 columns has accumulators of 128 and 32, which are rows of 64 bytes along N."""

    def reads(tile_n, layout, n=8192):
        of = GemmProblem(8192, n, 8192, layout=layout)
        kernel = config(
            layout=layout, tile_m=64, tile_n=tile_n, num_warps=4, num_stages=4,
            pipeline="gluon_ws", scheduler="persistent",
        )  # fmt: skip
        return dict(FAMILY.estimate(kernel, of, H200).terms)["L2"]

    assert reads(128, "rrr") == pytest.approx(reads(128, "rcr"))
    for tile_n, longer in ((160, 1.1), (96, 1.15), (112, 1.3)):
        assert reads(tile_n, "rrr") > longer * reads(tile_n, "rcr")
    # 8200 is no multiple of 64 columns: the last tile's rows are filled with zeros in part.
    assert reads(128, "rrr", 8200) > reads(128, "rcr", 8200)


def test_whole_rows_of_one_operand_take_their_time_beside_askew_rows_of_the_other():
    """8200 16-bit numbers are no whole sectors: rows of B lie askew where N is innermost."""
    kernel = config(
        layout="rrr", tile_n=128, num_warps=8, num_stages=4, pipeline="gluon_ws",
        scheduler="persistent",
    )  # fmt: skip

    def reads(tile_m, n):
        of = GemmProblem(8192, n, 8192, layout="rrr")
        terms = FAMILY.estimate(replace(kernel, tile_m=tile_m), of, H200).terms
        tiles = math.ceil(8192 / tile_m) * math.ceil(n / 128)
        return dict(terms)["L2"] / math.ceil(tiles / H200.compute_units)

    whole = reads(256, 8192) - reads(128, 8192)  # of 128 rows of A
    assert reads(256, 8200) - reads(128, 8200) == pytest.approx(whole, rel=0.05)
    assert reads(128, 8200) > 1.25 * reads(128, 8192)


def test_few_tiles_have_no_more_workgroups_than_a_tile_can_have():
    """Under stream-K: two tiles keep 32 compute units busy, four 64."""
    kernel = config(scheduler="stream_k", reduction="linear", pipeline="gluon_ws")
    two, four = (
        FAMILY.estimate(kernel, GemmProblem(64, 64 * tiles, 2**20), H200).total_us
        for tiles in (2, 4)
    )
    assert two == pytest.approx(four, rel=0.1)
    eight = FAMILY.estimate(kernel, GemmProblem(64, 64 * 16, 2**20), H200).total_us
    assert eight > 1.4 * four


def test_shares_that_cross_tiles_read_nothing_together():
    shared = replace(TILE, pipeline="gluon_ws", scheduler="stream_k", reduction="linear")
    whole = replace(shared, scheduler="persistent", reduction="none")
    for tiles, pays in ((33, True), (44, True), (120, False)):
        problem = GemmProblem(128, 128 * tiles, 4096)
        assert (us(shared, problem) < us(whole, problem)) is pays, tiles


def test_warps_that_share_out_k_add_up_at_the_end():
    tall = config(tile_m=64, tile_n=32, tile_k=256, num_warps=4, num_stages=3, group_m=1)
    tall, broad = (replace(tall, pipeline="small_m_tma", tile_n=n) for n in (32, 64))
    fills = [breakdown(k, GemmProblem(64, 2048, 256), H200).fill_us for k in (tall, broad)]
    assert fills[0] > fills[1] + 2


def test_further_rows_and_workgroups_cost_the_vector_units():
    one = config(tile_m=1, tile_n=4, tile_k=1024, num_warps=4, num_stages=1, group_m=1)
    one = replace(one, pipeline="small_m")
    two, narrow = replace(one, tile_m=2), replace(one, tile_n=1)
    problem = GemmProblem(1, 8192, 8192)
    fill = {k: breakdown(k, problem, H200).fill_us for k in (one, two, narrow)}
    assert fill[one] < fill[narrow] < 10 and fill[one] < fill[two] < 10


BLOCKS = {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}


def scaled(pipeline, tile_m, tile_n, tile_k, num_warps, num_stages, **fields):
    kernel = config(tile_m=tile_m, tile_n=tile_n, tile_k=tile_k, num_stages=num_stages, **BLOCKS)
    return replace(kernel, pipeline=pipeline, num_warps=num_warps, **fields)


@pytest.mark.parametrize(
    ("kernel", "share"),
    [(("gluon_scaled", 128, 256, 128, 8, 3), 0.83), (("gluon_scaled", 128, 128, 128, 8, 4), 0.71),
     (("gluon_scaled", 128, 128, 128, 4, 4), 0.61), (("gluon_scaled", 64, 256, 128, 4, 4), 0.61),
     (("gluon_scaled", 64, 128, 128, 4, 4), 0.47), (("gluon_scaled", 64, 64, 256, 4, 5), 0.39),
     (("gluon_scaled", 64, 32, 256, 4, 6), 0.26), (("gluon_scaled", 64, 16, 512, 4, 5), 0.14),
     (("tma", 64, 128, 128, 4, 4), 0.36)],
    ids=str,
)  # fmt: skip
def test_scaled_products_reach_the_share_of_the_matrix_rate_that_was_measured(kernel, share):
    """The greatest share of each tile on an H200 (see ``SCALING_CLOCKS``)."""
    one = scaled(*kernel, scheduler="persistent")
    problem = GemmProblem(one.tile_m, 132 * one.tile_n, 8192, **BLOCKS)  # a tile for each unit
    rate = peak_tflops(arch("sm_90"), H200, "e4m3fn") * 1e6 / H200.compute_units
    flops = 2.0 * one.tile_m * one.tile_n * problem.k
    reached = flops / (breakdown(one, problem, H200).compute_us * rate)
    assert reached == pytest.approx(share, rel=0.08)


def test_warps_for_few_rows_that_share_out_too_few_blocks_of_scales_take_longer():
    problem = GemmProblem(8, 64320, 3072, **BLOCKS)
    ring = scaled("small_m_tma", 8, 64, 128, 4, 2, group_m=1)
    one, two, four = (replace(ring, tile_k=k) for k in (128, 256, 512))
    found = [breakdown(k, problem, H200).compute_us for k in (one, two, four)]
    assert found[0] > 4 * found[2] and found[0] > 2 * found[1] > 2 * found[2]
    plain = [replace(k, scale_a="", scale_b="") for k in (one, four)]
    found = [breakdown(k, GemmProblem(8, 64320, 3072, "e4m3fn"), H200).compute_us for k in plain]
    assert found[0] < 4 * found[1]


def test_what_is_short_reads_at_the_full_clock():
    problems = [GemmProblem(128, 128 * 132, k) for k in (8192, 32768)]
    found = [breakdown(replace(TILE, scheduler="persistent"), p, H200) for p in problems]
    assert found[0].l2_us < 80 < found[1].l2_us
    assert found[1].l2_us > 1.05 * 4 * found[0].l2_us


@pytest.mark.parametrize(
    "fields", [{"m": 3}, {"m": 40, "dtype_b": "int4"}, {"m": 700, "epilogue": "bias"}], ids=str
)
def test_a_kernel_is_estimated_alone_as_among_all_of_its_space(fields):
    problem = GemmProblem(**{"m": 64, "n": 1536, "k": 4000, **fields})
    configs = FAMILY.default_space(problem, arch("sm_90")).expand(arch("sm_90")).configs
    serving = FAMILY.serving(problem, pool := Pool(configs), arch("sm_90"))
    ranked = FAMILY.rank(problem, pool.part(serving), H200)
    assert len(ranked) == len(serving) > 10
    for kernel, estimate in ranked:
        assert estimate == FAMILY.estimate(kernel, problem, H200), kernel.name
    assert [c for c, _ in ranked[:3]] == [c for c, _ in [*ranked][:3]]


def test_less_l2_for_each_unit_holds_up_what_reads_for_long_on_hopper():
    tile = config(tile_m=128, tile_n=128, num_warps=8, num_stages=6, pipeline="gluon_ws")
    h100 = device("h100_sxm")
    long, short = GemmProblem(8192, 8192, 8192), GemmProblem(2048, 2048, 1024)
    assert h100.l2_bytes < H200.l2_bytes and h100.compute_units == H200.compute_units
    ratio = breakdown(tile, long, h100).l2_us / breakdown(tile, long, H200).l2_us
    assert ratio == pytest.approx(H200.l2_bytes / h100.l2_bytes)
    assert breakdown(tile, short, h100).l2_us == pytest.approx(breakdown(tile, short, H200).l2_us)
    more = replace(H200, l2_bytes=2 * H200.l2_bytes)
    assert breakdown(tile, long, more).l2_us == breakdown(tile, long, H200).l2_us


def test_of_equal_estimates_for_few_rows_the_shallower_ring_goes_first():
    ring = replace(TILE, tile_m=8, tile_n=64, num_warps=4, pipeline="small_m_tma", group_m=1)
    few = GemmProblem(8, 16896, 1024)
    kernels = [replace(ring, num_stages=n) for n in (8, 6)]
    assert us(kernels[0], few) == us(kernels[1], few)
    assert [c.num_stages for c, _ in FAMILY.rank(few, kernels, H200)] == [6, 8]


def test_power_holds_a_full_device_back_and_no_wave_that_is_half_empty():
    big = replace(TILE, tile_n=256, num_stages=4, pipeline="gluon_ws", scheduler="persistent")
    half, full = (GemmProblem(128 * n, 256 * 11, 16384) for n in (6, 12))
    peak = peak_tflops(arch("sm_90"), H200, "bf16") * 1e6
    assert full.flops / us(big, full) < 0.78 * peak
    assert half.flops / us(big, half) > 0.85 * peak / 2


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", sorted({d.arch for d in devices().values()}))
def test_every_architecture_gets_estimates_and_a_choice_with_its_reason(name):
    gpu = next(d for d in devices().values() if d.arch == name)
    for problem in (GemmProblem(1, 4096, 4096, "fp16"), GemmProblem(2048, 4096, 4096, "fp16")):
        try:
            plan = Dispatcher(device=gpu).select(problem)
        except UnsupportedProblem:
            pytest.fail(f"{name} has no kernel for {problem}")
        found = breakdown(plan.config, problem, gpu)
        said = FAMILY.estimate(plan.config, problem, gpu)
        assert plan.selector == "analytical" and plan.reason == f"estimated {said}"
        assert found.total_us > found.launch_us > 0 and found.limiter in plan.reason
        least = problem.min_bytes / gpu.bandwidth_gbs / 1e3
        assert found.total_us > max(
            least, problem.flops / 1e6 / peak_tflops(arch(name), gpu, "fp16")
        )


@pytest.mark.parametrize(
    ("file", "key", "least"),
    [
        ("gemm_chains", "us", 0.7),
        ("gemm_chains_ring", "us", 0.6),
        ("gemm_chains_64", "us", 0.7),
        ("gemm_chains_256", "us", 0.7),
        ("gemm_last_wave", "finalists", 0.4),
        ("gemm_last_wave_128x256", "finalists", 0.8),
    ],
)
def test_of_kernels_that_no_figure_was_fitted_to_it_puts_a_good_one_first(file, key, least):
    """By measurements of an H200 that `arch/figures` does not name: products of models' layers of 1
    to 256 rows in replayed graphs, and products whose last wave is nearly empty."""
    measured = []
    for row in choice_gain.rows(f"{file}_h200.json"):
        for of in row.get("products", [row]):
            us = choice_gain.timed(FAMILY, {k: median(t) for k, t in of[key].items()})
            waiting = {c: t for c, t in us.items() if c.dependent_launch == "none"}
            measured.append((GemmProblem(row["m"], of["n"], of["k"]), waiting))
    assert len(measured) >= 8
    assert choice_gain.gain(FAMILY, H200, measured) > least


def median(told: float | dict[str, float]) -> float:
    return told["median_us"] if isinstance(told, dict) else told


def test_estimates_are_near_what_an_h200_measured():
    """Large products, each by the kernel that was the best."""
    for row in choice_gain.rows("gemm_large_h200.json"):
        problem = GemmProblem(row["m"], row["n"], row["k"])
        measured = problem.flops / row["tflops"] / 1e6
        assert us(FAMILY.parse_name(row["kernel"]), problem) == pytest.approx(measured, rel=0.2)


@pytest.mark.parametrize("pipeline", ["weights", "gluon_weights"])
def test_weights_of_4_bits_are_unpacked_once_for_each_element(pipeline):
    """Products, and what reads and writes, grow with K as it does; launching does not."""
    terms, this = [], arch("sm_90")
    for k in (4096, 8192):
        p = GemmProblem(16, 4096, k, dtype_b="int4")
        configs = FAMILY.default_space(p, this).expand(this).configs
        one = next(c for c in configs if c.pipeline == pipeline and FAMILY.supports(c, p, this))
        terms.append(dict(FAMILY.estimate(one, p, H200).terms))
    short, long = terms
    assert long["matrix units"] == pytest.approx(2 * short["matrix units"])
    assert 1.9 < long["memory"] / short["memory"] <= 2 and long["launch"] == short["launch"]
