"""Batches of GEMMs: results are right, which kernels there are, what they compile to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from batch_cases import batched, cases, label, nested, ones, summed, with_epilogues
from gemm_cases import config, problem_of

import selection
import tilewright as tw
from shared_builds import build_once
from simulate import worst_error
from tilewright import verify
from tilewright.arch import arch, device
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.gemm.operands import operands
from tilewright.ops.gemm.support import supports
from tilewright.ops.nouns import MAIN, Descriptor, View

SM90 = arch("sm_90")


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    """With few compute units, so that a persistent workgroup walks from matrix to matrix."""
    return Dispatcher(device=replace(device("h200_sxm"), compute_units=5))


# --- results -------------------------------------------------------------------------------


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", cases("sm_90"), ids=label)
def test_every_kind_of_batch_is_right(hopper, case):
    kernel, given = case
    result = verify.verify(hopper, given, kernel.name)
    assert result.ok, result


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", with_epilogues("sm_90"), ids=label)
def test_epilogues_of_batches_are_right(hopper, case):
    kernel, given = case
    result = verify.verify(hopper, given, kernel.name)
    assert result.ok, result


@pytest.mark.grid(2)
@pytest.mark.parametrize("case", nested("sm_90"), ids=label)
def test_nested_batches_are_right(hopper, case):
    kernel, given = case
    result = verify.verify(hopper, given, kernel.name)
    assert result.ok, result


@pytest.mark.grid(3)
@pytest.mark.parametrize("case", summed("sm_90"), ids=label)
def test_sums_over_a_batch_are_right(hopper, case):
    kernel, given = case
    result = verify.verify(hopper, given, kernel.name)
    assert result.ok, result


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "case", [case for case in summed("sm_90") if "gluon" in case[0].pipeline], ids=label
)
def test_sums_over_a_batch_are_right_in_the_simulation(case):
    kernel, given = case
    few = replace(device("h200_sxm"), compute_units=3)
    assert worst_error(kernel, given, few, seed=1) <= 1


def test_a_batch_is_summed_into_one_matrix(hopper):
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((3, 9, 20), np.float32), rng.standard_normal((3, 20, 11), np.float32)
    wanted = np.einsum("zmk,zkn->mn", a, b)
    assert np.allclose(hopper.run("gemm", a, b, batching="summed"), wanted, atol=1e-4)
    out = np.empty((9, 11), np.float32)
    assert hopper.run("gemm", a, b, out=out, batching="summed") is out
    assert np.allclose(out, wanted, atol=1e-4)
    shared = hopper.run("gemm", a[0], b, batching="summed")
    assert np.allclose(shared, a[0] @ b.sum(0), atol=1e-4)
    assert (hopper.run("gemm", a[:0], b[:0], batching="summed") == 0).all()


def test_a_sum_over_a_batch_counts_as_the_rest():
    p = GemmProblem(10, 20, 30, batch=4, batching="summed", epilogue="add")
    assert p.batch_strides == (300, 600, 0, 0) and p.matrices == (4, 4, 1, 1)
    assert p.flops == 4 * 2 * 10 * 20 * 30
    assert p.min_bytes == 2 * (4 * 10 * 30 + 4 * 30 * 20 + 2 * 10 * 20)
    assert str(p).endswith("sum of 4 aligned to 4")
    views = [View(o.shape, o.strides, o.dtype, 256, "cpu") for o in operands(p)]
    assert [v.shape for v in views] == [(4, 10, 30), (4, 30, 20), (10, 20), (10, 20)]
    assert problem_of(views[:-1], views[-1], FAMILY.options(p)) == p
    assert FAMILY.gradients(p, ["A"]).rule == "gradients_batching"


def test_a_sum_over_a_batch_has_the_steps_of_all_matrices():
    how = {"batching": "summed", "scheduler": "split_k", "reduction": "linear"}
    p = GemmProblem(128, 128, 65, batch=3, batching="summed", alignment=2)
    of_six, of_seven = (config(split_k=parts, alignment=1, **how) for parts in (6, 7))
    assert supports(of_six, p, SM90)
    assert "k = 65 is 6 steps of 64, too few" in supports(of_seven, p, SM90).reason
    far = replace(p, batch=2**25)
    assert supports(replace(of_six, index_bits=64), far, SM90).rule == "extent"
    few, more = (
        FAMILY.estimate(of_six, replace(p, batch=batch), device("h200_sxm")).total_us
        for batch in (32, 256)
    )
    assert more > 4 * few


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((4, 5), (5, 6)), "sums the products of a batch"),
        (((2, 4, 5), (3, 5, 6)), "A 2, B 3"),
        (((2, 4, 5), (2, 5, 6), (2, 4, 6)), "out 2"),
    ],
)
def test_sums_over_no_batch_are_refused(shapes, words):
    *inputs, out = (ones(*shape) for shape in (*shapes, *(((4, 6),) * (len(shapes) == 2))))
    with pytest.raises(BadArgument, match=words):
        tw.gemm(*inputs, out=out, batching="summed")


def test_every_matrix_gets_its_own(hopper):
    """Neighbours must not be mixed up, which random data of one distribution would show only by
    values: here matrix z of A is z times the identity."""
    a = np.stack([np.eye(48, dtype=np.float32) * z for z in range(7)])
    b = np.random.default_rng(0).standard_normal((7, 48, 40), np.float32)
    for kernel in (None, config(dtype_a="fp32", layout="rrr", pipeline="tma", batching="strided")):
        run = hopper.run if kernel is None else hopper.run_named
        out = run("gemm" if kernel is None else kernel.name, a, b)
        assert np.allclose(out, np.arange(7, dtype=np.float32)[:, None, None] * b)


def test_nothing_between_the_matrices_is_written(hopper):
    whole = np.full((3, 40, 90), 7.0, np.float32)
    a, b = (np.ones(shape, np.float32) for shape in ((3, 33, 20), (20, 45)))
    hopper.run("gemm", a, b, out=whole[:, 4:37, 8:53])
    inside = np.zeros(whole.shape, bool)
    inside[:, 4:37, 8:53] = True
    assert (whole[inside] == 20).all() and (whole[~inside] == 7).all()


def test_a_kernel_in_gluon_is_stood_in_for(hopper):
    fields = {"scheduler": "persistent", "batching": "strided"}
    kernel = config(pipeline="gluon_ws", **fields)
    assert FAMILY.interpreted(kernel) == config(pipeline="tma", **fields)
    result = verify.verify(hopper, GemmProblem(80, 96, 144, batch=3), kernel.name)
    assert result.ok, result


# --- nothing to do -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes",
    [((0, 4, 5), (0, 5, 6)), ((0, 4, 5), (5, 6)), ((2, 0, 5), (2, 5, 6)), ((4, 5), (5, 0))],
)
def test_outputs_without_elements_are_returned(hopper, shapes):
    a, b = (np.ones(shape, np.float32) for shape in shapes)
    expected = a @ b
    assert hopper.run("gemm", a, b).shape == expected.shape
    out = np.empty_like(expected)
    assert hopper.run("gemm", a, b, out=out) is out


def test_a_sum_over_nothing_is_what_the_epilogue_makes_of_zeros(hopper):
    a, b = np.ones((2, 4, 0), np.float32), np.ones((2, 0, 6), np.float32)
    assert (hopper.run("gemm", a, b) == 0).all()
    bias = np.arange(6, dtype=np.float32)
    out = hopper.run("gemm", a[0], b[0], bias, epilogue="bias")
    assert np.array_equal(out, np.broadcast_to(bias, (4, 6)))


@pytest.mark.parametrize(
    "given",
    [
        GemmProblem(64, 64, 64, batch=0),
        GemmProblem(0, 64, 64),
        GemmProblem(64, 64, 0, batch=2),
        GemmProblem(64, 64, 64, batch=0, batching="strided", stride_b=0),
        GemmProblem(64, 64, 64, batch=0, batching="pointers"),
    ],
    ids=str,
)
def test_problems_without_work_are_planned_and_verified_like_others(hopper, given):
    assert hopper.select(given).config
    assert hopper.explain(given).chosen
    assert verify.verify(hopper, given).ok
    assert given.flops == 0


def test_only_basic_starts_from_nothing():
    none = GemmProblem(64, 64, 0)
    assert supports(config(alignment=1), none, SM90)
    kernel = config(pipeline="tma")
    assert supports(kernel, replace(none, lda=8, ldb=8, alignment=16), SM90).rule == "extent"
    sharing = config(scheduler="split_k", split_k=2, reduction="linear", alignment=1)
    assert supports(sharing, GemmProblem(0, 64, 256), SM90).reason == "there is no tile to share"


# --- kernels -------------------------------------------------------------------------------


def test_a_batch_beyond_two_gibibytes_needs_64_bit_addresses():
    """Also where each matrix is small: the AMD compiler adds the batch's offset in 32 bits."""
    kernel, wide = (config(batching="strided", index_bits=bits) for bits in (32, 64))
    size = {"m": 1024, "n": 1024, "k": 1024}
    assert supports(kernel, GemmProblem(**size, batch=1023), SM90)
    large = GemmProblem(**size, batch=1024)
    assert supports(kernel, large, SM90).rule == "addressing"
    assert supports(wide, large, SM90)
    assert supports(config(pipeline="tma", batching="strided"), large, SM90)
    by_pointers = GemmProblem(**size, batch=1024, batching="pointers")
    assert supports(config(batching="pointers"), by_pointers, SM90)


