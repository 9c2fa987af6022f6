"""Where softmax is easily wrong: rows that see nothing, scores far from zero, a single key, no
keys, and memory that must not be read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attention_cases import ways

from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.ops.attention import AttentionProblem

FAMILY, SM_90 = ops.family("attention"), arch("sm_90")


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher()


def problem(**fields) -> AttentionProblem:
    sizes = {"batch": 1, "heads": 4, "q_len": 5, "kv_len": 40, "head_dim": 16, "kv_heads": 2}
    return AttentionProblem(**{"dtype": "fp32", "others": "lse", **sizes, **fields})


def kinds(p: AttentionProblem) -> list[str]:
    found = [one.name for one in ways(p, SM_90)]
    assert {"tile", "split"} <= {name.split("_basic_")[1].split("_")[0] for name in found}
    return found


def run(dispatcher, name, p, q, k, v, **options):
    """O and LSE [heads, rows] of one sequence."""
    o = np.full((1, p.q_len, p.heads, p.head_dim_v), np.nan, np.float32)
    lse = np.full((1, p.heads, p.q_len), np.nan, np.float32)
    dispatcher.run_named(name, q, k, v, out=(o, lse), lse=True, **options)
    return o[0], lse[0]


def arrays_of(p: AttentionProblem, seed: int = 0):
    rng = np.random.default_rng(seed)
    shapes = ((p.q_len, p.heads), (p.kv_len, p.kv_heads), (p.kv_len, p.kv_heads))
    return [rng.standard_normal((1, *shape, 16)).astype(np.float32) for shape in shapes]


@pytest.mark.turns(96)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(
    ("fields", "blind"),
    [
        ({"q_len": 9, "kv_len": 4, "right": 0}, range(5)),
        ({"right": -38}, range(3)),
        ({"left": -3, "right": 9}, range(2, 5)),
        ({"left": 2, "right": -(10**6)}, range(5)),
        ({"q_len": 60, "kv_len": 20, "left": 5, "right": 0, "corner": "top_left"}, range(25, 60)),
    ],
)
def test_a_row_that_sees_nothing_is_zero(dispatcher, fields, blind, sinks):
    p = problem(**fields, **({"others": "lse+sinks"} if sinks else {}))
    q, k, v = arrays_of(p)
    sink = np.linspace(-2.0, 3.0, p.heads, dtype=np.float32)
    options = {"sinks": sink} if sinks else {}
    for name in kinds(p):
        o, lse = run(dispatcher, name, p, q, k, v, window=(p.left, p.right), corner=p.corner,
                     **options)  # fmt: skip
        assert (o[blind] == 0.0).all(), name
        wanted = sink[:, None] if sinks else -math.inf
        assert (lse[:, blind] == wanted).all() or np.allclose(lse[:, blind], wanted, atol=1e-6)
        seen = [i for i in range(p.q_len) if i not in blind]
        assert np.isfinite(lse[:, seen]).all() and (o[seen] != 0.0).any(-1).all(), name


@pytest.mark.turns(24)
@pytest.mark.parametrize("height", [1e4, -1e4])
def test_equal_scores_far_from_zero_are_a_mean(dispatcher, height):
    p = problem()
    q, k, v = arrays_of(p)
    q[...], k[...] = 0.0, 0.0
    q[..., 0], k[..., 0] = 1.0, height
    for name in kinds(p):
        o, lse = run(dispatcher, name, p, q, k, v, scale=1.0)
        mean = v[0].mean(0).repeat(p.group, 0)
        # Splits hand on logarithms, which have steps of a thousandth near 1e4.
        atol = 2e-3 if "_split_" in name else 2e-6
        np.testing.assert_allclose(o, np.broadcast_to(mean, o.shape), atol=atol)
        np.testing.assert_allclose(lse, height + math.log(p.kv_len), rtol=1e-6)


@pytest.mark.turns(48)
@pytest.mark.parametrize("winners", [(0,), (39,), (7, 33)])
def test_scores_far_apart_leave_the_largest_alone(dispatcher, winners):
    p = problem()
    q, k, v = arrays_of(p)
    q[...], k[...] = 0.0, 0.0
    q[..., 0], k[..., 0] = 1.0, -1e4
    k[:, list(winners), :, 0] = 1e4
    for name in kinds(p):
        o, lse = run(dispatcher, name, p, q, k, v, scale=1.0)
        mean = v[0, list(winners)].mean(0).repeat(p.group, 0)
        np.testing.assert_allclose(o, np.broadcast_to(mean, o.shape), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(lse, 1e4 + math.log(len(winners)), rtol=1e-6)


@pytest.mark.turns(24)
def test_growing_scores_forget_what_came_before(dispatcher):
    """Each key outdoes all before it by more than a softmax can hold."""
    p = problem(kv_len=100, right=0)
    q, k, v = arrays_of(p)
    q[...], k[...] = 0.0, 0.0
    q[..., 0], k[..., 0] = 1.0, 200.0 * np.arange(100)[None, :, None]
    for name in kinds(p):
        o, _ = run(dispatcher, name, p, q, k, v, scale=1.0, mask="causal")
        own = v[0, 95:].repeat(p.group, 1)  # query i sees keys to 95 + i
        np.testing.assert_allclose(o, own, rtol=1e-6)


@pytest.mark.turns(24)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_one_key_gives_its_value(dispatcher, dtype):
    p = problem(kv_len=1, dtype=dtype, others="")
    for name in kinds(p):
        operands = verify.operands_of(p, 3)
        verify.run(dispatcher, p, operands, name)
        o, v = (x.astype("float32") for x in (operands.outputs["o"], operands.inputs["v"]))
        np.testing.assert_array_equal(o, np.broadcast_to(v.repeat(p.group, 2), o.shape))


@pytest.mark.grid(4)
@pytest.mark.parametrize("fields", [{"kv_len": 0}, {"q_len": 0}, {"batch": 0}], ids=str)
@pytest.mark.parametrize("others", ["lse", "lse+sinks", "lse+packedq+packedkv"])
def test_nothing_at_all(dispatcher, fields, others):
    p = problem(**fields, others=others)
    check = verify.verify(dispatcher, p, seed=1)
    assert check.ok, check


PAGED = {"pages": 12, "page_size": 4, "page_entries": 12}


@pytest.mark.turns(64)
@pytest.mark.parametrize(
    "fields",
    [
        {"others": "lse+usedkv", "batch": 4},
        {"others": "lse+usedq+usedkv+leftpad", "batch": 4},
        {"others": "lse+usedkv+pagetable", "batch": 3, **PAGED, "kv_len": 45},
        {"others": "lse+usedkv+leftpad+pagetable", "batch": 3, **PAGED, "kv_len": 45},
        {"others": "lse+usedkv+pagelist", "batch": 3, **PAGED, "kv_len": 30},
        {"others": "packedq+packedkv+usedq+usedkv", "batch": 4, "total_q": 17, "total_kv": 90},
    ],
    ids=lambda fields: fields["others"],
)
def test_what_lies_beyond_a_sequence_changes_nothing(dispatcher, fields):
    """It is NaN, and the pages there are no pages."""
    p = problem(**fields, right=0)
    for name in kinds(p):
        check = verify.verify(dispatcher, p, name, seed=5)
        assert check.ok, f"{name} {check}"


@pytest.mark.turns(24)
def test_a_query_of_nan_is_alone(dispatcher):
    p = problem(q_len=20)
    q, k, v = arrays_of(p)
    q[0, 3] = np.nan
    for name in kinds(p):
        o, lse = run(dispatcher, name, p, q, k, v)
        assert np.isnan(o[3]).all() and np.isnan(lse[:, 3]).all()
        assert np.isfinite(np.delete(o, 3, 0)).all()


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    "bounds",
    [
        {"right": 0},
        {"right": 0, "corner": "top_left"},
        {"left": 130, "right": 0},
        {"left": 40, "right": 25, "corner": "top_left"},
        {"left": 30, "right": 0, "first": 5},
    ],
    ids=str,
)
def test_masks_over_several_tiles(dispatcher, bounds):
    """Tiles that a mask cuts, and tiles beside them that it leaves whole."""
    p = problem(heads=2, kv_heads=1, q_len=150, kv_len=210, dtype="fp16", others="", **bounds)
    tiles = {}
    for one in FAMILY.default_space(p, SM_90).expand(SM_90).configs:
        if (
            FAMILY.interpreted(one) == one
            and one.scheduler == "tile"
            and FAMILY.supports(one, p, SM_90)
        ):
            tiles.setdefault((one.tile_q, one.tile_kv), one)
    assert any(q >= 64 for q, _ in tiles)
    for one in tiles.values():
        check = verify.verify(dispatcher, p, one.name, seed=2)
        assert check.ok, f"{one.name} {check}"
