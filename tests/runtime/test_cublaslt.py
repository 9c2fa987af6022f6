"""The vendor's library through its own functions, without a GPU: what it is told, what it computes
in memory of the host, and what becomes of its refusals."""

from __future__ import annotations

import ctypes
import gc
import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import stand_in_gpu  # noqa: E402
from fake_cublaslt import Fake  # noqa: E402
from library_cases import PLAIN, SPLIT, vendors  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import loader  # noqa: E402
from tilewright.arch import device  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import LaunchFailed, LibraryRefused, NoDriver  # noqa: E402
from tilewright.ops.gemm import FAMILY, GemmProblem  # noqa: E402
from tilewright.ops.library import CUBLASLT, library_name  # noqa: E402
from tilewright.runtime import blaslt, cublaslt, libraries, prepared  # noqa: E402
from tilewright.runtime import bound as bound_module  # noqa: E402

H200 = device("h200_sxm")
BF16 = GemmProblem(512, 2048, 4096)


@pytest.fixture
def fake(tmp_path):
    return Fake(tmp_path)


def asked(problem, algorithm=PLAIN, workspace=0):
    (step,) = FAMILY.launch(vendors(problem, algorithm, workspace), problem, H200).steps
    return step.theirs


# --- questions --------------------------------------------------------------------------------


def test_it_is_asked_with_the_problems_alignment_room_and_reductions(fake, library, driver):
    fake.offer(PLAIN, SPLIT, workspace=123)
    p = replace(BF16, alignment=8, epilogue="bias")
    query = FAMILY.library_query(p, tw.arch.arch("sm_90"), "cublaslt13")
    found = library.offered(driver, 0, query, 5)
    assert [one.algorithm for one in found] == [PLAIN, SPLIT]
    assert {one.workspace for one in found} == {123}
    assert fake.noted("preference") == {1: 32 << 20, 3: 0 | 2, 5: 8, 6: 8, 7: 8, 8: 8}
    # fp32 sums and scale; transposed, not transposed; bias; the address of a bias at 2 bytes.
    question = fake.noted("question")
    assert question[8] % 4 == 2
    assert {at: question[at] for at in (0, 1, 3, 4, 7)} == {0: 68, 1: 0, 3: 1, 4: 0, 7: 4}
    assert fake.count("asked") == 5 and fake.count("living") == 0 and set(driver.entered) == {0}


def test_sums_of_fp32_may_meet_in_every_way(fake, library, driver):
    fake.offer(PLAIN)
    query = FAMILY.library_query(
        GemmProblem(64, 64, 64, dtype_c="fp32"), tw.arch.arch("sm_90"), "cublaslt13"
    )
    library.offered(driver, 0, query, 1)
    assert fake.noted("preference")[3] == 1 | 2 | 4


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({"dtype_a": "fp32", "precision": "tf32"}, 0, 77),
        ({"dtype_a": "fp32"}, 0, 68),
        ({"dtype_a": "fp32"}, 1, 0),
        ({"dtype_a": "int8"}, 0, 72),
        ({"dtype_a": "int8"}, 1, 10),
        ({"epilogue": "bias"}, 7, 4),
        ({"dtype_a": "e4m3fn", "epilogue": "scale"}, 7, 1),
        ({"dtype_a": "e4m3fn"}, 25, 1),
        ({"dtype_a": "e4m3fn", "epilogue": "row_scale+col_scale"}, 7, 1),
        ({"dtype_a": "e4m3fn", "epilogue": "row_scale+col_scale"}, 31, 3),
        ({"dtype_a": "e4m3fn", "epilogue": "row_scale+col_scale"}, 32, 3),
    ],
)
def test_words_become_the_librarys_numbers(fake, library, driver, fields, attribute, value):
    fake.offer(PLAIN)
    problem = GemmProblem(64, 64, 64, **fields)
    query = FAMILY.library_query(problem, tw.arch.arch("sm_90"), "cublaslt13")
    library.offered(driver, 0, query, 1)
    assert fake.noted("question")[attribute] == value


def test_sums_of_integers_are_exact_however_they_meet(fake, library, driver):
    fake.offer(PLAIN)
    problem = GemmProblem(64, 64, 64, "int8")
    query = FAMILY.library_query(problem, tw.arch.arch("sm_90"), "cublaslt13")
    library.offered(driver, 0, query, 1)
    assert fake.noted("preference")[3] == 1 | 2 | 4
    assert 25 not in fake.noted("question")  # fast accumulation is fp8's


