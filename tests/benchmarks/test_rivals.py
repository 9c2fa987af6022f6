"""What kernels are compared with computes the same thing: checked on the CPU, where torch has the
call there."""

from __future__ import annotations

from functools import partial

import pytest

import comparison
import rivals
import rivals_attention
from cases import attention, gemm, grouped_gemm
from tilewright import ops, verify
from tilewright.dtypes import DTYPES
from tilewright.measure.contenders import results
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.gemm import GemmProblem
from tilewright.ops.grouped_gemm import GroupedGemmProblem

torch = pytest.importorskip("torch")


class NoLibrary:
    """A bench whose library offers nothing."""

    def algorithms(self, problem):
        return []


def on_torch(problem, seed=3):
    """Operands as torch tensors on the CPU, with their strides."""
    made = verify.operands_of(problem, seed, "cpu")
    kinds = {one.name: one.dtype for one in ops.family(problem.family).operands(problem)}

    def tensor(name, x):
        if isinstance(x, int | float):
            return x
        whole = torch.from_numpy(x.view(f"uint{8 * x.itemsize}"))
        return whole.view(getattr(torch, DTYPES[kinds[name]].torch))

    both = ({n: tensor(n, x) for n, x in some.items()} for some in (made.inputs, made.outputs))
    return verify.Operands(*both)


def check(problem, bind, operands, exact=True):
    wanted = verify.reference(problem, operands.inputs)
    returned = bind(operands.inputs, operands.outputs)()
    found = results(problem, operands, returned)
    if exact:
        checked = verify.compare_all(problem, None, found, wanted)
        assert checked.ok, str(checked)
    return found, wanted


def test_a_batch_that_shares_b_is_one_product():
    p = GemmProblem(8, 24, 16, "bf16", batch=3, stride_b=0)
    operands = on_torch(p)
    ((name, bind),) = rivals.folded_mm(p, NoLibrary()).items()
    assert "folded" in name
    check(p, bind, operands)
    assert rivals.folded_mm(GemmProblem(8, 24, 16, "bf16", batch=3), NoLibrary()) == {}
    assert rivals.folded_mm(GemmProblem(8, 24, 16, "bf16"), NoLibrary()) == {}


@pytest.mark.parametrize("shared", [{"stride_b": 0}, {"stride_a": 0}, {}], ids=str)
def test_torch_multiplies_batches_that_share_a_matrix(shared):
    p = GemmProblem(8, 24, 16, "bf16", batch=3, **shared)
    (bind,) = rivals.torch_calls(p, NoLibrary()).values()
    check(p, bind, on_torch(p))


@pytest.mark.parametrize(("dtype", "scale"), [("int4", "128x1-bf16"), ("e2m1", "32x1-e8m0")])
def test_weights_of_few_bits_are_dequantised(dtype, scale):
    p = GemmProblem(4, 128, 256, "bf16", dtype_b=dtype, scale_b=scale)
    operands = on_torch(p)
    (bind,) = rivals.dequantised(p, NoLibrary()).values()
    found, wanted = check(p, bind, operands, exact=False)
    assert abs(found["C"].double() - wanted["C"]).max() <= 0.02 * abs(wanted["C"]).max()
    again = bind(operands.inputs, operands.outputs)
    assert again.args[1] is bind(operands.inputs, operands.outputs).args[1]  # made once


def test_a_bare_product_has_no_epilogue():
    for p in gemm.with_epilogues():
        bare = rivals.bare_of(p)
        assert (bare.m, bare.n, bare.k, bare.epilogue) == (p.m, p.n, p.k, "")
        assert bare.dtype_c == ("int32" if p.dtype_a == "int8" else "bf16")


def test_every_row_of_a_grouped_product_is_used():
    p = GroupedGemmProblem("contiguous", 4, 64, 16, 32)
    made = grouped_gemm.every_row_used(p, 1, "cpu")
    assert made.inputs["offsets"][-1] == 64
    reference = verify.reference(p, made.inputs)["C"]
    assert (reference == reference).all()


