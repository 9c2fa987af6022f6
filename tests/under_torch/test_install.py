"""Kernels of ours under an unchanged torch program: what is served, and what torch computes.

They compute as `install_cases` says.
"""

from __future__ import annotations

import json
import threading

import pytest

torch = pytest.importorskip("torch")

from install_cases import (  # noqa: E402
    BUILT,
    CONV,
    PROBLEM,
    Computing,
    layer,
    on,
    operands,
    served,
    table,
)

import tilewright as tw  # noqa: E402
from tilewright import ops  # noqa: E402
from tilewright.arch import device  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument, BuildFailed, StoreError  # noqa: E402
from tilewright.torch import install, installed, uninstall  # noqa: E402
from tilewright.torch.installing import convolution as convolution_module  # noqa: E402
from tilewright.torch.installing import decisions, overrides  # noqa: E402

SECOND = "gemm_rcr_bf16_bf16_bf16_fp32_64x64x64_w4_s13_gluon_ws_persistent_g8_direct_padmnk_al16"
THEIRS = "gemm_rcr_bf16_bf16_bf16_fp32_vendor_cublaslt13_66_t15_s35_k1_none_z0_o1_i0_c4_ws0_al16"
IN_FP16 = tw.GemmProblem(176, 64, 128, "fp16", "fp16", "fp16")
OPERATORS = (
    "mm", "mm.out", "bmm", "bmm.out", "addmm", "addmm.out", "baddbmm", "baddbmm.out",
    "convolution", "convolution_backward", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward", "_flash_attention_forward",
    "_flash_attention_backward", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward", "_grouped_mm",
)  # fmt: skip


def dispatch() -> dict[str, tuple[str, str]]:
    names = [f"aten::{name}" for name in OPERATORS]
    return {n: (torch._C._dispatch_dump(n), torch._C._dispatch_dump_table(n)) for n in names}


# --- what is in torch's table ---------------------------------------------------------------------


def test_torchs_table_is_as_before_afterwards(computing):
    computing()
    before = dispatch()
    on("all")
    during = dispatch()
    assert all(during[name] != before[name] for name in before)
    uninstall()
    assert dispatch() == before
    uninstall()
    assert dispatch() == before


def test_importing_installs_nothing():
    assert installed() is None
    assert "installing" not in "".join(dump for dump, _ in dispatch().values())


@pytest.mark.parametrize(
    ("rows", "count"),
    [({}, 8), ({"on": "h100_sxm"}, 0), ({"problem": CONV, "kernel": "a kernel"}, 2)],
    ids=["products", "another GPU's", "convolutions"],
)
def test_operators_for_which_no_row_is_known_are_left_alone(computing, rows, count):
    computing(table(**rows))
    before = dispatch()
    with on() as found:
        assert len(found.report()["operators"]) == count
        changed = {name for name, dump in dispatch().items() if dump != before[name]}
        assert changed == {f"aten::{name}" for name in found.report()["operators"]}


def test_one_is_installed_at_a_time(computing):
    computing()
    before = dispatch()
    first = on()
    with on("all") as second:
        assert installed() is second and str(second) == "Installed(only='all')"
        with first:
            pass
        assert installed() is second  # the first is out already
    assert installed() is None and dispatch() == before


def test_another_word_is_refused():
    with pytest.raises(BadArgument, match="only = 'proved' is none of proven, all"):
        install("proved")
    assert installed() is None


# --- what is served -------------------------------------------------------------------------------


@pytest.fixture
def interpreting(monkeypatch):
    """A default dispatcher whose kernels run in the interpreter."""
    made = Dispatcher(device="h200_sxm")
    monkeypatch.setattr(decisions, "default_dispatcher", lambda: made)
    yield made
    uninstall()


@pytest.mark.turns(12)
@pytest.mark.parametrize("layer", [False, True])
def test_groups_are_served_forward_and_backward(interpreting, layer):
    """Of a layer's weight [groups, out, in], and of one that lies as the product takes it."""
    ends = torch.tensor([7, 7, 20, 40], dtype=torch.int32)
    x = torch.randn(40, 16, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(4, *((24, 16) if layer else (16, 24)), dtype=torch.bfloat16)
    w.requires_grad_()
    arriving = torch.randn(40, 24, dtype=torch.bfloat16)

    def step():
        result = torch._grouped_mm(x, w.transpose(1, 2) if layer else w, offs=ends)
        return result, *torch.autograd.grad(result, (x, w), arriving)

    theirs = step()
    with on("all") as found:
        ours = step()
        assert served(found) == {"_grouped_mm": 3}
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=0.1, rtol=2e-2)
    with on() as found:
        assert "_grouped_mm" not in found.report()["operators"]


