"""1×1 convolutions by GEMM's kernels: which product a convolution is, what has none, names, and the
kernels in the interpreter and in the simulation."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simulate import worst_error
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, UnknownName
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.config import GEMM, of_gemm
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.pipelines import by_gemm
from tilewright.ops.conv.problem import DIRECTIONS
from tilewright.ops.conv.product import OPERANDS, product
from tilewright.ops.conv.stated import first_strides
from tilewright.registry import Registry

FAMILY, PRODUCTS = ops.family("conv"), ops.family("gemm")
SM_90 = arch("sm_90")
THREE = replace(device("h200"), compute_units=3)
PLAIN = ConvProblem(2, 24, 40, (5, 6), (1, 1))


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def kernels(p: ConvProblem, name: str = "sm_90"):
    """GEMM's kernels that serve a problem."""
    found = FAMILY.default_space(p, arch(name)).expand(arch(name)).configs
    served = (found[place] for place in FAMILY.serving(p, found, arch(name)))
    return [c for c in served if c.pipeline == GEMM and not c.turned]


def test_problems_of_other_sizes_have_the_same_candidates():
    """The very objects, so that what follows from them is worked out once. Of odd channels there
    are others too, between layout steps."""
    found = [
        [
            c
            for c in FAMILY.default_space(p, SM_90).expand(SM_90).configs
            if c.pipeline == GEMM and not c.turned
        ]
        for p in (replace(PLAIN, n=9), replace(PLAIN, n=8, c=25, spatial=(9, 11)))
    ]
    assert len(found[0]) > 100 and all(a is b for a, b in zip(*found, strict=True))


# --- the product -------------------------------------------------------------------------------


@st.composite
def ones(draw):
    """Problems of one tap, of all layouts, with gaps and strides."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    direction = draw(st.sampled_from(sorted(DIRECTIONS)))
    stride = tuple(draw(st.sampled_from((1, 1, 1, 2))) for _ in range(rank))
    p = ConvProblem(
        draw(st.integers(1, 3)), groups * draw(st.integers(1, 5)), groups * draw(st.integers(1, 5)),
        tuple(draw(st.integers(1, 4)) for _ in range(rank)), (1,) * rank, groups, stride,
        dilation=tuple(draw(st.integers(1, 2)) for _ in range(rank)), direction=direction,
        dtype="fp32", alignment=4,
    )  # fmt: skip
    if direction != "weights":
        p = replace(p, epilogue=draw(st.sampled_from(("", "bias", "add", "scale+bias+add"))))
    first = first_strides(p)
    said = {}
    for name, strides in first.items():
        form = draw(st.sampled_from(("last", "last", "first", "gaps", "images")))
        if form == "first":
            said[name] = strides
        elif form == "gaps":  # between pixels
            said[name] = tuple(s if s == 1 else 2 * s for s in p.strides_of(name[0]))
        elif form == "images":  # between images, or filters
            outer, *inner = p.strides_of(name[0])
            said[name] = (outer + 3, *inner)
    try:
        return replace(p, **said)
    except BadArgument:
        assume(False)
        raise


@st.composite
def rows(draw):
    """Problems of several taps that meet rows of x: filters that cover the inner dimensions, and
    windows that do not overlap along the next one."""
    rank = draw(st.integers(1, 3))
    covered = draw(st.integers(0, rank))
    sizes, taps, strides = [], [], []
    for i in range(rank):
        n = draw(st.integers(1, 3))
        if i >= rank - covered:
            size = tap = n
            step = draw(st.integers(1, 3))
        elif i == rank - covered - 1:
            tap = n
            step = n + draw(st.sampled_from((0, 0, 1)))
            size = step * draw(st.integers(0, 2)) + tap + draw(st.sampled_from((0, 0, 1)))
        else:
            tap, step = 1, draw(st.sampled_from((1, 1, 2)))
            size = draw(st.integers(1, 3))
        sizes.append(size)
        taps.append(tap)
        strides.append(step)
    p = ConvProblem(
        draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 5)),
        tuple(sizes), tuple(taps), stride=tuple(strides),
        direction=draw(st.sampled_from(sorted(DIRECTIONS))), dtype="fp32", alignment=4,
    )  # fmt: skip
    if p.direction != "weights":
        p = replace(p, epilogue=draw(st.sampled_from(("", "bias", "add"))))
    if draw(st.booleans()):
        first = first_strides(p)
        p = replace(p, **{name: first[name] for name in ("x_strides", "w_strides")})
    return p


def _memory(one, rng):
    """Values for an operand, with its elements as they lie."""
    reach = 1 + sum((n - 1) * s for n, s in zip(one.shape, one.strides, strict=True))
    return rng.standard_normal(reach)


def _seen(one, flat):
    return np.lib.stride_tricks.as_strided(flat, one.shape, [8 * s for s in one.strides])


@given(st.one_of(ones(), rows()))
def test_the_product_computes_the_convolution(problem):
    """In NumPy: operands of the product are views of the convolution's memory."""
    of = product(problem)
    if isinstance(of, str):
        return
    assert of.flops == problem.flops and of.alignment <= problem.alignment
    rng = np.random.default_rng(1)
    flat = {one.name: _memory(one, rng) for one in FAMILY.operands(problem)}
    views = {one.name: _seen(one, flat[one.name]) for one in FAMILY.operands(problem)}
    made = problem.output_name
    wanted = FAMILY.reference(problem, {k: v for k, v in views.items() if k != made})[made]
    names = OPERANDS[problem.direction]
    parts = {one.name: one for one in PRODUCTS.operands(of)}
    given_ = {n: _seen(one, flat[names.get(n, n)]) for n, one in parts.items() if n != "C"}
    flat[made][:] = np.nan
    _seen(parts["C"], flat[made])[...] = PRODUCTS.reference(of, given_)["C"]
    np.testing.assert_allclose(views[made], wanted, rtol=1e-9, atol=1e-9)