@pytest.mark.parametrize(("dtype", "one"), [("int8", 1), ("bf16", 0x3F800000)])
def test_the_factor_of_the_sums_is_1_in_their_dtype(library, driver, dtype, one):
    ready = library.prepared(driver, 0, asked(GemmProblem(64, 64, 64, dtype)))
    context = blaslt.Context.from_address(ready.address)
    assert (context.one, context.zero) == (one, 0)


def test_an_offer_that_the_library_marks_as_wrong_is_left_out(fake, library, driver):
    fake.offer(replace(PLAIN, tile=404), SPLIT)
    found = library.offered(driver, 0, replace(asked(BF16), algorithm=None), 8)
    assert [one.algorithm for one in found] == [SPLIT]


def test_no_offer_is_a_refusal_in_the_librarys_words(library, driver, fake):
    with pytest.raises(LibraryRefused, match=r"2048×512×4096 bf16→bf16: NOT_SUPPORTED \(15\)"):
        library.offered(driver, 0, asked(BF16), 8)
    assert fake.count("living") == 0


# --- making ready -------------------------------------------------------------------------------


def test_an_algorithm_is_made_of_its_attributes_again(fake, library, driver):
    everything = replace(SPLIT, custom=2**32 - 1, inner=65535, cluster=7, stages=9)
    ready = library.prepared(driver, 0, asked(BF16, everything, 1))
    context = blaslt.Context.from_address(ready.address)
    chosen = type(fake.call.algorithm).from_buffer_copy(context.algorithm)
    assert chosen.algorithm == everything
    assert [*chosen.types] == [68, 0, 14, 14, 14, 14] and context.workspace == 1 << 20


def test_what_it_describes_lives_as_long_as_it_does(fake, library, driver):
    ready = library.prepared(driver, 0, asked(BF16))
    assert fake.count("living") == 4
    del ready
    gc.collect()
    assert fake.count("living") == 0


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (replace(PLAIN, number=404), "NOT_SUPPORTED"),
        (replace(PLAIN, tile=404), "NOT_SUPPORTED"),
    ],
)
def test_a_refused_algorithm_says_which_and_leaves_nothing(fake, library, driver, algorithm, said):
    with pytest.raises(LibraryRefused, match=f"number={algorithm.number}.*{said}"):
        library.prepared(driver, 0, asked(BF16, algorithm))
    assert fake.count("living") == 0


def test_an_algorithm_that_needs_more_room_than_its_name_says_is_refused(fake, library, driver):
    fake.set("need", (1 << 20) + 1)
    with pytest.raises(LibraryRefused, match="1048577 bytes of workspace"):
        library.prepared(driver, 0, asked(BF16, SPLIT, 1))
    library.prepared(driver, 0, asked(BF16, SPLIT, 2))


def test_a_library_of_another_major_version_is_refused(fake):
    fake.set("version", 120903)
    assert fake.opened("cublaslt12").version == 120903
    with pytest.raises(LibraryRefused, match="is version 120903, not 13"):
        fake.opened("cublaslt13")


def test_a_gpu_that_does_not_open_is_a_refusal(fake, library, driver):
    fake.set("creating", 1)
    with pytest.raises(LibraryRefused, match="refused to open GPU 0"):
        library.prepared(driver, 0, asked(BF16))


def test_a_missing_library_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(libraries.CublasLt, "files", lambda version: (f"no-{version}.so",))
    with pytest.raises(LibraryRefused, match="install nvidia-cublas 13"):
        libraries.opened.__wrapped__("cublaslt13")
    with pytest.raises(LibraryRefused, match="knows cublaslt12, cublaslt13, cudnn9, hipblaslt1"):
        libraries.opened.__wrapped__("cublaslt11")


def test_nvidias_packages_are_looked_into(monkeypatch, tmp_path, fake):
    folder = tmp_path / "site-packages" / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "libfake.so").rename(folder / "libtest.so.13")
    monkeypatch.setattr(libraries.CublasLt, "files", lambda version: ("libtest.so.13",))
    monkeypatch.setattr(prepared.sys, "path", [str(tmp_path / "site-packages"), str(tmp_path)])
    assert libraries.opened.__wrapped__("cublaslt13").version == 130001


