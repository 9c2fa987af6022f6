"""Pipelines gluon_ws, gluon_lean and gluon_roles in the simulation, their records' rules, and what
the compiler makes of them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import sim_language as language
import sim_names
from attention_cases import drawn as forward
from backward_cases import of_forward
from hypothesis import given
from hypothesis import strategies as st
from sim_values import Fault, Int, Memory
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper

from shared_builds import build_once
from simulate import _step as simulated_step
from simulate import worst_error
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.compile import inspect
from tilewright.ops.attention.reference import reference as of_attention
from tilewright.ops.attention_backward import AttentionBackwardConfig, AttentionBackwardProblem
from tilewright.ops.attention_backward.kernels import gluon_steps
from tilewright.ops.attention_backward.pipelines.gluon_ws import GLUON_WS
from tilewright.ops.nouns import Scalar

FAMILY = ops.family("attention_backward")
H200, SM_90 = device("h200"), arch("sm_90")
MAIN = "gradients_gluon_"
PLAIN = AttentionBackwardProblem(1, 2, 200, 150, 64)


def gluon(p: AttentionBackwardProblem) -> list[AttentionBackwardConfig]:
    """What a tuning has in Gluon for a problem."""
    found = [c for space in FAMILY.tuning_spaces(p, SM_90) for c in space.expand(SM_90).configs]
    return [c for c in found if c.pipeline != "basic"]


def config_of(
    p: AttentionBackwardProblem, ordered: bool = False, pipeline: str = ""
) -> AttentionBackwardConfig:
    """The kernels in Gluon, with sums in order or not; of several pipelines the first for this
    problem."""
    known = [c for c in gluon(p) if c.ordered == ordered]
    return next(c for c in known if not pipeline or c.pipeline == pipeline)


def right(
    p: AttentionBackwardProblem, seed: int = 0, ordered: bool = False, pipeline: str = ""
) -> bool:
    """Whether the simulated kernels' outputs are within tolerances."""
    config = config_of(p, ordered, pipeline)
    assert FAMILY.supports(config, p, SM_90)
    return worst_error(config, p, H200, seed) <= 1


def pipelines_of(p: AttentionBackwardProblem) -> list[str]:
    """The pipelines in Gluon for a problem."""
    return [*dict.fromkeys(c.pipeline for c in gluon(p))]


@pytest.mark.grid(3)
@pytest.mark.parametrize("bound", [None, 0])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("seed", range(2))
def test_queries_and_keys_that_are_no_multiple_of_the_tile(bound, head_dim, seed):
    p = replace(PLAIN, right=bound, head_dim=head_dim, head_dim_v=head_dim, kv_len=290)
    assert right(p, seed)


MASKS = [
    {"right": 0},
    {"right": 0, "corner": "top_left"},
    {"right": 70, "corner": "top_left"},
    {"right": -30},
    {"left": 40, "right": 0},
    {"left": 40, "right": 0, "first": 5},
    {"left": 100, "right": 20, "first": 70},
    {"left": 33},
    {"left": 20, "right": 10, "corner": "top_left"},
    {"left": -10, "right": 90},
    {"left": 40, "right": -60},  # no key at all
]


