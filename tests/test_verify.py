"""What passes a check, and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from blend_family import NEAR, ROUNDED, BlendProblem, NumpyDispatcher, known
from tilewright import arrays, verify
from tilewright.errors import VerificationFailed
from tilewright.ops.gemm import GemmProblem
from tilewright.ops.nouns import View
from tilewright.tolerance import Tolerance, tolerance

EXACT = Tolerance(0.0, 0.0)
LOOSE = Tolerance(1e-2, 1e-3)


def test_equal_passes_even_with_no_tolerance():
    x = np.arange(-8.0, 8.0)
    result = verify.compare(x.astype(np.float32), x, EXACT)
    assert result.ok and result.max == 0 and result.share == 1.0 and result.worst == 0.0


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_statistics_are_those_of_the_errors(library):
    reference = np.full(1000, 2.0)
    out = reference.copy()
    out[:10] += 0.5
    out = out.astype(np.float32)
    if library == "torch":
        torch = pytest.importorskip("torch")
        result = verify.compare(torch.from_numpy(out), torch.from_numpy(reference), LOOSE)
    else:
        result = verify.compare(out, reference, LOOSE)
    assert not result.ok
    assert result.share == pytest.approx(0.99)
    assert result.max == pytest.approx(0.5)
    assert result.mean == pytest.approx(0.005)
    assert result.rms == pytest.approx(0.05)
    assert result.p99 < 1e-3
    assert result.worst == pytest.approx(0.5 / (2.0 * 1e-2 + 2.0 * 1e-3))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_elements_that_are_not_zero_are_counted(library):
    out = np.zeros((4, 8), np.float32)
    out[1, :5] = 1e-30, -1.0, np.inf, np.nan, -0.0
    if library == "torch":
        torch = pytest.importorskip("torch")
        found = verify.compare(torch.from_numpy(out), torch.zeros(4, 8).double(), LOOSE)
    else:
        found = verify.compare(out, np.zeros((4, 8)), LOOSE)
    assert found.non_zero == 4
    empty = np.zeros((0, 8), np.float32)
    assert verify.compare(empty, empty.astype(np.float64), LOOSE).non_zero == 0


@pytest.mark.grid(3)
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(7, 300), (300, 7), (3, 50, 9), (2, 4, 70), (1000,)])
def test_parts_come_to_what_the_whole_does(library, shape, monkeypatch):
    rng = np.random.default_rng(3)
    reference = rng.standard_normal(shape)
    out = (reference + 1e-3 * rng.standard_normal(shape)).astype(np.float32)
    reference.flat[5], out.flat[5] = np.inf, np.inf
    reference.flat[500], out.flat[500] = np.nan, np.nan
    out.flat[17], out.flat[430] = 0.0, 9.0
    if library == "torch":
        torch = pytest.importorskip("torch")
        out, reference = torch.from_numpy(out), torch.from_numpy(reference)
    whole = verify.compare(out, reference, LOOSE)
    assert not whole.ok and whole.non_zero == np.prod(shape) - 1
    for part in (1, 64, 333):
        monkeypatch.setattr(verify, "PART", part)
        indexes = verify._parts(shape)
        covered = np.zeros(shape, int)
        for index in indexes:
            covered[index] += 1
        assert len(indexes) > 1 and (covered == 1).all()
        some = verify.compare(out, reference, LOOSE)
        for name in ("ok", "share", "worst", "max", "non_zero"):
            assert getattr(some, name) == getattr(whole, name)
        for name in ("mean", "rms", "p99", "rms_reference"):
            assert getattr(some, name) == pytest.approx(getattr(whole, name), rel=1e-12)


def test_a_zero_where_the_reference_is_not_fails():
    assert not verify.compare(np.zeros(100, np.float32), np.ones(100), LOOSE).ok


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_be_expected(bad):
    reference = np.ones(10)
    out = reference.astype(np.float32)
    out[3] = bad
    assert not verify.compare(out, reference, LOOSE).ok
    reference[3] = bad
    assert verify.compare(out, reference, LOOSE).ok
    out[3] = 1.0
    assert not verify.compare(out, reference, LOOSE).ok


def test_overflow_of_the_output_dtype_is_right():
    reference = np.array([1e6, -1e6, 1.0])
    assert verify.compare(np.array([np.inf, -np.inf, 1.0], np.float16), reference, LOOSE).ok
    assert not verify.compare(np.array([np.inf, np.inf, 1.0], np.float16), reference, LOOSE).ok
    # Near as it is, the reference is rounded to infinity, and this is not.
    assert not verify.compare(np.array([65504.0], np.float16), np.array([65530.0]), LOOSE).ok
    assert verify.compare(np.array([65504.0], np.float16), np.array([65510.0]), LOOSE).ok


def test_integers_must_be_equal():
    reference = np.array([1.0, 2.0, 3.0])
    assert verify.compare(np.array([1, 2, 3], np.int32), reference, EXACT).ok
    assert not verify.compare(np.array([1, 2, 4], np.int32), reference, EXACT).ok


def test_require_raises_with_the_seed():
    result = verify.compare(np.zeros(3, np.float32), np.ones(3), LOOSE)
    with pytest.raises(VerificationFailed, match=r"k is outside tolerance.*seed -1"):
        verify.require(result, "k")


def test_operands_are_fresh_and_the_output_poisoned():
    problem = GemmProblem(32, 32, 32)
    (a, _), out = verify.make_operands(problem, seed=1)
    (again, _), _ = verify.make_operands(problem, seed=1)
    (other, _), _ = verify.make_operands(problem, seed=2)
    assert (a == again).all() and (a != other).any()
    assert np.isnan(out.astype(np.float32)).all()
    _, integers = verify.make_operands(GemmProblem(4, 4, 4, dtype_a="int8"), seed=1)
    assert (integers == -(2**31)).all()


def test_tolerance_grows_with_the_sum_and_the_splits():
    short, long = tolerance("bf16", "bf16", 64), tolerance("bf16", "bf16", 65536)
    assert long.scaled > short.scaled and long.relative == short.relative
    assert tolerance("bf16", "bf16", 64, splits=8).scaled > short.scaled
    cut = [tolerance("bf16", "bf16", terms).scaled / terms**0.5 for terms in (1 << 12, 1 << 20)]
    assert cut[1] > 1.5 * cut[0], "in a very long sum what is cut off adds up"
    empty = tolerance("bf16", "bf16", 0, combined=1.0)
    assert empty.scaled <= tolerance("bf16", "bf16", 1, combined=1.0).scaled
    assert tolerance("int8", "int32", 10**6) == EXACT
    assert tolerance("tf32", "fp32", 64).scaled > tolerance("fp32", "fp32", 64).scaled


def test_overlap_is_exact():
    def at(address, shape, strides):
        return View(shape, strides, "fp32", address, "cpu")

    left, right = at(0x1000, (4, 8), (16, 1)), at(0x1020, (4, 8), (16, 1))
    assert not arrays.overlap(left, right)  # columns 0-7 and 8-15 of one matrix
    assert arrays.overlap(left, at(0x101C, (4, 8), (16, 1)))
    assert not arrays.overlap(left, at(0x9000, (4, 8), (16, 1)))
    assert not arrays.overlap(left, View((4, 8), (16, 1), "fp32", 0x1000, "cuda:0"))


# --- several outputs ----------------------------------------------------------------------------


@pytest.fixture
def blend():
    with known():
        yield BlendProblem(64, mask=True)


def test_every_output_is_checked_and_the_worst_is_named(blend):
    result = verify.verify(NumpyDispatcher(), blend, seed=3)
    assert result.ok and result.seed == 3 and result.output in ("state", "y", "z")
    for fault in ("state", "y", "z"):
        result = verify.verify(NumpyDispatcher(fault), blend, seed=3)
        assert not result.ok and result.output == fault
        with pytest.raises(VerificationFailed, match=f"k is outside tolerance in output {fault}:"):
            verify.require(result, "k")


def test_each_output_has_a_tolerance_of_its_own(blend):
    """An error that bf16 may have is too large for fp32."""
    small = 1 + 2.0**-12
    assert verify.verify(NumpyDispatcher("z", small), blend).ok
    for fault in ("state", "y"):
        result = verify.verify(NumpyDispatcher(fault, small), blend)
        assert (result.ok, result.output, result.tolerance) == (False, fault, NEAR)
    wrong = verify.verify(NumpyDispatcher("z", 1 + 2.0**-5), blend)
    assert (wrong.ok, wrong.output, wrong.tolerance) == (False, "z", ROUNDED)


def test_an_output_out_of_tolerance_is_worse_than_any_within():
    with known():
        made = verify.operands_of(BlendProblem(64), seed=1)
        wanted = verify.reference(BlendProblem(64), made.inputs)
        written = {name: values.astype(np.float32) for name, values in wanted.items()}
        written["z"][0] = np.nan  # counts for no error
        found = verify.compare_all(BlendProblem(64), None, written, wanted)
        assert (found.ok, found.output, found.max) == (False, "z", pytest.approx(0, abs=1e-6))


def test_an_output_that_is_never_written_fails(blend):
    class Idle(NumpyDispatcher):
        def run(self, op, *operands, out=None, **keywords):
            return out

    made = verify.operands_of(blend, seed=1)
    wanted = verify.reference(blend, made.inputs)
    verify.run(Idle(), blend, made)
    for name, values in made.written(blend).items():
        found = verify.compare(values, wanted[name], LOOSE)
        assert not found.ok and found.share == 0.0, name


def test_operands_are_apart_by_role(blend):
    made = verify.operands_of(blend, seed=1)
    assert list(made.inputs) == ["x", "state", "mask", "scale"] and list(made.outputs) == ["y", "z"]
    assert list(made.written(blend)) == ["state", "y", "z"]
    assert made.written(blend)["state"] is made.inputs["state"]
    assert all(np.isnan(x.astype(np.float32)).all() for x in made.outputs.values())
    again, other = verify.operands_of(blend, seed=1), verify.operands_of(blend, seed=2)
    for name in made.inputs:
        assert np.array_equal(made.inputs[name], again.inputs[name])
        assert not np.array_equal(made.inputs[name], other.inputs[name])


def test_what_is_written_in_place_is_compared_with_what_it_was_before(blend):
    """And a second call starts from there again."""
    made = verify.operands_of(blend, seed=1)
    before, wanted = (f(blend, made.inputs) for f in (verify.snapshot, verify.reference))
    assert list(before) == ["state"] and list(wanted) == ["state", "y", "z"]
    dispatcher = NumpyDispatcher()
    for _ in range(2):
        verify.reset(made, before)
        assert np.array_equal(made.inputs["state"], before["state"])
        assert np.isnan(made.outputs["y"]).all()
        verify.run(dispatcher, blend, made)
        assert verify.compare_all(blend, None, made.written(blend), wanted).ok
    verify.run(dispatcher, blend, made)  # from where the last call left it
    found = verify.compare_all(blend, None, made.written(blend), wanted)
    assert not found.ok and found.output == "state"
    assert dispatcher.seen == [("x", "state", "mask", "y", "z")] * 3


def test_one_output_needs_no_name():
    problem = GemmProblem(32, 32, 32, "fp32")
    made = verify.operands_of(problem, seed=1)
    wanted = verify.reference(problem, made.inputs)
    (allowed,) = {verify.tolerance(problem, None)}
    found = verify.compare_all(problem, None, {"C": wanted["C"].astype(np.float32)}, wanted, 5)
    assert found.ok and (found.output, found.seed, found.tolerance) == ("", 5, allowed)
    assert " in output" not in str(found)
    out = np.zeros((32, 32), np.float32)
    found = verify.check(problem, None, list(made.inputs.values()), out, seed=5)
    assert not found.ok and found.output == ""


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_row_is_judged_beside_its_own_rms(library, monkeypatch):
    """Also in parts, which then hold whole rows, and beside rows that are not written."""
    reference = np.concatenate([np.full((3, 2, 50), 100.0), np.full((3, 2, 50), 0.01)])
    reference[1, 1] = np.nan
    small, large = reference.copy(), reference.copy()
    small[4, 1, 7] += 0.001
    large[0, 1, 7] += 0.001
    for part in (verify.PART, 1, 7):
        monkeypatch.setattr(verify, "PART", part)
        for out, worst in ((small, 5.0), (large, 0.0005)):
            given = (out.astype(np.float64), reference)
            if library == "torch":
                torch = pytest.importorskip("torch")
                given = tuple(map(torch.from_numpy, given))
            found = verify.compare(*given, Tolerance(0.0, 0.0, by_row=0.02))
            assert found.ok == (worst <= 1) and found.worst == pytest.approx(worst, rel=1e-6)
            assert verify.compare(*given, Tolerance(0.0, 0.02)).ok


def test_one_element_outside_is_not_rounded_to_none():
    out = np.ones(3_000_000, np.float32)
    assert verify.compare(out, np.ones(len(out)), LOOSE).percent == "100.0000%"
    out[17] = 2.0
    assert "outside tolerance: 99.9999% of elements" in str(
        verify.compare(out, np.ones(len(out)), LOOSE)
    )