def test_the_newest_known_library_is_taken(monkeypatch):
    here = {"cublaslt12"}

    def opened(name):
        if name not in here:
            raise LibraryRefused(name)
        return name

    monkeypatch.setattr(libraries, "opened", opened)
    assert libraries.present("cublaslt") == "cublaslt12"
    here.add("cublaslt13")
    assert libraries.present("cublaslt") == "cublaslt13"
    here.clear()
    with pytest.raises(LibraryRefused):
        libraries.present("cublaslt")


# --- calls -------------------------------------------------------------------------------------


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def laid_out(matrix, letter, pad):
    """The same values by rows or by columns, with room between them."""
    rows, columns = matrix.shape[-2:]
    many = matrix.shape[:-2]
    if letter == "r":
        made = torch.empty(*many, rows, columns + pad)[..., :columns]
    else:
        made = torch.empty(*many, columns, rows + pad)[..., :rows].mT
    return made.copy_(matrix)


@pytest.mark.grid(3)
@pytest.mark.parametrize("layout", ["rcr", "rrr", "ccr", "crr", "rcc", "rrc", "ccc", "crc"])
@pytest.mark.parametrize("pad", [0, 8])
def test_products_are_right_in_every_layout(gpu, fake, layout, pad):
    a, b = laid_out(random(12, 20), layout[0], pad), laid_out(random(20, 28), layout[1], pad)
    out = laid_out(torch.zeros(12, 28), layout[2], pad)
    (ld_a, ld_b, ld_c) = (max(x.stride()) for x in (a, b, out))
    p = GemmProblem(12, 28, 20, "fp32", layout=layout, lda=ld_a, ldb=ld_b, ldc=ld_c)
    name = vendors(p, alignment=4).name
    for _ in range(3):  # the first, and cached ones
        out.zero_()
        gpu.dispatcher.run_named(name, a, b, out=out)
        np.testing.assert_allclose(out.numpy(), (a.double() @ b.double()).numpy(), rtol=1e-5)
    assert fake.count("calls") == 3
    assert (fake.call.alpha, fake.call.beta) == (1.0, 0.0)
    assert fake.call.stream == stand_in_gpu.CURRENT_STREAM
    assert not gpu.driver.launches


@pytest.mark.parametrize("shared", [False, True])
def test_products_of_a_batch_are_right(gpu, fake, shared):
    a, b = random(3, 8, 12), random(12, 16) if shared else random(3, 12, 16)
    p = GemmProblem(8, 16, 12, "fp32", layout="rrr", batch=3, stride_b=0 if shared else -1)
    out = torch.zeros(3, 8, 16)
    gpu.dispatcher.run_named(vendors(p, alignment=4).name, a, b, out=out, batching="strided")
    np.testing.assert_allclose(out.numpy(), (a.double() @ b.double()).numpy(), rtol=1e-5)
    assert fake.call.a.said()[5] == 3 and fake.call.a.said()[6] == (0 if shared else 192)


def test_a_bias_is_right_and_each_call_has_its_own_bias(gpu, fake):
    a, b = random(8, 12), random(12, 16)
    p = GemmProblem(8, 16, 12, "fp32", layout="rrr", epilogue="bias")
    name, out = vendors(p, SPLIT, 1, alignment=4).name, torch.zeros(8, 16)
    for seed in range(3):
        bias = torch.randn(16, generator=torch.Generator().manual_seed(seed))
        gpu.dispatcher.run_named(name, a, b, bias, out=out, epilogue="bias")
        wanted = a.double() @ b.double() + bias
        np.testing.assert_allclose(out.numpy(), wanted.numpy(), rtol=1e-4, atol=1e-6)
        assert fake.call.desc.said()[8] == bias.data_ptr()


def test_a_scale_is_handed_over_by_its_address(gpu, fake):
    a, b = (torch.zeros(n, 32, dtype=torch.float8_e4m3fn) for n in (16, 48))
    p = GemmProblem(16, 48, 32, "e4m3fn", epilogue="scale")
    scale, out = torch.ones(1), torch.zeros(16, 48, dtype=torch.bfloat16)
    gpu.dispatcher.run_named(vendors(p).name, a, b.T, scale, out=out, epilogue="scale")
    assert fake.call.desc.said()[17] == scale.data_ptr()
    # Types: 8 bits, 8 bits, bf16. The library's first matrix is B.
    assert [m.said()[0] for m in (fake.call.a, fake.call.b, fake.call.d)] == [28, 28, 14]
    assert (fake.call.first, fake.call.second, fake.call.out) == (
        b.data_ptr(), a.data_ptr(), out.data_ptr(),
    )  # fmt: skip


