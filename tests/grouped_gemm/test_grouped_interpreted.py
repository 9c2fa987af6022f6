"""Every grouped GEMM kernel, form, dtype and layout, run on the CPU and compared with float64."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from grouped_cases import (
    cases,
    config,
    epilogues,
    gathered,
    label,
    other_axes,
    roles,
    turned_tiles,
)

from simulate import simulated_run, worst_error
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmProblem, check, low_tiles, pack


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


@pytest.mark.grid(3)
@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_kind_of_kernel_is_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(5)
@pytest.mark.parametrize("case", epilogues("sm_90"), ids=label)
def test_epilogues_are_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(3)
@pytest.mark.parametrize("case", gathered("sm_90"), ids=label)
def test_gathered_rows_are_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(3)
@pytest.mark.parametrize("case", turned_tiles(), ids=label)
def test_low_tiles_that_are_turned_are_right(hopper, case):
    kernel, problem = case
    assert low_tiles.turned(kernel, arch("sm_90"))
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.grid(3)
@pytest.mark.parametrize("case", other_axes("sm_90"), ids=label)
def test_groups_along_other_axes_are_right(hopper, case):
    kernel, problem = case
    if kernel.pipeline == "basic" or problem.k:
        result = verify.verify(hopper, problem, kernel.name)
        assert result.ok, result


def parts(*ends: int) -> list[tuple[int, int]]:
    """Of 40, the part of each group, as kernels clamp it."""
    clamped = [min(max(end, 0), 40) for end in (0, *ends)]
    return [(begin, max(begin, end)) for begin, end in itertools.pairwise(clamped)]


@pytest.mark.turns(12)
@pytest.mark.parametrize("pipeline", ["basic", "tma"])
def test_a_group_without_a_part_of_the_sum_is_zero_and_others_stay_out(hopper, pipeline):
    """NaN and infinities of one group do not reach another's matrix, in whichever operand; and
    offsets are clamped."""
    rng = np.random.default_rng(6)
    x, dy = rng.standard_normal((40, 16), np.float32), rng.standard_normal((40, 24), np.float32)
    x[7:9], dy[30:], x[39] = np.nan, np.inf, np.inf
    kernel = config(dtype_a="fp32", form="weights", layout="crr", pipeline=pipeline, tile_k=32)
    wild = 2**31 - 1
    for ends in ((7, 9, 9, 30), (0, 0, 5, 5), (wild,) * 4, (-5, 7, -wild, 40), (20, 7, 30, 30)):
        out = np.full((4, 16, 24), 7.0, np.float32)
        hopper.run_named(kernel.name, x.T, dy, int32(*ends), out=out)
        for got, (begin, end) in zip(out, parts(*ends), strict=True):
            with np.errstate(invalid="ignore"):
                wanted = x[begin:end].T @ dy[begin:end]
            assert np.allclose(got, wanted, atol=1e-4, equal_nan=True), (ends, begin, end)
            assert end > begin or not got.any()


def test_groups_along_the_columns_leave_the_rest(hopper):
    rng = np.random.default_rng(6)
    w, x = rng.standard_normal((3, 24, 16), np.float32), rng.standard_normal((40, 16), np.float32)
    for ends in ((7, 7, 30), (-3, 12, 2**31 - 1), (40, 20, 3)):
        for zero_rest in (False, True):
            out = np.full((24, 40), 7.0, np.float32)
            hopper.run("grouped_gemm", w, x.T, int32(*ends), out=out, zero_rest=zero_rest)
            wanted = np.full((24, 40), 0.0 if zero_rest else 7.0, np.float32)
            for matrix, (begin, end) in zip(w, parts(*ends), strict=True):
                wanted[:, begin:end] = matrix @ x[begin:end].T
            last = max(end for _, end in parts(*ends))
            assert np.allclose(out[:, :last], wanted[:, :last], atol=1e-4)
            assert np.allclose(out[:, last:], wanted[:, last:], atol=1e-4)


def test_no_part_at_all(hopper):
    x = np.empty((0, 16), np.float32)
    out = hopper.run("grouped_gemm", x.T, np.empty((0, 24), np.float32), int32(0, 0, 0))
    assert out.shape == (3, 16, 24) and not out.any()
    made = hopper.run("grouped_gemm", np.ones((3, 24, 16), np.float32), x.T, int32(0, 0, 0))
    assert made.shape == (24, 0)


def test_bounds_say_that_offsets_begin_with_a_start(hopper):
    rng = np.random.default_rng(6)
    x, dy = rng.standard_normal((40, 16), np.float32), rng.standard_normal((40, 24), np.float32)
    out = hopper.run("grouped_gemm", x.T, dy, int32(3, 9, 30), bounds=True)
    assert out.shape == (2, 16, 24)
    assert np.allclose(out[0], x[3:9].T @ dy[3:9], atol=1e-4)
    assert np.allclose(out[1], x[9:30].T @ dy[9:30], atol=1e-4)


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", roles("sm_90"), ids=label)
def test_warp_roles_that_gather_are_right(case):
    """In the simulation, which refuses an access outside of an operand."""
    kernel, problem = case
    assert FAMILY.supports(kernel, problem, arch("sm_90"))
    assert worst_error(kernel, problem, device("h200"), 3) <= 1.0


def test_fnuz_types_are_right():
    dispatcher = Dispatcher(device="mi300x")
    for kernel, problem in cases("gfx942"):
        if kernel.dtype_a == "e4m3fnuz" and kernel.dtype_c == "bf16":
            result = verify.verify(dispatcher, problem, kernel.name)
            assert result.ok, (kernel.name, result)


def operands(form: str = "contiguous", groups: int = 3, m: int = 20, n: int = 16, k: int = 8):
    rng = np.random.default_rng(5)
    rows = (groups, m) if form == "masked" else (m,)
    a = rng.standard_normal((*rows, k), np.float32)
    return a, rng.standard_normal((groups, k, n), np.float32)


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_rows_of_no_group_are_left_as_they_are(hopper):
    a, b = operands("masked")
    out = np.full((3, 20, 16), 7.0, np.float32)
    hopper.run("grouped_gemm", a, b, int32(20, 0, 5), out=out)
    assert np.allclose(out[0], a[0] @ b[0], atol=1e-4)
    assert np.allclose(out[2, :5], a[2, :5] @ b[2], atol=1e-4)
    assert (out[1] == 7).all() and (out[2, 5:] == 7).all()


@pytest.mark.turns(48)
@pytest.mark.parametrize("pipeline", ["basic", "tma"])
def test_rows_of_no_group_become_zero_if_asked(hopper, pipeline):
    """Before the first group, behind the last, and all where there is none; whatever lies there."""
    kernel = config(dtype_a="fp32", layout="rrr", pipeline=pipeline, tile_k=32)
    a, b = operands(n=1040, k=32)
    for ends in ((2, 5, 5, 18), (7, 9, 20), (0, 0, 0), (20, 20, 20, 20), (-1, 3, 3), (5, 3, 3, 3)):
        out = np.full((20, 1040), np.nan, np.float32)
        hopper.run_named(kernel.name, a, b, int32(*ends), out=out, zero_rest=True)
        wanted, begins = np.zeros_like(out), ends if len(ends) == 4 else (0, *ends)
        for g, (begin, end) in enumerate(itertools.pairwise(begins)):
            wanted[max(begin, 0) : max(end, 0)] = a[max(begin, 0) : max(end, 0)] @ b[g]
        assert np.allclose(out, wanted, atol=1e-4), ends
    masked = config(dtype_a="fp32", layout="rrr", form="masked", pipeline=pipeline, tile_k=32)
    a, b = operands("masked", n=64, k=32)
    out = np.full((3, 20, 64), np.nan, np.float32)
    hopper.run_named(masked.name, a, b, int32(20, -3, 6), out=out, zero_rest=True)
    wanted = a @ b
    wanted[1], wanted[2, 6:] = 0, 0
    assert np.allclose(out, wanted, atol=1e-4)


@pytest.mark.grid(2)
@pytest.mark.parametrize("form", ["contiguous", "masked"])
@pytest.mark.parametrize("zero_rest", [False, True])
def test_the_kernel_in_gluon_clamps_and_clears_alike(form, zero_rest):
    """In the simulation, which refuses an access outside of an operand."""
    kernel = config(
        pipeline="gluon_ws", form=form, layout="rrr", tile_m=64, tile_n=64, tile_k=64, num_warps=4
    )
    sizes = {"groups": 4, "m": 70, "n": 64, "k": 64, "layout": "rrr", "zero_rest": zero_rest}
    problem = GroupedGemmProblem(form, **sizes)
    inputs = dict(verify.operands_of(problem, 3).inputs)
    name = "offsets" if form == "contiguous" else "counts"
    inputs[name][...] = [-9, 12, 12, 2**31 - 1] if form == "contiguous" else [70, -1, 2**31 - 1, 3]
    assert worst_error(kernel, problem, device("h200"), 3, inputs) <= 1.0
    inputs[name][...] = [5, 12, 40, 66]
    assert worst_error(kernel, problem, device("h200"), 3, inputs) <= 1.0


@pytest.mark.grid(2)
@pytest.mark.parametrize("number", range(6))
def test_the_kernel_in_gluon_sums_each_groups_part_alone(number):
    """In the simulation, which refuses an access outside of an operand: tiles of one warp group and
    of two, stores in halves and quarters, groups without rows, wrong offsets, and NaN in the rows
    of the next group."""
    two, split, bounds = number % 2, number // 2 % 2, number // 3
    kernel = config(
        pipeline="gluon_ws", form="weights", layout="crr", tile_m=64 + 64 * two, tile_n=64,
        tile_k=64, num_warps=4 + 4 * two, store=("direct", "split")[split], num_stages=3,
    )  # fmt: skip
    problem = GroupedGemmProblem(
        "weights", groups=5, m=136, n=72, k=200, layout="crr", bounds=bool(bounds)
    )
    few = replace(device("h200"), compute_units=(3, 7, 64)[number % 3])  # many tiles each, or one
    assert worst_error(kernel, problem, few, number) <= 1.0
    inputs = dict(verify.operands_of(problem, number).inputs)
    wild = 2**31 - 1
    ends = [0, 70, 70, 130, 191, 200][1 - bounds :]
    for offsets in (ends, [-9, 12, 12, wild, -wild, 3][: len(ends)]):
        inputs["offsets"][...] = offsets
        assert worst_error(kernel, problem, few, number, inputs) <= 1.0
    inputs["offsets"][...] = ends
    inputs["A"][..., 130:] = np.nan
    found = simulated_run(kernel, problem, few, flat(problem, inputs), number)["C"]
    assert np.isfinite(np.asarray(found[:3], np.float32)).all()


def flat(problem, inputs):
    """Operands as the simulation has them: A by columns."""
    return {**inputs, "A": np.ascontiguousarray(np.asarray(inputs["A"]).T)}


def test_zeros_are_of_outputs_that_are_made_too(hopper):
    a, b = operands()
    out = hopper.run("grouped_gemm", a, b, int32(2, 5, 5, 18), zero_rest=True)
    assert not out[:2].any() and not out[18:].any() and out[5:18].any()
    with pytest.raises(BadArgument, match="zero_rest = 1"):
        hopper.run("grouped_gemm", a, b, int32(2, 5, 5, 18), zero_rest=1)
    packed = pack([(a[:3], b[0])])
    with pytest.raises(BadArgument, match="no option 'zero_rest'"):
        hopper.run("grouped_gemm", *packed.inputs, out=packed.out, zero_rest=True, **packed.options)


def test_verification_sees_a_row_written_that_should_not_be(hopper):
    """What the reference says of rows without a group is what the output was filled with."""
    for dtype, written in (("bf16", 0.0), ("int8", 0)):
        problem = GroupedGemmProblem("masked", 2, 40, 16, 16, dtype_a=dtype)
        kernel = hopper.select(problem).config
        inputs, out = verify.make_operands(problem, seed=2)
        hopper.run("grouped_gemm", *inputs, out=out)
        assert verify.check(problem, kernel, inputs, out).ok
        counts = inputs[2]
        group = int(counts.argmin())
        assert counts[group] < 40
        out[group, counts[group]] = written
        assert not verify.check(problem, kernel, inputs, out).ok


def test_made_up_sizes_are_skewed_and_some_groups_empty():
    for form, bounds in (("contiguous", False), ("contiguous", True), ("masked", False)):
        problem = GroupedGemmProblem(form, 8, 64, 8, 8, bounds=bounds)
        (a, b, sizes), _ = verify.make_operands(problem, seed=1)
        check(a, b, sizes)
        counts = sizes if form == "masked" else np.diff(sizes if bounds else [0, *sizes])
        assert min(counts) == 0 and max(counts) > 2 * 64 / 8
        again = verify.make_operands(problem, seed=1)[0][2]
        assert (sizes == again).all()


@pytest.mark.parametrize("pipeline", ["basic", "tma"])
def test_offsets_are_clamped_whatever_they_say(hopper, pipeline):
    """The interpreter stops at any access outside the operands."""
    a, b = operands(n=64, k=64)
    kernel = config(dtype_a="fp32", layout="rrr", pipeline=pipeline, tile_k=32)
    wild = 2**31 - 1
    for offsets in (
        (wild,) * 3,
        (-wild,) * 3,
        (-5, 12, wild),
        (12, 4, 4),
        (0, 0, 0),
        (12, -wild - 1, -3),
    ):
        out = np.full((20, 64), 7.0, np.float32)
        hopper.run_named(kernel.name, a, b, int32(*offsets), out=out)
        begin = 0
        for group, end in enumerate(offsets):
            low, high = min(max(begin, 0), 20), min(end, 20)
            if high > low:
                assert np.allclose(out[low:high], a[low:high] @ b[group], atol=1e-4)
            begin = end
    a, b = operands("masked", n=64, k=64)
    kernel = config(dtype_a="fp32", layout="rrr", form="masked", pipeline=pipeline, tile_k=32)
    out = np.full((3, 20, 64), 7.0, np.float32)
    hopper.run_named(kernel.name, a, b, int32(wild, -wild, 3), out=out)
    assert np.allclose(out[0], a[0] @ b[0], atol=1e-4) and (out[1] == 7).all()


def test_offsets_may_begin_with_the_first_row(hopper):
    a, b = operands()
    out = np.full((20, 16), 7.0, np.float32)
    hopper.run("grouped_gemm", a, b, int32(2, 5, 5, 18), out=out)
    assert (out[:2] == 7).all() and (out[18:] == 7).all()
    assert np.allclose(out[2:5], a[2:5] @ b[0], atol=1e-4)
    assert np.allclose(out[5:18], a[5:18] @ b[2], atol=1e-4)


def test_nan_stays_in_its_own_rows_and_group(hopper):
    """Also where a tile reads another group's rows and weights past its own."""
    for pipeline in ("basic", "tma"):
        for layout in ("rcr", "rrr"):
            a, b = operands(n=36, k=36)
            a[7:], b[1] = np.nan, np.inf
            b = b if layout == "rrr" else b.transpose(0, 2, 1).copy().transpose(0, 2, 1)
            kernel = config(dtype_a="fp32", layout=layout, pipeline=pipeline, tile_k=32)
            out = hopper.run_named(kernel.name, a, b, int32(7, 20, 20))
            assert np.isfinite(out[:7]).all() and np.isnan(out[7:]).all()


