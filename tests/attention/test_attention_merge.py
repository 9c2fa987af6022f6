"""States of attention over different keys, merged, against float64 and attention over all keys."""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from shared_builds import build_once
from tilewright import serving, verify
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, TilewrightError, UnknownName
from tilewright.ops.merge_states import FAMILY, MergeStatesProblem


def states(rng, rows, count, heads, dim, kind=np.float32):
    """Random states, some of which saw no key: their O is NaN."""
    v = rng.standard_normal((rows, count, heads, dim)).astype(kind)
    s = (4 * rng.standard_normal((rows, count, heads))).astype(np.float32)
    s[rng.random(s.shape) < 0.3] = -np.inf
    s[0] = -np.inf  # a row that saw nothing at all
    v[np.isneginf(s)] = np.nan
    return v, s


def expected(v, s):
    """Merged row by row, in float64."""
    rows, _, heads, dim = v.shape
    o, log = np.zeros((rows, heads, dim)), np.full((rows, heads), -np.inf)
    for i in range(rows):
        for h in range(heads):
            live = np.isfinite(s[i, :, h])
            if live.any():
                top = s[i, live, h].astype(float)
                log[i, h] = top.max() + np.log(np.exp(top - top.max()).sum())
                o[i, h] = np.exp(top - log[i, h]) @ v[i, live, h].astype(float)
    return o, log


def close(found, wanted, eps):
    o, log = (np.asarray(x, float) for x in found)
    np.testing.assert_allclose(o, wanted[0], atol=2 * eps, rtol=2 * eps)
    np.testing.assert_allclose(log, wanted[1], atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "count", "heads", "dim", "kind", "eps"),
    [
        (5, 7, 2, 32, np.float32, 1e-6),
        (3, 1, 1, 40, np.float16, 2**-11),
        (4, 19, 3, 24, ml_dtypes.bfloat16, 2**-8),
        (4, 3, 1, 3, np.float32, 1e-6),
    ],
)
def test_a_stack_is_merged(rows, count, heads, dim, kind, eps):
    v, s = states(np.random.default_rng(dim), rows, count, heads, dim, kind)
    close(serving.merge_states(v, s), expected(v, s), eps)


def test_two_states_and_in_place_with_and_without_a_mask():
    v, s = states(np.random.default_rng(1), 6, 2, 3, 16)
    va, vb, sa, sb = v[:, 0].copy(), v[:, 1], s[:, 0].copy(), np.asfortranarray(s[:, 1])
    wanted = expected(v, s)
    close(serving.merge_state(va, sa, vb, sb), wanted, 1e-6)
    tensors = [torch.from_numpy(x.copy()) for x in (va, sa, vb, sb)]
    made = serving.merge_state(*tensors)
    assert all(isinstance(x, torch.Tensor) for x in made)
    close(made, wanted, 1e-6)
    mask = torch.tensor([True, False, True, True, False, True])
    assert serving.merge_state_in_place(*tensors, mask=mask) is None
    kept = mask.numpy()[:, None]
    masked = np.where(kept[..., None], wanted[0], va), np.where(kept, wanted[1], sa)
    close(tensors[:2], masked, 1e-6)
    serving.merge_state_in_place(va, sa, vb, sb)
    close((va, sa), wanted, 1e-6)


def test_logarithms_near_the_ends_of_fp32():
    """They are subtracted before they are scaled, and a sum of them does not overflow."""
    low, high = np.finfo(np.float32).min, np.finfo(np.float32).max
    v = np.array([[1.0, 3.0], [1.0, 3.0], [1.0, 3.0]], np.float32)[:, :, None, None]
    s = np.array([[low, low], [high, high], [low, high]], np.float32)[:, :, None]
    o, log = serving.merge_states(v, s)
    assert o[:, 0, 0].tolist() == [2.0, 2.0, 3.0]
    assert log[:, 0].tolist() == [low, high, high]


def test_nothing_merged_is_empty():
    v, s = np.zeros((2, 0, 1, 8), np.float32), np.zeros((2, 0, 1), np.float32)
    o, log = serving.merge_states(v, s)
    assert not o.any() and np.isneginf(log).all()
    o, log = serving.merge_states(v[:0], s[:0])
    assert o.shape == (0, 1, 8) and log.shape == (0, 1)


def test_attention_over_two_parts_of_the_keys_is_that_over_all():
    """Of plans too, whose logarithms lie heads first."""
    rng = np.random.default_rng(2)
    q, k, v = (torch.from_numpy(rng.standard_normal((9, 2, 32), np.float32)) for _ in range(3))
    cut = 4
    ends = {name: torch.tensor([0, n], dtype=torch.int32) for name, n in
            (("q", 9), ("all", 9), ("first", cut), ("rest", 9 - cut))}  # fmt: skip
    found = []
    for name, part in (("first", slice(cut)), ("rest", slice(cut, 9)), ("all", slice(9))):
        plan = serving.RaggedAttention("cpu")
        plan.plan(ends["q"], ends[name], 2, 2, 32)
        found.append(plan.run(q, k[part], v[part], return_lse=True))
    (va, sa), (vb, sb), (o, lse) = found
    made = serving.merge_state(va, sa, vb, sb)
    close(made, [x.numpy() for x in (o, lse)], 1e-6)


