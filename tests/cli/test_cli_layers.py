"""``explain`` of a mixture of experts: its steps, with their kernels and estimates."""

from __future__ import annotations

from tilewright import moe
from tilewright.dispatch import Dispatcher

SIZES = ("tokens=64", "hidden=2048", "inner=768", "experts=128", "k=8")
NUMBERS = {"tokens": 64, "hidden": 2048, "inner": 768, "experts": 128, "k": 8}
ON = ("--device", "h200_sxm")


def test_each_step_has_its_kernel_and_its_estimate(cli):
    planned = moe.plan(**NUMBERS, dispatcher=Dispatcher(device="h200_sxm"))
    text = cli("explain", "fused_moe", *SIZES, *ON)
    assert "a mixture of experts on NVIDIA H200 (sm_90)" in text
    rows = {line.rsplit(None, 2)[0]: line.split()[-2:] for line in text.splitlines()[2:6]}
    assert [*rows] == [step.name for step in planned.steps]
    for step in planned.steps:
        assert rows[step.name] == [f"{step.estimated_us:.1f}", step.plan.config.name]
        assert str(step.problem) in text and step.plan.reason in text
        assert step.estimated_us > 4, "a launch takes time, however little it does"


def test_as_json_with_all_that_a_layer_may_have(cli):
    words = ("dtype_b=fp8", "scale_a=1x128", "scale_b=128x128", "scoring=sigmoid", "limit=7.5")
    many = ("tokens=512", *SIZES[1:])  # with few rows of an expert the activation rounds
    found = cli.json("explain", "fused_moe", *many, *words, "all-experts=256", *ON)
    assert [step["name"] for step in found["steps"]] == [
        "route", "sort", "round", "first product", "second product", "combine"
    ]  # fmt: skip
    assert found["steps"][0]["problem"]["experts"] == 256
    first = found["steps"][3]["problem"]
    assert (first["dtype_a"], first["dtype_c"], first["quant"]) == ("e4m3fn", "e4m3fn", "block")
    assert found["estimated_us"] == sum(step["estimated_us"] for step in found["steps"])
    assert found["device"]["arch"] == "sm_90"
    more = cli.json("explain", "fused_moe", *SIZES, "capacity=8", "shared=1024", *ON)["steps"]
    assert more[0]["problem"]["capacity"] == 8
    assert [(step["problem"]["n"], step["problem"]["k"]) for step in more[3:6:2]] == [
        (2048, 2048), (2048, 1024)
    ]  # fmt: skip


def test_scales_by_row_and_weights_that_come_first(cli):
    words = ("dtype_b=fp8", "scale_a=row", "scale_b=tensor", "weights_first=true")
    steps = cli.json("explain", "fused_moe", *SIZES, *words, *ON)["steps"]
    assert [step["name"] for step in steps] == [
        "sort", "round", "scales of tokens", "scales of experts", "first product", "activation",
        "scales of experts", "second product", "combine"
    ]  # fmt: skip
    assert steps[4]["problem"]["epilogue"] == "row_scale+row_scale+row_scale"
    assert not steps[-1]["problem"]["has_weights"]
    words = ("dtype_b=int4", "scale_b=128x1-bf16", "zero-b=true")
    first = cli.json("explain", "fused_moe", *SIZES, *words, *ON)["steps"][1]["problem"]
    assert first["zero_b"] and first["dtype_b"] == "int4"


def test_words_that_state_no_layer_are_refused(cli):
    for words, why in (
        (SIZES[:-1], "needs k (as in k=8)"),
        ((*SIZES, "expert=3"), "has no 'expert' (did you mean 'experts'?)"),
        ((*SIZES, "limit=much"), "limit = 'much' is not a number"),
        ((*SIZES, "bias=yes"), "bias = 'yes' is not true or false"),
        ((*SIZES, "activation=swish"), "is not a gate's activation"),
    ):
        assert why in cli.fails(2, "explain", "fused_moe", *words, *ON)