def test_gathered_rows_are_those_that_the_map_says(hopper):
    """As of a copy of them; the interpreter stops at any access outside the operands. A place that
    means no row has zeros, whatever else A holds."""
    a, b = operands()
    tokens = a[:6].copy()
    rows = int32(11, 0, 3, -1, 5, 12, 2**31 - 1, -(2**31), 7, 7, 1, 2)
    ends = int32(5, 5, 10)
    got = hopper.run(
        "grouped_gemm", tokens, b, ends, rows=rows, per_row=2, zero_rest=True, epilogue="relu"
    )
    there = (rows >= 0) & (rows < 12)
    copied = np.where(there[:, None], tokens[np.where(there, rows, 0) // 2], 0)
    wanted = hopper.run("grouped_gemm", copied, b, ends, zero_rest=True, epilogue="relu")
    assert got.shape == (12, 16) and np.allclose(got, wanted, atol=1e-5)
    tokens[5] = np.nan  # row 5, which place 0 alone reads
    got = hopper.run("grouped_gemm", tokens, b, ends, rows=rows, per_row=2, zero_rest=True)
    assert np.isnan(got[0]).all() and np.isfinite(got[1:]).all()


def test_columns_that_lie_apart_are_those_that_take_turns(hopper):
    a, b = operands()
    apart = np.concatenate([b[..., 0::2], b[..., 1::2]], -1)
    ends = int32(5, 5, 20)
    by_turns = b.transpose(0, 2, 1).copy().transpose(0, 2, 1)
    wanted = hopper.run("grouped_gemm", a, by_turns, ends, epilogue="swiglu")
    columns = apart.transpose(0, 2, 1).copy().transpose(0, 2, 1)
    got = hopper.run("grouped_gemm", a, columns, ends, epilogue="swiglu", gates_apart=True)
    assert np.allclose(got, wanted, atol=1e-4)


def test_no_rows_at_all(hopper):
    out = hopper.run("grouped_gemm", np.empty((0, 8), np.float32), operands()[1], int32(0, 0, 0))
    assert out.shape == (0, 16)


def test_experts_weights_may_be_a_part_of_larger_ones(hopper):
    rng = np.random.default_rng(3)
    both = rng.standard_normal((3, 32, 8), np.float32)  # gate and up projections, stacked
    a, _ = operands()
    up = both[:, 16:].transpose(0, 2, 1)
    out = hopper.run("grouped_gemm", a, up, int32(9, 9, 20))
    assert np.allclose(out[9:], a[9:] @ up[2], atol=1e-4)


def test_a_kernel_in_gluon_is_stood_in_for_by_its_triton_sibling(hopper):
    a, b = operands(n=64, k=64)
    a, b = a.astype(np.float16), b.astype(np.float16).transpose(0, 2, 1).copy().transpose(0, 2, 1)
    kernels = (config(dtype_a="fp16", pipeline=p) for p in ("tma", "gluon_ws"))
    one, other = (hopper.run_named(c.name, a, b, int32(3, 9, 20)) for c in kernels)
    assert np.array_equal(one, other)


A, B = operands()


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ((), {}, "no operands"),
        ((A, B), {}, r"takes 3 operands \(A, B, offsets\) and was given 2"),
        ((A[0], B, int32(20)), {}, "the table is int32 of shape"),
        ((A[None, None], B, int32(20)), {}, "A has shape"),
        ((A, B[0][0], int32(5, 9, 20)), {}, "B as \\[groups, k, n\\]"),
        ((A, B[0], int32()), {}, "offsets has shape"),
        ((A, B[0], int32(5, 9)), {"zero_rest": True}, "weights grouped_gemm has no option 'zero"),
        ((B, A.T, int32(5, 9, 20)), {"epilogue": "relu"}, "no option 'epilogue'"),
        (
            (B.transpose(0, 2, 1), A.T, int32(5, 9)),
            {},
            "for 3 groups it is an int32 vector of 3 or 4",
        ),
        ((A[:, ::2], B[0], int32(5, 9, 20)), {}, "4 columns but B has 8 rows"),
        ((A[::, ::2], B[0][:4], int32(5, 9, 20)), {}, "neither rows nor columns are contiguous"),
        ((A[:, :4], B, int32(5, 9, 20)), {}, "4 columns but B has 8 rows"),
        ((A, B, int32(5, 9)), {}, "for 3 groups it is an int32 vector of 3 or 4"),
        ((A, B, np.array([5, 9, 20])), {}, "offsets is int64"),
        ((A, B, int32(5, 0, 9, 0, 20, 0)[::2]), {}, "offsets has strides"),
        ((A[None], B, int32(5, 9, 20)), {}, "A is of 1 groups but B of 3"),
        ((A.T.copy().T, B, int32(5, 9, 20)), {}, "rows are sorted by group"),
        ((operands("masked")[0][:, :9], B, int32(5, 9, 9)), {}, "without a gap"),
        ((A, B, int32(5, 9, 20)), {"epilog": "relu"}, "did you mean 'epilogue'"),
        (
            (A, B, int32(5, 9, 20), np.ones(16, np.float32)),
            {"epilogue": "bias"},
            "of shape \\(3, 16",
        ),
        ((A, B, int32(5, 9, 20), A), {"epilogue": "add"}, "of shape \\(20, 16"),
        ((A, B.astype(np.float16), int32(5, 9, 20)), {}, "convert one"),
        ((A, B, int32(5, 9, 20)), {"rows": A}, "rows is fp32 of shape"),
        ((A, B, int32(5, 9, 20)), {"rows": int32(5, 0, 9, 0)[::2]}, "rows has strides"),
        ((A[:0], B, int32(5, 9, 20)), {"rows": int32(5, 0)}, "rows_a = 0 is not"),
        ((A, B, int32(5, 9, 20)), {"rows": int32(5, 0), "per_row": 0}, "per_row = 0 is not"),
        ((A, B, int32(5, 9, 20)), {"per_row": 2}, "has no option 'per_row'"),
        ((A, B, int32(5, 9, 20)), {"gates_apart": True}, "gates_apart is for an epilogue"),
        (
            (A, B, int32(5, 9, 20)),
            {"gates_apart": True, "epilogue": "swiglu"},
            "of a column-major B",
        ),
    ],
)
def test_operands_that_do_not_fit_are_refused(hopper, given, options, said):
    with pytest.raises(BadArgument, match=said):
        hopper.run("grouped_gemm", *given, **options)