@pytest.mark.parametrize(
    ("rows", "ours"),
    [
        ({}, True),
        ({"ties": (SECOND,)}, True),
        ({"ties": (THEIRS,)}, False),
        ({"kernel": THEIRS, "ties": (BUILT,)}, False),
        ({"kernel": THEIRS}, False),
        ({"on": "h100_sxm"}, False),
        ({"problem": tw.GemmProblem(192, 64, 128)}, False),
        ({"problem": IN_FP16, "kernel": BUILT.replace("bf16", "fp16")}, True),
    ],
    ids=["won", "tied", "library tied", "behind", "library won", "borrowed", "larger", "in fp16"],
)
def test_what_a_row_proves(computing, rows, ours):
    computing(table(**rows))
    x, w = operands()
    with on() as found:
        assert torch.equal(x @ w.t(), (x.double() @ w.t().double()).bfloat16())
    assert served(found) == ({"mm": 1} if ours else {})


def test_a_row_for_more_rows_proves_a_kernel(computing):
    computing(table(problem=tw.GemmProblem(176, 64, 128)))
    x, w = operands(m=170)
    with on() as found:
        x @ w.t()
    assert served(found) == {"mm": 1}


def test_operands_that_lie_otherwise_are_another_kind(computing):
    """The row is of a second operand by columns."""
    computing()
    x, w = operands()
    with on() as found:
        x @ w.t()
        x @ w.t().contiguous()
    assert served(found) == {"mm": 1}
    assert [one["problem"] for one in found.report()["torch"]] == ["gemm 176×64×128 bf16 rrr"]


def test_a_borrowed_row_puts_no_kernel_ahead(computing):
    planner = computing(table(on="h100_sxm")).planner
    plan = planner.plan(PROBLEM, device("h200_sxm"))
    assert (plan.config.name, plan.ahead) == (BUILT, False)


def test_without_a_row_no_space_is_read(computing, monkeypatch):
    dispatcher = computing()
    family = type(ops.family("gemm"))
    monkeypatch.setattr(family, "default_space", lambda *_: pytest.fail("the space is read"))
    x, w = operands(n=32)
    with on() as found:
        x @ w.t()
    assert not dispatcher.seen
    (left,) = found.report()["torch"]
    assert left["operator"] == "mm" and "176×32×128" in left["problem"]
    assert "no measurement" in left["reason"]


def test_all_is_served_where_a_kernel_is_chosen(computing):
    computing()
    x, w = operands(n=32)
    with on("all") as found:
        x @ w.t()
    assert served(found) == {"mm": 1}


def test_linear_and_matmul_with_their_gradients(every):
    x, w = operands(16, 32, 48)
    bias = torch.ones(32, dtype=torch.bfloat16)

    def step():
        leaves = [one.clone().requires_grad_() for one in (x, w, bias)]
        y = torch.nn.functional.linear(leaves[0].view(2, 8, 48), leaves[1], leaves[2])
        z = y @ y.transpose(1, 2)
        return y.detach(), z.detach(), *torch.autograd.grad(z.float().sum(), leaves)

    expected = step()
    with on("all") as found:
        made = step()
    assert served(found) == {"addmm": 1, "bmm": 3, "mm": 2}
    assert [said["epilogue"] for _, said in every.seen if said] == ["bias"]
    for mine, its in zip(made, expected, strict=True):
        assert mine.stride() == its.stride()
        torch.testing.assert_close(mine, its, rtol=2e-2, atol=2e-2)


ADDED = {
    "row": (lambda a: torch.ones(32, dtype=a.dtype), {}, 1),
    "expanded": (lambda a: torch.ones(32, dtype=a.dtype).expand(16, 32), {}, 1),
    "whole": (lambda a: torch.ones(16, 32, dtype=a.dtype), {}, 1),
    "column": (lambda a: torch.ones(16, 1, dtype=a.dtype), {}, 0),
    "nothing": (lambda a: torch.full((16, 32), float("nan"), dtype=a.dtype), {"beta": 0}, 1),
    "scaled": (lambda a: torch.ones(32, dtype=a.dtype), {"alpha": 2}, 0),
    "halved": (lambda a: torch.ones(32, dtype=a.dtype), {"beta": 0.5}, 0),
}


@pytest.mark.parametrize("given", ADDED)
def test_what_is_added_to_a_product(every, given):
    a, b = operands(16, 32, 48)
    make, said, count = ADDED[given]
    expected = torch.addmm(make(a), a, b.t(), **said)
    with on("all") as found:
        assert torch.equal(torch.addmm(make(a), a, b.t(), **said), expected)
        out = torch.empty_like(expected)
        assert torch.addmm(make(a), a, b.t(), **said, out=out) is out
        assert torch.equal(out, expected)
    assert served(found) == ({"addmm": 1, "addmm.out": 1} if count else {})


