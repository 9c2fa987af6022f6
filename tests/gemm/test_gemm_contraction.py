"""Contractions: the GEMM they become has their result over the same memory, or they are refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gemm_cases import problem_of
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright import arrays
from tilewright.errors import BadArgument
from tilewright.ops.gemm.contraction import matrices, output_shape, parse
from tilewright.ops.nouns import View


def in_place(array: np.ndarray, view: View) -> np.ndarray:
    """The memory of `array` as `view` says it lies."""
    strides = [s * array.itemsize for s in view.strides]
    return np.lib.stride_tricks.as_strided(array, view.shape, strides)


def multiply(equation: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """What a kernel would do with the views."""
    views = [arrays.view(x) for x in (a, b, c)]
    found, outer = matrices(equation, list(zip(("A", "B", "out"), views, strict=True)))
    x, y, z = (in_place(v, f) for v, f in zip((a, b, c), found, strict=True))
    if outer is None:
        product = np.matmul(x, y)
        z[...] = product.sum(0) if product.ndim > z.ndim else product
    else:
        x, y, z = (
            np.lib.stride_tricks.as_strided(
                v, (outer.size, *v.shape), (step * v.itemsize, *v.strides)
            )
            for v, step in zip((x, y, z), outer.strides, strict=True)
        )
        for i in range(outer.size):
            z[i] = np.matmul(x[i], y[i])


@st.composite
def contractions(draw):
    """An equation of up to six dimensions in any order, and operands that are transposed, sliced,
    padded or expanded."""
    roles = draw(st.lists(st.sampled_from(("ABC", "AC", "BC", "AB")), min_size=1, max_size=6))
    labels = "abcdef"[: len(roles)]
    sizes = {label: draw(st.integers(1, 3)) for label in labels}
    terms, made = [], []
    for operand in "ABC":
        own = [label for label, role in zip(labels, roles, strict=True) if operand in role]
        order = draw(st.permutations(own))
        padded = [sizes[x] + draw(st.sampled_from((0, 0, 0, 1))) for x in order]
        whole = np.empty(padded, np.float32)
        whole[...] = np.random.default_rng(len(made)).standard_normal(padded)
        array = whole[(*(slice(sizes[x]) for x in order), ...)]
        said = draw(st.permutations(own))
        terms.append("".join(said))
        array = array.transpose([order.index(x) for x in said])
        if operand != "C" and own and draw(st.integers(0, 9)) == 0:
            first = array[:1]
            array = np.broadcast_to(first, array.shape)
        made.append(array)
    return f"{terms[0]},{terms[1]}->{terms[2]}", made


@pytest.mark.turns(48)
@settings(max_examples=400)
@given(contractions())
def test_the_gemm_is_the_einsum_or_the_call_is_refused(case):
    equation, (a, b, c) = case
    expected = np.einsum(equation, a.astype(np.float64), b)
    assert output_shape(equation, arrays.view(a), arrays.view(b)) == expected.shape
    try:
        multiply(equation, a, b, c)
    except BadArgument as refusal:
        words = ("must be walked as", "no matrix over")
        assert any(word in str(refusal) for word in words)
        return
    assert np.allclose(c, expected, atol=1e-5)


def test_a_sum_over_a_dimension_that_both_operands_expand_is_refused():
    a, b = (np.broadcast_to(np.float32([[1, 2]]), (3, 2)) for _ in range(2))
    with pytest.raises(BadArgument, match="pass a contiguous copy"):
        multiply("ab,ab->", a, b, np.empty((), np.float32))
    c = np.empty((), np.float32)
    multiply("ab,ab->", a, np.ones((3, 2), np.float32), c)
    assert c == 9


@given(st.permutations("bhqd"), st.permutations("bhkd"), st.permutations("bhqk"))
def test_four_dimensions_in_every_order(a, b, c):
    """Packed operands are a GEMM if no operand's contiguous dimension is one of the batch, and
    where one step goes through both of these, they are one. Elsewhere one of rows and columns may
    still go to the batch."""
    sizes = {"b": 2, "h": 3, "q": 4, "k": 5, "d": 6}
    equation = f"{''.join(a)},{''.join(b)}->{''.join(c)}"
    x, y, z = (np.random.default_rng(0).random([sizes[s] for s in t]) for t in (a, b, c))
    together = all("bh" in "".join(t) for t in (a, b, c)) or all(
        "hb" in "".join(t) for t in (a, b, c)
    )
    matrix = all(t[-1] not in "bh" for t in (a, b, c))
    x, y, z = (v.astype(np.float32) for v in (x, y, z))
    if matrix:
        multiply(equation, x, y, z)
        assert np.allclose(z, np.einsum(equation, x, y), atol=1e-5)
        p = problem_of([arrays.view(v) for v in (x, y)], arrays.view(z), {"equation": equation})
        assert p.batching == ("strided" if together else "nested")
    else:
        try:
            multiply(equation, x, y, z)
        except BadArgument as refusal:
            assert "equation" in str(refusal)
        else:
            assert together and np.allclose(z, np.einsum(equation, x, y), atol=1e-5)


# --- what becomes of them ----------------------------------------------------------------------


def planned(equation: str, *shapes: tuple[int, ...]):
    views = [arrays.view(np.empty(shape, np.float32)) for shape in shapes]
    return problem_of(views, None, {"equation": equation})


@pytest.mark.parametrize(
    ("equation", "a", "b", "sizes", "batching", "layout"),
    [
        ("ik,kj->ij", (4, 6), (6, 5), (1, 4, 5, 6), "none", "rrr"),
        ("ik,jk->ji", (4, 6), (5, 6), (1, 4, 5, 6), "none", "rcc"),
        ("bhqd,bhkd->bhqk", (2, 3, 4, 6), (2, 3, 5, 6), (6, 4, 5, 6), "strided", "rcr"),
        ("qhd,khd->hqk", (4, 3, 6), (5, 3, 6), (3, 4, 5, 6), "strided", "rcr"),
        ("bsi,oi->bso", (2, 3, 6), (5, 6), (1, 6, 5, 6), "none", "rcr"),
        ("bchw,ochw->bo", (2, 3, 4, 5), (7, 3, 4, 5), (1, 2, 7, 60), "none", "rcr"),
        ("bij,bj->bi", (2, 3, 4), (2, 4), (2, 3, 1, 4), "strided", "rcr"),
        ("i,j->ij", (4,), (5,), (1, 4, 5, 1), "none", "rcr"),
        ("i,i->", (4,), (4,), (1, 1, 1, 4), "none", "rcr"),
        ("b,b->b", (4,), (4,), (4, 1, 1, 1), "strided", "rcr"),
        # A batch of two dimensions that do not lie as one.
        ("bqhd,bkhd->bhqk", (2, 4, 3, 6), (2, 5, 3, 6), (6, 4, 5, 6), "nested", "rcr"),
        ("bqgrd,bkgd->bgrqk", (1, 4, 2, 3, 6), (1, 5, 2, 6), (6, 4, 5, 6), "nested", "rcr"),
        # Rows that are not one dimension of A: the batch takes one of them.
        ("sbi,oi->bso", (3, 2, 6), (5, 6), (2, 3, 5, 6), "strided", "rcr"),
    ],
)
def test_roles_are_found_and_dimensions_joined(equation, a, b, sizes, batching, layout):
    p = planned(equation, a, b)
    assert ((p.batch, p.m, p.n, p.k), p.batching, p.layout) == (sizes, batching, layout)


def test_dimensions_may_have_names_of_several_letters():
    words = "batch heads q dim, batch heads k dim -> batch heads q k"
    assert parse(words)[0] == ("batch", "heads", "q", "dim")
    assert parse("bhqd, bhkd -> bhqk") == parse("b h q d, b h k d -> b h q k")
    assert planned(words, (2, 3, 4, 6), (2, 3, 5, 6)) == planned(
        "bhqd,bhkd->bhqk", (2, 3, 4, 6), (2, 3, 5, 6)
    )


@pytest.mark.parametrize(
    ("equation", "words"),
    [
        ("ik,kj", "not of the form"),
        ("ik->ki", "not of the form"),
        ("ik,kj,jl->il", "not of the form"),
        ("ii,ij->ij", "A has 'i' twice"),
        ("ik,kj->iij", "out has 'i' twice"),
        ("ikl,kj->ij", "'l' is in A only; sum it beforehand"),
        ("ik,kjl->ij", "'l' is in B only; sum it beforehand"),
        ("ik,kj->ijx", "'x' is in out only"),
        ("...ik,kj->...ij", "ellipsis"),
        ("i1,1j->ij", "'1' is no label"),
        (3, "an equation is text"),
    ],
)
def test_equations_that_are_no_contraction_of_two_operands_are_refused(equation, words):
    with pytest.raises(BadArgument, match=words):
        parse(equation)


@pytest.mark.parametrize(
    ("equation", "shapes", "words"),
    [
        ("ik,kj->ij", ((4, 6, 2), (6, 5)), "A has 2 labels but shape"),
        ("ik,kj->ij", ((4, 6), (7, 5)), "'k' is 6 in A but 7 in B"),
        ("ik,kj->ij", ((4, 6), (6, 5), (4, 4)), "'j' is 5 in B but 4 in out"),
        ("ik,kj->ij", ((4, 6), (1, 5)), "'k' is 6 in A but 1 in B"),
        (
            "bqgrd,bkgd->bgrqk",
            ((2, 4, 3, 2, 6), (2, 5, 3, 6)),
            r"dimensions b, g, r of sizes 2, 3, 2 must be walked as two, but their strides are "
            r"A 144, 12, 6; B 90, 6, 0; out 120, 40, 20; pass copies",
        ),
        ("iklh,hlkj->ij", ((2, 3, 4, 2), (2, 4, 3, 5)), "dimensions k, l, h of sizes 3, 4, 2 must"),
        ("bikl,blkj->bij", ((2, 2, 3, 4), (2, 4, 3, 5)), "dimensions k, l of sizes 3, 4 must be"),
        ("ikl,lkj->ij", ((2, 3, 4), (4, 3, 5)), ""),
        ("bki,bkj->bij", ((2, 3, 4), (2, 3, 5)), ""),
        ("ikb,kjb->ijb", ((4, 6, 2), (6, 5, 2)), r"A is no matrix over i \(stride 12\) and k"),
    ],
)
def test_operands_that_do_not_fit_say_which_dimension_is_in_the_way(equation, shapes, words):
    made = [np.zeros(shape, np.float32) for shape in shapes]
    inputs, out = [arrays.view(x) for x in made[:2]], None
    if len(made) > 2:
        out = arrays.view(made[2])
    if words:
        with pytest.raises(BadArgument, match=words):
            problem_of(inputs, out, {"equation": equation})
    else:
        assert problem_of(inputs, out, {"equation": equation})


@pytest.mark.parametrize(
    ("equation", "a", "b", "strides"),
    [
        ("bkp,bcp->kc", (3, 8, 20), (3, 12, 20), (160, 240)),  # images of channels and pixels
        ("bkp,bcp->ck", (3, 8, 20), (3, 12, 20), (160, 240)),
        ("bp,bcp->c", (3, 20), (3, 12, 20), (20, 240)),
    ],
)
def test_of_two_dimensions_of_k_one_is_a_batch_that_is_summed(equation, a, b, strides):
    rng = np.random.default_rng(5)
    x, y = (rng.standard_normal(shape, np.float32) for shape in (a, b))
    p = problem_of([arrays.view(x), arrays.view(y)], None, {"equation": equation})
    assert (p.batching, p.batch, p.k, p.batch_strides[:2]) == ("summed", 3, 20, strides)
    found = tw.gemm(x, y, equation=equation)
    np.testing.assert_allclose(found, np.einsum(equation, x, y), rtol=1e-4, atol=1e-4)


def test_operands_that_run_backwards_and_pointers_are_refused():
    a, b = np.zeros((4, 6), np.float32), np.zeros((6, 5), np.float32)
    with pytest.raises(BadArgument, match="must run forwards"):
        tw.gemm(a[:, ::-1], b, equation="ik,kj->ij")
    with pytest.raises(BadArgument, match="A is pointers; an equation takes arrays"):
        tw.gemm(tw.pointers([a]), tw.pointers([b]), equation="bik,bkj->bij")
    with pytest.raises(BadArgument, match="halves columns"):
        tw.gemm(a, b, equation="ik,kj->ij", epilogue="swiglu")


# --- runs --------------------------------------------------------------------------------------


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        ("bhqd,bhkd->bhqk", (2, 3, 20, 16), (2, 3, 24, 16)),
        ("qhd,khd->hqk", (20, 3, 16), (24, 3, 16)),
        ("bqhd,bkhd->bhqk", (2, 20, 3, 16), (2, 24, 3, 16)),
        ("bhqk,bkhd->bqhd", (2, 3, 20, 24), (2, 24, 3, 16)),
        ("qgrd,kgd->grqk", (20, 2, 2, 16), (24, 2, 16)),
        ("sbi,oi->bso", (20, 2, 16), (24, 16)),
        ("i,j->ij", (20,), (24,)),
        ("ij,j->i", (20, 16), (16,)),
    ],
)
def test_results(equation, a, b):
    x, y = (np.random.default_rng(s).standard_normal(n, np.float32) for s, n in ((1, a), (2, b)))
    expected = np.einsum(equation, x, y)
    out = tw.gemm(x, y, equation=equation)
    assert out.shape == expected.shape and np.allclose(out, expected, atol=1e-4)
    given = np.full(expected.shape[::-1], np.nan, np.float32).T  # laid the other way
    if len(expected.shape) < 3:
        assert tw.gemm(x, y, out=given, equation=equation) is given
        assert np.allclose(given, expected, atol=1e-4)


@pytest.mark.turns(24)
def test_an_epilogue_follows_the_output():
    rng = np.random.default_rng(3)
    x, y, r = (
        rng.standard_normal(s, np.float32) for s in ((2, 3, 20, 16), (2, 3, 24, 16), (2, 3, 20, 24))
    )
    bias = np.arange(24, dtype=np.float32)
    out = tw.gemm(x, y, bias, r, equation="bhqd,bhkd->bhqk", epilogue="bias+relu+add")
    expected = np.maximum(np.einsum("bhqd,bhkd->bhqk", x, y) + bias, 0) + r
    assert np.allclose(out, expected, atol=1e-4)
    x, y = (np.ascontiguousarray(v.transpose(0, 2, 1, 3)) for v in (x, y))
    out = tw.gemm(x, y, bias, r, equation="bqhd,bkhd->bhqk", epilogue="bias+relu+add")
    assert np.allclose(out, expected, atol=1e-4)
    r = np.broadcast_to(r[:, :1], r.shape)  # one for all heads
    out = tw.gemm(x, y, r, equation="bqhd,bkhd->bhqk", epilogue="add")
    assert np.allclose(out, np.einsum("bqhd,bkhd->bhqk", x, y) + r, atol=1e-4)


def test_a_vector_needs_its_dimension_whole():
    """Else its elements would be taken for those of the part that stays."""
    a, b = np.ones((3, 2, 6), np.float32), np.ones((5, 6), np.float32)
    assert tw.gemm(a, b, equation="sbi,oi->bso").shape == (2, 3, 5)
    with pytest.raises(BadArgument, match="dimensions s, b of sizes 3, 2 must be walked as one"):
        tw.gemm(a, b, np.ones(3, np.float32), equation="sbi,oi->bso", epilogue="row_scale")


@pytest.mark.parametrize("empty", "bhqkd")
def test_dimensions_of_size_0(empty):
    sizes = {label: 0 if label == empty else 3 for label in "bhqkd"}
    x, y = (np.ones([sizes[s] for s in labels], np.float32) for labels in ("bhqd", "bhkd"))
    out = tw.gemm(x, y, equation="bhqd,bhkd->bhqk")
    assert np.array_equal(out, np.einsum("bhqd,bhkd->bhqk", x, y))
    x, y = (np.ascontiguousarray(v.transpose(0, 2, 1, 3)) for v in (x, y))
    out = tw.gemm(x, y, equation="bqhd,bkhd->bhqk")
    assert np.array_equal(out, np.einsum("bqhd,bkhd->bhqk", x, y))


def test_every_role_at_once_and_none():
    for count in range(1, 5):
        for roles in itertools.combinations(("b", "i", "j", "k"), count):
            a, b, c = ("".join(x for x in labels if x in roles) for labels in ("bik", "bkj", "bij"))
            x, y = (
                np.random.default_rng(0).random((3,) * len(t)).astype("float32") for t in (a, b)
            )
            z = np.empty((3,) * len(c), np.float32)
            multiply(f"{a},{b}->{c}", x, y, z)
            assert np.allclose(z, np.einsum(f"{a},{b}->{c}", x, y))