def test_out_of_another_shape_is_refused(hopper):
    with pytest.raises(BadArgument, match=r"out has shape \(16, 20\)"):
        hopper.run("grouped_gemm", A, B, int32(5, 9, 20), out=np.empty((16, 20), np.float32))


def test_checking_sizes_on_request():
    check(A, B, int32(5, 9, 20))
    check(A, B, int32(0, 5, 9, 20))
    for wrong, said in (
        ((5, 4, 20), r"offsets\[1\] = 4 is outside 5 … 20"),
        ((5, 9, 21), r"offsets\[2\] = 21"),
        ((-1, 9, 20), r"offsets\[0\] = -1"),
        ((5, 20), "2 offsets for 3 groups"),
    ):
        with pytest.raises(BadArgument, match=said):
            check(A, B, int32(*wrong))
    check(A, B[0], int32(0, 5, 8))
    with pytest.raises(BadArgument, match=r"offsets\[1\] = 9 is outside 5 … 8"):
        check(A, B[0], int32(5, 9))
    check(B, A.T[:, :7], int32(5, 5, 7))
    with pytest.raises(BadArgument, match=r"offsets\[2\] = 8 is outside 5 … 7"):
        check(B, A.T[:, :7], int32(5, 5, 8))
    with pytest.raises(BadArgument, match=r"counts\[1\] = 21 is outside 0 … 20"):
        check(operands("masked")[0], B, int32(20, 21, 0))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_list_of_arrays_of_any_sizes(hopper, library):
    rng = np.random.default_rng(4)
    sizes = [(70, 33, 20), (0, 8, 8), (3, 1, 65), (16, 16, 0)]
    pairs = [
        (rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32).T)
        for m, n, k in sizes
    ]
    expected = [a @ b for a, b in pairs]
    if library == "torch":
        torch = pytest.importorskip("torch")
        pairs = [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in pairs]
    packed = pack(pairs, epilogue="relu")
    assert packed.options["layout"] == "rcr"
    hopper.run("grouped_gemm", *packed.inputs, out=packed.out, **packed.options)
    for got, right in zip(packed.outputs, expected, strict=True):
        assert np.allclose(got, right.clip(0), atol=1e-4)


def test_a_list_that_cannot_be_packed_is_refused():
    a, b = A, B[0]
    for pairs, outs, said in (
        ([], None, "one product or more"),
        ([(a, b), (a, b[:4])], None, "product 1: A has shape"),
        ([(a, b), (a.astype(np.float16), b)], None, "must be of one dtype"),
        ([(a, b), (a.T.copy().T, b)], None, "neither all row-major"),
        ([(a, b)], [np.empty((20, 16), np.float32)], "leave outs away"),
    ):
        with pytest.raises(BadArgument, match=said):
            pack(pairs, outs)


def test_a_table_must_fit_the_sizes(hopper):
    packed = pack([(A, B[0]), (A, B[1])])
    wrong = {**packed.options, "sizes": packed.options["sizes"][:1]}
    with pytest.raises(BadArgument, match=r"for 1 sizes it is int64 of shape \(1, 9\)"):
        hopper.run("grouped_gemm", *packed.inputs, out=packed.out, **wrong)
    with pytest.raises(BadArgument, match="needs its out"):
        hopper.run("grouped_gemm", *packed.inputs, **packed.options)