def test_out_of_another_shape_is_torchs(every):
    a, b = operands(16, 32, 48)
    with on("all") as found, pytest.warns(UserWarning, match="resized"):
        out = torch.mm(a, b.t(), out=torch.ones(3, dtype=a.dtype))
    assert out.shape == (16, 32) and not served(found)


@pytest.mark.parametrize("what", ["fp32", "several dtypes", "empty", "misaligned"])
def test_what_torch_keeps(every, what):
    a, b = operands(16, 32, 48, torch.float32 if what == "fp32" else torch.bfloat16)
    if what == "empty":
        a = a[:0]
    if what == "misaligned":
        a = torch.cat([a.flatten()[:1], a.flatten()])[1:].view(16, 48)
    with on("all"):
        if what == "several dtypes":
            with pytest.raises(RuntimeError, match="same dtype"):
                a @ b.t().float()
        else:
            assert (a @ b.t()).shape == (a.shape[0], 32)
    assert not every.seen


def test_a_misaligned_call_decides_nothing_for_others(every):
    a, b = operands(16, 32, 48)
    off = torch.cat([a.flatten()[:1], a.flatten()])[1:].view(16, 48)
    with on("all") as found:
        off @ b.t()
        assert not served(found)
        a @ b.t()
        off @ b.t()
    assert served(found) == {"mm": 1}


# --- convolutions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_a_convolution_and_its_gradients(every, last):
    """Results lie as torch's do; the bias' gradient is torch's."""
    words = {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}
    order = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 8, 7, 9).bfloat16().to(memory_format=order)
    w, bias = torch.randn(16, 4, 3, 3).bfloat16(), torch.randn(16).bfloat16()
    expected = layer(x, w, bias, **words)
    with on("all") as found:
        made = layer(x, w, bias, **words)
    assert [said.get("direction", "forward") for _, said in every.seen] == [
        "forward", "data", "weights",
    ]  # fmt: skip
    parts = "convolution", "convolution_backward: data", "convolution_backward: weights"
    assert served(found) == dict.fromkeys(parts, 1)
    for mine, its in zip(made, expected, strict=True):
        assert mine.is_contiguous() == its.is_contiguous() or mine.shape == w.shape
        torch.testing.assert_close(mine, its, rtol=2e-2, atol=0.5)


def test_gradients_that_nobody_asks_for_are_not_computed(every):
    x, w = torch.randn(2, 8, 7, 7).bfloat16(), torch.randn(16, 8, 3, 3).bfloat16().requires_grad_()
    with on("all"):
        torch.nn.functional.conv2d(x, w).float().sum().backward()
    assert [said.get("direction") for _, said in every.seen] == [None, "weights"]


def test_torch_computes_no_gradient_that_ours_did(every):
    asked = []
    kernel = convolution_module._backward(decisions.Decisions("all"))(
        lambda keys, *args: asked.append(args[-1]) or (None, None, torch.ones(16))
    )
    x, w, dy = (
        torch.randn(shape).bfloat16() for shape in ((2, 8, 7, 7), (16, 8, 3, 3), (2, 16, 5, 5))
    )
    geometry = (1, 1), (0, 0), (1, 1), False, (0, 0), 1
    dx, dw, db = kernel(None, dy, x, w, None, *geometry, (True, True, False))
    assert dx.shape == x.shape and dw.shape == w.shape and db is None and not asked
    *_, db = kernel(None, dy, x, w, [16], *geometry, (True, True, True))
    assert db.shape == (16,) and asked == [[False, False, True]]


@pytest.mark.parametrize("what", ["transposed", "too small"])
def test_convolutions_that_torch_keeps(every, what):
    x, w = torch.ones(1, 8, 7, 7).bfloat16(), torch.ones(8, 8, 3, 3).bfloat16()
    with on("all"):
        if what == "transposed":
            assert torch.nn.functional.conv_transpose2d(x, w).shape[2:] == (9, 9)
        else:
            with pytest.raises(RuntimeError, match="Kernel size"):
                torch.nn.functional.conv2d(x[..., :2], w)
    assert not every.seen


@pytest.mark.parametrize(("word", "says"), [("padding", "expected padding"), ("stride", "stride")])
def test_what_torch_refuses_of_a_convolution_torch_says(every, word, says):
    x, w = torch.ones(1, 8, 7, 7).bfloat16(), torch.ones(8, 8, 3, 3).bfloat16()
    wrong = {"padding": (1, 1, 1), "stride": 0}[word]
    with on("all"), pytest.raises(RuntimeError, match=says):
        torch.nn.functional.conv2d(x, w, **{word: wrong})
    with on("all"), pytest.raises(RuntimeError, match="three dimensions"):
        torch.convolution(x[0, 0], w[:7, :7, 0, 0], None, [], [], [], False, [], 1)
    assert not every.seen


