"""A repeated layer of experts is one native call. It launches what its steps launch one by one,
whatever was called before. On a stand-in for a GPU."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import unbuilt  # noqa: E402
from unbuilt import Shown  # noqa: E402

import selection  # noqa: E402
import tilewright as tw  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402

TOKENS, HIDDEN, INNER, EXPERTS, K = 6, 64, 32, 4, 2
GPT_OSS = {"interleaved": True, "limit": 7.0, "alpha": 1.702, "shift": 1.0}
EIGHT = torch.float8_e4m3fn


@pytest.fixture
def driver(monkeypatch):
    return unbuilt.install(monkeypatch, torch)


def randn(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.zeros(*shape, dtype=dtype)


def usual(gates: int = 2) -> dict[str, Any]:
    return {
        "x": randn(TOKENS, HIDDEN),
        "w1": randn(EXPERTS, gates * INNER, HIDDEN),
        "w2": randn(EXPERTS, HIDDEN, INNER),
        "weights": torch.zeros(TOKENS, K),
        "experts": torch.zeros(TOKENS, K, dtype=torch.int32),
    }


def misaligned(x: Any) -> Any:
    return torch.zeros(x.numel() + 4, dtype=x.dtype)[4:].view(x.shape)  # by 8 bytes


CHANGES = (lambda x: x.clone(), misaligned, lambda x: x.transpose(-1, -2).contiguous().mT)


def drawn(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    """A call, and its tensors by name."""
    words = rng.choice(({}, {}, {"activation": "gelu"}, {"activation": "gelu", "limit": 7.0},
                        {"activation": "gelu", "limit": 5.0}, GPT_OSS, {**GPT_OSS, "limit": 5.0},
                        {"routed_scaling_factor": 2.5}, {"capacity": 3}))  # fmt: skip
    gated = rng.random() < 0.8 or words not in ({}, {"activation": "gelu"})
    given = usual(2 if gated else 1)
    if rng.random() < 0.3:
        given["b1"] = randn(EXPERTS, given["w1"].shape[1])
    if rng.random() < 0.3:
        given["b2"] = randn(EXPERTS, HIDDEN)
    if rng.random() < 0.3:
        given["out"] = torch.empty_like(given["x"])
    if rng.random() < 0.2:
        given["expert_map"] = torch.zeros(9, dtype=torch.int32)
    if rng.random() < 0.3:
        given["up"], given["down"] = randn((2 if gated else 1) * 48, HIDDEN), randn(HIDDEN, 48)
    if rng.random() < 0.2:
        both = randn(2 * EXPERTS, HIDDEN, INNER)  # in one storage
        given["w2"] = both[rng.randrange(2) * EXPERTS :][:EXPERTS]
    if rng.random() < 0.3:
        name = rng.choice(("x", "w1", "w2"))
        given[name] = rng.choice(CHANGES[: 3 - (name == "x")])(given[name])

    def call(up=None, down=None, **tensors):
        shared = {} if up is None else {"shared": (up, down)}
        return tw.fused_moe(**tensors, **shared, **words)

    def routed(weights, experts, **tensors):
        return call(weights=weights, experts=experts, **tensors)

    return routed, given


def test_what_is_launched_does_not_depend_on_what_was_launched_before(driver):
    rng, shown, most = random.Random(selection.chance("layers")), Shown(driver), 0
    for _ in range(selection.share(60, 3)):
        call, given = drawn(rng)
        kept = driver.dispatcher._launches
        driver.dispatcher.forget_launches()
        alone = shown(call, given)
        driver.dispatcher._launches = kept
        for _ in range(3):
            assert shown(call, given) == alone
        most = max(most, len(driver.dispatcher._launches.recipes))
    assert most


def scaled() -> dict[str, Any]:
    x, w1, w2 = randn(TOKENS, 256), randn(EXPERTS, 256, 256), randn(EXPERTS, 256, 128)
    scales = torch.ones(EXPERTS, 2, 2), torch.ones(EXPERTS, 2, 1)
    said = {"scales": scales, "scale_a": "1x128", "scale_b": "128x128"}
    return {**usual(), "x": x, "w1": w1.to(EIGHT), "w2": w2.to(EIGHT), **said}


def by_factors(of_rows: str, **said: Any) -> dict[str, Any]:
    """In fp8 with a scale for each row or each expert."""
    ends = ((2 * INNER,), (HIDDEN,)) if of_rows == "row" else ((), ())
    said |= {"scales": tuple(torch.ones(EXPERTS, *end) for end in ends), "scale_b": of_rows}
    given = usual()
    return {**given, "w1": given["w1"].to(EIGHT), "w2": given["w2"].to(EIGHT), **said}


def in_four_bits() -> dict[str, Any]:
    w1, w2 = torch.zeros(EXPERTS, 2 * INNER, HIDDEN // 2), torch.zeros(EXPERTS, HIDDEN, INNER // 2)
    scales = torch.ones(EXPERTS, 2 * INNER, 2), torch.ones(EXPERTS, HIDDEN, 1)
    said = {"scale_b": "32x1-bf16", "dtype_b": "int4", "scales": [s.bfloat16() for s in scales]}
    zeros = tuple(s.to(torch.int8) for s in scales)
    return {**usual(), "w1": w1.byte(), "w2": w2.byte(), **said, "zeros": zeros}


def test_arrays_that_were_one_once_are_told_apart_later(driver):
    """Both weights may have the same factors."""
    said, shown = by_factors("tensor"), Shown(driver)
    first, second = said.pop("scales")

    def call(first, second):
        return tw.fused_moe(**said, scales=(first, second))

    once = shown(call, {"first": first, "second": second})
    driver.dispatcher.forget_launches()
    for _ in range(3):
        call(first, first)
    for _ in range(3):
        assert shown(call, {"first": first, "second": second}) == once


LAYERS: dict[str, dict[str, Any]] = {
    "swiglu": usual(),
    "gpt-oss": {
        **usual(),
        **GPT_OSS,
        "b1": randn(EXPERTS, 2 * INNER),
        "b2": randn(EXPERTS, HIDDEN),
    },
    "with a step for the gate": {**usual(), "activation": "gelu", "limit": 7.0},
    "with a shared expert": {
        **usual(),
        "shared": (randn(96, HIDDEN), randn(HIDDEN, 48)),
        "routed_scaling_factor": 2.5,
    },
    "in an output": {**usual(), "out": randn(TOKENS, HIDDEN)},
    "fp8": scaled(),
    "fp8 by row": by_factors("row", scale_a="row"),
    "fp8 by expert, weights first": by_factors("tensor", scale_a="row", weights_first=True),
    "fp8 by given scales": by_factors(
        "row", scale_a="tensor", scales_a=(torch.ones(1), torch.ones(()))
    ),
    "zero points": in_four_bits(),
    "weights first": {**usual(), "weights": randn(TOKENS, K), "weights_first": True},
}


def refused(*_: Any, **__: Any) -> None:
    raise AssertionError("a step went the long way")


@pytest.mark.grid(3)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_one_native_call_when_it_was_called_before(driver, monkeypatch, name):
    said = LAYERS[name]
    for _ in range(3):
        first = tw.fused_moe(**said)
    many = len(driver.launches)
    tw.fused_moe(**said)
    each = len(driver.launches) - many
    monkeypatch.setattr(Dispatcher, "run_given", refused)
    calls = []
    repeat = Dispatcher.repeat
    monkeypatch.setattr(Dispatcher, "repeat", lambda *a, **k: calls.append(a[1]) or repeat(*a, **k))
    y = tw.fused_moe(**said)
    assert len(calls) == 1 and len(driver.launches) == many + 2 * each and each >= 4
    assert (y.shape, y.dtype) == (first.shape, first.dtype)
    assert (y is first) == ("out" in said)


def test_a_router_is_part_of_the_call(driver, monkeypatch):
    given = usual()
    del given["weights"], given["experts"]
    logits, bias = torch.zeros(TOKENS, EXPERTS), torch.zeros(EXPERTS)

    def call(**said):
        return tw.routed_moe(logits=logits, k=K, **given, **said)

    for said in ({}, {"scoring": "sigmoid", "bias": bias, "renormalize": True}):
        for _ in range(3):
            call(**said)
        with monkeypatch.context() as patch:
            patch.setattr(Dispatcher, "run_given", refused)
            before = len(driver.launches)
            call(**said)
            assert len(driver.launches) - before == 4


def test_gradients_are_recorded_though_the_call_is_known(driver):
    given = usual()
    for _ in range(3):
        assert not tw.fused_moe(**given).requires_grad
    given["w1"].requires_grad_()
    assert tw.fused_moe(**given).requires_grad
    with torch.no_grad():
        assert not tw.fused_moe(**given).requires_grad


def test_scalars_are_those_of_each_call(driver):
    given = usual()
    for factor in (1.0, 2.5, 0.5, 2.5, 1.0):
        for _ in range(3):
            tw.fused_moe(**given, routed_scaling_factor=factor)
            assert struct.pack("<f", factor) in driver.launches[-1]["values"]