@pytest.mark.grid(7)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("sizes", [(200, 150), (100, 420), (420, 200), (1, 333), (333, 1)], ids=str)
def test_masks(mask, sizes):
    q_len, kv_len = sizes
    head_dim = 128 if q_len == 420 else 64
    assert right(
        AttentionBackwardProblem(1, 1, q_len, kv_len, head_dim, head_dim_v=head_dim, **mask)
    )


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "fields",
    [
        {"head_dim": 96, "head_dim_v": 32, "dtype": "fp16"},
        {"head_dim": 64, "head_dim_v": 40},
        {"head_dim": 128, "head_dim_v": 64},
        {"head_dim": 64, "head_dim_v": 128},
        {"head_dim": 40, "head_dim_v": 72, "dtype": "fp16", "others": "alibi"},
        {"head_dim": 32, "head_dim_v": 32, "dlse": True},
        {"heads": 6, "kv_heads": 2, "head_dim": 128, "head_dim_v": 128},
        {"heads": 4, "kv_heads": 1, "batch": 2},
        {"accumulate": True, "dk_strides": (9600, 64, 9600, 1)},
        {"head_dim": 256, "head_dim_v": 256},
        {"head_dim": 256, "head_dim_v": 256, "left": 40, "heads": 4, "kv_heads": 2},
        {"head_dim": 192, "head_dim_v": 128, "dtype": "fp16"},
        {"head_dim": 192, "head_dim_v": 128, "right": None, "left": 40, "first": 70, "dlse": True},
        {"head_dim": 160, "head_dim_v": 104, "softcap": 3.0, "heads": 4, "kv_heads": 2},
        {"head_dim": 72, "head_dim_v": 192, "dtype": "fp16", "accumulate": True},
        {"head_dim": 256, "head_dim_v": 40, "others": "alibi", "right": None},
        {"head_dim": 192, "head_dim_v": 192, "right": None},
        {"head_dim": 160, "head_dim_v": 200, "softcap": 3.0},
        {"head_dim": 128, "head_dim_v": 256, "others": "alibi", "grads": "dq+dk+dv+dslopes"},
        {"others": "alibi", "grads": "dq+dk+dv+dslopes", "slopes_batched": True, "batch": 2},
    ],
    ids=str,
)
def test_head_dims_dtypes_and_heads_that_share_keys(fields):
    said = {"batch": 1, "heads": 2, "q_len": 130, "kv_len": 150, "head_dim": 64, "right": 0}
    p = AttentionBackwardProblem(**(said | fields))
    assert all(right(p, ordered=n > 0, pipeline=name) for n, name in enumerate(pipelines_of(p)))


BIASED = {"bias_shape": (1, 2), "grads": "dq+dk+dv+dbias"}


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("fields", "ordered"),
    [
        ({"bias_shape": (1, 2)}, False),
        ({"bias_shape": (2, 1), "right": 0, "head_dim": 128}, False),
        ({"bias_shape": (2, 4), "heads": 4, "left": 40, "right": 10, "first": 5}, True),
        ({"bias_shape": (1, 1), "heads": 4, "head_dim": 128, "right": 70, "dtype": "fp16"}, True),
        ({"bias_shape": (1, 2), "softcap": 3.0, "right": 0, "grads": "dq+dk+dv"}, False),
        ({"bias_shape": (2, 2), "others": "usedq+usedkv", "right": 0}, False),
        ({"bias_shape": (1, 2), "bias_strides": (0, 160, 320, 1)}, False),
        (
            {"bias_shape": (1, 2), "others": "packedq+packedkv", "total_q": 300, "total_kv": 420,
             "accumulate": True, "batch": 3},
            True,
        ),
    ],
    ids=str,
)  # fmt: skip
def test_a_bias_and_its_gradient(fields, ordered):
    """Shared by sequences or heads or not, with ragged ends, and behind lengths of their own."""
    said = {"batch": 2, "heads": 2, "kv_heads": 2, "q_len": 200, "kv_len": 152, "head_dim": 64}
    p = AttentionBackwardProblem(**(said | BIASED | fields))
    assert right(p, ordered=ordered, pipeline="gluon_ws")


def test_a_bias_behind_a_sequence_is_not_read(monkeypatch):
    p = AttentionBackwardProblem(
        2, 2, 200, 152, 64, others="usedq+usedkv", **BIASED | {"bias_shape": (2, 2)}
    )
    drawn = verify.operands_of

    def poisoned(*asked):
        data = drawn(*asked)
        for b, n in enumerate(data.inputs["q_used"]):
            data.inputs["bias"][b, :, n:] = np.nan
        for b, n in enumerate(data.inputs["kv_used"]):
            data.inputs["bias"][b, :, :, n:] = np.nan
        return data

    monkeypatch.setattr(verify, "operands_of", poisoned)
    assert right(p)