# --- under torch's modes --------------------------------------------------------------------------


def test_autocast_decides_the_dtype(every):
    layer, x = torch.nn.Linear(48, 32), torch.ones(16, 48)
    with on("all") as found, torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        y.float().square().sum().backward()
    assert y.dtype is torch.bfloat16 and layer.weight.grad.dtype is torch.float32
    assert served(found) == {"addmm": 1, "mm": 1} and len(every.seen) == 2


def test_inference_and_no_grad(every):
    a, b = operands(16, 32, 48)
    a.requires_grad_()
    with on("all") as found:
        with torch.no_grad():
            assert not (a @ b.t()).requires_grad
        with torch.inference_mode():
            assert (a @ b.t()).is_inference()
    assert served(found) == {"mm": 2}


def test_vmap_is_right(every):
    a = torch.stack([operands(16, 32, 48, seed=s)[0] for s in range(3)])
    b = operands(16, 32, 48)[1].t()
    expected = torch.stack([one @ b for one in a])
    with on("all"):
        assert torch.equal(torch.func.vmap(torch.mm, (0, None))(a, b), expected)


def test_tensors_of_other_kinds_are_torchs(every):
    a, b = operands(16, 32, 48)
    with on("all"):
        assert (a.to("meta") @ b.t().to("meta")).is_meta
        assert (a.to_sparse() @ b.t()).shape == (16, 32)
    assert not every.seen


def test_deterministic_calls_are_decided_apart(computing, monkeypatch):
    usual = computing()
    other = Computing(table(kernel=THEIRS))
    switch = torch.are_deterministic_algorithms_enabled
    monkeypatch.setattr(decisions, "default_dispatcher", lambda: other if switch() else usual)
    a, b = operands()
    with on() as found:
        a @ b.t()
        torch._C._set_deterministic_algorithms(True)
        try:
            a @ b.t()
        finally:
            torch._C._set_deterministic_algorithms(False)
        a @ b.t()
    assert served(found) == {"mm": 2} and not other.seen


@pytest.mark.turns(16)
def test_compiled_graphs_call_what_is_installed(computing):
    """Inductor calls ``mm`` by its ``out=`` variant; here the graph runs as it is."""
    computing()
    a, b = operands()
    compiled = torch.compile(lambda x, y: (x @ y.t()).relu(), fullgraph=True, backend="aot_eager")
    with on() as found:
        made = compiled(a, b)
    assert served(found) == {"mm": 1}
    assert torch.equal(made, (a.double() @ b.t().double()).bfloat16().relu())
    compiled(a, b)
    assert served(found) == {"mm": 1}  # no graph keeps what was installed


def test_every_call_of_several_threads_is_counted(computing):
    computing()
    a, b = operands()

    def work():
        for _ in range(25):
            a @ b.t()

    with on() as found:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert served(found) == {"mm": 100}


# --- what goes wrong ------------------------------------------------------------------------------


def test_an_installation_that_fails_leaves_nothing_behind(computing, monkeypatch):
    def refused():
        raise StoreError("others may write")

    computing()
    before = [*overrides.Overrides._all]
    monkeypatch.setattr(overrides, "in_cpp", refused)
    with pytest.raises(StoreError, match="others may write"), on():
        pass
    assert before == overrides.Overrides._all


def test_a_kernel_that_cannot_be_built_is_torchs(computing, caplog):
    dispatcher = computing()
    dispatcher.fails = BuildFailed("no compiler")
    a, b = operands()
    expected = a @ b.t()
    with on() as found:
        assert torch.equal(a @ b.t(), expected)
        assert torch.equal(a @ b.t(), expected)
    assert len(dispatcher.seen) == 1 and not served(found)
    assert [one["reason"] for one in found.report()["torch"]] == ["no compiler"]
    assert "no compiler" in caplog.text


def test_torch_may_answer_for_a_kernel_that_is_being_built(computing, monkeypatch):
    dispatcher = computing()
    monkeypatch.setattr(dispatcher, "run_given", lambda op, operands, *_: torch.mm(*operands))
    a, b = operands()
    with on() as found:
        a @ b.t()
    assert served(found) == {"mm": 1}


def test_the_report_is_plain_data(computing):
    computing()
    a, b = operands()
    with on() as found:
        a @ b.t()
        a @ b.t()
        a @ b[:32].t()
    report = json.loads(json.dumps(found.report()))
    assert report["only"] == "proven" and report["operators"] == [*OPERATORS[:8]]
    (one,) = report["served"]
    assert (one["problem"], one["kernel"], one["calls"]) == (str(PROBLEM), BUILT, 2)
    assert len(report["torch"]) == 1
