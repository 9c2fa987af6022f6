"""Batches and contractions on a real GPU: every kind against float64, and torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from batch_cases import cases, nested, summed, with_epilogues  # noqa: E402
from gemm_cases import config  # noqa: E402
from gpu_arch import ARCH  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import verify  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu


CASES = [*cases(ARCH), *with_epilogues(ARCH), *nested(ARCH), *summed(ARCH)]
BF16 = {"device": "cuda", "dtype": torch.bfloat16}


def close(out, expected) -> bool:
    return torch.allclose(out.float(), expected.float(), rtol=2e-2, atol=0.5)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_kind_of_batch_is_right(dispatcher, number):
    kernel, problem = CASES[number]
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


BIG = {"tile_m": 128, "tile_n": 128, "num_warps": 8, "num_stages": 3, "batching": "strided"}


@pytest.mark.parametrize(
    "how",
    [
        {"pipeline": "tma", "scheduler": "tile"},
        {"pipeline": "tma", "scheduler": "persistent", "store": "split"},
        {"pipeline": "gluon_ws", "scheduler": "persistent"},
        {"pipeline": "gluon_ws", "scheduler": "persistent", "store": "split", "tile_n": 256},
        {"pipeline": "basic", "scheduler": "persistent"},
    ],
    ids=lambda how: "-".join(map(str, how.values())),
)
@pytest.mark.parametrize("layout", ["rcr", "rrr", "ccc"])
@pytest.mark.parametrize("shared", [{}, {"stride_a": 0}, {"stride_b": 0}])
def test_batches_that_fill_the_gpu(dispatcher, how, layout, shared):
    kernel = config(ARCH, layout=layout, **{**BIG, **how})
    problem = GemmProblem(520, 776, 328, layout=layout, batch=33, **shared)
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize("bits", [32, 64])
def test_a_batch_beyond_two_gibibytes(dispatcher, bits):
    """C spans 2.4 GB: through the copy engine, and through pointers with 64-bit offsets."""
    pipeline = "tma" if bits == 32 else "basic"
    kernel = config(ARCH, pipeline=pipeline, index_bits=bits, **BIG)
    problem = GemmProblem(1024, 1024, 64, batch=1200)
    result = verify.verify(dispatcher, problem, kernel.name, device="cuda:0")
    assert result.ok, result


def test_a_decoding_batch_is_served(dispatcher):
    q, k = torch.randn(64, 1, 128, **BF16), torch.randn(64, 4096, 128, **BF16)
    assert close(dispatcher.run("gemm", q, k.transpose(1, 2)), q @ k.transpose(1, 2))


def test_addresses_made_on_the_device_are_taken(dispatcher):
    pool, b = torch.randn(10, 64, 96, **BF16), torch.randn(10, 48, 96, **BF16)
    out = torch.zeros(10, 64, 48, **BF16)
    chosen = torch.tensor([7, 2, 2, 9], device="cuda")
    rows = pool.data_ptr() + chosen * (64 * 96 * 2)
    columns = b.data_ptr() + chosen * (48 * 96 * 2)
    ends = out.data_ptr() + torch.tensor([0, 1, 3, 8], device="cuda") * (64 * 48 * 2)
    dispatcher.run(
        "gemm",
        tw.pointers(rows, (64, 96), torch.bfloat16, alignment=16),
        tw.pointers(columns, (96, 48), "bf16", strides=(1, 96), alignment=16),
        out=tw.pointers(ends, (64, 48), "bf16", alignment=16),
    )
    expected = torch.zeros_like(out)
    for place, x in zip((0, 1, 3, 8), (7, 2, 2, 9), strict=True):
        expected[place] = pool[x] @ b[x].T
    assert close(out, expected) and (out[[2, 4, 5, 6, 7, 9]] == 0).all()


def test_a_cached_call_follows_new_pointers_and_new_tensors(dispatcher):
    for seed in range(4):
        a = [torch.randn(64, 96, **BF16) * (seed + 1) for _ in range(5)]
        b = [torch.randn(96, 32, **BF16) for _ in range(5)]
        c = [torch.empty(64, 32, **BF16) for _ in range(5)]
        dispatcher.run("gemm", tw.pointers(a), tw.pointers(b), out=tw.pointers(c))
        assert all(close(z, x @ y) for x, y, z in zip(a, b, c, strict=True))
        x, y, out = torch.stack(a), torch.stack(b), torch.empty(5, 64, 32, **BF16)
        dispatcher.run("gemm", x, y, out=out)
        assert close(out, x @ y)


def test_a_stack_of_tensors_is_not_taken_for_pointers_of_the_same_shape(dispatcher):
    """The launcher knows calls by shapes and strides; pointers mark theirs."""
    a, b = torch.randn(2, 64, 64, **BF16), torch.randn(2, 64, 64, **BF16)
    out = torch.empty_like(a)
    dispatcher.run("gemm", a, b, out=out)
    c = [torch.empty(64, 64, **BF16) for _ in range(2)]
    dispatcher.run("gemm", tw.pointers(list(a)), tw.pointers(list(b)), out=tw.pointers(c))
    assert torch.equal(torch.stack(c), out)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (lambda x: tw.pointers(x.int(), (4, 4), "bf16"), "int64"),
        (lambda x: tw.pointers(x[None], (4, 4), "bf16"), "1-D"),
        (lambda x: tw.pointers(x[::2], (4, 4), "bf16"), "contiguous"),
        (lambda x: tw.pointers(x, (4, 4)), "shape and the dtype"),
        (lambda x: tw.pointers(x, (4, 4), "bf16", alignment=1), "alignment = 1"),
        (lambda x: tw.pointers(x, (4, 4), "bf16", alignment=32), "alignment = 32"),
        (lambda x: tw.pointers(x, (4, 4), "bf16", strides=(4,)), "differ in length"),
    ],
)
def test_addresses_that_say_too_little_are_refused(kind, words):
    with pytest.raises(BadArgument, match=words):
        kind(torch.zeros(4, dtype=torch.int64, device="cuda"))


def test_capture_in_a_graph_and_replay(dispatcher):
    a, b = torch.randn(8, 128, 64, **BF16), torch.randn(8, 64, 128, **BF16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = dispatcher.run("gemm", a, b)
    a.copy_(torch.randn_like(a))
    graph.replay()
    assert close(out, a @ b)


@pytest.mark.parametrize(
    "shapes", [((0, 64, 32), (0, 32, 48)), ((3, 0, 32), (32, 48)), ((3, 64, 0), (3, 0, 48))]
)
def test_batches_and_sums_of_nothing(dispatcher, shapes):
    a, b = (torch.ones(shape, **BF16) for shape in shapes)
    assert torch.equal(dispatcher.run("gemm", a, b), a @ b)


@pytest.mark.parametrize(
    ("equation", "a", "b"),
    [
        ("bhqd,bhkd->bhqk", (2, 3, 64, 32), (2, 3, 96, 32)),
        ("bhqk,bhkd->bhqd", (2, 3, 64, 96), (2, 3, 96, 32)),
        ("qhd,khd->hqk", (64, 3, 32), (96, 3, 32)),
        ("bqhd,bkhd->bhqk", (2, 64, 3, 32), (2, 96, 3, 32)),
        ("bhqk,bkhd->bqhd", (2, 3, 64, 96), (2, 96, 3, 32)),
        ("bsi,oi->bso", (2, 64, 32), (48, 32)),
        ("bsi,sio->bso", (16, 5, 32), (5, 32, 48)),
        ("bij,bj->bi", (7, 64, 32), (7, 32)),
        ("i,j->ij", (64,), (40,)),
        ("bkp,bcp->kc", (5, 64, 200), (5, 40, 200)),
    ],
)
def test_contractions_are_einsums(dispatcher, equation, a, b):
    x, y = torch.randn(a, **BF16), torch.randn(b, **BF16)
    expected = torch.einsum(equation, x, y)
    out = dispatcher.run("gemm", x, y, equation=equation)
    assert out.shape == expected.shape and close(out, expected)
    for _ in range(2):  # the second call is the launcher's own
        again = torch.full_like(out, float("nan"))
        dispatcher.run("gemm", x, y, out=again, equation=equation)
        assert torch.equal(again, out)
