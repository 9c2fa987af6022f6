"""Torch's own operations as problems: each case on tensors without memory."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tilewright import aten, ops  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.torch.listening import heard  # noqa: E402

A = torch.ops.aten
FP8, INT8, FP32, INT32 = torch.float8_e4m3fn, torch.int8, torch.float32, torch.int32


def t(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def stated(op: Any, *args: Any, recorded: bool = True, **keywords: Any) -> list[Any]:
    """The problems of a call, whose result torch's meta kernel lays out."""
    made = op(*args, **keywords)
    name = op._schema.name.removeprefix("aten::")
    given = heard.given(op, args, keywords, made)
    return [*aten.problems(name, {**given, aten.RECORDED: recorded})]


def problem(family: str, **fields: Any) -> Any:
    return ops.family(family).problem_type(**fields)


def gemm(m: int, n: int, k: int, layout: str = "rrr", **fields: Any) -> Any:
    return problem("gemm", m=m, n=n, k=k, layout=layout, **fields)


# --- products -----------------------------------------------------------------------------------

NARROW = gemm(8, 32, 16)


@pytest.mark.parametrize(
    ("op", "args", "wanted"),
    [
        (A.mm.default, (t(8, 16), t(16, 32)), NARROW),
        (A.mm.default, (t(16, 8).T, t(32, 16).T), gemm(8, 32, 16, "ccr")),
        (A.mm.default, (t(8, 20)[:, :16], t(32, 16).T), gemm(8, 32, 16, "rcr", lda=20)),
        (A.mm.default, (t(8, 32)[:, ::2], t(16, 32)), NARROW),  # which torch copies too
        (A.addmm.default, (t(32), t(8, 16), t(16, 32)), gemm(8, 32, 16, epilogue="bias")),
        (A.addmm.default, (t(1, 32), t(8, 16), t(16, 32)), gemm(8, 32, 16, epilogue="bias")),
        (A.addmm.default, (t(8, 32), t(8, 16), t(16, 32)), gemm(8, 32, 16, epilogue="add")),
        (A.addmm.default, (t(8, 1), t(8, 16), t(16, 32)), NARROW),  # no epilogue adds it
        (A.bmm.default, (t(4, 8, 16), t(4, 16, 32)), gemm(8, 32, 16, batch=4)),
        (A.bmm.default, (t(4, 8, 16), t(1, 16, 32).expand(4, 16, 32)), gemm(32, 32, 16)),
        (
            A.bmm.default,
            (t(2, 8, 4, 16).transpose(1, 2).flatten(0, 1), t(8, 16, 32)),
            gemm(8, 32, 16, batch=8),
        ),
        (
            A.baddbmm.default,
            (t(8, 32), t(4, 8, 16), t(4, 16, 32)),
            gemm(8, 32, 16, batch=4, epilogue="add", stride_d=0),
        ),
        (
            A.addbmm.default,
            (t(8, 32), t(4, 8, 16), t(4, 16, 32)),
            gemm(8, 32, 16, batch=4, batching="summed", epilogue="add"),
        ),
        (A.mv.default, (t(8, 16), t(16)), gemm(8, 1, 16, "rcr", alignment=2)),
        (
            A._int_mm.default,
            (t(32, 64, dtype=INT8), t(64, 32, dtype=INT8)),
            gemm(32, 32, 64, dtype_a="int8", dtype_c="int32"),
        ),
    ],
)
def test_products(op: Any, args: Any, wanted: Any) -> None:
    assert stated(op, *args) == [wanted]


@pytest.mark.parametrize(
    ("numbers", "epilogue"),
    [
        ({"alpha": 0.5}, "scale+add"),
        ({"beta": 0}, ""),
        ({"beta": 0, "alpha": 2}, "scale"),
        ({"beta": 0.5}, ""),  # beta·D is to be passed, which no kernel computes
    ],
)
def test_alpha_and_beta(numbers: dict[str, float], epilogue: str) -> None:
    found = stated(A.addmm.default, t(8, 32), t(8, 16), t(16, 32), **numbers)
    assert found == [gemm(8, 32, 16, epilogue=epilogue)]