def test_more_tiles_than_a_kernel_counts_are_refused():
    many = GemmProblem(1, 65, 1, batch=2**30)
    assert supports(config(alignment=1, batching="strided", index_bits=64), many, SM90).rule == (
        "extent"
    )


def test_a_shared_matrix_is_described_as_a_batch_of_one():
    """A tensor map's strides cannot be 0."""
    kernel = config(pipeline="tma", batching="strided")
    given = GemmProblem(64, 128, 256, batch=5, stride_b=0)
    (step,) = FAMILY.launch(kernel, given, device("h200_sxm")).steps
    a, b, c = (x for x in step.arguments if isinstance(x, Descriptor))
    assert (a.shape, a.strides, a.block) == ((5, 64, 256), (64 * 256, 256, 1), (1, 64, 64))
    assert (b.shape, b.strides) == ((1, 128, 256), (128 * 256, 256, 1))
    assert c.shape == (5, 64, 128) and step.grid == (5 * 2, 1, 1)


def test_more_matrices_take_longer_by_the_estimate():
    kernel, h200 = config(batching="strided"), device("h200_sxm")
    one, many = (GemmProblem(512, 512, 512, batch=b, batching="strided") for b in (1, 64))
    few, more = (FAMILY.estimate(kernel, p, h200).total_us for p in (one, many))
    assert more > 4 * few