def test_torch_multiplies_dequantised_groups(monkeypatch):
    p = GroupedGemmProblem(
        "contiguous", 3, 24, 256, 128, dtype_a="e4m3fn", dtype_c="bf16", scale_a="1x128",
        scale_b="128x128", strides_sb=(2, 1, 1),
    )  # fmt: skip
    made = on_torch(p)
    made.inputs["offsets"].copy_(torch.tensor(grouped_gemm.ends_of("balanced", 3, 24)))
    in_bf16, in_fp8 = rivals.scaled_grouped_mm(p, NoLibrary()).values()
    found, wanted = check(p, in_bf16, made, exact=False)
    rms = wanted["C"].square().mean().sqrt()
    assert (found["C"].double() - wanted["C"]).abs().max() < 0.06 * rms
    monkeypatch.setattr(torch, "_scaled_grouped_mm", scaled_by_rows)
    found, wanted = check(p, in_fp8, made, exact=False)
    assert (found["C"].double() - wanted["C"]).abs().max() < 0.5 * rms


def scaled_by_rows(a, b, of_a, of_b, *, offs, out_dtype, use_fast_accum):
    """torch's call, which a CPU has not: a scale for each row of A and each column of a B."""
    assert b.stride(1) == 1 and use_fast_accum
    made, begin = [], 0
    for group, end in enumerate(offs.tolist()):
        rows = a[begin:end].double() @ b[group].double()
        made.append(rows * of_a[begin:end, None] * of_b[group])
        begin = end
    return torch.cat(made).to(out_dtype)


def test_rates_are_those_of_graphs():
    p = grouped_gemm.in_blocks()[2]
    row = comparison.Row(
        str(p), 1, ("k",), (), ("mm",), {"graphs": {"k": [1e3] * 4, "mm": [2e3] * 4}}, {}
    )
    text = grouped_gemm.rates({p: row})
    assert text.startswith(f"131072×4096×7168 in 32 groups 1000.0 µs, {p.flops / 1e9:.0f} TFLOP/s")
    assert {grouped_gemm.few(p) for p in grouped_gemm.in_blocks()} == {True, False}


def test_masked_rows_are_gathered(monkeypatch):
    p = GroupedGemmProblem("masked", 3, 8, 16, 32)
    made = on_torch(p)
    asked = []
    monkeypatch.setattr(torch, "_grouped_mm", lambda a, b, offs: asked.append((a, b, offs)))
    found = rivals.grouped_mm(p, NoLibrary())
    assert list(found) == ["torch._grouped_mm", "torch.bmm"]
    found["torch._grouped_mm"](made.inputs, made.outputs)()
    ((a, _, ends),) = asked
    counts = made.inputs["counts"]
    assert ends.tolist() == counts.cumsum(0).tolist()
    used = [made.inputs["A"][g, : counts[g]] for g in range(3)]
    assert torch.equal(a, torch.cat(used))


# --- attention ----------------------------------------------------------------------------------


@pytest.fixture
def uncompiled(monkeypatch):
    """FlexAttention as torch computes it without compiling, which any device can."""
    seen, whole = [], torch.compile

    def compiled(*function, **how):
        if function:  # torch's own use of it
            return whole(*function, **how)
        seen.append(how)
        return lambda function: function

    monkeypatch.setattr(torch, "compile", compiled)
    return seen


SMALL = {"batch": 2, "heads": 4, "q_len": 24, "kv_len": 24, "head_dim": 16}
FORMS = [
    {"right": 0, "softcap": 5.0},
    {"right": 0, "others": "alibi"},
    {"right": 0, "others": "sinks"},
    {"left": 7, "right": 0},
    {"bias_shape": (1, 4)},
    {"right": 0, "bias_shape": (1, 4)},
    {"right": 0, "kv_heads": 2, "softcap": 5.0},
]