@pytest.mark.parametrize(("gelu", "after"), [(True, "gelu_tanh"), (False, "relu")])
def test_an_activation_of_torch_is_an_epilogue(gelu: bool, after: str) -> None:
    found = stated(A._addmm_activation.default, t(32), t(8, 16), t(16, 32), use_gelu=gelu)
    assert found == [gemm(8, 32, 16, epilogue=f"bias+{after}")]


ONE = t(dtype=FP32)
SCALED = {"dtype_a": "e4m3fn", "dtype_c": "bf16"}


@pytest.mark.parametrize(
    ("of_a", "of_b", "rest", "fields"),
    [
        (ONE, ONE, (), {"epilogue": "scale"}),
        (ONE, ONE, (t(256),), {"epilogue": "scale+bias"}),
        (t(32, 1, dtype=FP32), t(1, 256, dtype=FP32), (), {"epilogue": "row_scale+col_scale"}),
        (
            t(2, 32, dtype=FP32).T,
            t(2, 2, dtype=FP32).T,
            (),
            {"scale_a": "1x128", "scale_b": "128x128", "strides_sa": (1, 32), "strides_sb": (1, 2)},
        ),
    ],
)
def test_scaled_products(of_a: Any, of_b: Any, rest: Any, fields: dict[str, Any]) -> None:
    a, b = t(32, 256, dtype=FP8), t(256, 256, dtype=FP8).T
    wanted = gemm(32, 256, 256, "rcr", **SCALED, **fields)
    out = {"out_dtype": torch.bfloat16}
    assert stated(A._scaled_mm.default, a, b, of_a, of_b, *rest, **out) == [wanted]


def test_a_product_in_fp8_with_a_scale_of_its_result() -> None:
    a, b = t(32, 64, dtype=FP8), t(48, 64, dtype=FP8).T
    (found,) = stated(A._scaled_mm.default, a, b, ONE, ONE, None, ONE, out_dtype=FP8)
    assert found == gemm(
        32, 48, 64, "rcr", dtype_a="e4m3fn", dtype_c="e4m3fn", epilogue="scale+scale"
    )


def test_grouped_products() -> None:
    ends = t(4, dtype=INT32)
    wanted = problem("grouped_gemm", form="contiguous", groups=4, m=64, n=48, k=32, layout="rrr")
    assert stated(A._grouped_mm.default, t(64, 32), t(4, 32, 48), ends) == [wanted]
    assert stated(A._grouped_mm.default, t(4, 64, 32), t(4, 32, 48)) == [gemm(64, 48, 32, batch=4)]
    along = {"groups": 4, "m": 64, "n": 48, "k": 32}
    wanted = problem("grouped_gemm", form="weights", **along, layout="crr")
    assert stated(A._grouped_mm.default, t(32, 64).T, t(32, 48), ends) == [wanted]
    wanted = problem("grouped_gemm", form="columns", **along, layout="rcr")
    assert stated(A._grouped_mm.default, t(4, 64, 32), t(48, 32).T, ends) == [wanted]


def test_tf32_is_said() -> None:
    given = heard.given(
        A.mm.default, (t(8, 16, dtype=FP32), t(16, 32, dtype=FP32)), {}, t(8, 32, dtype=FP32)
    )
    (found,) = aten.problems("mm", {**given, aten.TF32: True})
    assert found == gemm(8, 32, 16, dtype_a="fp32", precision="tf32")


def test_what_no_kernel_reads_is_refused() -> None:
    wide = torch.float64
    with pytest.raises(BadArgument, match="float64"):
        stated(A.mm.default, t(8, 16, dtype=wide), t(16, 32, dtype=wide))


# --- attention ----------------------------------------------------------------------------------


def attention(**fields: Any) -> Any:
    usual = {"batch": 2, "heads": 8, "kv_heads": 8, "q_len": 64, "kv_len": 64, "head_dim": 64}
    layout = fields.get("layout", "bhsd")
    return problem("attention", **{**usual, "layout": layout, "kv_layout": layout, **fields})


def rows(heads: int = 8, count: int = 64) -> Any:
    """[2, heads, rows, 64], as a projection gives them."""
    return t(2, count, heads, 64).transpose(1, 2)


