"""What is heard of torch's functions is what their counterparts here state: a table that is tuned
for a model before it is ported serves it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import tilewright.torch as ours  # noqa: E402
from tilewright import capture_file  # noqa: E402
from tilewright.torch.preparing import Recorder  # noqa: E402

F = torch.nn.functional


def r(*shape: int, grad: bool = True) -> Any:
    return torch.randn(*shape, requires_grad=grad)


def run(call: Callable[..., Any], args: Any) -> None:
    made = call(*args)
    if made.requires_grad:
        torch.autograd.backward(made, torch.empty_like(made))


def heard(path: Path, call: Callable[..., Any], args: Any) -> set[Any]:
    with ours.listen(path):
        run(call, args)
    return {*capture_file.load(path)}


def ported(call: Callable[..., Any], args: Any) -> set[Any]:
    mode, recorder = FakeTensorMode(), Recorder()
    with mode, recorder, torch.autograd.set_multithreading_enabled(False):
        run(call, [mode.from_tensor(x) for x in args])
    return {p for p in recorder.problems if p.family != "reduction"}  # torch sums for a bias itself


HEADS = (2, 4, 16, 8)


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    ("theirs", "own", "args"),
    [
        (torch.mm, ours.mm, (r(8, 16), r(16, 32))),
        (F.linear, ours.linear, (r(2, 8, 16), r(32, 16), r(32))),
        (torch.addmm, ours.addmm, (r(32, grad=False), r(8, 16, grad=False), r(16, 32, grad=False))),
        (torch.matmul, ours.matmul, (r(2, 3, 8, 16), r(2, 3, 16, 32))),
        (F.conv2d, ours.conv2d, (r(2, 8, 9, 9), r(16, 8, 3, 3), r(16))),
        (F.conv_transpose2d, ours.conv_transpose2d, (r(2, 8, 9, 9), r(8, 16, 3, 3))),
        (
            F.scaled_dot_product_attention,
            ours.scaled_dot_product_attention,
            [r(*HEADS) for _ in "qkv"],
        ),
        (
            F.scaled_dot_product_attention,
            ours.scaled_dot_product_attention,
            [*(r(*HEADS, grad=False) for _ in "qkv"), r(2, 1, 16, 16, grad=False)],
        ),
    ],
)
def test_a_port_states_what_was_heard(tmp_path: Path, theirs: Any, own: Any, args: Any) -> None:
    wanted = heard(tmp_path / "a.jsonl", theirs, args)
    assert wanted and ported(own, args) == wanted