@pytest.mark.parametrize("fields", [{}, {"softcap": 3.0, "grads": "dq+dk+dv"}], ids=str)
def test_a_bias_of_the_least_number(fields):
    """Rows of the least number of bf16 alone, where LSE has no place for the sum, beside others."""
    said = {**BIASED, "others": "sinks", "grads": "dq+dk+dv+dbias+dsinks"} | fields
    p = AttentionBackwardProblem(1, 2, 130, 152, 64, **said)
    inputs = dict(verify.operands_of(p, 2).inputs)
    inputs["bias"][:, :, ::3] = -2.4e38
    inputs["bias"][:, :, 1::3] = float(np.finfo(np.float32).min) * (1 - 2.0**-8)
    inputs["bias"][:, :, 7, ::4] = -np.inf
    inputs["sinks"][0] = inputs["bias"][0, 0, 1, 0]
    wide = {
        n: x if n in ("scale", "seed", "offset") else x.astype(float) for n, x in inputs.items()
    }
    wrote = of_attention(p.forward, wide)
    for name in ("o", "lse"):
        inputs[name] = wrote[name].astype(inputs[name].dtype)
    assert worst_error(config_of(p, pipeline="gluon_ws"), p, H200, given=inputs) <= 1


def test_a_bias_that_the_copy_engine_does_not_read_is_refused():
    p = replace(PLAIN, kv_len=152, **BIASED)
    assert FAMILY.supports(config_of(p), p, SM_90)
    assert FAMILY.supports(config_of(p), replace(p, kv_len=148), SM_90).rule == "bias"
    large = replace(p, batch=128, q_len=8192, kv_len=8192)
    assert FAMILY.supports(config_of(p), large, SM_90).rule == "bias"


KNOWN = ("softcap", "alibi", "sinks", "packedq", "packedkv", "usedq", "usedkv")


@pytest.mark.turns(4)
@pytest.mark.grid(1)
@pytest.mark.parametrize("seed", range(16))
def test_features_together(seed):
    """Also sequences without queries and without keys, and rows of NaN behind a sequence's own."""
    rng = random.Random(seed)
    words = frozenset(word for word in KNOWN if rng.random() < 0.4)
    head_dim, head_dim_v = rng.choice(
        ((64, 64), (64, 40), (128, 128), (128, 96), (256, 256), (192, 128), (128, 192))
    )
    dims = {"head_dim": head_dim, "head_dim_v": head_dim_v}
    dtype = rng.choice(("bf16", "fp16"))
    types = {"dtype": dtype, "dtype_kv": dtype, "dtype_o": dtype}
    one = of_forward(forward(seed, most=300, words=words, **dims, **types), rng)
    wanted = "dq+dk+dv" + "+dsinks" * ("sinks" in words and rng.random() < 0.5)
    wanted += "+dslopes" * ("alibi" in words and rng.random() < 0.7)
    plain = dict.fromkeys(("q_strides", "k_strides", "v_strides", "o_strides"), ())
    p = replace(one, **plain, alignment=16, grads=wanted)
    if reason := GLUON_WS.supports["descriptors"](config_of(p), p):
        pytest.skip(reason)
    assert all(right(p, seed, p.deterministic, name) for name in pipelines_of(p))


