"""AMD's library through its own functions, without a GPU: what it is told, how an algorithm is
fixed and made again, what it computes in memory of the host, and what becomes of its refusals."""

from __future__ import annotations

import ctypes
import gc
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from fake_blaslt import Object  # noqa: E402
from fake_cublaslt import Fake  # noqa: E402
from fake_hipblaslt import FakeHip, solution  # noqa: E402
from library_cases import amds  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.arch import arch, device  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import LaunchFailed, LibraryRefused  # noqa: E402
from tilewright.ops.gemm import FAMILY, GemmProblem  # noqa: E402
from tilewright.runtime import blaslt, hipblaslt, libraries, prepared  # noqa: E402

GPU = "mi300x"
MI300X = device(GPU)
BF16 = GemmProblem(512, 2048, 4096)
ARCH = "gfx942"


@pytest.fixture
def fake(tmp_path):
    return FakeHip(tmp_path)


def asked(problem, algorithm, workspace=0):
    (step,) = FAMILY.launch(amds(problem, algorithm, workspace), problem, MI300X).steps
    return step.theirs


def query(problem, arch_name=ARCH):
    return FAMILY.library_query(problem, arch(arch_name), "hipblaslt1")


# --- questions --------------------------------------------------------------------------------


def test_it_is_asked_with_its_own_numbers(fake, library, driver):
    fake.offer(66771, 5, workspace=123)
    found = library.offered(driver, 0, query(replace(BF16, epilogue="bias")), 6)
    assert [one.algorithm for one in found] == [solution(66771), solution(5)]
    assert {one.workspace for one in found} == {123}
    assert fake.noted("preference") == {1: 32 << 20}
    # Transposed (112), not transposed (111); a bias, its dtype; its address at 2 bytes.
    question = fake.noted("question")
    assert question.pop(3) % 4 == 2
    assert {at: question[at] for at in (0, 1, 2, 4)} == {0: 112, 1: 111, 2: 4, 4: 14}
    assert fake.count("asked") == 6 and fake.count("living") == 0


@pytest.mark.grid(3)
@pytest.mark.parametrize(
    ("fields", "on", "compute", "types", "beside"),
    [
        ({"dtype_a": "fp32"}, ARCH, 2, (0, 0), ()),
        ({"dtype_a": "fp32", "precision": "tf32"}, ARCH, 6, (0, 0), ()),
        ({"dtype_a": "fp16", "dtype_c": "fp32"}, ARCH, 2, (2, 0), ()),
        ({"dtype_a": "e4m3fnuz", "dtype_c": "bf16"}, ARCH, 2, (1000, 14), ()),
        ({"dtype_a": "e4m3fn", "dtype_c": "fp16"}, "gfx950", 2, (28, 2), ()),
        ({"dtype_a": "e4m3fn", "epilogue": "scale"}, "gfx1201", 2, (28, 14), (5,)),
    ],
)
def test_words_become_the_librarys_numbers(
    fake, library, driver, fields, on, compute, types, beside
):
    fake.offer(1)
    problem = GemmProblem(64, 64, 64, **fields)
    library.offered(driver, 0, query(problem, on), 1)
    question = fake.noted("question")
    assert (question[38], question[39], question[2]) == (compute, 0, 1)  # 38, 39: as it was made
    assert set(question) == {38, 39, 0, 1, 2, *beside}
    ready = library.prepared(driver, 0, asked(problem, solution(1)))
    context = blaslt.Context.from_address(ready.address)
    told = [Object.from_address(at).said()[2] for at in (context.first, context.result)]
    assert tuple(told) == types and [*context.attributes] == [*beside, -1, -1][:2]


def test_an_offer_that_the_library_marks_as_wrong_is_left_out(fake, library, driver):
    fake.offer(404, 7)
    found = library.offered(driver, 0, query(BF16), 8)
    assert [one.algorithm for one in found] == [solution(7)]


def test_none_offered_is_a_refusal_although_the_library_reports_success(fake, library, driver):
    with pytest.raises(LibraryRefused, match="hipblaslt1 has no algorithm for 2048×512×4096 bf16"):
        library.offered(driver, 0, query(BF16), 8)
    assert fake.count("living") == 0


# --- making ready -------------------------------------------------------------------------------


@pytest.mark.turns(32)
@pytest.mark.parametrize("index", [5, 66771])  # of a short name, and of a long one
def test_an_algorithm_is_made_of_its_number_again(fake, library, driver, index):
    ready = library.prepared(driver, 0, asked(BF16, solution(index), 4))
    context = blaslt.Context.from_address(ready.address)
    made = hipblaslt.Result.from_buffer_copy(bytes(context.algorithm)).algorithm
    assert (made.index, made.most_workspace, bytes(made.rest)) == (index, 4 << 20, bytes(12))
    assert context.workspace == 4 << 20
    assert fake.count("living") == 4
    del ready, context
    gc.collect()
    assert fake.count("living") == 0


