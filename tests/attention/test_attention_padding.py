"""`tilewright.flash_attn`'s functions that torch computes: padding taken out and put back, and
rotary embeddings, against loops over rows."""

from __future__ import annotations

import math

import pytest
import torch

from tilewright.errors import BadArgument, WrongDevice
from tilewright.flash_attn import (
    apply_rotary_emb,
    index_first_axis,
    index_put_first_axis,
    pad_input,
    unpad_input,
)

MASK = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1]])


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.uint8])
def test_padding_is_taken_out_and_put_back(kind):
    x = torch.randn(3, 4, 2, 5)
    rows, indices, offsets, longest, used = unpad_input(x, MASK.to(kind))
    kept = [(b, i) for b in range(3) for i in range(4) if MASK[b, i]]
    assert torch.equal(rows, torch.stack([x[at] for at in kept]))
    assert indices.tolist() == [4 * b + i for b, i in kept]
    assert offsets.tolist() == [0, 3, 3, 6] and offsets.dtype == torch.int32
    assert longest == 3 and used.tolist() == [3, 0, 3]
    back = pad_input(rows, indices, 3, 4)
    assert torch.equal(back, x * MASK[:, :, None, None])
    assert torch.equal(index_first_axis(x.flatten(0, 1), indices), rows)


def test_rows_that_are_kept_and_not_used():
    unused = torch.zeros_like(MASK)
    unused[0, 2] = unused[1, 0] = 1
    rows, indices, offsets, longest, used = unpad_input(torch.randn(3, 4, 2), MASK, unused)
    assert indices.tolist() == [0, 1, 2, 3, 4, 9, 10, 11] and len(rows) == 8
    assert offsets.tolist() == [0, 4, 5, 8] and longest == 4 and used.tolist() == [3, 0, 3]


def test_nothing_to_keep():
    rows, _, offsets, longest, _ = unpad_input(torch.randn(2, 3, 4), torch.zeros(2, 3).bool())
    assert rows.shape == (0, 4) and offsets.tolist() == [0, 0, 0] and longest == 0
    assert unpad_input(torch.randn(0, 3, 4), torch.zeros(0, 3).bool())[3] == 0


def test_gradients_of_padding():
    x = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)

    def there_and_back(x):
        rows, indices, *_ = unpad_input(x, MASK)
        return pad_input(rows.square(), indices, 3, 4)

    assert torch.autograd.gradcheck(there_and_back, (x,))
    assert torch.autograd.gradgradcheck(there_and_back, (x,))
    values, at = x.detach().flatten(0, 1).requires_grad_(), torch.tensor([3, 1, 3])
    assert torch.autograd.gradcheck(lambda v: index_first_axis(v, at), (values,))


# --- rotary embeddings -------------------------------------------------------------------------


def tables(places, dim, kind=torch.float64):
    angles = torch.arange(places)[:, None] * 0.7 ** torch.arange(dim // 2).double()
    return angles.cos().to(kind), angles.sin().to(kind)


def turned(row, cos, sin, interleaved):
    """A row [dim], in float64, pair by pair."""
    row, half = row.double(), len(cos)
    out = row.clone()
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, half + i)
        c, s = float(cos[i]), float(sin[i])
        out[a] = row[a] * c - row[b] * s
        out[b] = row[a] * s + row[b] * c
    return out


def expected(x, cos, sin, interleaved, place):
    """place: from the indices of a row to its place; None for one that is left as it is."""
    out = x.double().clone()
    for at in torch.cartesian_prod(*(torch.arange(n) for n in x.shape[:-1])).tolist():
        p = place(*at[:-1])
        if p is not None and p < len(cos):
            out[tuple(at)] = turned(x[tuple(at)], cos[p], sin[p], interleaved)
    return out


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [8, 4])
@pytest.mark.parametrize("offsets", [0, 3, torch.tensor([2, 8]).int()])
def test_rows_are_turned_by_their_place(interleaved, dim, offsets):
    x, (cos, sin) = torch.randn(2, 5, 3, 8), tables(10, dim)
    first = offsets.tolist() if isinstance(offsets, torch.Tensor) else [offsets] * 2
    wanted = expected(x, cos, sin, interleaved, lambda b, i: first[b] + i)
    made = apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offsets)
    torch.testing.assert_close(made.double(), wanted, rtol=0, atol=1e-6)
    same = x.clone()
    assert apply_rotary_emb(same, cos, sin, interleaved, True, offsets) is same
    assert torch.equal(same, made)


@pytest.mark.parametrize("offsets", [1, torch.tensor([0, 4, 7])])
def test_packed_rows(offsets):
    x, (cos, sin) = torch.randn(9, 2, 8), tables(9, 8)
    ends = torch.tensor([0, 3, 3, 7], dtype=torch.int32)  # and two rows of no sequence
    first = offsets.tolist() if isinstance(offsets, torch.Tensor) else [offsets] * 3

    def place(row):
        return None if row >= 7 else first[0] + row if row < 3 else first[2] + row - 3

    made = apply_rotary_emb(x, cos, sin, cu_seqlens=ends, max_seqlen=4, seqlen_offsets=offsets)
    wanted = expected(x, cos, sin, False, place)
    torch.testing.assert_close(made.double(), wanted, rtol=0, atol=1e-6)


