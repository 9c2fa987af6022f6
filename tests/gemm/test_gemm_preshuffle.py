"""Shuffled weights: the transform and its inverse, kernels against float64, what is refused."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from gemm_cases import config, problem_of
from hypothesis import given, settings
from hypothesis import strategies as st
from operand_cases import shuffled

import selection
import tilewright as tw
from shared_builds import build_once
from tilewright import verify
from tilewright.arch import arch, archs
from tilewright.compile import inspect
from tilewright.dispatch import Dispatcher
from tilewright.dtypes import DTYPES, numpy_dtype
from tilewright.errors import BadArgument, NoKernelFound, UnsupportedProblem
from tilewright.ops.gemm import FAMILY, GemmProblem, shuffle
from tilewright.ops.gemm.operands import operands
from tilewright.ops.gemm.problem import SHUFFLED_LAYOUTS
from tilewright.ops.nouns import View
from tilewright.ops.products import OUTPUTS
from tilewright.registry import Registry
from tilewright.space import KernelSpace


@pytest.fixture(scope="module")
def hopper() -> Dispatcher:
    return Dispatcher(device="h200_sxm")


def numbered(k, n, dtype="fp32"):
    """A matrix of every bit pattern in turn, seen as `dtype`."""
    bits = DTYPES[dtype].bits
    return (np.arange(k * n) % 2**bits).astype(f"u{bits // 8}").reshape(k, n)


# --- the transform ----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(d for d in OUTPUTS if DTYPES[d].packed == 1)),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from("CF"),
)
def test_unshuffle_is_the_exact_inverse(dtype, n_blocks, k_blocks, order):
    k, n = k_blocks * shuffle.rows(dtype), n_blocks * shuffle.COLUMNS
    bits = np.asarray(numbered(k, n, dtype), order=order)
    b = bits.view(numpy_dtype(DTYPES[dtype]))
    made = tw.shuffle(b)
    assert made.shape == (n_blocks, k_blocks, 64, 16 // b.itemsize) and made.dtype == b.dtype
    assert made.flags.c_contiguous and not np.shares_memory(made, b)
    back = tw.unshuffle(made)
    assert back.shape == (k, n) and (back.view(bits.dtype) == bits).all()
    assert back.T.flags.c_contiguous  # column-major: a Linear layer's weight
    assert (tw.shuffle(back).view(bits.dtype) == made.view(bits.dtype)).all()


@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp32"])
def test_elements_are_where_the_matrix_instruction_wants_them(dtype):
    """A CDNA wave's lane l has column l % 16, and 16 bytes along K for each quarter of lanes."""
    v, k, n = shuffle.vector(dtype), 3 * shuffle.rows(dtype), 48
    b = np.arange(k * n).reshape(k, n).astype(f"i{DTYPES[dtype].bytes}")
    made = tw.shuffle(b.view(numpy_dtype(DTYPES[dtype]))).view(b.dtype)
    for row, column in ((0, 0), (1, 0), (v, 5), (k - 1, n - 1), (2 * v + 3, 17)):
        where = (column // 16, row // (4 * v), row // v % 4 * 16 + column % 16, row % v)
        assert made[where] == b[row, column]


def test_strides_of_any_kind_and_torch_tensors():
    torch = pytest.importorskip("torch")
    whole = torch.randn(64, 96).to(torch.bfloat16)
    for b in (whole[:, :48], whole.T[:64], whole[:, ::2], whole.T[32:].T):
        made = tw.shuffle(b)
        assert made.is_contiguous() and made.dtype == torch.bfloat16
        assert torch.equal(tw.unshuffle(made), b)
    fp8 = whole.to(torch.float8_e4m3fn)
    assert torch.equal(tw.unshuffle(tw.shuffle(fp8)).float(), fp8.float())


@pytest.mark.parametrize(
    ("call", "shape", "words"),
    [
        (tw.shuffle, (64, 40), r"n = 40 is not a multiple of 16.*blocks of 16×16; pad it"),
        (tw.shuffle, (40, 64), r"k = 40 is not a multiple of 16"),
        (tw.shuffle, (64,), r"a matrix \[k, n\]"),
        (tw.shuffle, (2, 2, 64, 4), "shuffled already"),
        (tw.unshuffle, (64, 64), "plain matrix"),
        (tw.unshuffle, (2, 2, 64, 8), r"a shuffled fp32 B is \[n/16, k/16, 64, 4\]"),
        (tw.unshuffle, (2, 2, 32, 4), "as tilewright.shuffle makes it"),
    ],
)
def test_arrays_that_cannot_be_transformed(call, shape, words):
    with pytest.raises(BadArgument, match=words):
        call(np.zeros(shape, np.float32))


# --- kernels ----------------------------------------------------------------------------------


@pytest.mark.grid(5)
@pytest.mark.parametrize("case", shuffled("sm_90"), ids=lambda c: c[0].name[5:])
def test_every_kind_of_kernel_is_right(hopper, case):
    kernel, problem = case
    result = verify.verify(hopper, problem, kernel.name)
    assert result.ok, result


@pytest.mark.parametrize(
    "case", [c for c in shuffled("gfx942") if "fnuz" in c[0].dtype_a][::4], ids=lambda c: c[0].name
)
def test_fnuz_types_are_right(case):
    kernel, problem = case
    result = verify.verify(Dispatcher(device="mi300x"), problem, kernel.name)
    assert result.ok, result


@pytest.mark.turns(24)
@pytest.mark.parametrize("target", ["h200_sxm", "mi300x"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int8"])
def test_some_kernel_serves_every_size(target, dtype):
    dispatcher, rows = Dispatcher(device=target), shuffle.rows(dtype)
    for m, n, k in ((1, 16, rows), (3, 16, 9 * rows), (70, 144, 3 * rows)):
        result = verify.verify(dispatcher, GemmProblem(m, n, k, dtype_a=dtype, layout="rsr"))
        assert result.ok, (m, n, k, result)


def test_the_front_door_takes_a_shuffled_b():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((5, 64)).astype(np.float32)
    weight = rng.standard_normal((48, 64)).astype(np.float32)
    bias = rng.standard_normal(48).astype(np.float32)
    c = tw.gemm(a, tw.shuffle(weight.T), bias, epilogue="bias+relu")
    assert np.allclose(c, np.maximum(a @ weight.T + bias, 0), atol=1e-4)


def test_weights_cut_along_either_axis(hopper):
    """Blocks along K lie apart when columns of blocks were cut out; along N nothing changes."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((4, 96), (96, 64)))
    whole = tw.shuffle(b)
    assert np.allclose(hopper.run("gemm", a[:, :48], whole[:, :3]), a[:, :48] @ b[:48], atol=1e-4)
    assert np.allclose(hopper.run("gemm", a, whole[1:3]), a @ b[:, 16:48], atol=1e-4)
    with pytest.raises(BadArgument, match="blocks must be contiguous"):
        hopper.run("gemm", a[:, :48], whole[:, ::2])


def test_weights_that_do_not_repeat_are_split_where_rows_are_few():
    plan = Dispatcher(device="h200_sxm").select(GemmProblem(1, 512, 16384, layout="rsr"))
    assert (plan.config.pipeline, plan.config.scheduler) == ("preshuffle", "split_k")


# --- a shuffled tensor for a plain kernel, and the reverse ------------------------------------


def test_the_wrong_kind_of_b_is_refused_with_what_to_call(hopper):
    a, b = np.zeros((16, 64), np.float32), np.zeros((64, 64), np.float32)
    plain = config(dtype_a="fp32", layout="rrr")
    own = config(dtype_a="fp32", layout="rsr", pipeline="preshuffle")
    with pytest.raises(UnsupportedProblem, match=r"pass tilewright.unshuffle\(b\)"):
        hopper.run_named(plain.name, a, tw.shuffle(b))
    with pytest.raises(UnsupportedProblem, match=r"pass tilewright.shuffle\(b\)"):
        hopper.run_named(own.name, a, b)
    for kernel, passed, call in ((plain, tw.shuffle(b), "unshuffle"), (own, b, "shuffle")):
        only = Dispatcher(Registry("one").register_all([kernel]), device="h200_sxm")
        with pytest.raises(NoKernelFound, match=rf"tilewright.{call}\(b\)"):
            only.run("gemm", a, passed)


@pytest.mark.parametrize(
    ("b", "words"),
    [
        (View((4, 2, 64, 4), (512, 256, 4, 1), "bf16", 0, "cpu"), "a shuffled bf16 B is"),
        (View((4, 2, 32, 8), (512, 256, 8, 1), "bf16", 0, "cpu"), "a shuffled bf16 B is"),
        (View((4, 3, 64, 8), (1536, 512, 8, 1), "bf16", 0, "cpu"), "A is 8×64 but B is 96×64"),
        (View((4, 2, 64, 8), (1024, 512, 1, 64), "bf16", 0, "cpu"), "must be contiguous"),
    ],
)
def test_a_b_that_shuffle_did_not_make(b, words):
    with pytest.raises(BadArgument, match=words):
        problem_of([View((8, 64), (64, 1), "bf16", 0, "cpu"), b], None, {})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 24}, "n = 24 is not a multiple of 16"),
        ({"k": 48}, "k = 48 is not a multiple of 32"),
        ({"k": 96, "dtype_a": "int8"}, "k = 96 is not a multiple of 64"),
        ({"ldb": 1000}, "ldb = 1000"),
        ({"layout": "srr"}, "not one of"),
    ],
)
def test_impossible_problems(fields, words):
    with pytest.raises(BadArgument, match=words):
        GemmProblem(**{"m": 64, "n": 64, "k": 64, "layout": "rsr", **fields})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"pipeline": "basic"}, "layout rsr: preshuffle reads a shuffled B"),
        ({"pipeline": "tma"}, "layout rsr"),
        ({"layout": "rcr"}, "layout rcr"),
        ({"scheduler": "persistent"}, "schedulers tile and split_k"),
        ({"scheduler": "stream_k", "reduction": "tree"}, "schedulers tile and split_k"),
        ({"pre_a": "add"}, "pre_a"),
        ({"store": "split"}, "preshuffle has none"),
        ({"tile_k": 16}, "under a shuffled block, 32×16"),
        ({"tile_n": 8}, "under a shuffled block, 32×16"),
    ],
)
def test_illegal_configs(fields, words):
    legal = {"layout": "rsr", "pipeline": "preshuffle", "num_stages": 2}
    assert FAMILY.judge(config(**legal), arch("sm_90"))
    verdict = FAMILY.judge(config(**{**legal, **fields}), arch("sm_90"))
    assert not verdict and words in verdict.reason


def test_a_column_of_blocks_is_what_divides():
    """Blocks run along K: unpadded kernels need whole tiles there, and not along N."""
    kernel = config(
        layout="rsc", pipeline="preshuffle", pad_m=False, pad_n=False, pad_k=False, tile_m=16
    )
    serves = lambda **sizes: FAMILY.supports(  # noqa: E731
        kernel, GemmProblem(**{"m": 16, "n": 80, "k": 128, "layout": "rsc", **sizes}), arch("sm_90")
    )
    assert serves() and serves(n=16)
    assert serves(k=96).rule == "divisibility" and serves(m=24).rule == "divisibility"


@pytest.mark.parametrize("layout", SHUFFLED_LAYOUTS)
def test_operands_lie_as_the_problem_says_and_say_it_again(layout):
    p = GemmProblem(64, 32, 128, layout=layout, lda=160, ldb=4096, ldc=128)
    found = [View(o.shape, o.strides, o.dtype, 256, "cpu") for o in operands(p)]
    assert found[1].shape == (2, 4, 64, 8) and found[1].strides[0] == 4096
    assert problem_of(found[:2], found[2], {}) == p
    assert p.spans_bytes[1] == (4096 + 16 * 128) * 2
    assert replace(p, ldb=0).min_bytes == GemmProblem(64, 32, 128).min_bytes


def test_shuffled_weights_are_asked_for_by_name():
    named = {"layout": ["rcr", *SHUFFLED_LAYOUTS], "pipeline": ["basic", "preshuffle"]}
    found = KernelSpace("gemm", named).expand("sm_90").configs
    assert {c.layout for c in found if c.pipeline == "preshuffle"} == set(SHUFFLED_LAYOUTS)
    every = KernelSpace("gemm", {"layout": ["*"], "pipeline": ["*"], "tile_m": [64]})
    assert all(c.layout[1] != "s" for c in every.expand("sm_90").configs)
    assert "combination" not in every.expand("sm_80").summary()


# --- what the compiler makes of it ------------------------------------------------------------

DECODE = {"tile_m": 16, "tile_n": 64, "tile_k": 128, "num_warps": 4, "num_stages": 2}


@pytest.mark.turns(64)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("gfx90a", "bf16"), *itertools.product(("gfx942", "gfx950"), ("bf16", "fp8", "int8"))],
)
def test_on_cdna_b_goes_to_registers_without_lds(store, name, dtype):
    """Shared memory has room for A's tile alone, and every load of B is of 16 bytes a lane."""
    kernel = config(name, layout="rsr", pipeline="preshuffle", dtype_a=dtype, **DECODE)
    (result,) = build_once([(kernel, name)], store).results
    assert result.ok, result
    a_tile = kernel.tile_m * kernel.tile_k * DTYPES[kernel.dtype_a].bytes
    assert result.kernel.shared == a_tile
    listing = inspect(result.kernel, store, "amdgcn")
    loads = re.findall(r"buffer_load_dwordx4", listing)
    b_loads = kernel.tile_n * kernel.tile_k * DTYPES[kernel.dtype_a].bytes // (4 * 64 * 16)
    assert len(loads) >= b_loads and "v_mfma" in listing and "ds_read_u" not in listing


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", ["sm_80", "sm_90"])
def test_on_nvidia_small_tiles_read_blocks_with_ldmatrix(store, name):
    kernel = config(name, layout="rsr", pipeline="preshuffle", **{**DECODE, "num_stages": 4})
    (result,) = build_once([(kernel, name)], store).results
    text = inspect(result.kernel, store, "ptx")
    assert "cp.async.cg.shared.global" in text and "ldmatrix" in text and "mma.sync" in text
    assert result.kernel.resources.spill_bytes == 0


@pytest.mark.turns(48)
def test_kernels_compile_for_every_architecture(store):
    requests = []
    for name in selection.architectures(n for n in archs() if arch(n).dot == "matrix"):
        for fields in (
            {"tile_n": 128, "dtype_a": "fp16", "epilogue": "bias+gelu", "layout": "csc"},
            {**DECODE, "alignment": 1, "index_bits": 64, "scheduler": "split_k", "split_k": 4,
             "reduction": "linear"},
        ):  # fmt: skip
            kernel = config(name, **{"layout": "rsr", "pipeline": "preshuffle", **fields})
            assert FAMILY.judge(kernel, arch(name)), kernel
            requests.append((kernel, name))
    report = build_once(requests, store)
    assert not report.failures, "\n".join(map(str, report.failures))
