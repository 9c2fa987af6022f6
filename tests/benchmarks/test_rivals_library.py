"""Libraries' kernels of whole declared operations: they compute the same, and cuDNN is asked for
what the problem says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from test_rivals import on_torch

import rivals_library
from near import far
from rivals import Absent
from tilewright import ops, verify
from tilewright.measure.contenders import results

torch = pytest.importorskip("torch")


def problem(family, **fields):
    return ops.family(family).problem_type(**fields)


NORMS = ({"has_w": True, "has_b": True}, {"has_w": True}, {}, {"has_w": True, "has_residual": True})


@pytest.mark.parametrize("has", NORMS, ids=str)
def test_the_gradient_of_a_layer_norm_is_torchs(has):
    kinds = dict.fromkeys(("dtype", "dy_dtype", "w_dtype", "b_dtype"), "fp32")
    p = problem("layer_norm_backward", rows=6, columns=32, **kinds, **has)
    operands = on_torch(p)
    wanted = verify.reference(p, operands.inputs)
    bind = rivals_library.library(p, None)[rivals_library.NATIVE]
    found = results(p, operands, bind(operands.inputs, operands.outputs)())
    assert not far(p, found, wanted)


def test_the_gradient_of_an_rms_norm_asks_torch(monkeypatch):
    p = problem("rms_norm_backward", rows=6, columns=32, dtype="bf16", has_w=True)
    asked = []

    def backward(dy, x, shape, rstd, w, mask):
        asked.append((tuple(rstd.shape), rstd.dtype, mask))
        return x, w

    aten = SimpleNamespace(_fused_rms_norm_backward=backward)
    monkeypatch.setattr(torch.ops, "aten", aten)
    operands = on_torch(p)
    (bind,) = rivals_library.library(p, None).values()
    dx, dw = bind(operands.inputs, operands.outputs)()
    assert dx is operands.inputs["x"] and dw is operands.inputs["w"]
    assert asked == [((6, 1), torch.float32, [True, True])]
    mixed = problem("rms_norm_backward", rows=6, columns=32, w_dtype="fp32", has_w=True)
    assert rivals_library.library(mixed, None) == {}


class Lib:
    """A library that notes what it is asked."""

    def __init__(self, status=0):
        self.asked, self.status = [], status

    def __getattr__(self, name):
        def asked(*given):
            self.asked.append((name, given))
            return self.status if name.endswith("ward") else 0

        return asked

    def given(self, name):
        return [given for asked, given in self.asked if asked == name]


@pytest.fixture
def cudnn(monkeypatch):
    """cuDNN's functions, in place of a library's."""
    lib = Lib()
    monkeypatch.setattr(rivals_library, "_cudnn", lambda: rivals_library._Library(lib))
    stream = SimpleNamespace(cuda_stream=7)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    return lib


def asked_of(p):
    operands = on_torch(p)
    bind = rivals_library.library(p, None)[rivals_library.CUDNN]
    return operands, bind(operands.inputs, operands.outputs)


def address(word):
    return word.value


def test_cudnn_pools_channels_last(cudnn):
    p = problem(
        "pool", images=2, depth=1, height=6, width=8, channels=16, kernel_h=3, kernel_w=2,
        stride_h=2, pad_h=1, mode="average", include_pad=False,
    )  # fmt: skip
    operands, call = asked_of(p)
    assert call() is operands.outputs["y"]
    ((_, mode, nan, count, *window),) = cudnn.given("cudnnSetPoolingNdDescriptor")
    assert (mode, nan, count) == (2, 1, 2)
    assert [list(one) for one in window] == [[3, 2], [1, 0], [2, 1]]
    x, y = cudnn.given("cudnnSetTensorNdDescriptor")
    assert (x[1:3], [*x[3]], [*x[4]]) == ((9, 4), [2, 16, 6, 8], [768, 1, 128, 16])
    assert [*y[3]] == [2, 16, 3, 7]
    ((*_, at_x, _, _, at_y),) = cudnn.given("cudnnPoolingForward")
    assert address(at_x) == operands.inputs["x"].data_ptr()
    assert address(at_y) == operands.outputs["y"].data_ptr()
    assert [address(one) for _, one in cudnn.given("cudnnSetStream")] == [7]


def test_what_cudnn_does_not_pool_is_not_asked_of_it(cudnn):
    usual = {"images": 2, "depth": 1, "height": 6, "width": 8, "channels": 16, "kernel_w": 2}
    for more in ({"dilation_w": 2}, {"mode": "min"}, {"index": True}, {"over_w": 1}):
        assert rivals_library.library(problem("pool", **usual, **more), None) == {}
    mean = {"mode": "average", "divisor": 3}
    assert rivals_library.library(problem("pool", **usual, **mean), None) == {}
    chosen = problem("pool_backward", **usual, has_index=True)
    assert rivals_library.library(chosen, None) == {}
    mean = problem("pool_backward", **usual, mode="average")
    assert [*rivals_library.library(mean, None)] == [rivals_library.CUDNN]
    assert rivals_library.library(problem("rms_norm", rows=4, columns=32), None) == {}


@pytest.mark.parametrize("family", ["softmax", "log_softmax_backward"])
def test_cudnn_has_softmax_by_rows(family, cudnn):
    p = problem(family, rows=4, columns=32, dtype="fp16")
    operands, call = asked_of(p)
    assert call() is next(iter(operands.outputs.values()))
    described = cudnn.given("cudnnSetTensorNdDescriptor")
    assert {tuple(one[3]) for one in described} == {(4, 32, 1, 1)}
    end = "Backward" if family.endswith("backward") else "Forward"
    ((_, how, mode, *rest),) = cudnn.given(f"cudnnSoftmax{end}")
    assert (how, mode) == ((2, 0) if family.startswith("log") else (1, 0))
    assert len(rest) == (8 if end == "Backward" else 6)


def test_an_error_of_cudnn_is_raised(cudnn):
    cudnn.status = 3
    _, call = asked_of(problem("softmax", rows=4, columns=32))
    with pytest.raises(RuntimeError, match="cudnnSoftmaxForward gives status 3"):
        call()


def test_without_cudnn_it_is_absent(monkeypatch):
    from tilewright.runtime import prepared

    monkeypatch.setattr(prepared, "loaded", lambda files, folders: iter(()))
    rivals_library._cudnn.cache_clear()
    with pytest.raises(Absent, match="libcudnn is not on this machine"):
        rivals_library.library(problem("softmax", rows=4, columns=32), None)
