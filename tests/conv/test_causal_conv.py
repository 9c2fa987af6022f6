"""Causal convolutions: the kernels in Triton's interpreter, the functions, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from causal_conv_cases import FEATURES, KINDS, PLAIN, UPDATES, strided
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tilewright as tw
from shared_builds import build_once
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.causal_conv import CausalConvProblem
from tilewright.ops.causal_conv.catalogue import splits_of
from tilewright.ops.causal_conv.problem import DIRECTIONS, EXTRAS, vector

FAMILY = ops.family("causal_conv")
ARCHS = ("sm_80", "sm_90", "gfx90a", "gfx942", "gfx1201")


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def right(dispatcher, problem, **fields):
    name = ""
    if fields:
        inner, alignment = vector(problem)
        said = {
            "direction": problem.direction, "taps": problem.taps, "dtype": problem.dtype,
            "dtype_w": problem.dtype_w, "extras": problem.extras, "inner": inner,
            "alignment": alignment, "tile_m": 8, "tile_n": 32, "num_warps": 4, **fields,
        }  # fmt: skip
        name = FAMILY.make_config({**FAMILY.axes(), **said}, arch("sm_90")).name
    found = verify.verify(dispatcher, problem, name, seed=problem.taps)
    assert found.ok, (problem, name, found)


@pytest.mark.grid(2)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("said", FEATURES, ids=str)
def test_results_are_the_references(dispatcher, direction, said):
    right(dispatcher, replace(PLAIN, **{"dtype_w": "", "direction": direction, **said}))


@pytest.mark.grid(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_layouts(dispatcher, kind, direction):
    problem = strided(replace(PLAIN, tokens=24, direction=direction, extras="bias+silu"), kind)
    assert vector(problem)[0] == ("channels" if kind == "gaps" else kind)
    right(dispatcher, problem)


def test_every_form_computes_the_same(dispatcher):
    problem = replace(PLAIN, direction="backward", extras="bias+silu")
    right(dispatcher, problem, inner="any", alignment=2)
    right(dispatcher, problem, index_bits=64, tile_m=16)


@pytest.mark.parametrize("said", UPDATES, ids=str)
def test_updates(dispatcher, said):
    right(dispatcher, replace(PLAIN, **{"batch": 3, "tokens": 1, "direction": "update", **said}))


LIES = (-(2**31), -1, 5, 2**31 - 1)
"""No entry of a state of five."""


def lied_to(dispatcher):
    """Whether updates are the reference's, where most indices and lengths say what is not so; the
    reference takes an index of no entry for padding, and a length below 0 for 0. The interpreter
    and an emulated GPU refuse an access outside of the operands."""
    said = {"extras": "silu+circular+indexed", "state_len": 4, "cache_entries": 5, "tokens": 6}
    problem = replace(PLAIN, batch=6, direction="update", **said)
    made = verify.operands_of(problem, 5)
    made.inputs["conv_state_indices"][...] = [*LIES, 4, 2]
    made.inputs["cache_seqlens"][...] = [3, -1, 9, 1, -(2**31), 2**31 - 1]
    wanted = verify.reference(problem, made.inputs)
    verify.run(dispatcher, problem, made)
    config = dispatcher.select(problem).config
    found = verify.compare_all(problem, config, made.written(problem), wanted)
    assert (wanted["y"][:4] == 0).all()
    return found.ok


def test_indices_of_no_state_are_padding(dispatcher):
    assert lied_to(dispatcher)


@pytest.mark.turns(8)
def test_gradients_of_weights_repeat_bit_for_bit(dispatcher):
    problem = replace(PLAIN, tokens=40, direction="backward", extras="bias")
    space = FAMILY.default_space(problem, arch("sm_90")).expand(arch("sm_90"))
    config = space.configs[0]
    assert splits_of(config, problem, device("h200_sxm")) > 1
    first, again = (verify.operands_of(problem, 3) for _ in "ab")
    for made in (first, again):
        verify.run(dispatcher, problem, made, config.name)
    for name, one in first.outputs.items():
        assert np.asarray(one).tobytes() == np.asarray(again.outputs[name]).tobytes()


@pytest.mark.parametrize(
    "sizes",
    [{"batch": 0}, {"channels": 0}, {"tokens": 0}, {"tokens": 0, "extras": "bias+initial+final"}],
    ids=str,
)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_sizes_of_zero(dispatcher, sizes, direction):
    said = {**sizes, "direction": direction}
    if direction == "update":
        said.pop("extras", None)
    problem = replace(PLAIN, **said)
    made = verify.operands_of(problem, 1)
    verify.run(dispatcher, problem, made, "")
    wanted = FAMILY.reference(problem, {k: np.float64(v) for k, v in made.inputs.items()})
    for name, one in made.outputs.items():
        assert np.asarray(one, np.float32).shape == wanted[name].shape
        assert np.allclose(np.asarray(one, np.float32), wanted[name], atol=1e-2), name


@pytest.mark.turns(48)
def test_machine_code_of_an_amd_gpu_is_right(store):
    emulated = Dispatcher(device="emulated:mi300x", store=store)
    said = {"tokens": 9, "direction": "backward", "extras": "bias+silu+initial+final"}
    right(emulated, replace(PLAIN, **said))
    assert lied_to(emulated)


# --- the functions -------------------------------------------------------------------------------


def test_updates_continue_a_prefill():
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 5, 12), np.float32), rng.standard_normal((5, 4), np.float32)
    bias = rng.standard_normal(5, np.float32)
    whole = tw.causal_conv1d(x, w, bias, activation="silu")
    state = np.empty((2, 5, 3), np.float32)
    y, same = tw.causal_conv1d(
        x[..., :7], w, bias, return_final_states=True, final_states_out=state, activation="swish"
    )
    assert same is state and (state == x[..., 4:7]).all()
    assert np.allclose(y, whole[..., :7], atol=1e-5)
    later, _ = tw.causal_conv1d(
        x[..., 7:], w, bias, initial_states=state, return_final_states=True, activation="silu"
    )
    assert np.allclose(later, whole[..., 7:], atol=1e-5)
    for t in range(7, 10):
        one = tw.causal_conv1d_update(x[..., t], state, w, bias, "silu")
        assert np.allclose(one, whole[..., t], atol=1e-5)
    more = tw.causal_conv1d_update(x[..., 10:], state, w, bias, activation="silu")
    assert np.allclose(more, whole[..., 10:], atol=1e-5) and (state == x[..., 9:]).all()


def test_packed_sequences_are_as_each_alone():
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((1, 4, 10), np.float32), rng.standard_normal((4, 3), np.float32)
    of = np.array([[0, 0, 0, 0, 1, 5, 5, 5, -1, -1]], np.int32)
    packed = tw.causal_conv1d(x, w, seq_idx=of)
    for first, past in ((0, 4), (4, 5), (5, 8)):
        alone = tw.causal_conv1d(np.ascontiguousarray(x[..., first:past]), w)
        assert np.allclose(packed[..., first:past], alone, atol=1e-5)
    assert (packed[..., 8:] == 0).all()


def test_gradients_are_torchs():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    shapes = ((2, 6, 9), (6, 4), (6,), (2, 6, 3))
    ours = [torch.randn(shape, requires_grad=True) for shape in shapes]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    x, w, bias, initial = theirs
    wide = torch.cat([initial, x], -1)
    wanted = torch.nn.functional.silu(torch.conv1d(wide, w[:, None], bias, groups=6))
    got, final = tw.causal_conv1d(
        *ours[:3], initial_states=ours[3], return_final_states=True, activation="silu"
    )
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(final, wide[..., -3:])
    (got.sin().sum() + final.cos().sum()).backward()
    (wanted.sin().sum() + wide[..., -3:].cos().sum()).backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    with pytest.raises(BadArgument, match="direction update has no gradients"):
        tw.causal_conv1d_update(ours[0][..., 0], torch.zeros(2, 6, 3), ours[1])


X, W, STATE = np.ones((2, 4, 6), np.float16), np.ones((4, 3), np.float16), np.ones((2, 4, 2))
OF = np.zeros((2, 6), np.int32)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: tw.causal_conv1d(X, W, activation="relu"), "activation = 'relu' is not None"),
        (lambda: tw.causal_conv1d(X[0], W), r"x is \[4, 6\], but must be \[batch"),
        (lambda: tw.causal_conv1d(X, W[:3]), r"w is \[3, 3\], but beside the others"),
        (lambda: tw.causal_conv1d(X, W, W[:, 0]), "bias has strides"),
        (lambda: tw.causal_conv1d(X, W, seq_idx=OF[:, :5].copy()), r"seq_idx is \[2, 5\]"),
        (lambda: tw.causal_conv1d(X, W, seq_idx=OF, return_final_states=True), "packed sequences"),
        (lambda: tw.causal_conv1d(X, W, final_states_out=STATE), "final_states_out is written"),
        (lambda: tw.causal_conv1d(X, np.ones((4, 17), np.float16)), "taps = 17 is not"),
        (lambda: tw.causal_conv1d_update(X, STATE.astype(np.float32), W), "conv_state is fp32"),
        (lambda: tw.causal_conv1d_update(X, STATE[:, :, 1:].astype(np.float16), W), "is shorter"),
        (lambda: tw.causal_conv1d_update(X, STATE[:1].astype(np.float16), W), "1 entries is not"),
        (lambda: tw.causal_conv(X, W, seq_ids=OF), "no operand 'seq_ids' .did you mean 'seq_idx'"),
        (lambda: tw.causal_conv(X, W, silu=True), "has no option 'silu'"),
    ],
)
def test_a_wrong_call_is_refused(call, why):
    with pytest.raises(BadArgument, match=why):
        call()


# --- words, names, rules -------------------------------------------------------------------------


@st.composite
def problems(draw):
    direction = draw(st.sampled_from(DIRECTIONS))
    words = [w for w, of in EXTRAS.items() if direction in of and draw(st.booleans())]
    try:
        return CausalConvProblem(
            draw(st.integers(0, 9)), draw(st.integers(0, 300)), draw(st.integers(0, 5000)),
            draw(st.integers(1, 16)), direction, "+".join(words),
            draw(st.sampled_from(("bf16", "fp16", "fp32"))),
            draw(st.sampled_from(("", "bf16", "fp32"))),
            alignment=draw(st.sampled_from((2, 4, 16))),
        )  # fmt: skip
    except BadArgument:
        assume(False)


@settings(max_examples=40)
@given(problems())
def test_every_problem_has_kernels_everywhere_and_names_are_their_configs(problem):
    for name in ARCHS:
        this = arch(name)
        found = FAMILY.default_space(problem, this).expand(this).configs
        served = [c for c in found if FAMILY.supports(c, problem, this)]
        assert served, (name, problem)
        assert [FAMILY.parse_name(c.name) for c in found] == [*found]
        [(_, estimate), *_] = FAMILY.rank(problem, served, device("h200_sxm"))
        assert estimate.total_us > problem.min_bytes / device("h200_sxm").bandwidth_gbs / 1e3


def test_problems_in_words():
    words = {"batch": "2", "channels": "8", "tokens": "5", "extras": "bias+silu", "dtype": "fp16"}
    made = FAMILY.parse_problem({**words, "x_strides": "40,5,1"}, arch("sm_90"))
    assert made == CausalConvProblem(
        2, 8, 5, extras="bias+silu", dtype="fp16", x_strides=(40, 5, 1)
    )
    assert str(made) == "causal_conv b2 c8 t5 taps 4 fp16 bias+silu x_strides 40,5,1"
    for wrong, why in (
        ({"width": "4"}, "has no 'width'"), ({"extras": "silu+bias"}, "must be in order"),
        ({"extras": "circular"}, "nothing that direction forward has"),
        ({"state_len": "4"}, "state_len and cache_entries are of updates"),
    ):  # fmt: skip
        with pytest.raises(BadArgument, match=why):
            FAMILY.parse_problem({**words, **wrong}, arch("sm_90"))


@pytest.mark.parametrize(
    ("extras", "why"),
    [
        ("bias+silu+packed", ""),
        ("bias+initial+final", ""),
        ("initial+packed", "packed sequences have no initial or final states"),
        ("final+packed", "packed sequences have no initial or final states"),
        ("circular", "'circular' is nothing that direction forward has"),
    ],
)
def test_extras_that_go_together(extras, why):
    plain = FAMILY.default_space(CausalConvProblem(2, 8, 5), arch("sm_90")).expand("sm_90")
    verdict = FAMILY.judge(replace(plain.configs[0], extras=extras), arch("sm_90"))
    assert bool(verdict) == (not why) and why in verdict.reason


# --- what is compiled ----------------------------------------------------------------------------

LARGE = CausalConvProblem(8, 4096, 2048, extras="bias+silu")
BUILT = (
    replace(LARGE, extras="bias+silu+initial+final"),
    replace(LARGE, extras="bias+silu+packed", direction="backward"),
    replace(LARGE, extras="bias+silu+circular+indexed", direction="update", tokens=1),
)


def requests():
    found = []
    for name in ("sm_90", "gfx942", "gfx1201"):
        for problem in BUILT if name == "sm_90" else BUILT[1:2]:
            configs = FAMILY.default_space(problem, arch(name)).expand(arch(name)).configs
            found.append((configs[len(configs) // 2], name))
    return found


@pytest.mark.turns(48)
def test_nothing_spills(store):
    for result in build_once(requests(), store).results:
        assert result.kernel is not None, (result.name, result.reason)
        assert result.kernel.resources.spill_bytes == 0, result.name