BLOCKS = GemmProblem(
    16, 48, 256, "e4m3fn", dtype_c="bf16", scale_a="1x128", scale_b="128x128",
    strides_sa=(1, 16), strides_sb=(1, 4),
)  # fmt: skip


def test_blocks_of_scales_are_said_in_the_librarys_numbers(fake, library, driver):
    fake.offer(PLAIN)
    query = FAMILY.library_query(BLOCKS, tw.arch.arch("sm_90"), "cublaslt13")
    library.offered(driver, 0, query, 1)
    question = fake.noted("question")
    # B, the library's first matrix, has a scale for 128×128, A one for 128 of K. Sums are fp32.
    assert (question[31], question[32], 25 in question) == (5, 4, False)
    assert {17, 18} <= set(question)


def test_blocks_of_scales_are_handed_over_by_their_addresses(gpu, fake):
    a, b = (torch.zeros(n, 256, dtype=torch.float8_e4m3fn) for n in (16, 48))
    of_a, of_b = torch.ones(2, 16).T, torch.ones(1, 4).T[:2]
    assert (of_a.stride(), of_b.stride()) == ((1, 16), (1, 4))
    out = torch.zeros(16, 48, dtype=torch.bfloat16)
    words = {"scale_a": "1x128", "scale_b": "128x128"}
    gpu.dispatcher.run_named(vendors(BLOCKS).name, a, b.T, of_a, of_b, out=out, **words)
    told = fake.call.desc.said()
    assert (told[17], told[18]) == (of_b.data_ptr(), of_a.data_ptr())
    assert (fake.call.first, fake.call.second) == (b.data_ptr(), a.data_ptr())


@pytest.mark.parametrize("workspace", [0, 1])
def test_scales_of_rows_and_columns_are_handed_over_by_their_addresses(gpu, fake, workspace):
    a, b = (torch.zeros(n, 32, dtype=torch.float8_e4m3fn) for n in (16, 48))
    p = GemmProblem(16, 48, 32, "e4m3fn", epilogue="row_scale+col_scale")
    name, out = vendors(p, SPLIT, workspace).name, torch.zeros(16, 48, dtype=torch.bfloat16)
    for _ in range(2):
        rows, columns = torch.ones(16), torch.ones(48)
        gpu.dispatcher.run_named(name, a, b.T, rows, columns, out=out, epilogue=p.epilogue)
        told = fake.call.desc.said()
        # The library's first matrix is B, whose rows are C's columns.
        assert (told[17], told[18]) == (columns.data_ptr(), rows.data_ptr())
        assert (told[31], told[32], 8 in told) == (3, 3, False)
        assert (fake.call.first, fake.call.second) == (b.data_ptr(), a.data_ptr())


def test_a_workspace_is_the_dispatchers_scratch_memory(gpu, fake):
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    p = GemmProblem(8, 16, 12, "fp32", layout="rrr")
    gpu.dispatcher.run_named(vendors(p, SPLIT, 2, alignment=4).name, a, b, out=out)
    assert fake.call.bytes == 2 << 20 and fake.call.workspace
    assert gpu.dispatcher.workspaces.bytes() == 2 << 20
    gpu.dispatcher.run_named(vendors(p, alignment=4).name, a, b, out=out)
    assert (fake.call.bytes, fake.call.workspace) == (0, 0)


def test_a_status_of_a_call_is_the_librarys(gpu, fake):
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    name = vendors(GemmProblem(8, 16, 12, "fp32", layout="rrr"), alignment=4).name
    fake.set("status", 15)
    with pytest.raises(LaunchFailed, match=r"cublaslt13 for 16×8×12 fp32→fp32: NOT_SUPPORTED"):
        gpu.dispatcher.run_named(name, a, b, out=out)
    fake.set("status", 0)
    gpu.dispatcher.run_named(name, a, b, out=out)