def test_dense_layers_are_one_matrix():
    for direction, layout, sizes in (
        ("forward", "rcr", (60, 40, 24)), ("data", "rrr", (60, 24, 40)),
        ("weights", "crr", (40, 24, 60)),
    ):  # fmt: skip
        of = product(replace(PLAIN, direction=direction))
        assert (of.layout, of.m, of.n, of.k) == (layout, *sizes) and of.batching == "none"


def test_patches_that_a_filter_covers_are_one_matrix():
    """As vision models embed them: of any layout, if x and the filter have the same."""
    patches = ConvProblem(4096, 3, 1280, (2, 14, 14), (2, 14, 14), stride=(2, 14, 14))
    first = first_strides(patches)
    alike = replace(patches, **{name: first[name] for name in ("x_strides", "w_strides")})
    for p in (patches, alike):
        of = product(p)
        assert (of.layout, of.m, of.n, of.k, of.batch) == ("rcr", 4096, 1280, 3 * 2 * 14 * 14, 1)
    assert "in one order" in product(replace(patches, x_strides=first["x_strides"]))
    assert (kernels(patches)[0]).pipeline == GEMM


@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
@pytest.mark.parametrize("first", [False, True])
def test_patches_are_right(dispatcher, direction, first):
    p = ConvProblem(
        5, 3, 16, (2, 4, 4), (2, 4, 4), stride=(2, 4, 4), direction=direction, dtype="fp16"
    )
    strides = first_strides(p) if first else {}
    p = replace(p, **{name: s for name, s in strides.items() if name != "y_strides"})
    result = verify.verify(dispatcher, p, kernels(p)[0].name, seed=2)
    assert result.ok, result


def test_windows_in_one_dimension_are_rows_that_do_not_overlap():
    of = product(ConvProblem(4, 64, 128, (100,), (4,), stride=(4,)))
    assert (of.m, of.n, of.k, of.lda, of.batch) == (100, 128, 256, 256, 1)
    of = product(ConvProblem(4, 64, 128, (102,), (4,), stride=(5,)))
    assert (of.m, of.k, of.lda, of.batch) == (20, 256, 320, 4)