ARCHS = selection.architectures(("gfx90a", "gfx942", "gfx950", "sm_80", "sm_90"))


def compiled(name: str) -> list:
    made = [
        config(name, batching=b, epilogue="bias+add", layout=layout, alignment=alignment)
        for b, layout, alignment in (("strided", "rcr", 16), ("pointers", "crr", 16))
    ]
    made.append(config(name, batching="strided", index_bits=64, scheduler="persistent"))
    made.append(config(name, batching="nested", epilogue="bias+add"))
    made += [
        config(
            name,
            batching="strided",
            pipeline=p,
            scheduler="persistent",
            layout=layout,
            num_warps=8 if p == "gluon_pingpong" else 4,
        )
        for p in batched(name)[1:]
        for layout in ("rcr", "crc")
    ]
    return made


@pytest.fixture(scope="module")
def report(store):
    return build_once([(k, name) for name in ARCHS for k in compiled(name)], store)


@pytest.mark.turns(64, of="compiled batches")
def test_all_compile_and_fit_without_spilling(report):
    assert not report.failures, "\n".join(map(str, report.failures))
    for result in report.results:
        assert result.kernel.resources.spill_bytes == 0, result.config.name


@pytest.mark.turns(48, of="compiled batches")
def test_loads_stay_as_wide_as_without_a_batch(report, store):
    """A matrix's offset, or an address read from memory, must not cost the vector loads."""
    for result in report.results:
        if result.arch.vendor == "nvidia":
            text = inspect(result.kernel, store, "ptx")
            if result.config.pipeline == "basic":
                assert "cp.async.cg.shared.global" in text, result.config.name  # 16 bytes a thread
            else:
                assert "cp.async.bulk.tensor.3d.shared::cluster.global" in text
                assert "cp.async.bulk.tensor.3d.global.shared::cta" in text
                assert "cp.async.bulk.tensor.2d" not in text
        else:
            text = inspect(result.kernel, store, "amdgcn")
            buffers = result.config.batching != "pointers" and result.config.index_bits == 32
            word = "buffer_load_dwordx4" if buffers else "global_load_dwordx4"
            assert word in text, result.config.name


@pytest.mark.turns(48, of="compiled batches")
@pytest.mark.parametrize("name", selection.architectures(("gfx942", "gfx1201", "sm_90")))
def test_sums_over_a_batch_compile_and_load_as_wide(name, store):
    """Which matrix a step is of must cost neither registers in memory nor the vector loads."""
    made = [kernel for kernel, _ in summed(name)[:: 1 if arch(name).vendor == "amd" else 3]]
    report = build_once([(kernel, name) for kernel in made], store)
    assert not report.failures, "\n".join(map(str, report.failures))
    for result in report.results:
        assert result.kernel.resources.spill_bytes == 0, result.config.name
        if result.part != MAIN:
            continue
        if arch(name).vendor == "amd":
            word = "buffer_load_dwordx4" if arch(name).cdna else "buffer_load_b128"
            assert word in inspect(result.kernel, store, "amdgcn"), result
        else:
            text = inspect(result.kernel, store, "ptx")
            basic = result.config.pipeline == "basic"
            wide = "cp.async.cg.shared.global" if basic else "cp.async.bulk.tensor.3d.shared"
            assert wide in text, result.config.name