def test_another_build_has_another_algorithm_under_the_number(fake, library, driver):
    library.prepared(driver, 0, asked(BF16, solution(66771)))
    fake.set("build", 1)
    with pytest.raises(LibraryRefused, match=r"another algorithm 66771 here .* tune anew"):
        library.prepared(driver, 0, asked(BF16, solution(66771)))
    library.prepared(driver, 0, asked(BF16, solution(66771, build=1)))


@pytest.mark.parametrize(
    ("index", "said"),
    [(404, r"HIPBLAS_STATUS_INVALID_VALUE \(3\)"), (405, r"HIPBLAS_STATUS_NOT_SUPPORTED \(7\)")],
)
def test_a_refused_algorithm_says_which_and_leaves_nothing(fake, library, driver, index, said):
    with pytest.raises(LibraryRefused, match=f"bf16→bf16 by Solution.index={index}.*{said}"):
        library.prepared(driver, 0, asked(BF16, solution(index)))
    assert fake.count("living") == 0


def test_an_algorithm_that_needs_more_room_than_its_name_says_is_refused(fake, library, driver):
    fake.set("need", (1 << 20) + 1)
    with pytest.raises(LibraryRefused, match="1048577 bytes of workspace"):
        library.prepared(driver, 0, asked(BF16, solution(1), 1))
    library.prepared(driver, 0, asked(BF16, solution(1), 2))


def test_a_build_that_describes_algorithms_otherwise_is_refused(fake, library, driver):
    fake.set("result_bytes", 64)
    with pytest.raises(LibraryRefused, match="describes an algorithm in 64 bytes, not 56"):
        library.prepared(driver, 0, asked(BF16, solution(1)))


def test_a_library_of_another_version_is_refused(fake, library, driver):
    fake.set("version", 200000)
    with pytest.raises(LibraryRefused, match="is version 200000, not 1: install ROCm 7"):
        library.prepared(driver, 0, asked(BF16, solution(1)))


def test_a_library_without_the_functions_is_refused(tmp_path):
    with pytest.raises(LibraryRefused, match="not of a build that is known here"):
        hipblaslt.HipblasLt(Fake(tmp_path).lib, "hipblaslt1")


def test_a_gpu_that_does_not_open_is_a_refusal(fake, library, driver):
    fake.set("creating", 2)
    with pytest.raises(LibraryRefused, match="open GPU 0: HIPBLAS_STATUS_ALLOC_FAILED"):
        library.prepared(driver, 0, asked(BF16, solution(1)))


def test_it_is_found_where_torch_and_amds_packages_have_it(monkeypatch, tmp_path, fake):
    assert libraries.names("hipblaslt") == ["hipblaslt1"]
    folder = tmp_path / "site-packages" / "torch" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "libfake.so").rename(folder / "libtest.so")
    monkeypatch.setattr(libraries.HipblasLt, "files", lambda version: ("libtest.so",))
    with pytest.raises(LibraryRefused, match="install ROCm 7, whose hipBLASLt is 1"):
        libraries.opened.__wrapped__("hipblaslt1")
    monkeypatch.setattr(prepared.sys, "path", [str(tmp_path / "site-packages")])
    assert libraries.opened.__wrapped__("hipblaslt1").name == "hipblaslt1"
    monkeypatch.undo()
    assert libraries.HipblasLt.files(1) == ("libhipblaslt.so.1", "libhipblaslt.so")


def test_sizes_are_those_of_the_headers():
    assert ctypes.sizeof(hipblaslt.Result) == 16 + 8 + 8 + 4 + 4 + 16


# --- calls -------------------------------------------------------------------------------------


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


SMALL = GemmProblem(8, 16, 12, "fp32", layout="rrr")


@pytest.mark.grid(3)
@pytest.mark.parametrize("layout", ["rcr", "rrr", "ccr", "crr", "rcc", "rrc", "ccc", "crc"])
def test_products_are_right_in_every_layout(gpu, fake, layout):
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    a, b, out = (
        x if letter == "r" else x.T.contiguous().T
        for x, letter in zip((a, b, out), layout, strict=True)
    )
    p = replace(SMALL, layout=layout, lda=0, ldb=0, ldc=0)
    for _ in range(3):  # the first, and cached ones
        out.zero_()
        gpu.dispatcher.run_named(amds(p, solution(66771), alignment=4).name, a, b, out=out)
        np.testing.assert_allclose(out.numpy(), (a.double() @ b.double()).numpy(), rtol=1e-4)
    assert fake.count("calls") == 3 and (fake.call.alpha, fake.call.beta) == (1.0, 0.0)
    assert fake.call.algorithm.index == 66771 and fake.call.algorithm.most_workspace == 0
    assert not gpu.driver.launches