def test_images_and_groups_are_batches():
    first = product(replace(PLAIN, **first_strides(PLAIN)))
    assert (first.layout, first.batch, first.m, first.batch_strides[1]) == ("ccc", 2, 30, 0)
    weights = product(replace(PLAIN, direction="weights", **first_strides(PLAIN)))
    assert (weights.layout, weights.batching, weights.batch) == ("rcr", "summed", 2)
    assert (weights.m, weights.n, weights.k) == (40, 24, 30)
    groups = product(replace(PLAIN, groups=4))
    assert (groups.batch, groups.lda, groups.batch_strides[:3]) == (4, 24, (6, 60, 10))


@pytest.mark.grid(5)
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"filter": (1, 3)}, "windows of several taps overlap"),
        ({"filter": (2, 3), "stride": (2, 3)}, "several taps meet of x .* not rows in one order"),
        ({"filter": (1, 3), "dilation": (1, 2), "stride": (1, 6)}, "a dilated filter"),
        ({"pad": (0, 1)}, "with padding"),
        ({"stride": (2, 1), "direction": "data"}, "pixels that no tap meets"),
        ({"pad_after": (0, -2), "direction": "data"}, "pixels that no tap meets"),
        (
            {"filter": (1, 6), "stride": (1, 6), "direction": "data", "epilogue": "bias"},
            "a row has all taps'",
        ),
        ({"n": 0}, "without elements"),
        ({"groups": 24, "k": 24}, "a filter of its own"),
        ({"groups": 4, "epilogue": "bias"}, "the batch of 4 groups would share them"),
        ({"stride": (2, 2), "direction": "weights"}, "lie at 3 distances, .* of one batch"),
        ({"groups": 2, "stride": (2, 2)}, "lie at 3 distances, .* or of one batch"),
        ({"x_strides": (1, 1440, 288, 48)}, "x is a matrix whose rows are"),
        ({"x_strides": (720, 1, 144, 0)}, "x repeats elements by a stride of 0"),
        ({"x_strides": (360, 1, 72, 12)}, "lda = 12 is outside 24"),
    ],
)
def test_what_is_no_product(fields, why):
    problem = replace(PLAIN, **fields)
    alike = {"filter": (1, 1), "dilation": (), "pad": (), "pad_after": (), "stride": ()}
    like = replace(problem, groups=1, n=2, **alike)
    plain = kernels(replace(like, x_strides=()))[0]
    verdict = FAMILY.supports(plain, problem, SM_90)
    assert verdict.rule == "product" and re.search(why, verdict.reason), verdict.reason
    assert not kernels(problem)


def test_verdicts_are_gemms():
    first = kernels(PLAIN)[0]
    tail = replace(PLAIN, c=25)
    verdict = FAMILY.supports(first, tail, SM_90)
    theirs = PRODUCTS.supports(first.gemm_config, product(tail), SM_90)
    assert verdict.rule == theirs.rule and verdict.reason.endswith(theirs.reason)
    assert verdict.reason.startswith("as gemm 60×40×25 bf16 rcr")
    other = replace(PLAIN, direction="data")
    assert FAMILY.supports(first, other, SM_90).rule == "signature"
    far = of_gemm("forward", 2, replace(first.gemm_config, num_warps=64))
    assert FAMILY.judge(far, SM_90) == PRODUCTS.judge(far.gemm_config, SM_90)


# --- configs -----------------------------------------------------------------------------------


def test_names_and_registries_say_the_kernel():
    found = Registry("conv")
    for direction in DIRECTIONS:
        for c in kernels(replace(PLAIN, direction=direction)):
            assert c.name == f"conv_{direction}_2d_{c.gemm_config.name}"
            assert FAMILY.parse_name(c.name) == c
            found.register(c.name)
    again = Registry.from_json(found.to_json())
    assert [e.config for e in again] == [e.config for e in found]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("conv_forward_2d_gemm_rcr", "'gemm_rcr' is not the name of a GEMM kernel"),
        ("conv_sideways_2d_gemm_rcr", "is not the name of a kernel of conv"),
    ],
)
def test_a_name_that_says_none(name, why):
    with pytest.raises(UnknownName, match=why):
        FAMILY.parse_name(name)


def test_a_space_says_the_kernels_name_alone():
    c = kernels(PLAIN)[0]
    axes = {**FAMILY.axes(), "gemm": c.gemm}
    assert FAMILY.make_config(axes, SM_90) == c
    with pytest.raises(BadArgument, match=r"tile_m = 32, but gemm = .* says 16"):
        FAMILY.make_config({**axes, "tile_m": 32}, SM_90)
    with pytest.raises(BadArgument, match="not the name of a GEMM kernel"):
        FAMILY.make_config({**axes, "gemm": "rcr"}, SM_90)