def test_products_are_rounded_once():
    x, (cos, sin) = torch.randn(1, 6, 2, 8).bfloat16(), tables(6, 8)
    made = apply_rotary_emb(x, cos, sin)
    wanted = expected(x, cos.float(), sin.float(), False, lambda b, i: i)
    assert made.dtype == torch.bfloat16
    assert (made.double() - wanted).abs().max() <= wanted.abs().max() * 2**-8


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_of_rotary_embeddings(interleaved):
    x = torch.randn(2, 3, 2, 6, dtype=torch.float64, requires_grad=True)
    cos, sin = (table.requires_grad_() for table in tables(8, 4))
    at = torch.tensor([1, 4])

    def out_of_place(x, cos, sin):
        return apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=at)

    def in_place(x):
        return apply_rotary_emb(x * 2, cos.detach(), sin.detach(), interleaved, True, at)

    assert torch.autograd.gradcheck(out_of_place, (x, cos, sin))
    assert torch.autograd.gradgradcheck(out_of_place, (x, cos, sin))
    assert torch.autograd.gradcheck(in_place, (x,))


def test_a_graph_keeps_it():
    x, (cos, sin) = torch.randn(2, 5, 2, 8), tables(9, 8)

    def model(x, at):
        return apply_rotary_emb(x, cos, sin, True, seqlen_offsets=at)

    at = torch.tensor([1, 2])
    made = torch.compile(model, fullgraph=True, backend="aot_eager")(x, at)
    torch.testing.assert_close(made, model(x, at))


X, (COS, SIN) = torch.randn(2, 5, 3, 8), tables(9, 8)
HIDDEN, AT = torch.randn(3, 4, 2), torch.tensor([0, 5])
WRONG = [
    (unpad_input, (HIDDEN.tolist(), MASK), {}, "hidden_states is a list"),
    (unpad_input, (HIDDEN, MASK.tolist()), {}, "attention_mask is a list"),
    (unpad_input, (HIDDEN, MASK.float()), {}, "attention_mask is float32"),
    (unpad_input, (HIDDEN, MASK[:2]), {}, r"attention_mask is \[2, 4\], but must be \[3, 4\]"),
    (unpad_input, (HIDDEN, MASK, MASK[0]), {}, r"unused_mask is \[4\]"),
    (unpad_input, (HIDDEN, MASK.to("meta")), {}, "attention_mask is on meta"),
    (pad_input, (None, AT, 3, 4), {}, "values is a NoneType"),
    (pad_input, (HIDDEN[0, :2], [0, 5], 3, 4), {}, "indices is a list"),
    (pad_input, (HIDDEN[0, :2], AT.float(), 3, 4), {}, "indices is float32"),
    (pad_input, (HIDDEN[0], AT, 3, 4), {}, r"indices is \[2\], but must be \[4\]"),
    (pad_input, (HIDDEN[0, :2], AT, 3.0, 4), {}, "batch = 3.0"),
    (pad_input, (HIDDEN[0, :2], AT, 3, -4), {}, "seqlen = -4"),
    (index_first_axis, (torch.tensor(1.0), AT), {}, "input is a number"),
    (index_first_axis, (HIDDEN, AT[None]), {}, r"indices is \[1, 2\]"),
    (index_put_first_axis, (HIDDEN[:2], AT, None), {}, "first_axis_dim = None"),
    (apply_rotary_emb, (X.tolist(), COS, SIN), {}, "x is a list"),
    (apply_rotary_emb, (X[0], COS, SIN), {}, r"x is \[5, 3, 8\]"),
    (apply_rotary_emb, (X.int(), COS, SIN), {}, "x is int32, not floating"),
    (apply_rotary_emb, (X, COS[0], SIN), {}, r"cos is \[4\]"),
    (apply_rotary_emb, (X, COS, SIN[:4]), {}, "sin is"),
    (apply_rotary_emb, (X[..., :6], COS, SIN), {}, "turn 8 elements of a row, and x has 6"),
    (apply_rotary_emb, (X, COS[:4], SIN[:4]), {}, "have 4 places, under the 5"),
    (apply_rotary_emb, (X, COS, SIN), {"seqlen_offsets": 5}, "have 9 places, under the 10"),
    (apply_rotary_emb, (X, COS, SIN), {"seqlen_offsets": [1, 2]}, "seqlen_offsets is a list"),
    (apply_rotary_emb, (X, COS, SIN), {"seqlen_offsets": AT.float()}, "seqlen_offsets is float32"),
    (apply_rotary_emb, (X, COS, SIN), {"seqlen_offsets": AT[:1]}, r"seqlen_offsets is \[1\]"),
    (apply_rotary_emb, (X, COS, SIN), {"seqlen_offsets": -1}, "seqlen_offsets = -1"),
    (apply_rotary_emb, (X, COS, SIN), {"interleaved": "yes"}, "interleaved = 'yes'"),
    (apply_rotary_emb, (X, COS, SIN), {"max_seqlen": 5}, "max_seqlen is of packed sequences"),
    (apply_rotary_emb, (X[0], COS, SIN), {"cu_seqlens": [0, 5]}, "cu_seqlens is a list"),
    (apply_rotary_emb, (X[0], COS, SIN), {"cu_seqlens": AT}, "max_seqlen = None"),
    (apply_rotary_emb, (X.clone().requires_grad_(), COS, SIN), {"inplace": True}, "x is a leaf"),
    (apply_rotary_emb, (X, COS.to("meta"), SIN), {}, "cos is on meta"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "given", "words", "said"), WRONG, ids=[str(i) for i in range(len(WRONG))]
)
def test_a_wrong_call_gives_a_typed_error(function, given, words, said):
    with pytest.raises((BadArgument, WrongDevice), match=said):
        function(*given, **words)


def test_the_rotation_is_one():
    x, (cos, sin) = torch.randn(1, 4, 1, 8, dtype=torch.float64), tables(4, 8)
    made = apply_rotary_emb(x, cos, sin)
    assert math.isclose(float(made.norm()), float(x.norm()), rel_tol=1e-12)
