"""What stands before an operator of torch: calls of a known kind are passed on, others are asked
about, by the compiled launcher and by its twin in Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tilewright.runtime import python_launcher  # noqa: E402
from tilewright.runtime.launcher import compiled  # noqa: E402
from tilewright.torch.installing.decisions import kind  # noqa: E402

KEYS = "dispatch keys"


@pytest.fixture(params=["compiled", "python"])
def launcher(request) -> Any:
    return compiled() if request.param == "compiled" else python_launcher


class Standing:
    """A function before an operator: what it passed on, and what it asked about."""

    def __init__(self, launcher: Any, kind: Callable[..., Any] = kind) -> None:
        self.passed: set[Any] = set()
        self.original: list[Any] = []
        self.asked: list[Any] = []
        self.on = False
        self.call = launcher.passing(lambda: self.on, kind, self.passed, self._original, self._ours)

    def _original(self, *args: Any, **kwargs: Any) -> str:
        self.original.append((args, kwargs))
        return "torch's"

    def _ours(self, key: Any, *args: Any, **kwargs: Any) -> str:
        self.asked.append((key, args, kwargs))
        return "ours"

    def key(self, *args: Any, **kwargs: Any) -> Any:
        assert self.call(KEYS, *args, **kwargs) == "ours"
        return self.asked[-1][0]


def x(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.zeros(shape or (2, 4, 3, 3), dtype=dtype)


def test_a_kind_is_asked_about_until_it_is_passed_on(launcher):
    one = Standing(launcher)
    given = (KEYS, x(), [1, 1], None, True)
    assert one.call(*given, scale=0.5) == "ours"
    (key, args, kwargs) = one.asked[0]
    assert len(args) == 5 and args[1] is given[1] and kwargs == {"scale": 0.5}
    one.passed.add(key)
    assert one.call(*given, scale=0.5) == "torch's"
    ((args, kwargs),) = one.original
    assert args[1] is given[1] and args[2] is given[2] and kwargs == {"scale": 0.5}
    assert one.call(*given, scale=0.25) == one.call(*given) == "ours"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
def test_calls_in_other_types_are_passed_on(launcher, dtype):
    one = Standing(launcher)
    assert one.call(KEYS, x(dtype=dtype), x()) == "torch's" and not one.asked


CALLS = (
    ((x(),), {}),
    ((x(dtype=torch.float16),), {}),
    ((x(2, 4, 9),), {}),
    ((x(4, 2, 3, 3).transpose(0, 1),), {}),
    ((x().to(memory_format=torch.channels_last),), {}),
    ((torch.nn.Parameter(x(5)),), {}),
    ((x(), x()), {}),
    ((x(), x(dtype=torch.float32)), {}),
    ((x(), None), {}),
    ((x(), None, None), {}),
    ((x(), [1, 1]), {}),
    ((x(), [1, 2]), {}),
    ((x(), [1], [1]), {}),
    ((x(), [1, 1, 1]), {}),
    ((x(), []), {}),
    ((x(), -1), {}),
    ((x(), 2**62), {}),
    ((x(), 0.5), {}),
    ((x(), 0.25), {}),
    ((x(), [False, True]), {}),
    ((x(),), {"out": x()}),
    ((x(),), {"out": x(1)}),
    ((x(),), {"beta": 2}),
    ((x(),), {"alpha": 2}),
    ((x(),), {"beta": 2, "alpha": 3}),
)


def test_kinds_are_told_apart(launcher):
    """Each call has its own key, which is the same in every call of the kind."""
    one = Standing(launcher)
    keys = [one.key(*args, **kwargs) for args, kwargs in CALLS]
    assert len(set(keys)) == len(CALLS)
    copies = [
        [(a.clone() if isinstance(a, torch.Tensor) else a) for a in args] for args, _ in CALLS
    ]
    again = [one.key(*args, **kwargs) for args, (_, kwargs) in zip(copies, CALLS, strict=True)]
    assert again == keys


def test_the_switch_is_part_of_a_kind(launcher):
    one = Standing(launcher, lambda args, kwargs: (one.on, *map(str, args)))
    off = one.key(x())
    one.on = True
    assert one.key(x()) != off


class Other(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "more",
    [x().as_subclass(Other), torch.bfloat16, 2**70, [x()], ["word"], "word", [1] * 200, 1j],
    ids=["subclass", "dtype", "huge", "tensors", "words", "word", "long", "complex"],
)
def test_python_tells_the_kinds_that_c_cannot(more):
    seen: list[Any] = []
    one = Standing(compiled(), lambda *call: seen.append(call) or "told")
    assert one.key(x(), more, scale=1.0) == "told"
    (args, kwargs) = seen[0]
    assert args[1] is more and kwargs == {"scale": 1.0}
    one.passed.add("told")
    assert one.call(KEYS, x(), more, scale=1.0) == "torch's"


def test_what_is_raised_arrives(launcher):
    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("from inside")

    for passed, original, ours in ((set(), str, fails), ({"told"}, fails, str)):
        call = launcher.passing(bool, lambda *_: "told", passed, original, ours)
        with pytest.raises(ValueError, match="from inside"):
            call(KEYS, x().as_subclass(Other))
    with pytest.raises(ValueError, match="from inside"):
        launcher.passing(bool, fails, set(), str, str)(KEYS, x().as_subclass(Other))


def test_nothing_is_kept(launcher):
    one = Standing(launcher)
    given = (x(), [1, 1])
    one.passed.add(one.key(*given))
    one.asked.clear()
    before = sys.getrefcount(given[0]), sys.getrefcount(given[1])
    for _ in range(3):
        one.call(KEYS, *given)
    one.original.clear()
    assert (sys.getrefcount(given[0]), sys.getrefcount(given[1])) == before
