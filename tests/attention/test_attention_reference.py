"""The reference against a plain statement, row by row, and the inputs that it is given."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attention_cases import drawn

from tilewright import arrays, ops, verify
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention.philox import philox
from tilewright.ops.attention.rows import sequences, whole

FAMILY = ops.family("attention")


def plainly(p, inputs, said, of, h, i):
    """O and LSE of row i of query head h of a sequence, key by key."""
    g = h // p.group
    q = row(p, inputs, "q", said, of, i, h)
    if p.rotary_dim:
        q = turned(p, inputs, q, of.before + (i if p.mask.kind != "none" else 0))
        q = arrays.rounded(q, p.dtype)
    q = q * scale(p, inputs, "q", of, i, h)
    sums, total, scores = np.zeros(p.head_dim_v), 0.0, {}
    for j in range(of.n_kv):
        shift = of.n_kv - of.n_q if p.corner == "bottom_right" else 0
        near = p.left is None or j >= i + shift - p.left or j < p.first
        if not near or (p.right is not None and j > i + shift + p.right):
            continue
        s = q @ (row(p, inputs, "k", said, of, j, g) * scale(p, inputs, "k", of, j, g))
        s *= inputs["scale"]
        s = p.softcap * math.tanh(s / p.softcap) if p.softcap else s
        if p.bias_shape:
            b0, h0 = (size > 1 for size in p.bias_shape)
            own = inputs["bias"][of.number * b0, h * h0, i, j]
            if p.bias_dtype == "bool" and not own:
                continue
            s += 0.0 if p.bias_dtype == "bool" else own
        if "alibi" in p.words:
            own = inputs["slopes"][of.number] if p.slopes_batched else inputs["slopes"]
            s -= own[h] * abs(i + shift - j)
        scores[j] = s
    for j, s in scores.items():
        weight = math.exp(s)
        total += weight
        if p.dropout:
            word = philox(
                tuple(np.array([c]) for c in (j // 16, i, of.number * p.heads + h,
                                              inputs["offset"] & 0xFFFFFFFF)),
                inputs["seed"],
            )[j % 16 // 4]  # fmt: skip
            dropped = round(256 * p.dropout)
            byte = int(word[0]) >> 8 * (j % 4) & 255
            weight = 0.0 if byte < dropped else weight / (1 - dropped / 256)
        name = "k" if "latent" in p.words else "v"
        v = row(p, inputs, name, said, of, j, g)[: p.head_dim_v]
        sums += weight * v * scale(p, inputs, name, of, j, g)
    if "sinks" in p.words:
        total += math.exp(inputs["sinks"][h])
    if not total:
        return np.zeros(p.head_dim_v), -math.inf
    o = sums / total
    if "oscale" in p.words:
        o = o / inputs["o_scale"][0]
    return o, math.log(total)


def row(p, inputs, name, said, of, at, head):
    """Row `at` of a sequence's queries or keys, where it lies."""
    array, kv = inputs[name], name != "q"
    if kv:
        at += of.kv_first
        if "append" in p.words and at >= of.new:
            return appended(p, inputs, name, of, at - of.new, head)
    if ("packedkv" if kv else "packedq") in p.words:
        return array[said["kv_offsets" if kv else "q_offsets"][of.number] + at, head]
    b = of.number
    if kv and p.paged:
        page, at = divmod(at, p.page_size)
        if "pagetable" in p.words:
            b = said["page_table"][b, page]
        else:
            b = said["page_list"][said["page_starts"][b] + page]
    if kv and "vectorised" in p.words:
        x = array.shape[-1]
        if name == "k":
            return array[b, head, :, at].reshape(-1)
        return array[b, head, at // x, :, at % x]
    bshd = (p.kv_layout if kv else p.layout) == "bshd"
    return array[b, at, head] if bshd else array[b, head, at]


def appended(p, inputs, name, of, t, head):
    new = inputs[f"new_{name}"][of.number, t, head]
    if name == "k" and p.rotary_dim:
        new = turned(p, inputs, new, of.before + t)
    if p.dtype_kv != p.dtype:
        new = new / scale(p, inputs, name, of, of.before + t, head)
    return arrays.rounded(new, p.dtype_kv)


def turned(p, inputs, x, at):
    found, half = x.copy(), p.rotary_dim // 2
    for n in range(half):
        one, two = (n, n + half) if "rotaryh" in p.words else (2 * n, 2 * n + 1)
        cos, sin = inputs["rotary_cos"][at, n], inputs["rotary_sin"][at, n]
        found[one] = x[one] * cos - x[two] * sin
        found[two] = x[one] * sin + x[two] * cos
    return found


def scale(p, inputs, name, of, at, head):
    own = inputs.get(f"{name}_scale")
    if own is None:
        return 1.0
    if "tscale" in p.words:
        return own[0]
    if "hscale" in p.words:
        return own[of.number, head // p.group if name == "q" else head]
    return own[of.number, head, at // p.scale_block]


def wide(p, seed):
    inputs = FAMILY.make_inputs(p, arrays.Random(seed))
    floats = {
        n: x if isinstance(x, int | float) else arrays.to_float64(x) for n, x in inputs.items()
    }
    return inputs, floats


@pytest.mark.grid(9)
@pytest.mark.parametrize("seed", range(30))
def test_it_is_what_a_plain_statement_gives(seed):
    p = drawn(seed, most=20)
    _, inputs = wide(p, seed)
    found = FAMILY.reference(p, inputs)
    said = whole(inputs)
    o = np.full(found["o"].shape, np.nan)
    lse = np.full(found["lse"].shape, np.nan) if "lse" in found else None
    for of in sequences(p, said):
        for i in range(of.n_q):
            for h in range(p.heads):
                each, log = plainly(p, inputs, said, of, h, i)
                largest = {"e4m3fn": 448, "e4m3fnuz": 240}.get(p.dtype_o, math.inf)
                at = (of.q_first + i, h) if "packedq" in p.words else (
                    (of.number, i, h) if p.layout == "bshd" else (of.number, h, i))  # fmt: skip
                o[at] = each.clip(-largest, largest)
                if lse is not None:
                    packed = "packedq" in p.words
                    lse[(h, of.q_first + i) if packed else (of.number, h, i)] = log
    np.testing.assert_allclose(found["o"], o, rtol=1e-9, atol=1e-12)
    if lse is not None:
        np.testing.assert_allclose(found["lse"], lse, rtol=1e-9, atol=1e-12)


@pytest.mark.grid(9)
@pytest.mark.parametrize("seed", range(60, 90))
def test_in_torch_it_is_the_same(seed):
    torch = pytest.importorskip("torch")
    p = drawn(seed, most=40)
    _, inputs = wide(p, seed)
    wanted = FAMILY.reference(p, inputs)
    tensors = {
        n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in inputs.items()
    }
    found = FAMILY.reference(p, tensors)
    assert found.keys() == wanted.keys()
    for name, x in found.items():
        np.testing.assert_allclose(x.numpy(), wanted[name], rtol=1e-9, atol=1e-12)


def test_rows_in_parts_are_the_rows(monkeypatch):
    from tilewright.ops.attention import reference as module

    p = AttentionProblem(2, 4, 37, 29, 16, 2, right=0, dropout=0.25, others="lse+random")
    _, inputs = wide(p, 3)
    whole_ = FAMILY.reference(p, inputs)
    monkeypatch.setattr(module, "PART", 300)
    for name, x in FAMILY.reference(p, inputs).items():
        np.testing.assert_allclose(x, whole_[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "counter, seed, words",
    [  # the known answers of Random123, kat_vectors
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((2**32 - 1,) * 4, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0A4093822,
         (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)  # fmt: skip
def test_philox_gives_the_known_words(counter, seed, words):
    found = philox(tuple(np.array([c]) for c in counter), seed)
    assert tuple(int(x[0]) for x in found) == words


def test_the_share_of_dropped_weights_is_what_was_asked():
    p = AttentionProblem(1, 2, 200, 300, 16, dropout=45 / 256, others="random")
    _, inputs = wide(p, 1)
    found = FAMILY.reference(p, inputs)["random"]
    assert abs((found < 45).mean() - 45 / 256) < 0.005
    assert abs(found.mean() - 127.5) < 1.0


def test_against_torch():
    torch = pytest.importorskip("torch")
    p = AttentionProblem(2, 4, 33, 33, 32, 2, dtype="fp32", right=0)
    inputs, floats = wide(p, 5)
    q, k, v = (torch.from_numpy(floats[n]).transpose(1, 2) for n in ("q", "k", "v"))
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=inputs["scale"], enable_gqa=True
    )
    found = verify.reference(p, inputs)["o"]
    np.testing.assert_allclose(found, wanted.transpose(1, 2).numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.grid(7)
@pytest.mark.parametrize("seed", range(100, 125))
def test_inputs_and_reference_are_made_in_torch_as_on_a_gpu(seed):
    """And an output that is the reference, rounded, is right, poison included."""
    torch = pytest.importorskip("torch")
    p = drawn(seed, most=40)
    inputs = FAMILY.make_inputs(p, arrays.Random(seed, "cpu:0"))
    stated = {one.name: one for one in FAMILY.operands(p)}
    assert all(isinstance(x, torch.Tensor) for n, x in inputs.items() if n in stated)
    wanted = verify.reference(p, inputs)
    allowed = FAMILY.tolerances(p, None)
    for name, x in wanted.items():
        out = arrays.empty(stated[name], "cpu:0")
        out.copy_(x)
        check = verify.compare(out, x, allowed[name])
        assert check.ok, f"{name} {check}"
