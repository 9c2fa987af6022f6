"""Sums of a backward pass by our reduction: which tensors it reads, and when it is called."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.ops.gemm.column_sums import column_sums  # noqa: E402
from tilewright.torch import linear, operators, preparing, sums  # noqa: E402

ROWS, IMAGES, VOLUMES = (-2,), (0, 2, 3), (0, 2, 3, 4)


def randn(*shape: int):
    torch.manual_seed(0)
    return torch.randn(shape)


READ = {
    "rows": (randn(40, 24), ROWS),
    "rows apart": (randn(40, 48)[:, :24], ROWS),
    "columns": (randn(24, 40).t(), ROWS),
    "one column": (randn(40, 5)[:, :1], ROWS),
    "one row": (randn(1, 24), ROWS),
    "batches": (randn(3, 40, 24), (0, -2)),
    "along rows": (randn(40, 24), (-1,)),
    "images": (randn(2, 8, 6, 5), IMAGES),
    "images, channels last": (
        randn(2, 8, 6, 5).contiguous(memory_format=torch.channels_last), IMAGES,
    ),
    "one channel": (randn(2, 1, 6, 5), IMAGES),
    "one pixel": (randn(3, 8, 1, 1), IMAGES),
    "volumes": (randn(2, 8, 4, 6, 5), VOLUMES),
}  # fmt: skip
NOT_READ = {
    "every second column": (randn(40, 48)[:, ::2], ROWS),
    "every second line": (randn(2, 8, 6, 5)[:, :, ::2], IMAGES),
    "several are kept": (randn(2, 3, 4), (0,)),
    "nothing is kept": (randn(3, 4), (0, 1)),
    "no elements": (randn(0, 4), ROWS),
}


@pytest.fixture
def asked(monkeypatch):
    """Let tensors on a CPU be ours; the shapes that the reduction is called with."""
    shapes, run_given = [], Dispatcher.run_given

    def noted(self, op, operands, *rest):
        if op == "reduction":
            shapes.append(tuple(operands[0].shape))
        return run_given(self, op, operands, *rest)

    monkeypatch.setattr(Dispatcher, "run_given", noted)
    monkeypatch.setattr(sums, "_ours", lambda x: x.numel() > 0)
    return shapes


@pytest.mark.turns(4)
@pytest.mark.parametrize("name", [*READ, *NOT_READ])
def test_sums_are_torchs(name, asked):
    x, dims = {**READ, **NOT_READ}[name]
    made, wanted = sums.by_operation(column_sums(dims), x, operators.launch), x.sum(dims)
    assert (made is not None) is bool(asked) is (name in READ)
    made = column_sums(dims)(x) if made is None else made.reshape(-1)
    assert made.shape == wanted.shape
    torch.testing.assert_close(made, wanted)


def step(**more):
    x, w, b = (one.requires_grad_() for one in (randn(40, 16), randn(24, 16), randn(24)))
    return torch.autograd.grad(linear(x, w, b).square().sum(), [b], **more)


def test_a_graph_of_a_backward_pass_has_torchs_sum(asked):
    of_bias = step(create_graph=True)[0]
    assert of_bias.requires_grad and not asked
    step()
    assert asked == [(1, 1, 1, 40, 24)]


def test_prepare_knows_the_sums_of_a_step():
    recorder = preparing.Recorder()
    layer = torch.nn.Linear(16, 24)
    layer.forward = lambda x: linear(x, layer.weight, layer.bias)
    preparing._run(recorder, layer, (randn(40, 16),), {}, True)
    assert [p.family for p in recorder.problems].count("reduction") == 1
    with torch.no_grad():
        recorder.problems.clear()
        preparing._run(recorder, layer, (randn(40, 16),), {}, True)
    assert [p.family for p in recorder.problems] == ["gemm"]