@pytest.mark.parametrize("tile", [(128, 64), (128, 128), (64, 64)])
@given(st.data())
def test_turns_are_counted_without_a_gap(tile, data):
    """For each block of queries, the tiles whose steps have it add to it, with the turns 0, 1, … in
    the order in which they start."""
    rows, step = tile
    n_q, n_kv = (data.draw(st.integers(1, 900)) for _ in "qk")
    mask = data.draw(st.sampled_from(("none", "causal", "window")))
    left, right_, first = (
        data.draw(st.integers(*ends)) for ends in ((-90, 400), (-90, 300), (0, 500))
    )
    shift = data.draw(st.sampled_from((0, n_kv - n_q)))
    bounds = (shift, left, right_, first)
    ascending = mask == "causal" and data.draw(st.booleans())
    steps_of, turn_of = (sim_names.Function(f) for f in (gluon_steps.steps_of, gluon_steps.turn_of))
    adding: dict[int, list[int]] = {}
    tiles = range(-(-n_kv // rows))
    for n in tiles if ascending else reversed(tiles):
        begin, _, _, end = steps_of(Int(n * rows), n_q, n_kv, *bounds, rows, step, mask)
        for t in range(begin, end):
            turn = turn_of(Int(t), Int(n * rows), ascending, n_kv, *bounds, rows, step, mask)
            adding.setdefault(t, []).append(int(turn))
    assert all(turns == [*range(len(turns))] for turns in adding.values())


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    ("heads", "group", "head_dim"),
    [(19, 1, 64), *((*n, d) for n in ((1, 2), (2, 1), (3, 2)) for d in (64, 128, 192, 256))],
)
def test_sums_in_turns_of_several_sections(heads, group, head_dim):
    """The last one's tiles ascend, also where sections differ in size."""
    p = AttentionBackwardProblem(
        1, heads * group, 290, 300, head_dim, kv_heads=heads, head_dim_v=head_dim, right=0
    )
    assert all(right(p, ordered=True, pipeline=name) for name in pipelines_of(p))


def _sizes(p: AttentionBackwardProblem) -> dict[str, int]:
    """Bytes of memory of their own, by temporaries."""
    launch = FAMILY.launch(config_of(p), p, H200)
    return {one.name: one.bytes for one in launch.temporaries if not one.inside}


def test_terms_of_rows_lie_in_the_gradient_of_q_until_it_is_written():
    """So sums of dQ are all the memory that a pass takes: 4 bytes less for each row than torch's
    FlashAttention-2, which also keeps delta."""
    p = AttentionBackwardProblem(16, 32, 1024, 1024, 64)
    assert _sizes(p) == {"dq_sums": 16 * 32 * 1024 * 64 * 4}
    terms = {"log_sums", "deltas"}
    kept = replace(p, accumulate=True), replace(p, dq_strides=(10**9, 64, 64 * 1024, 1))
    assert all(terms < set(_sizes(one)) for one in kept)
    # Each sequence takes 128 rows at least, and 50 of 3 rows have no room.
    short = replace(p, batch=50, heads=1, kv_heads=1, q_len=3, total_q=150, others="packedq")
    assert terms < set(_sizes(short))


@pytest.mark.turns(48)
@pytest.mark.parametrize("ordered", [False, True])
def test_more_sequences_than_are_looked_at_together(ordered):
    p = AttentionBackwardProblem(
        140, 1, 40, 40, 64, right=0, others="packedq+packedkv", total_q=1500, total_kv=1500
    )
    assert right(p, ordered=ordered)


@pytest.mark.parametrize("name", ["basic", "gluon_ws"])
@pytest.mark.parametrize("others", ["packedq+packedkv", "usedkv", "packedkv+usedkv"])
def test_the_longest_sequences_start_first(name, others):
    """And each is told how many tiles of keys are before its own."""
    rng = random.Random(name)
    batch, room = 140, 300
    p = AttentionBackwardProblem(batch, 2, room, room, 64, others=others, total_q=batch * room,
                                 total_kv=batch * room)  # fmt: skip
    configs = FAMILY.default_space(p, SM_90).expand(SM_90).configs
    config = next(c for c in configs if c.pipeline == name)
    launch = FAMILY.launch(config, p, H200)
    step = launch.steps[0]
    assert step.part == "sequences_by_length"
    keys = [rng.randrange(4) * rng.randrange(100) for _ in range(batch)]
    queries = keys if "packedq" in others else [room] * batch
    own = np.array(keys, np.int32)
    offsets = np.array([0, *np.cumsum(own)], np.int32)
    rows = {"q_offsets": offsets, "kv_offsets": offsets, "kv_used": own // 2, "order": own}
    memories = {n: Memory(n, np.resize(x, max(2 * batch, len(x))), gl.int32)
                for n, x in rows.items()}  # fmt: skip
    simulated_step(FAMILY.sources(config, SM_90)[step.part], step, memories, {}, 0, frozenset())
    order, before = np.split(memories["order"].flat[: 2 * batch], 2)
    used = [n // 2 if "usedkv" in others else n for n in keys]
    length = [n + m for n, m in zip(queries, used, strict=True)]
    assert [*order] == sorted(range(batch), key=lambda b: (-length[b], b))
    has = keys if "packedkv" in others else [room] * batch
    tiles = [-(-has[b] // config.tile_rows) for b in order]
    assert [*before] == [0, *np.cumsum(tiles)[:-1]]


def test_heads_in_sections():
    """Few heads fit into L2 at once: their tiles come first."""
    p = AttentionBackwardProblem(1, 5, 150, 400, 64, right=0)
    small = replace(H200, l2_bytes=250_000)
    config = config_of(p)
    (step,) = (one for one in FAMILY.launch(config, p, small).steps if one.part.startswith(MAIN))
    names = [name for name, _ in FAMILY.sources(config, SM_90)[step.part].arguments]
    assert step.arguments[names.index("kv_section")] == Scalar("i32", 2)
    assert worst_error(config, p, small) <= 1


LONG = AttentionBackwardProblem(1, 1, 700, 128, 64)
"""Of many steps, so that each slot is used again."""

WIDE = replace(LONG, head_dim=192, head_dim_v=128)

WITH_BIAS = replace(LONG, heads=2, **BIASED)


EACH = pytest.mark.parametrize(
    ("problem", "pipeline"),
    [(LONG, "gluon_ws"), (WITH_BIAS, "gluon_ws"), (WIDE, "gluon_lean"), (WIDE, "gluon_roles")],
    ids=str,
)


def noticed(
    patch: pytest.MonkeyPatch, p: AttentionBackwardProblem, pipeline: str, why: str = ""
) -> bool:
    """Whether the simulation finds a fault, one with `why` in its text, or wrong results, in one of
    a few orders of events."""
    for seed in range(4):
        # Functions take the names that they call anew.
        patch.setattr(sim_names, "known_functions", {})
        try:
            if not right(p, seed, pipeline=pipeline) and not why:
                return True
        except Fault as fault:
            assert why in str(fault)
            return True
    return False


@pytest.mark.parametrize(
    ("problem", "pipeline"),
    # Groups of gluon_roles wait at barriers in memory, of which another test has the phases.
    [(LONG, "gluon_ws"), (WIDE, "gluon_lean")],
    ids=str,
)
def test_groups_that_do_not_wait_for_each_other_are_found(monkeypatch, problem, pipeline):
    monkeypatch.setitem(language.ASSEMBLY, "bar.sync", lambda _, token: token)
    assert noticed(monkeypatch, problem, pipeline)


@EACH
def test_a_store_without_a_fence_is_found(monkeypatch, problem, pipeline):
    monkeypatch.setitem(language.OBJECTS, id(hopper.fence_async_shared), lambda **_: None)
    assert noticed(monkeypatch, problem, pipeline, "without fence_async_shared")


@EACH
def test_sums_that_are_used_too_early_are_found(monkeypatch, problem, pipeline):
    def wait(count=0, deps=None):
        return language.warpgroup_mma_wait(int(count) + 1, deps)

    monkeypatch.setitem(language.OBJECTS, id(hopper.warpgroup_mma_wait), wait)
    assert noticed(monkeypatch, problem, pipeline)


@EACH
def test_a_barrier_with_the_wrong_phase_is_found(monkeypatch, problem, pipeline):
    real = language.BARRIER["wait"]

    def wait(barrier, phase, **how):
        name = language.world.now.name
        if "_multiply" not in name and "_group" not in name:  # only what loads and adds
            real(barrier, phase, **how)

    monkeypatch.setitem(language.OBJECTS, id(hopper.mbarrier.wait), wait)
    monkeypatch.setitem(language.BARRIER, "wait", wait)
    assert noticed(monkeypatch, problem, pipeline)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"tile_rows": 64}, "tile"),
        ({"step_rows": 128}, "tile"),
        ({"num_warps": 4}, "tile"),
        ({"num_stages": 3}, "tile"),
        ({"head_dim": 256}, "head_dim"),
        ({"head_dim": 100}, "head_dim"),
        ({"alignment": 8}, "copies"),
        ({"grads": "dk+dv"}, "words"),
        ({"features": "dropout"}, "words"),
        ({"features": "softcap+bias", "grads": "dq+dk+dv+dbias"}, "words"),
        ({"dtype_o": "fp32"}, "dtypes"),
    ],
)
def test_what_is_refused(fields, rule):
    config = config_of(replace(PLAIN, head_dim=128, head_dim_v=128))
    assert FAMILY.judge(config, SM_90)
    assert FAMILY.judge(replace(config, **fields), SM_90).rule == rule


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"tile_rows": 128}, "tile"),
        ({"num_stages": 1}, "tile"),
        ({"head_dim": 512}, "head_dim"),
        ({"head_dim": 64}, "head_dim"),
        ({"head_dim_v": 252}, "head_dim"),
        ({"features": "bias"}, "words"),
    ],
)
def test_what_is_refused_of_wide_heads(fields, rule):
    config = config_of(WIDE, pipeline="gluon_roles")
    assert FAMILY.judge(config, SM_90)
    assert FAMILY.judge(replace(config, **fields), SM_90).rule == rule


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"tile_rows": 64}, "tile"),
        ({"step_rows": 32}, "tile"),
        ({"num_stages": 1}, "tile"),
        ({"head_dim": 256}, "head_dim"),
        ({"head_dim": 64}, "head_dim"),
        ({"head_dim_v": 100}, "head_dim"),
        ({"alignment": 8}, "copies"),
        ({"features": "bias"}, "words"),
    ],
)
def test_what_is_refused_of_many_sums(fields, rule):
    config = config_of(WIDE, pipeline="gluon_lean")
    assert FAMILY.judge(config, SM_90)
    assert FAMILY.judge(replace(config, **fields), SM_90).rule == rule