V, S = np.zeros((4, 2, 8), np.float32), np.zeros((4, 2), np.float32)
WRONG = {
    "a list": (lambda: serving.merge_state([1.0], S, V, S), "v_a is list"),
    "no array": (lambda: serving.merge_state(V, None, V, S), "s_a is NoneType"),
    "dims": (lambda: serving.merge_state(V[0], S, V, S), r"o is \[2, 8\]"),
    "rows": (lambda: serving.merge_state(V, S, V[1:], S), r"other_o is \[3, 2, 8\]"),
    "heads": (lambda: serving.merge_state(V, S[:, :1], V, S), r"lse is \[4, 1\]"),
    "dtypes": (lambda: serving.merge_state(V, S, V.astype(np.float16), S), "other_o is fp16"),
    "fp64": (lambda: serving.merge_state(V.astype(float), S, V, S), "float64"),
    "of integers": (lambda: serving.merge_states(V[None].astype(np.int32), S[None]), "dtype"),
    "half logarithms": (lambda: serving.merge_state(V, S.astype(np.float16), V, S), "lse is fp16"),
    "columns": (lambda: serving.merge_states(V[:, None, :, ::2], S[:, None]), "last stride of 2"),
    "wide": (lambda: serving.merge_states(np.zeros((1, 1, 1, 1025), np.float32),
                                          np.zeros((1, 1, 1), np.float32)), "head_dim"),
    "mask": (lambda: serving.merge_state_in_place(V, S, V + 1, S + 1, mask=[True]),
             "mask is a list"),
    "mask's type": (lambda: serving.merge_state_in_place(V, S, V + 1, S + 1, mask=S), "mask is f"),
    "mask's rows": (lambda: serving.merge_state_in_place(V, S, V + 1, S + 1, V[:3, 0, 0] > 0),
                    r"mask is \[3\]"),
    "itself": (lambda: serving.merge_state_in_place(V, S, V, S + 1), "shares memory"),
    "half a state": (lambda: tw.merge_states(V, S, other_o=V), "other_o is one half"),
    "no in_place": (lambda: tw.merge_states(V, S, V, S), "without in_place=True takes 2 operands"),
    "a word": (lambda: tw.merge_states(V, S, mean=True), "no option 'mean'"),
    "a mask out of place": (lambda: tw.merge_states(V, S, mask=V), "no operand 'mask'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused(name):
    call, said = WRONG[name]
    with pytest.raises(TilewrightError, match=said):
        call()


def test_gradients_are_refused():
    v, s = torch.from_numpy(V).requires_grad_(), torch.from_numpy(S)
    with pytest.raises(BadArgument, match="merge_states states no gradients"):
        serving.merge_state(v, s, v.detach(), s)
    with torch.no_grad():
        serving.merge_state(v, s, v.detach(), s)


def test_a_call_is_kept_in_a_graph():
    v, s = states(np.random.default_rng(3), 3, 2, 1, 8)
    given = [torch.from_numpy(x.copy()) for x in (v[:, 0], s[:, 0], v[:, 1], s[:, 1])]

    def f(a, b, c, d):
        return serving.merge_state(a, b, c, d)

    made = torch.compile(f, fullgraph=True, backend="aot_eager")(*given)
    close(made, expected(v, s), 1e-6)


@pytest.mark.parametrize("form", ["stack", "pair", "in_place"])
def test_every_kernel_of_the_default_space_is_right(form):
    p = MergeStatesProblem(5, 3, 20, states=6 if form == "stack" else 1, form=form,
                           masked=form == "in_place", dtype="fp16")  # fmt: skip
    this, h200 = arch("sm_90"), Dispatcher(device="h200_sxm")
    configs = FAMILY.default_space(p, this).expand(this).configs
    assert configs
    for config in configs:
        assert FAMILY.parse_name(config.name) == config
        assert FAMILY.supports(config, p, this)
        found = verify.verify(h200, p, config.name, seed=1)
        assert found.ok, (config.name, found)


@pytest.mark.turns(32)
def test_nothing_spills(store):
    """The kernels that are chosen, of each form."""
    requests = []
    for form, states_ in (("stack", 16), ("pair", 1), ("in_place", 1)):
        p = MergeStatesProblem(512, 32, 128, form=form, states=states_)
        for target, gpu in (("sm_90", "h200_sxm"), ("gfx942", "mi300x"))[: 1 + (form == "stack")]:
            requests.append((Dispatcher(device=gpu).select(p).config, target))
    for result in build_once(requests, store).results:
        assert result.kernel is not None, (result.name, result.reason)
        assert result.kernel.resources.spill_bytes == 0, result.name


@pytest.mark.turns(16)
def test_machine_code_of_an_amd_gpu_is_right(store):
    emulated = Dispatcher(device="emulated:mi300x", store=store)
    p = MergeStatesProblem(3, 2, 20, form="in_place", masked=True)
    assert verify.verify(emulated, p, device="emulated:mi300x", seed=2).ok


def test_its_signature():
    words = "o, lse, *operands, out, stream, in_place, other_o, other_lse, mask"
    found = inspect.signature(tw.merge_states).parameters.values()
    assert [str(p.name) for p in found] == words.replace("*", "").split(", ")


def test_a_name_that_is_none():
    with pytest.raises(UnknownName, match="not the name of a kernel of merge_states"):
        FAMILY.parse_name("merge_states_bf16_stack_4x128")