TURNED = {f"{name}_strides": (64 * 8 * 64, 8 * 64, 64, 1) for name in "qkvo"}
"""Strides of `rows`, of (batch, row, head, dim)."""
CAUSAL = {"right": 0}
FLASH, CUDNN = A._scaled_dot_product_flash_attention, A._scaled_dot_product_cudnn_attention
EFFICIENT = A._scaled_dot_product_efficient_attention
Q, FEW = t(2, 8, 64, 64), t(2, 2, 64, 64)


@pytest.mark.parametrize(
    ("op", "args", "fields"),
    [
        (FLASH.default, (Q, FEW, FEW), {"kv_heads": 2, "others": "lse"}),
        (FLASH.default, (Q, Q, Q, 0.0, True), {**CAUSAL, "others": "lse"}),
        (
            FLASH.default,
            (Q, t(2, 8, 32, 64), t(2, 8, 32, 64), 0.1, True),
            {**CAUSAL, "kv_len": 32, "corner": "top_left", "dropout": 26 / 256, "others": "lse"},
        ),
        (FLASH.default, (rows(), rows(), rows()), {**TURNED, "others": "lse"}),
        (EFFICIENT.default, (Q, Q, Q, None, False), {}),
        (EFFICIENT.default, (Q, Q, Q, None, True), {"others": "lse"}),
        (
            CUDNN.default,
            (Q, Q, Q, t(2, 1, 64, 64).expand(2, 8, 64, 64), False),
            {"bias_shape": (2, 1), "bias_dtype": "bf16"},
        ),
        (
            EFFICIENT.default,
            (Q, Q, Q, t(2, 1, 1, 64).expand(2, 8, 64, 64), False),
            {"bias_shape": (2, 1, 1), "bias_dtype": "bf16"},
        ),
    ],
)
def test_attention(op: Any, args: Any, fields: dict[str, Any]) -> None:
    (found,) = stated(op, *args)
    if "q_strides" not in fields:  # of the result, as the implementation lays it out
        fields = {**fields, "o_strides": found.o_strides}
    assert found == attention(**fields)


def test_only_a_backward_pass_needs_the_logarithms() -> None:
    (found,) = stated(FLASH.default, Q, Q, Q, recorded=False)
    assert found == attention(o_strides=found.o_strides)
    (found,) = stated(EFFICIENT.default, Q, Q, Q, None, True, recorded=False)
    assert found.others == "lse", "torch was asked for them"


def test_attention_below_the_public_function() -> None:
    b, many = t(2, 64, 8, 64), t(100, 8, 64)
    below, starts = A._flash_attention_forward.default, t(3, dtype=INT32)
    local = {"window_size_left": 16, "window_size_right": 0}
    (found,) = stated(below, b, b, b, None, None, 64, 64, 0.0, False, False, **local)
    assert found == attention(layout="bshd", left=16, right=0, others="lse")
    (found,) = stated(below, many, many, many, starts, starts, 60, 60, 0.0, True, False)
    assert found == problem(
        "attention", batch=2, heads=8, kv_heads=8, q_len=60, kv_len=60, head_dim=64, right=0,
        total_q=100, total_kv=100, others="lse+packedq+packedkv",
    )  # fmt: skip
    (found,) = stated(A._efficient_attention_forward.default, b, b, b, *[None] * 5, 0.0, 2, False)
    assert found == attention(layout="bshd", right=0)


def test_backward_passes_of_attention() -> None:
    x = rows()
    o, lse, ends_q, ends_k, _, _, seed, offset, _ = FLASH(x, x, x, 0.0, True)
    (found,) = stated(
        A._scaled_dot_product_flash_attention_backward.default,
        o, x, x, x, o, lse, ends_q, ends_k, 64, 64, 0.0, True, seed, offset,
    )  # fmt: skip
    said = {"batch": 2, "heads": 8, "kv_heads": 8, "q_len": 64, "kv_len": 64, "head_dim": 64}
    wanted = problem(
        "attention_backward", **said, layout="bhsd", kv_layout="bhsd", **CAUSAL, **TURNED,
        do_strides=found.do_strides,
    )  # fmt: skip
    assert found == wanted
    bias = t(2, 8, 64, 64)
    o, lse, seed, offset = EFFICIENT(Q, Q, Q, bias, True)
    for mask, grads, do in (
        ([True] * 4, "dq+dk+dv+dbias", t(1).expand(2, 8, 64, 64)),
        ([True, False, True, False], "dq+dv", t(64).expand(2, 8, 64, 64)),
    ):
        (found,) = stated(
            A._scaled_dot_product_efficient_attention_backward.default,
            do, Q, Q, Q, bias, o, lse, seed, offset, 0.0, mask,
        )  # fmt: skip
        assert (found.grads, found.bias_shape, found.do_strides) == (grads, (2, 8), ())