@pytest.mark.parametrize("shared", [False, True])
def test_products_of_a_batch_are_right(gpu, fake, shared):
    a, b = random(3, 8, 12), random(12, 16) if shared else random(3, 12, 16)
    p = GemmProblem(8, 16, 12, "fp32", layout="rrr", batch=3, stride_b=0 if shared else -1)
    out = torch.zeros(3, 8, 16)
    name = amds(p, solution(1), alignment=4).name
    gpu.dispatcher.run_named(name, a, b, out=out, batching="strided")
    np.testing.assert_allclose(out.numpy(), (a.double() @ b.double()).numpy(), rtol=1e-4)
    assert fake.call.a.said()[0] == 3 and fake.call.a.said()[1] == (0 if shared else 192)


def test_a_bias_is_set_before_its_call(gpu, fake):
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    name = amds(replace(SMALL, epilogue="bias"), solution(1), 1, alignment=4).name
    for seed in range(3):
        bias = torch.randn(16, generator=torch.Generator().manual_seed(seed))
        gpu.dispatcher.run_named(name, a, b, bias, out=out, epilogue="bias")
        np.testing.assert_allclose(out, (a.double() @ b.double() + bias), rtol=1e-4, atol=1e-6)
        said = fake.call.desc.said()
        assert said[3] == bias.data_ptr() and said[4] == 0


def test_a_scale_is_handed_over_by_its_address(gpu, fake):
    a, b = (torch.zeros(n, 32, dtype=torch.float8_e4m3fnuz) for n in (16, 48))
    p = GemmProblem(16, 48, 32, "e4m3fnuz", epilogue="scale")
    scale, out = torch.ones(1), torch.zeros(16, 48, dtype=torch.bfloat16)
    name = amds(p, solution(1)).name
    gpu.dispatcher.run_named(name, a, b.T, scale, out=out, epilogue="scale")
    assert fake.call.desc.said()[5] == scale.data_ptr()
    # Types: the library's first matrix is B.
    assert [m.said()[2] for m in (fake.call.a, fake.call.b, fake.call.d)] == [1000, 1000, 14]
    assert (fake.call.first, fake.call.second) == (b.data_ptr(), a.data_ptr())


def test_a_workspace_limits_the_algorithm_and_the_call(gpu, fake):
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    gpu.dispatcher.run_named(amds(SMALL, solution(1), 2, alignment=4).name, a, b, out=out)
    assert fake.call.bytes == fake.call.algorithm.most_workspace == 2 << 20
    assert fake.call.workspace and gpu.dispatcher.workspaces.bytes() == 2 << 20


def test_each_stream_has_a_handle_and_calls_make_nothing(gpu, fake, library, monkeypatch):
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    name, open_, made_inside, used = amds(SMALL, solution(1), alignment=4).name, [], [], []

    @contextmanager
    def allowed():
        open_.append(1)
        yield
        open_.pop()

    made = library._created_handle
    monkeypatch.setattr(gpu.driver, "capture_allowed", allowed)
    monkeypatch.setattr(
        library, "_created_handle", lambda on: (made_inside.append(bool(open_)), made(on))[1]
    )
    for stream in (0, 7, 0x5000, 7, 0, 0x5000):
        gpu.stream.now = stream
        gpu.dispatcher.run_named(name, a, b, out=out)
        used.append((fake.call.handle, fake.count("handles"), fake.call.stream))
    handles, counts, streams = zip(*used, strict=True)
    assert counts == (1, 2, 3, 3, 3, 3) and streams == (0, 7, 0x5000, 7, 0, 0x5000)
    assert len({*handles}) == 3 and handles[3:] == (handles[1], handles[0], handles[2])
    # A graph may be captured while a handle is made; a call makes no description.
    assert made_inside == [True] * 3 and not open_ and fake.count("living") == 4


def test_too_many_streams_are_refused(gpu, fake):
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    name = amds(SMALL, solution(1), alignment=4).name
    for stream in range(blaslt.STREAMS):
        gpu.stream.now = stream * 256
        gpu.dispatcher.run_named(name, a, b, out=out)
    gpu.stream.now = 1
    with pytest.raises(LibraryRefused, match="64 streams have one: use fewer streams"):
        gpu.dispatcher.run_named(name, a, b, out=out)


def test_a_status_of_a_call_is_the_librarys(gpu, fake):
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    name = amds(SMALL, solution(1), alignment=4).name
    fake.set("status", 6)
    with pytest.raises(LaunchFailed, match=r"fp32→fp32: HIPBLAS_STATUS_INTERNAL_ERROR \(6\)"):
        gpu.dispatcher.run_named(name, a, b, out=out)


def test_an_algorithm_of_another_build_is_passed_over(gpu, fake, caplog):
    first, second = (amds(SMALL, solution(66771, build), alignment=4) for build in (3, 0))
    registry = tw.Registry("r").register_all([first], priority=1).register_all([second])
    dispatcher = Dispatcher(registry, MI300X)
    a, b, out = random(8, 12), random(12, 16), torch.zeros(8, 16)
    dispatcher.run("gemm", a, b, out=out)
    assert fake.count("calls") == 1 and "tuned with another build" in caplog.text
    fates = {f.name: f for f in dispatcher.explain(replace(SMALL, alignment=16)).fates}
    assert fates[first.name].fate == "refused" and fates[first.name].by == "library"