def test_sources_are_gemms():
    for c in kernels(PLAIN)[::20]:
        assert FAMILY.sources(c, SM_90) == PRODUCTS.sources(c.gemm_config, SM_90)


def test_atomic_sums_do_not_repeat():
    kernel = kernels(replace(PLAIN, direction="weights"))[0].gemm_config
    shared = replace(kernel, scheduler="stream_k", reduction="linear")
    assert FAMILY.repeats(of_gemm("weights", 2, shared))
    atomic = of_gemm("weights", 2, replace(shared, reduction="atomic"))
    assert "atomics" in FAMILY.repeats(atomic).reason


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "gfx942", "gfx1201"])
def test_every_layer_has_gemms_kernels(name):
    for direction in DIRECTIONS:
        problem = ConvProblem(8, 256, 64, (56, 56), (1, 1), direction=direction)
        found = kernels(problem, name)
        assert len(found) >= 10
        shared = {c.scheduler for c in found} & {"stream_k", "split_k"}
        assert direction != "weights" or shared == {"stream_k", "split_k"}
        for c in found:
            assert FAMILY.supports(c, problem, arch(name))


def test_estimates_are_gemms_and_what_comes_before_the_first_product():
    h200, of = device("h200_sxm"), product(PLAIN)
    for c in kernels(PLAIN)[::20]:
        found, plain = FAMILY.estimate(c, PLAIN, h200), PRODUCTS.estimate(c.gemm_config, of, h200)
        assert found.terms[:-1] == plain.terms
        assert found.terms[-1] == (by_gemm.FIRST, pytest.approx(found.total_us - plain.total_us))


def test_short_products_are_told_apart_by_descriptors_and_the_steps_copied_ahead():
    h200, p = device("h200_sxm"), ConvProblem(64, 256, 128, (1, 1), (1, 1), direction="weights")

    def first_us(kernel):
        c = FAMILY.parse_name(f"conv_weights_2d_gemm_crr_bf16_bf16_bf16_fp32_{kernel}")
        return dict(FAMILY.estimate(c, p, h200).terms)[by_gemm.FIRST]

    four, three, two = (
        first_us(f"16x32x64_w4_s{n}_basic_tile_g8_direct_padmnk_al16") for n in (4, 3, 2)
    )
    assert four - three == pytest.approx(three - two) and two > 0
    descriptors = first_us("16x32x64_w4_s4_tma_persistent_g8_direct_padmnk_al16")
    assert descriptors == CONV.DESCRIPTOR_US > four
    chosen = Dispatcher(device=h200, selector="analytical").select(p).config.gemm_config
    assert chosen.pipeline == "basic", "took 0.75 of the time of pipeline tma"


# --- kernels -----------------------------------------------------------------------------------


def drawn(seed: int) -> ConvProblem:
    rng = random.Random(seed)
    rank = rng.choice((1, 2, 3))
    direction = sorted(DIRECTIONS)[seed % 3]
    dtype = rng.choice(("bf16", "fp16", "fp32"))
    groups = rng.choice((1, 1, 2))
    p = ConvProblem(
        rng.randint(1, 3), groups * rng.choice((5, 8, 24)), groups * rng.choice((7, 16)),
        tuple(rng.randint(1, 5) for _ in range(rank)), (1,) * rank, groups, direction=direction,
        dtype=dtype,
        epilogue="" if direction == "weights" else rng.choice(("", "scale+silu+add", "clamp")),
    )  # fmt: skip
    return replace(p, **first_strides(p)) if rng.random() < 0.4 else p


@pytest.mark.grid(2)
@pytest.mark.parametrize("seed", range(9))
def test_results_are_the_references(dispatcher, seed):
    problem = drawn(seed)
    mine = kernels(problem)
    if isinstance(product(problem), str):
        assert not mine and problem.groups > 1, problem  # and images, which are a batch too
        return
    small = [c for c in mine if c.tile_m * c.tile_n <= 64 * 64]
    for c in random.Random(seed).sample(small, 2):
        found = verify.verify(dispatcher, problem, c.name, seed=seed)
        assert found.ok, (c.name, found)