# --- convolutions -------------------------------------------------------------------------------


def conv(**fields: Any) -> Any:
    """Channels-first."""
    c, k, groups = fields["c"], fields["k"], fields.get("groups", 1)
    plain = problem("conv", n=2, **fields)
    first = {
        f"{name}_strides": t(*shape).stride()
        for name, shape in (
            ("x", (2, c, *fields["spatial"])),
            ("w", (k, c // groups, *fields["filter"])),
            ("y", (2, k, *plain.out_sizes)),
        )
    }
    return problem("conv", n=2, **fields, **first)


IMAGE = {"c": 16, "k": 32, "spatial": (9, 9), "filter": (3, 3)}
X, W = t(2, 16, 9, 9), t(32, 16, 3, 3)
ONES, NONE = [1, 1], [0, 0]


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ((X, W, None, ONES, ONES, ONES, False, NONE, 1), conv(**IMAGE, pad=(1, 1))),
        (
            (X, W, t(32), [2, 2], [0, 1], [2, 1], False, NONE, 1),
            conv(**IMAGE, stride=(2, 2), pad=(0, 1), dilation=(2, 1), epilogue="bias"),
        ),
        (
            (X, t(16, 1, 3, 3), None, [1], [1], [1], False, [0], 16),
            conv(**{**IMAGE, "k": 16}, groups=16, pad=(1, 1)),
        ),
        (
            (t(2, 16, 9), t(32, 16, 3), None, [1], [0], [1], False, [0], 1),
            conv(c=16, k=32, spatial=(9,), filter=(3,)),
        ),
        (
            (t(2, 16, 5, 9, 9), t(32, 16, 3, 3, 3), None, [1], [1], [1], False, [0], 1),
            conv(c=16, k=32, spatial=(5, 9, 9), filter=(3, 3, 3), pad=(1, 1, 1)),
        ),
        (  # transposed: the gradient of another's data, whose y is the input
            (X, t(16, 8, 3, 3), None, [2, 2], ONES, ONES, True, ONES, 2),
            conv(
                c=16, k=16, groups=2, spatial=(18, 18), filter=(3, 3), direction="data",
                stride=(2, 2), pad=(1, 1), pad_after=(0, 0),
            ),
        ),
    ],
)  # fmt: skip
def test_convolutions(args: Any, wanted: Any) -> None:
    assert stated(A.convolution.default, *args) == [wanted]


def test_channels_last() -> None:
    given = heard.given(
        A.convolution.default,
        (last(X), last(W), None, ONES, ONES, ONES, False, NONE, 1),
        {},
        last(t(2, 32, 9, 9)),
    )
    assert [*aten.problems("convolution", given)] == [problem("conv", n=2, **IMAGE, pad=(1, 1))]


def last(x: Any) -> Any:
    return x.to(memory_format=torch.channels_last)


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, True], [True, False, False]])
def test_gradients_of_convolutions(mask: list[bool]) -> None:
    found = stated(
        A.convolution_backward.default,
        t(1).expand(2, 32, 9, 9), X, W, [32], ONES, ONES, ONES, False, NONE, 1, mask,
    )  # fmt: skip
    wanted = [conv(**IMAGE, pad=(1, 1), direction=of) for of in ("data", "weights")]
    assert found == [one for one, asked in zip(wanted, mask, strict=False) if asked]


def test_gradients_of_transposed_convolutions() -> None:
    w, shared = t(16, 8, 3, 3), ([2, 2], ONES, ONES, True, ONES, 2)
    y = A.convolution(X, w, None, *shared)
    found = stated(A.convolution_backward.default, y, X, w, None, *shared, [True, True, False])
    said: dict[str, Any] = {
        "c": 16, "k": 16, "groups": 2, "spatial": (18, 18), "filter": (3, 3), "stride": (2, 2),
        "pad": (1, 1), "pad_after": (0, 0),
    }  # fmt: skip
    assert found == [conv(**said), conv(**said, direction="weights")]