def test_threads_do_not_mix_their_biases(gpu, fake):
    a, b = random(4, 4), random(4, 4)
    p = GemmProblem(4, 4, 4, "fp32", layout="rrr", epilogue="bias")
    name, wrong = vendors(p, alignment=4).name, []

    def work(value):
        bias, out = torch.full((4,), float(value)), torch.zeros(4, 4)
        wanted = a @ b + bias
        for _ in range(200):
            gpu.dispatcher.run_named(name, a, b, bias, out=out, epilogue="bias")
            if not torch.allclose(out, wanted, atol=1e-4):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not wrong


@pytest.mark.turns(24)
def test_a_launch_outlives_its_dispatcher(gpu, fake):
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    name = vendors(GemmProblem(8, 16, 12, "fp32", layout="rrr"), alignment=4).name
    gpu.dispatcher.run_named(name, a, b, out=out)
    ((_, native),) = gpu.dispatcher._launches.known.items()
    gpu.dispatcher.forget_launches()
    gc.collect()
    assert fake.count("living") == 4
    addresses = (a.data_ptr(), b.data_ptr(), out.data_ptr())
    assert bound_module.launcher().launch(native, 0, addresses, (0, 0), (), True) == 0
    del native
    gc.collect()
    assert fake.count("living") == 0


# --- choosing ----------------------------------------------------------------------------------


def test_a_library_that_is_missing_here_is_an_explained_refusal(gpu, monkeypatch):
    def missing(name):
        raise LibraryRefused(f"no {name} here")

    loader._lacking.cache_clear()
    monkeypatch.setattr(loader, "opened_library", missing)
    config = vendors(BF16)
    registry = tw.Registry("r").register_all([config])
    found = Dispatcher(registry, H200).explain(BF16)
    assert [(f.fate, f.by, f.reason) for f in found.fates] == [
        ("refused", "library", "no cublaslt13 here")
    ]
    # Plans for another machine's GPU do not ask what is here.
    loader._lacking.cache_clear()
    monkeypatch.setattr(loader, "live_device", lambda index: device("a100_sxm_80gb"))
    assert Dispatcher(registry, H200).explain(BF16).chosen == config.name

    def none(index):
        raise NoDriver("no GPU")

    loader._lacking.cache_clear()
    monkeypatch.setattr(loader, "live_device", none)
    assert Dispatcher(registry, H200).explain(BF16).chosen == config.name


def test_a_refused_algorithm_is_passed_over_for_that_problem_alone(gpu, fake, caplog):
    p = GemmProblem(8, 16, 12, "fp32", layout="rrr")
    first, second = vendors(p, alignment=4), vendors(p, SPLIT, 1, alignment=4)
    registry = tw.Registry("r").register_all([first], priority=1).register_all([second])
    dispatcher = Dispatcher(registry, H200)
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    fake.set("need", 1)  # over the room of the first, within that of the second
    dispatcher.run("gemm", a, b, out=out)
    assert fake.call.algorithm.algorithm == SPLIT and "bytes of workspace" in caplog.text
    stated = replace(p, alignment=16)
    fates = {f.name: f for f in dispatcher.explain(stated).fates}
    assert fates[first.name].fate == "refused" and fates[first.name].by == "library"
    fake.set("need", 0)
    dispatcher.run("gemm", random(16, 12), b, out=torch.zeros(16, 16))
    assert fake.call.algorithm.algorithm == PLAIN


def test_names_of_libraries_are_those_that_are_known():
    assert libraries.names("cublaslt") == ["cublaslt13", "cublaslt12"]
    assert library_name(CUBLASLT, 12) == "cublaslt12"
    assert libraries.CublasLt.files(12) == ("libcublasLt.so.12",)
    assert ctypes.sizeof(cublaslt.Result) == 64 + 8 + 4 + 4 + 16


def test_python_and_c_agree_on_what_both_say():
    header = (Path(blaslt.__file__).with_name("matmul.h")).read_text()
    for word, here in (
        (r"#define STREAMS (\d+)", blaslt.STREAMS),
        (r"#define LIBRARY_STATUS \(1 << (\d+)\)", prepared.STATUS.bit_length() - 1),
        (r"int attributes\[(\d+)\]", blaslt.BESIDE),
        (r"uint64_t algorithm\[(\d+)\]", blaslt.ALGORITHM_BYTES // 8),
    ):
        assert re.findall(word, header) == [str(here)]