@pytest.mark.parametrize("reduction", ["linear", "tree", "atomic"])
def test_gradients_of_weights_share_tiles(dispatcher, reduction):
    problem = ConvProblem(2, 40, 24, (16, 20), (1, 1), direction="weights", dtype="fp16")
    shared = next(c for c in kernels(problem, "sm_80") if c.scheduler == "stream_k").gemm_config
    name = of_gemm("weights", 2, replace(shared, reduction=reduction)).name
    found = verify.verify(dispatcher, problem, name, seed=1)
    assert found.ok, found


@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
def test_hoppers_kernels_are_right(direction):
    """In the simulation, over the convolution's own operands, on three SMs: four tiles of pixels,
    so that stream-K has one to share."""
    epilogue = "" if direction == "weights" else "bias+silu"
    problem = ConvProblem(2, 72, 80, (13, 16), (1, 1), direction=direction, epilogue=epilogue)
    found = [c for c in kernels(problem) if "gluon" in c.gemm and not c.tile_n & (c.tile_n - 1)]
    each = {c.gemm_config.pipeline + c.scheduler: c for c in found}
    assert len(each) == (3 if direction == "forward" else 4)
    for seed, c in enumerate(each.values()):
        assert worst_error(c, problem, THREE, seed) <= 1, c.name


@pytest.mark.turns(4)
@pytest.mark.parametrize(("c", "k"), [(8, 24), (32, 16), (16, 64)])
def test_few_channels_or_filters_are_summed_by_small_tiles(dispatcher, c, k):
    """Larger tiles are mostly empty, and the arrays would be turned instead."""
    p = ConvProblem(64, c, k, (112, 112), (1, 1), direction="weights")
    p = replace(p, **first_strides(p))
    plan = Dispatcher(device="h200_sxm", selector="analytical").select(p)
    kernel = plan.config
    assert not kernel.turned and kernel.pipeline == ("askew" if max(c, k) <= 32 else "gemm")
    assert kernel.tile_m <= 64 and kernel.tile_n <= 32 and kernel.reduction == "two_stage"
    small = replace(p, n=130, spatial=(2, 12), x_strides=(), y_strides=())
    small = replace(small, **first_strides(small))
    tiles = {(kernel.tile_m, kernel.tile_n) for kernel in (x.gemm_config for x in kernels(small))}
    assert {(16, 16), (32, 16), (32, 32), (64, 32)} <= tiles
    assert verify.verify(dispatcher, small, plan.config.name, seed=1).ok
    wide = replace(small, c=16, k=136, x_strides=(), y_strides=(), w_strides=())
    wide = replace(wide, **first_strides(wide))
    assert (16, 16) not in {(x.gemm_config.tile_m, x.gemm_config.tile_n) for x in kernels(wide)}


@pytest.mark.turns(4)
@pytest.mark.parametrize(("c", "k", "aligned"), [(72, 12, 8), (20, 6, 4), (16, 8, 16)])
def test_few_filters_over_rows_of_few_bytes_are_a_product_in_many_parts(dispatcher, c, k, aligned):
    """A kernel that knows any filter finds the place of each pixel for each copy."""
    p = ConvProblem(32, c, k, (56, 56), (1, 1), direction="weights")
    shared = [x.gemm_config for x in kernels(p) if FAMILY.supports(x, p, SM_90)]
    found = [x for x in shared if x.split_k >= 32 and x.reduction == "two_stage"]
    assert {x.alignment for x in found} == {aligned}
    whole = (x for x in found if x.tile_m >= k and x.tile_n >= c)
    fits = min(whole, key=lambda x: (x.split_k, x.tile_m * x.tile_n))
    assert fits.tile_m * fits.tile_n <= 4096
    small = replace(p, n=1, spatial=(fits.split_k, fits.num_stages * fits.tile_k))
    assert verify.verify(dispatcher, small, of_gemm("weights", 2, fits).name, seed=2).ok
    wide = replace(p, c=72, k=72)
    assert not any(x.gemm_config.split_k > 64 for x in kernels(wide))


