"""Calls whose gradients are recorded, and their backward passes, are repeated without their Python
code: each launches what it would launch the long way, on a stand-in for a GPU."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from recorded_calls import (  # noqa: E402
    compiled_nodes,  # noqa: F401
    known_call,  # noqa: F401
    recording_driver,  # noqa: F401
    zeros,
)
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from unbuilt import Shown  # noqa: E402

import selection  # noqa: E402
import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.flash_attn import flash_attn_func  # noqa: E402
from tilewright.torch import eager, porting, sums  # noqa: E402
from tilewright.torch.functional import perceptron  # noqa: E402

ORDERS = (torch.contiguous_format, torch.channels_last)


@pytest.fixture
def alone(driver, monkeypatch) -> Callable[[], None]:
    """Call it to have the long way refused from then on."""

    def refused(*_):
        raise AssertionError("a call went the long way")

    return lambda: monkeypatch.setattr(Dispatcher, "run_given", refused)


def convolution(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    order, groups, taps = rng.choice(ORDERS), rng.choice((1, 8)), rng.choice((1, 3))
    given = {
        "x": zeros(2, 8, 6, 6, order=order),
        "w": zeros(8, 8 // groups, taps, taps, order=rng.choice(ORDERS)),
    }
    if rng.random() < 0.3:
        given["b"] = zeros(8)
    stride = rng.choice((1, (1, 1), 2, True, 1.0))
    return lambda x, w, b=None: tw.conv2d(x, w, b, stride, padding=taps // 2, groups=groups), given


def gemm(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    given = {"a": zeros(16, 32), "b": rng.choice((zeros(32, 48), zeros(48, 32).T))}
    if rng.random() < 0.2:
        given["a"] = zeros(1, 32).expand(16, 32)
    words = rng.choice(("", "bias", "relu", "bias+gelu", "add"))
    if "bias" in words:
        given["bias"] = zeros(48)
    if "add" in words:
        given["add"] = zeros(16, 48)
    said = {"epilogue": words} if words else {}
    return lambda a, b, **named: tw.gemm(a, b, **named, **said), given


def operator(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    return lambda **given: torch.ops.tilewright.gemm([*given.values()])[0], gemm(rng)[1]


def attention(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    parts = zeros(2, 24, 6, 16)
    given = {"q": zeros(2, 24, 4, 16), "k": zeros(2, 24, 2, 16), "v": zeros(2, 24, 2, 16)}
    if rng.random() < 0.3:  # in one tensor
        given = dict(zip("qkv", parts.split((2, 2, 2), 2), strict=True))
    said = rng.choice(({}, {"mask": "causal"}, {"scale": 0.5}, {"scale": 0.25}))
    if rng.random() < 0.3:
        return lambda q, k, v: flash_attn_func(q, k, v, causal="mask" in said), given
    return lambda q, k, v: tw.attention(q, k, v, **said), given


def functions(rng: random.Random) -> tuple[Any, dict[str, Any]]:
    name = rng.choice(("linear", "linear", "mm", "addmm", "attention"))
    if name == "attention":
        q, k, v = (zeros(2, 4, 16, 16) for _ in range(3))
        if rng.random() < 0.5:
            q = zeros(2, 16, 4, 16).transpose(1, 2)
        said = rng.choice(({}, {"is_causal": True}, {"scale": 0.5}, {"scale": 0.25}))
        call = tt.scaled_dot_product_attention
        return lambda q, k, v: call(q, k, v, **said), {"q": q, "k": k, "v": v}
    if name == "linear":
        x = rng.choice((
            zeros(48, 48), zeros(2, 3, 48), zeros(48), zeros(3, 2, 48).transpose(0, 1),
            zeros(2, 3, 4, 48),
        ))  # fmt: skip
        given = {"x": x, "w": rng.choice((zeros(48, 48), zeros(32, 48), zeros(48, 48).T))}
        if rng.random() < 0.5:
            given["b"] = zeros(given["w"].shape[0])
        activation = rng.choice((None, "relu", "gelu"))
        return lambda x, w, b=None: tt.linear(x, w, b, activation), given
    given = {"a": zeros(16, 32), "b": rng.choice((zeros(32, 48), zeros(48, 32).T))}
    if name == "mm":
        return tt.mm, {"input": given["a"], "mat2": given["b"]}
    given["c"] = rng.choice((zeros(48), zeros(1, 48), zeros(16, 48)))
    return lambda a, b, c: tt.addmm(c, a, b), given


def trained(call: Any, wanted: tuple[str, ...], arriving: Any) -> Any:
    """A forward and a backward pass: the output, and the gradients that are wanted."""

    def step(**given: Any) -> Any:
        leaves = {name: x.detach().requires_grad_(name in wanted) for name, x in given.items()}
        out = call(**leaves)
        read = [leaves[name] for name in wanted]  # what is kept stays, so that no memory is both
        return out, *torch.autograd.grad(out, read, arriving(out), retain_graph=True)

    return step


ARRIVING = (torch.empty_like, lambda out: torch.ones((), dtype=out.dtype).expand(out.shape))


@pytest.mark.grid(2)
@pytest.mark.parametrize("kind", [convolution, gemm, operator, attention, functions])
def test_what_is_launched_does_not_depend_on_what_was_launched_before(driver, monkeypatch, kind):
    monkeypatch.setattr(sums, "_ours", lambda x: True)  # as on a GPU
    copied, copies = torch.Tensor.contiguous, []  # these stay, so that no memory is two tensors
    monkeypatch.setattr(
        torch.Tensor,
        "contiguous",
        lambda *of, **how: copies.append(copied(*of, **how)) or copies[-1],
    )
    rng, shown = random.Random(selection.chance(kind.__name__)), Shown(driver)
    for _ in range(selection.share(40, 8)):
        call, given = kind(rng)
        wanted = tuple(rng.sample([*given], rng.randint(1, len(given))))
        step = trained(call, wanted, rng.choice(ARRIVING))
        kept = driver.dispatcher._launches
        driver.dispatcher.forget_launches()
        once = shown(step, given)
        driver.dispatcher._launches = kept
        for _ in range(4):
            assert shown(step, given) == once


def test_arrays_that_shared_memory_once_are_told_apart_later(driver):
    """A function may pass on its arrays in another order than its own."""
    shown, both = Shown(driver), zeros(2 * 8 * 8 * 6 * 6)
    weight, gradient = both[:576].view(8, 8, 3, 3), both[1024:1600].view(2, 8, 6, 6)
    apart = {"w": weight.clone(), "dy": gradient.clone()}

    def call(w, dy):
        return tw.conv2d_input((2, 8, 6, 6), w, dy, 1, 1)

    for given in (apart, {"w": weight, "dy": gradient}, apart):
        driver.dispatcher.forget_launches()
        once = shown(call, given)
        for _ in range(3):
            shown(call, {"w": weight, "dy": gradient})
        for _ in range(3):
            assert shown(call, given) == once


@pytest.mark.parametrize(
    ("call", "given"),
    [
        (tw.gemm, (zeros(16, 32), zeros(32, 48))),
        (lambda *of: tw.gemm(*of[:2], bias=of[2], epilogue="bias"),
         (zeros(16, 32), zeros(32, 48), zeros(48))),
        (lambda *of: tw.gemm(*of[:2], bias=of[2], epilogue="bias+gelu"),
         (zeros(16, 32), zeros(32, 48), zeros(48))),
        (lambda *of: torch.ops.tilewright.gemm([*of])[0], (zeros(16, 32), zeros(32, 48))),
        (lambda *of: tw.conv2d(*of, padding=1), (zeros(2, 8, 6, 6), zeros(8, 8, 3, 3), zeros(8))),
        (lambda *of: tw.conv2d(*of, None, (1, 1), (1, 1), (1, 1), 8),
         (zeros(2, 8, 6, 6), zeros(8, 1, 3, 3))),
        (lambda *of: tw.attention(*of, mask="causal", scale=0.5), [zeros(1, 8, 2, 16)] * 3),
        (flash_attn_func, [zeros(1, 8, 2, 16)] * 3),
        (tt.linear, (zeros(2, 8, 16), zeros(16, 16), zeros(16))),
        (tt.scaled_dot_product_attention, [zeros(1, 2, 8, 16)] * 3),
    ],
)  # fmt: skip
def test_a_known_call_does_not_go_the_long_way(driver, alone, monkeypatch, call, given):
    monkeypatch.setattr(sums, "_ours", lambda x: True)  # as on a GPU
    leaves = [x.clone().requires_grad_() for x in given]

    def step():
        out = call(*leaves)
        return torch.autograd.grad(out, leaves, torch.empty_like(out))

    for _ in range(3):
        step()
    alone()
    monkeypatch.setattr(torch.Tensor, "sum", None)
    launched = len(driver.launches)
    assert [x.shape for x in step()] == [x.shape for x in leaves]
    assert len(driver.launches) > launched + 1


@pytest.mark.parametrize("layer", [
    torch.nn.Linear(16, 16), torch.nn.Conv2d(16, 16, 3, padding=1),
    torch.nn.Conv2d(16, 16, 3, padding=1, groups=16),
])  # fmt: skip
def test_a_known_backward_pass_sums_the_bias_s_gradient_in_its_one_call(driver, monkeypatch, layer):
    monkeypatch.setattr(sums, "_ours", lambda x: True)
    layer = layer.bfloat16()
    porting.port(layer)
    x = zeros(2, 16, 16, 16)

    def step():
        begin = len(driver.launches)
        out = layer(x)
        made = torch.autograd.grad(out, [*layer.parameters()], torch.empty_like(out))
        names = [one["function"] for one in driver.launches[begin:]]
        return names, [(one.shape, one.stride()) for one in made]

    found = [step() for _ in range(3)]
    assert found[1:] == found[:1] * 2

    def apart(*_):
        raise AssertionError("a sum was a call of its own")

    monkeypatch.setattr(sums, "by_operation", apart)
    assert step() == found[0]


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = (
            torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16)
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return self.fc2(self.act(self.fc1(x)))


def test_a_known_perceptron_launches_what_its_layers_launch(driver, alone, monkeypatch):
    monkeypatch.setattr(sums, "_ours", lambda x: True)
    apart, whole = (Mlp().bfloat16() for _ in range(2))
    assert porting.port(whole).swapped == ("", "fc1", "fc2")
    for one in (apart.fc1, apart.fc2):
        porting.port(one)

    def step(model, rows=8):
        x = zeros(2, rows, 16).requires_grad_()
        begin = len(driver.launches)
        out = model(x)
        made = torch.autograd.grad(out, [x, *model.parameters()], torch.empty_like(out))
        launched = [one["function"] for one in driver.launches[begin:]]
        return launched, [(one.shape, one.stride(), one.dtype) for one in made]

    wanted = step(apart), step(apart, 48)
    assert len(wanted[0][0]) == 8
    for _ in range(3):
        assert (step(whole), step(whole, 48)) == wanted
    alone()
    monkeypatch.setattr(sums, "by_operation", None)
    monkeypatch.setattr(perceptron, "_planned", None)
    assert (step(whole), step(whole, 48)) == wanted


def test_a_graph_is_kept_for_a_second_pass(driver, alone, known):
    *leaves, call = known
    out, arriving = call(), zeros(2, 8, 6, 6)
    alone()
    first, second = (
        torch.autograd.grad(out, leaves, arriving, retain_graph=True) for _ in range(2)
    )
    assert {x.data_ptr() for x in first}.isdisjoint(x.data_ptr() for x in second)
    torch.autograd.grad(out, leaves, arriving)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, leaves, arriving)


def test_a_second_derivative_is_recorded_though_the_call_is_known(known):
    x, w, call = known
    (first,) = torch.autograd.grad(call(), [x], zeros(2, 8, 6, 6), create_graph=True)
    (second,) = torch.autograd.grad(first, [w], torch.empty_like(first))
    assert second.shape == w.shape


def test_a_saved_tensor_that_is_written_is_refused_though_the_call_is_known(known):
    _, w, call = known
    out = call()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward(zeros(2, 8, 6, 6))


def test_hooks_see_what_is_saved_and_what_arrives(known):
    x, w, call = known
    packed, seen = [], []

    def unpack(one):
        return one.contiguous(memory_format=torch.channels_last)  # lies otherwise

    with torch.autograd.graph.saved_tensors_hooks(lambda one: packed.append(one) or one, unpack):
        out = call()
    assert len(packed) == 2
    out.register_hook(lambda gradient: seen.append(gradient))
    out.grad_fn.register_hook(lambda made, arrived: seen.extend(made))
    torch.autograd.grad(out, [x, w], zeros(2, 8, 6, 6))
    assert [x.shape for x in seen] == [out.shape, x.shape, w.shape]


def test_what_only_one_input_wants_is_computed_for_it_alone(driver, known):
    x, _, call = known
    for _ in range(3):
        begin = len(driver.launches)
        call(x.detach()).backward(zeros(2, 8, 6, 6))
        alone = len(driver.launches) - begin
    begin = len(driver.launches)
    call().backward(zeros(2, 8, 6, 6))
    assert len(driver.launches) - begin > alone


def test_nothing_is_recorded_without_gradients(known):
    x, w, call = known
    for _ in range(3):
        assert call().requires_grad
        with torch.no_grad():
            assert not call().requires_grad
        assert not call(x.detach(), w.detach()).requires_grad


def test_a_dispatcher_records_nothing_though_the_call_is_known(driver):
    a, b = zeros(16, 32).requires_grad_(), zeros(32, 48)
    for _ in range(4):
        assert tw.gemm(a, b).requires_grad
    with pytest.raises(BadArgument, match="a dispatcher does not record"):
        driver.dispatcher.run("gemm", a, b)


def test_autocast_converts_though_the_call_is_known(driver):
    x, w = torch.zeros(2, 8, 6, 6, requires_grad=True), torch.zeros(8, 8, 3, 3, requires_grad=True)
    for on in (False, False, False, True, True, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            out = tw.conv2d(x, w, None, 1, 1)
        assert out.dtype == (torch.bfloat16 if on else torch.float32)
        made = torch.autograd.grad(out, [x, w], torch.zeros_like(out))
        assert [one.dtype for one in made] == [torch.float32] * 2


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w, b: tw.conv2d(x, w, b, 1, 1),
        lambda x, w, b: tw.gemm(x.view(-1, 72), w.view(72, 8)),
        lambda x, w, b: tw.gemm(x.view(-1, 72), w.view(72, 8), bias=b, epilogue="bias"),
        lambda x, w, b: tw.attention(*[x.view(2, 6, 3, 16)] * 3, mask="causal"),
    ],
)
def test_a_known_call_under_autocast_does_not_go_the_long_way(monkeypatch, driver, call):
    def refused(*_):
        raise AssertionError("a call went the long way")

    given = [torch.zeros(2, 8, 6, 6), torch.zeros(8, 8, 3, 3), torch.zeros(8)]
    leaves = [x.requires_grad_() for x in given]
    for grad in (True, False):
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(grad):
            for _ in range(3):
                call(*leaves)
            with monkeypatch.context() as patch:
                patch.setattr(eager, "eager", refused)
                out = call(*leaves)
            assert (out.dtype, out.requires_grad) == (torch.bfloat16, grad)
            with torch.autocast("cpu", torch.float16):
                assert call(*leaves).dtype == torch.float16
        assert call(*leaves).dtype == torch.float32


def test_a_transform_is_refused_though_the_call_is_known(known):
    *_, call = known
    with pytest.raises(BadArgument, match=r"no rule for torch\.func"):
        torch.func.vmap(lambda y: call() + y)(torch.zeros(3))


def test_launches_that_are_forgotten_in_between_are_found_again(driver, known):
    x, w, call = known
    out = call()
    driver.dispatcher.forget_launches()
    begin = len(driver.launches)
    made = torch.autograd.grad(out, [x, w], zeros(2, 8, 6, 6))
    assert len(made) == 2 and len(driver.launches) > begin


def test_threads_record_side_by_side(known):
    x, w, call = known
    failed = []

    def work():
        try:
            for _ in range(20):
                own = w.detach().clone().requires_grad_()
                made = torch.autograd.grad(call(x, own), [x, own], zeros(2, 8, 6, 6))
                assert [one.shape for one in made] == [x.shape, w.shape]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed


def test_a_capture_counts_recorded_calls(driver, tmp_path):
    x, w = zeros(2, 8, 6, 6).requires_grad_(), zeros(8, 8, 3, 3).requires_grad_()
    with tw.capture(tmp_path / "a.jsonl"):
        for _ in range(5):
            tw.conv2d(x, w, None, 1, 1).backward(zeros(2, 8, 6, 6))
    found = {p.direction: n for p, n in tw.capturing.load(tmp_path / "a.jsonl").items()}
    assert found == {"forward": 5, "data": 5, "weights": 5}


def test_a_mode_of_torch_s_makes_no_gradients(driver, known):
    """A kernel writes to the tensors, which must be memory."""
    x, w, call = known
    out, arriving, begin = call(), zeros(2, 8, 6, 6), len(driver.launches)
    with FakeTensorMode(allow_non_fake_inputs=True):
        made = torch.autograd.grad(out, [x, w], arriving)
    assert [type(one) for one in made] == [torch.Tensor] * 2
    assert len(driver.launches) == begin + 2


def test_many_gradients_at_once_are_refused_though_the_call_is_known(known):
    x, w, call = known
    with pytest.raises(BadArgument, match="ask for one gradient after the other"):
        torch.autograd.grad(call(), [x, w], zeros(3, 2, 8, 6, 6), is_grads_batched=True)
    with pytest.raises(BadArgument, match="ask for one gradient after the other"):
        out = call()
        torch.func.vmap(lambda dy: torch.autograd.grad(out, [x, w], dy))(zeros(3, 2, 8, 6, 6))
    assert len(torch.autograd.grad(call(), [x, w], zeros(2, 8, 6, 6))) == 2
