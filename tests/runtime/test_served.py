"""Calls of torch that are served by kernels of ours are repeated without being asked about, on a
stand-in for a GPU."""

from __future__ import annotations

import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import unbuilt  # noqa: E402
from unbuilt import Shown  # noqa: E402

import tilewright.torch  # noqa: E402
from tilewright.torch.installing import decisions, overrides  # noqa: E402


@pytest.fixture
def driver(monkeypatch):
    driver = unbuilt.install(monkeypatch, torch)
    monkeypatch.setattr(decisions, "default_dispatcher", lambda: driver.dispatcher)
    with tilewright.torch.install("all", _key="CPU") as driver.installed:
        yield driver


def zeros(*shape: int, order: Any = torch.contiguous_format) -> Any:
    return torch.zeros(shape, dtype=torch.bfloat16).contiguous(memory_format=order)


def gradients(mask: list[bool]) -> Any:
    def call(dy: Any, x: Any, w: Any) -> Any:
        one = [1, 1]
        made = torch.ops.aten.convolution_backward(
            dy, x, w, None, one, one, one, False, [0, 0], 1, mask
        )
        return tuple(each for each in made if each is not None)

    return call


LAST = torch.channels_last
IMAGES, FILTERS = zeros(2, 8, 6, 6), zeros(8, 8, 3, 3)
CALLS = {
    "mm": (lambda a, b: torch.mm(a, b), {"a": zeros(16, 32), "b": zeros(32, 48)}),
    "mm, turned": (lambda a, b: torch.mm(a, b), {"a": zeros(16, 32), "b": zeros(48, 32).T}),
    "square": (lambda a, b: torch.mm(a, b), {"a": zeros(32, 32), "b": zeros(32, 32)}),
    "bmm": (lambda a, b: torch.bmm(a, b), {"a": zeros(2, 16, 32), "b": zeros(2, 32, 48)}),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b),
              {"c": zeros(48), "a": zeros(16, 32), "b": zeros(32, 48)}),
    "addmm, a matrix": (lambda c, a, b: torch.addmm(c, a, b),
                        {"c": zeros(16, 48), "a": zeros(16, 32), "b": zeros(32, 48)}),
    "convolution": (lambda x, w: torch.conv2d(x, w, None, 1, 1), {"x": IMAGES, "w": FILTERS}),
    "with a bias": (lambda x, w, b: torch.conv2d(x, w, b, 2),
                    {"x": zeros(2, 8, 6, 6, order=LAST), "w": FILTERS, "b": zeros(8)}),
    "both gradients": (gradients([True, True, False]),
                       {"dy": zeros(2, 8, 6, 6), "x": IMAGES, "w": FILTERS}),
    "of the weights": (gradients([False, True, False]),
                       {"dy": zeros(2, 8, 6, 6, order=LAST), "x": IMAGES, "w": FILTERS}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_call_like_an_earlier_one_launches_what_that_did_and_is_counted(
    driver, monkeypatch, name
):
    call, given = CALLS[name]
    shown = Shown(driver)
    once = shown(call, given)
    assert shown(call, given) == once

    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("a call went the long way")

    monkeypatch.setattr(decisions.Decisions, "run", asked)
    for _ in range(3):
        assert shown(call, given) == once
        leaves = {key: x.clone().requires_grad_() for key, x in given.items()}
        found, _ = shown(call, leaves)
        assert [(function, grid) for function, grid, _ in found] == [
            (function, grid) for function, grid, _ in once[0]
        ]
    served = driver.installed.report()["served"]
    assert {one["calls"] for one in served} == {8}


SINGLE = [name for name in CALLS if name not in ("both gradients", "of the weights")]
"""Calls that return one output."""


def python_of(call: Any, given: dict[str, Any]) -> list[str]:
    """The functions of ours that a call enters."""
    found = []

    def enters(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and "tilewright/" in name and "stand_in" not in name:
            found.append(frame.f_code.co_name)

    sys.setprofile(enters)
    try:
        call(**given)
    finally:
        sys.setprofile(None)
    return found


@pytest.fixture
def in_cpp(driver):
    if overrides.in_cpp() is None:
        pytest.skip("nothing is compiled with torch's headers here")
    return driver


@pytest.mark.parametrize("name", SINGLE)
def test_a_repeated_call_runs_no_python_until_launches_are_forgotten(in_cpp, name):
    (call, given), shown = CALLS[name], Shown(in_cpp)
    once = shown(call, given)
    shown(call, given)
    for _ in range(2):
        assert not python_of(call, given)
        assert shown(call, given) == once
    decisions.default_dispatcher().forget_launches()
    assert {"run"} < {*python_of(call, given)}
    assert "again" in python_of(call, given)
    assert not python_of(call, given)
    (served,) = in_cpp.installed.report()["served"]
    assert served["calls"] == len(in_cpp.launches) == 9


def test_what_was_served_without_python_is_counted_after_the_end(in_cpp):
    call, given = CALLS["mm"]
    for _ in range(5):
        call(**given)
    tilewright.torch.uninstall()
    assert [one["calls"] for one in in_cpp.installed.report()["served"]] == [5]
    call(**given)
    assert len(in_cpp.launches) == 5


def test_another_geometry_is_another_kind(in_cpp):
    """Of equal tensors: what is served is held to all that a call says."""
    shown, given = Shown(in_cpp), CALLS["convolution"][1]

    def call(pad: int) -> Any:
        return lambda x, w: torch.conv2d(x, w, None, 1, pad)

    once = [shown(call(pad), given) for pad in (0, 1, 2)]
    assert len({str(layouts) for _, layouts in once}) == 3
    for _ in range(3):
        assert [shown(call(pad), given) for pad in (0, 1, 2)] == once


def test_modes_of_python_are_asked(in_cpp):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    call, given = CALLS["mm"]
    for _ in range(3):
        call(**given)
    with Mode():
        assert call(**given).shape == call(**given).shape == (16, 48)
    assert len(in_cpp.launches) == 5


def test_a_tensor_that_is_aligned_otherwise_is_asked_about(driver):
    call, given = CALLS["mm"]
    for _ in range(3):
        call(**given)
    begin = len(driver.launches)
    call(zeros(16 * 32 + 1)[1:].view(16, 32), given["b"])
    assert len(driver.launches) == begin  # torch computes it


def test_out_is_written_as_before(driver):
    a, b, out = zeros(16, 32), zeros(32, 48), zeros(16, 48)
    for count in range(1, 4):
        assert torch.mm(a, b, out=out) is out
        assert len(driver.launches) == count


def test_operands_that_were_one_tensor_once_are_told_apart_later(driver):
    shown, a, b = Shown(driver), zeros(32, 32), zeros(32, 32)
    once = shown(lambda a, b: torch.mm(a, b), {"a": a, "b": b})
    decisions.default_dispatcher().forget_launches()
    for _ in range(3):
        torch.mm(a, a)
    for _ in range(3):
        assert shown(lambda a, b: torch.mm(a, b), {"a": a, "b": b}) == once