def test_only_hopper_has_it():
    config = config_of(PLAIN)
    assert FAMILY.judge(config, arch("sm_80")).rule == "pipeline"
    for target in ("sm_80", "sm_100", "gfx942"):
        configs = FAMILY.default_space(PLAIN, arch(target)).expand(arch(target)).configs
        assert {c.pipeline for c in configs} == {"basic"}


def test_only_sums_in_order_repeat():
    assert FAMILY.repeats(config_of(PLAIN)).rule == "deterministic"
    assert FAMILY.repeats(config_of(PLAIN, ordered=True))
    asked = replace(PLAIN, deterministic=True)
    assert FAMILY.supports(config_of(asked, ordered=True), asked, SM_90)
    assert FAMILY.supports(config_of(asked), asked, SM_90).rule == "deterministic"
    configs = FAMILY.default_space(PLAIN, SM_90).expand(SM_90).configs
    assert all(FAMILY.repeats(c) for c in configs if c.pipeline == "basic")


def test_an_array_without_elements_or_with_repeated_rows_is_refused():
    for fields in ({"q_len": 0}, {"k_strides": (0, 0, 64, 1)}):
        p = replace(PLAIN, **fields)
        assert FAMILY.supports(config_of(PLAIN), p, SM_90).rule == "descriptors"


@pytest.mark.turns(64)
def test_few_registers_are_spilled_and_products_overlap(store):
    dims = ((64, 64, True), (128, 128, False), (128, 128, True), (192, 128, True), (256, 256, True))
    configs = [
        config_of(AttentionBackwardProblem(1, 8, 4096, 4096, k, head_dim_v=v, right=0), ordered)
        for k, v, ordered in dims  # sums in turns take more registers
    ]
    biased = {"right": 0, "bias_shape": (1, 8), "grads": "dq+dk+dv+dbias"}
    configs.append(config_of(AttentionBackwardProblem(1, 8, 4096, 4096, 64, **biased), True))
    report = build_once([(config, "sm_90") for config in configs], store)
    found = [r.kernel for r in report.results if r.part.startswith(MAIN)]
    assert len(found) == len(configs)
    for kernel in found:
        assert kernel.resources.spill_bytes <= 64
        # Where registers are too few, ptxas waits for each product before the next.
        sass = inspect(kernel, store, "sass")
        assert 4 * sass.count("WARPGROUP.DEPBAR") < sass.count("HGMMA")
