"""The kernels in Triton's interpreter, against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from backward_cases import drawn

from tilewright import calls, ops, verify
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.attention_backward import AttentionBackwardProblem

SMALL = "attention_backward_{dtype}_{dtype}_d{d}x{d}_{mask}_{tile}_w4_s1_basic_al16_g-dq-dk-dv"


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize("seed", [*range(20), 100, 119])
def test_gradients_are_the_reference_s(dispatcher, seed):
    found = verify.verify(dispatcher, drawn(seed, most=50), seed=seed)
    assert found.ok, found


@pytest.mark.turns(24)
@pytest.mark.parametrize("seed", [3, 7, 11])
def test_products_in_a_loop_along_the_head_dim_are_the_same(seed):
    """As RDNA's kernels have them. The last trip has columns that are none of a row's."""
    rdna = Dispatcher(device="rx_7900_xtx")
    p = drawn(seed, most=40)
    source = ops.family("attention_backward").sources(rdna.select(p).config, arch("gfx1100"))
    assert all(dict(s.constants).get("ROLLED", True) for s in source.values())
    found = verify.verify(rdna, p, seed=seed)
    assert found.ok, found


@pytest.mark.grid(1)
@pytest.mark.parametrize("tile", ["16x32", "32x16", "64x64"])
@pytest.mark.parametrize("mask", [{}, {"right": 0}, {"left": 20, "right": 9, "first": 37}])
def test_every_tile_computes_the_same(dispatcher, tile, mask):
    """Steps with and without a mask, tiles that end within a sequence, kept keys within a tile."""
    problem = AttentionBackwardProblem(1, 1, 70, 90, 16, dtype="fp32", **mask)
    name = SMALL.format(dtype="fp32", d=16, mask=problem.mask.kind, tile=tile)
    found = verify.verify(dispatcher, problem, name, seed=1)
    assert found.ok, found


@pytest.mark.parametrize("first", [31, 33])
def test_a_window_keeps_all_but_the_last_key_of_a_tile_or_the_first_key_alone(dispatcher, first):
    problem = AttentionBackwardProblem(1, 1, 99, 99, 16, dtype="fp32", left=4, right=0, first=first)
    name = SMALL.format(dtype="fp32", d=16, mask="window", tile="32x16")
    found = verify.verify(dispatcher, problem, name, seed=1)
    assert found.ok, found


@pytest.mark.turns(48)
def test_a_bias_is_reduced_over_what_it_is_broadcast_along(dispatcher):
    for shape in ((1, 1), (1, 4), (3, 1), (3, 4)):
        problem = AttentionBackwardProblem(
            3, 4, 20, 40, 16, kv_heads=2, bias_shape=shape, grads="dbias", right=0
        )
        found = verify.verify(dispatcher, problem, seed=2)
        assert found.ok and found.non_zero, found


def test_what_no_sequence_has_is_zero_and_not_nan(dispatcher):
    """Operands are NaN there, and so are outputs before the launch: between sequences, and behind
    the last of them."""
    problem = AttentionBackwardProblem(
        5, 2, 40, 70, 16, right=0, total_q=230, total_kv=400, others="packedq+packedkv+usedq+usedkv"
    )
    made = verify.operands_of(problem, 4)
    assert any(np.isnan(np.asarray(made.inputs[n], np.float32)).any() for n in ("q", "k", "do"))
    verify.run(dispatcher, problem, made, "")
    for name in ("dq", "dk", "dv"):
        assert np.isfinite(np.asarray(made.outputs[name], np.float32)).all()


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (1, 1), (40, 3)])
def test_few_or_no_queries_and_keys(dispatcher, q_len, kv_len):
    """Of 40 causal queries of 3 keys, 37 see nothing."""
    problem = AttentionBackwardProblem(2, 2, q_len, kv_len, 16, right=0)
    made = verify.operands_of(problem, 4)
    verify.run(dispatcher, problem, made, "")
    wanted = verify.reference(problem, made.inputs)
    for name, out in made.outputs.items():
        got = np.asarray(out, np.float32)
        assert np.isfinite(got).all() and got == pytest.approx(wanted[name], abs=0.1)


TARGETS = (
    {"total_q": 150, "total_kv": 250, "others": "packedq+packedkv+usedq+usedkv"},
    {"bias_shape": (1, 2), "grads": "dq+dk+dv+dbias", "layout": "bhsd", "kv_layout": "bhsd"},
    {"others": "alibi+sinks", "grads": "dk+dsinks+dslopes", "slopes_batched": True},
    {"dropout": 0.25, "grads": "dv", "head_dim_v": 40},
)


@pytest.mark.turns(16)
@pytest.mark.parametrize("fields", TARGETS, ids=str)
def test_gradients_are_added_to_what_is_there(dispatcher, fields):
    """In rows that no sequence has, too, which keep what they hold."""
    sizes = {"batch": 3, "heads": 2, "q_len": 40, "kv_len": 70, "head_dim": 16}
    p = AttentionBackwardProblem(**(sizes | fields), accumulate=True)
    found = verify.verify(dispatcher, p, seed=3)
    assert found.ok and found.non_zero, found


def test_gradients_lie_where_the_caller_wants_them(dispatcher):
    """dQ, dK and dV in one array, as those of a packed projection; written, then added to."""
    p = AttentionBackwardProblem(2, 3, 20, 20, 16, right=0, dtype="fp32")
    made = verify.operands_of(p, 4)
    said, keywords = calls.positional(p, made.inputs)
    together = np.full((2, 20, 4, 3, 16), np.nan, np.float32)
    views = tuple(together[:, :, n] for n in range(3))
    dispatcher.run("attention_backward", *said, out=views, **keywords)
    wanted = verify.reference(p, made.inputs)
    for view, one in zip(views, wanted.values(), strict=True):
        np.testing.assert_allclose(view, one, atol=1e-4)
    assert np.isnan(together[:, :, 3]).all()
    assert dispatcher.run("attention_backward", *said, *views, **keywords) is None
    for view, one in zip(views, wanted.values(), strict=True):
        np.testing.assert_allclose(view, 2 * one, atol=1e-4)


def test_only_what_is_asked_for_runs():
    family = ops.family("attention_backward")
    usual = {"head_dim": 16, "dtype": "bf16"}
    parts = {
        grads: [*family.sources(family.parse_name(_name(grads, **usual)), arch("sm_90"))]
        for grads in ("dv", "dq", "dq+dk+dv", "dbias", "dsinks", "dslopes")
    }
    sums, keys, queries = "row_sums", "gradients_of_keys", "gradients_of_queries"
    assert parts == {
        "dv": [keys],
        "dq": [sums, queries],
        "dq+dk+dv": [sums, keys, queries],
        "dbias": [sums, "logarithms", "gradients_of_bias"],
        "dsinks": [sums, "row_totals"],
        "dslopes": [sums, queries, "row_totals"],
    }


def _name(grads, head_dim, dtype):
    features = {"dbias": "_f-bias", "dsinks": "_f-sinks", "dslopes": "_f-alibi"}
    name = SMALL.format(dtype=dtype, d=head_dim, mask="causal", tile="32x32")
    return name.replace("dq-dk-dv", grads.replace("+", "-")) + features.get(grads, "")


def test_results_repeat_bit_for_bit(dispatcher):
    problem = drawn(2)
    first, again = (verify.operands_of(problem, 3) for _ in "ab")
    for made in (first, again):
        verify.run(dispatcher, problem, made, "")
    for name, out in first.outputs.items():
        assert np.asarray(out).tobytes() == np.asarray(again.outputs[name]).tobytes()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"others": "usedkv+pagetable", "pages": 4, "page_size": 16, "page_entries": 2}, "pages"),
        ({"others": "usedkv+leftpad"}, "left_pad"),
        ({"others": "usedkv", "new_kv": 1}, "appended"),
        ({"others": "latent", "kv_heads": 1}, "latent"),
        ({"dtype": "e4m3fn"}, "e4m3fn has no gradients"),
        ({"dtype_kv": "e4m3fn"}, "bf16 and e4m3fn"),
        ({"grads": "dk+dq"}, "in order"),
        ({"grads": "dbias"}, "needs bias"),
        ({"grads": "do"}, "no gradient 'do'"),
        ({"others": "lse"}, "an output of attention"),
    ],
)
def test_what_has_no_gradients_is_refused(fields, why):
    with pytest.raises(BadArgument, match=why):
        AttentionBackwardProblem(**({"batch": 2, "heads": 2, "q_len": 8, "kv_len": 8,
                                     "head_dim": 16} | fields))  # fmt: skip