def test_parts_of_one_tile_are_for_all_compute_units():
    """Of few channels and filters; half of them would be idle."""
    p = ConvProblem(64, 120, 40, (28, 28), (1, 1), direction="weights")
    p = replace(p, **first_strides(p))
    gpu = device("h200_sxm")
    ((first, _), *_) = FAMILY.rank(p, [c for c in kernels(p) if FAMILY.supports(c, p, SM_90)], gpu)
    kernel = first.gemm_config
    assert (kernel.pipeline, kernel.reduction) == ("gluon_ws", "two_stage")
    tiles = -(-40 // kernel.tile_m) * -(-120 // kernel.tile_n)
    assert tiles * kernel.split_k > 0.9 * gpu.compute_units


def test_gradients_of_weights_are_summed_over_images_as_they_lie():
    """Channels-first, in the simulation: by every way in which parts of a sum meet."""
    problem = ConvProblem(3, 72, 80, (17, 24), (1, 1), direction="weights")
    problem = replace(problem, **first_strides(problem))
    found = [c for c in kernels(problem) if "gluon_ws" in c.gemm and c.tile_k <= 64]
    each = {c.gemm_config.scheduler + c.gemm_config.reduction: c for c in found}
    assert {"split_ktwo_stage", "stream_klinear", "stream_ktree", "persistentnone"} <= {*each}
    some = [c for c in each.values() if FAMILY.supports(c, problem, SM_90)]
    assert len(some) >= 3
    for seed, c in enumerate(some):
        assert worst_error(c, problem, THREE, seed) <= 1, c.name


@pytest.mark.parametrize(
    "problem",
    [
        ConvProblem(16, 256, 256, (12000,), (1,), direction="weights"),
        ConvProblem(64, 256, 1024, (28, 28), (1, 1), direction="weights"),
    ],
    ids=str,
)
def test_channels_first_weights_of_one_tap_are_products_and_nothing_is_turned(problem):
    problem = replace(problem, **first_strides(problem))
    plan = Dispatcher(device="h200_sxm", selector="analytical").select(problem)
    assert plan.config.pipeline == GEMM and not plan.config.turned
    assert plan.config.gemm_config.batching == "summed"


def test_variants_of_gemms_kernels_are_of_one_tile():
    """Their group of tiles, stages and way to store count as little as in GEMM's own family."""
    name = "conv_forward_2d_gemm_rcr_bf16_bf16_bf16_fp32_{}_padmnk_al16".format
    pipeline = "gluon_pingpong_persistent"
    first = FAMILY.tile(FAMILY.parse_name(name(f"128x128x64_w8_s5_{pipeline}_g8_direct")))
    for words in (
        f"128x128x64_w8_s6_{pipeline}_g8_split",
        f"128x128x64_w8_s5_{pipeline}_g2_direct",
    ):
        assert FAMILY.tile(FAMILY.parse_name(name(words))) == first
    for words in (f"128x192x64_w8_s4_{pipeline}_g8_split", "128x128x64_w8_s3_basic_tile_g8_direct"):
        assert FAMILY.tile(FAMILY.parse_name(name(words))) != first


@pytest.mark.parametrize("direction", sorted(DIRECTIONS))
def test_kernels_are_judged_and_estimated_together_as_each_alone(direction):
    p, gpu = ConvProblem(2, 64, 72, (14, 14), (1, 1), direction=direction), device("h200_sxm")
    found = FAMILY.default_space(p, SM_90).expand(SM_90).configs
    other = replace(p, alignment=4)
    found += FAMILY.default_space(other, SM_90).expand(SM_90).configs
    for of in (p, other, ConvProblem(2, 64, 72, (14, 14), (3, 3), direction=direction)):
        alone = [i for i, c in enumerate(found) if FAMILY.supports(c, of, SM_90)]
        assert FAMILY.serving(of, found, SM_90) == alone
    assert 0 < len(alone) < len(found)
    ranked = FAMILY.rank(p, kernels(p), gpu)
    assert [*ranked] == [(c, FAMILY.estimate(c, p, gpu)) for c, _ in ranked]
    totals = np.round([estimate.total_us for _, estimate in ranked], 2).tolist()
    assert len(totals) > 10 and totals == sorted(totals)