@pytest.mark.grid(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_flex_attention_computes_what_ours_do(form, uncompiled):
    p = AttentionProblem(**SMALL, **form)
    found = rivals_attention.flex(p, NoLibrary())
    assert len(found) == len(rivals_attention.OPTIONS)
    operands = on_torch(p)
    check(p, found["torch.flex_attention"], operands)
    (how,) = uncompiled
    assert how["mode"] == "max-autotune-no-cudagraphs"


def test_no_graph_holds_gradients_of_flex_attention():
    found = rivals_attention.flex_backward(AttentionBackwardProblem(**SMALL), NoLibrary())
    assert set(found) == rivals.UNCAPTURED


def test_what_is_not_installed_says_so():
    p = AttentionProblem(**SMALL)
    for make, word in ((rivals_attention.flash_3, "flash_attn_interface"),
                       (rivals_attention.cudnn_fp8, "cudnn")):  # fmt: skip
        with pytest.raises(rivals.Absent, match=f"not here: .*{word}") as absent:
            make(p, NoLibrary())
        assert absent.value.label


def test_flash_attention_3_is_told_the_mask_and_the_scales(monkeypatch):
    import sys
    import types

    called = []
    flash = types.ModuleType("flash_attn_interface")
    flash.flash_attn_func = lambda *given, **said: called.append(said) or ("o", "lse")
    flash.flash_attn_varlen_func = lambda *given, **said: called.append((given[3:], said)) or "o"
    monkeypatch.setitem(sys.modules, "flash_attn_interface", flash)
    make = partial(rivals_attention.flash_3, bench=NoLibrary())
    plain = {"q": 0, "k": 1, "v": 2, "scale": 0.25}

    def said(p, **inputs):
        (bind,) = make(p).values()
        assert bind({**plain, **inputs}, {})() == "o"
        return called.pop()

    assert said(AttentionProblem(**SMALL, right=0)) == {
        "causal": True, "window_size": (-1, -1), "softcap": 0.0, "softmax_scale": 0.25,
    }  # fmt: skip
    window = said(AttentionProblem(**SMALL, left=7, right=0))
    assert (window["causal"], window["window_size"]) == (False, (7, 0))
    eight = AttentionProblem(**SMALL, dtype="e4m3fn", others="hscale")
    scaled = said(eight, q_scale="q", k_scale="k", v_scale="v")
    assert [scaled[f"{name}_descale"] for name in "qkv"] == ["q", "k", "v"]
    packed = AttentionProblem(**SMALL, total_q=40, total_kv=40, others="packedq+packedkv")
    given, _ = said(packed, q_offsets="qo", kv_offsets="ko")
    assert given == ("qo", "ko", 24, 24)
    assert make(AttentionProblem(**SMALL, right=0, others="alibi")) == {}


def test_caches_are_full_and_pages_are_each_once():
    for p in attention.decoding():
        if p.batch != 8:
            continue
        pages = 3 * 64 // p.page_size if p.paged else 0
        small = AttentionProblem(
            3, 4, 1, 64, 16, page_size=p.page_size, others=p.others, pages=pages,
            page_entries=pages // 3 if "pagetable" in p.words else pages,
        )  # fmt: skip
        made = attention.full_caches(small, 1, "cpu", on_torch_inputs)
        assert set(made.inputs["kv_used"].tolist()) == {64}
        for name in ("page_table", "page_list"):
            if name in made.inputs:
                pages = made.inputs[name].flatten().tolist()
                assert sorted(pages) == list(range(small.pages))
        if "page_starts" in made.inputs:
            assert made.inputs["page_starts"].tolist()[-1] == small.pages


def on_torch_inputs(problem, seed, device):
    made = verify.operands_of(problem, seed, device)
    names = ("kv_used", "page_table", "page_list", "page_starts")
    some = {n: torch.from_numpy(x.copy()) for n, x in made.inputs.items() if n in names}
    return verify.Operands(some, {})


def test_the_forward_only_package_is_not_asked_for_what_it_lacks(monkeypatch):
    import sys
    import types

    flash = types.ModuleType(rivals_attention.FORWARD_ONLY)
    flash.flash_attn_func = lambda *given, **said: "o"
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)  # not installed
    monkeypatch.setitem(sys.modules, rivals_attention.FORWARD_ONLY, flash)
    has = {
        name: bool(rivals_attention.flash_3(AttentionProblem(**SMALL, **words), NoLibrary()))
        for name, words in {
            "bf16": {}, "fp8": {"dtype": "e4m3fn"}, "fp16": {"dtype": "fp16"},
            "window": {"left": 7, "right": 0},
        }.items()
    }  # fmt: skip
    assert has == {"bf16": True, "fp8": True, "fp16": False, "window": False}
