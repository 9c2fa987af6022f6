"""Declared operations as a library has them whole: cuDNN's pooling and softmax, and torch's kernels
for the gradients of norms.

Those of norms are given what autograd keeps of the forward pass: the sum with the residual, and the
statistics of each row. Ours work these out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from rivals import Absent, Binds, Tensors

if TYPE_CHECKING:
    from gpu_bench import Bench

NATIVE, CUDNN = "torch's kernel, with kept statistics", "cuDNN's call"


def library(problem: Any, bench: Bench) -> Binds:
    """The library's call, if it has one for what the problem says. Raises `Absent` without
    cuDNN."""
    if problem.family in ("rms_norm_backward", "layer_norm_backward"):
        weights = [getattr(problem, f"{n}_dtype") for n in "wb" if getattr(problem, f"has_{n}", 0)]
        alike = {problem.dtype, problem.dy_dtype, *weights} == {problem.dtype}
        return {NATIVE: partial(_norm, problem)} if alike else {}
    if problem.family in _CUDNN and _in_cudnn(problem):
        lib = _cudnn()
        return {CUDNN: partial(_CUDNN[problem.family], lib, problem)}
    return {}


# --- torch ---------------------------------------------------------------------------------------


def _norm(problem: Any, inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
    import torch

    x, w, b = (inputs.get(name) for name in ("x", "w", "b"))
    residual, more = inputs.get("residual"), inputs.get("dtotal")
    eps, offset = (inputs[name] for name in ("eps", "offset"))
    total = x if residual is None else x + residual
    weight, shape = w if w is None or not offset else w + offset, total.shape[-1:]
    dy, wide = inputs["dy"].reshape(total.shape), total.float()
    if problem.family == "rms_norm_backward":
        rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        run = partial(
            torch.ops.aten._fused_rms_norm_backward, dy, total, shape, rstd, weight,
            [True, w is not None],
        )  # fmt: skip
    else:
        variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
        run = partial(
            torch.ops.aten.native_layer_norm_backward, dy, total, shape, mean,
            torch.rsqrt(variance + eps), weight, b, [True, w is not None, b is not None],
        )  # fmt: skip

    def call() -> Any:
        dx, *rest = (one for one in run() if one is not None)
        return (dx if more is None else dx + more, *rest)

    return call


# --- cuDNN ---------------------------------------------------------------------------------------

# cudnnDataType_t, cudnnPoolingMode_t, cudnnSoftmaxAlgorithm_t
_DTYPES = {"fp32": 0, "fp16": 2, "bf16": 9}
_MAX, _WITH_PADDING, _WITHOUT = 0, 1, 2
_ACCURATE, _LOGARITHM = 1, 2
_PROPAGATE_NAN, _INSTANCE = 1, 0
_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)
WORDS = ("kernel", "pad", "stride")


def _in_cudnn(p: Any) -> bool:
    """Whether cuDNN computes what is asked: no windows with gaps or beyond the padding, no places,
    no scales."""
    if p.family.endswith(("softmax", "softmax_backward")):
        return p.dtype == p.out_dtype and p.dtype in _DTYPES
    usual = all(getattr(p, f"dilation_{d}") == 1 and not getattr(p, f"over_{d}") for d in "dhw")
    modes = ("average",) if p.family == "pool_backward" else ("average", "max")
    return (
        p.dtype in _DTYPES and usual and p.mode in modes and not p.divisor
        and not getattr(p, "index", False)
    )  # fmt: skip


@cache
def _cudnn() -> Any:
    from tilewright.runtime.cudnn import Cudnn
    from tilewright.runtime.prepared import loaded

    for version in Cudnn.majors:
        for lib in loaded(Cudnn.files(version), Cudnn.folders):
            return _Library(lib)
    raise Absent(CUDNN, "libcudnn is not on this machine")


class _Library:
    """cuDNN's functions, checked, and a handle that follows torch's stream. Descriptors are kept:
    there are few."""

    def __init__(self, lib: Any) -> None:
        self._lib, self._handle = lib, ctypes.c_void_p()
        self._do("cudnnCreate", ctypes.byref(self._handle))

    def _do(self, name: str, *given: Any) -> None:
        if status := getattr(self._lib, name)(*given):
            raise RuntimeError(f"{name} gives status {status}")

    def call(self, name: str, *given: Any) -> Callable[[], None]:
        """A call of a function whose first argument is the handle; tensors are their addresses."""
        import torch

        run, stream = getattr(self._lib, name), torch.cuda.current_stream
        words = [ctypes.c_void_p(x.data_ptr()) if hasattr(x, "data_ptr") else x for x in given]

        def made() -> None:
            self._do("cudnnSetStream", self._handle, ctypes.c_void_p(stream().cuda_stream))
            if status := run(self._handle, *words):
                raise RuntimeError(f"{name} gives status {status}")

        made.keeps = given  # type: ignore[attr-defined]
        return made

    def tensor(self, x: Any, dtype: str) -> ctypes.c_void_p:
        """The descriptor of a tensor."""
        made = ctypes.c_void_p()
        self._do("cudnnCreateTensorDescriptor", ctypes.byref(made))
        sizes = _ints(x.shape), _ints(x.stride())
        self._do("cudnnSetTensorNdDescriptor", made, _DTYPES[dtype], x.ndim, *sizes)
        return made

    def pooling(self, mode: int, window: Sequence[Sequence[int]]) -> ctypes.c_void_p:
        """The descriptor of windows. window: as in `WORDS`, by dimension."""
        made = ctypes.c_void_p()
        self._do("cudnnCreatePoolingDescriptor", ctypes.byref(made))
        words = map(_ints, window)
        self._do("cudnnSetPoolingNdDescriptor", made, mode, _PROPAGATE_NAN, len(window[0]), *words)
        return made


def _ints(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


def _pool(lib: _Library, p: Any, inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
    axes = "hw" if p.depth == p.kernel_d == 1 and not p.pad_d else "dhw"
    average = _WITH_PADDING if p.include_pad else _WITHOUT
    mode = average if p.mode == "average" else _MAX
    window = lib.pooling(mode, [[getattr(p, f"{word}_{d}") for d in axes] for word in WORDS])

    def first(x: Any) -> tuple[ctypes.c_void_p, Any]:
        """Channels first, as cuDNN counts dimensions."""
        flat = x[:, 0] if axes == "hw" else x
        return lib.tensor(flat.movedim(-1, 1), p.dtype), x

    one, zero = ctypes.byref(_ONE), ctypes.byref(_ZERO)
    if p.family == "pool":
        x, y = first(inputs["x"]), first(outputs["y"])
        run = lib.call("cudnnPoolingForward", window, one, *x, zero, *y)
        return _returning(run, outputs["y"])
    x, dy, dx = first(inputs["x"]), first(inputs["dy"]), first(outputs["dx"])
    # Of averages y is not read.
    run = lib.call("cudnnPoolingBackward", window, one, *dy, *dy, *x, zero, *dx)
    return _returning(run, outputs["dx"])


def _softmax(lib: _Library, p: Any, inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
    if inputs.get("scale", 1.0) != 1:
        raise ValueError("cuDNN's softmax has no scale")
    how = _LOGARITHM if p.family.startswith("log") else _ACCURATE

    def rows(x: Any) -> tuple[ctypes.c_void_p, Any]:
        return lib.tensor(x.flatten(0, -2)[..., None, None], p.dtype), x

    one, zero = ctypes.byref(_ONE), ctypes.byref(_ZERO)
    if p.family.endswith("backward"):
        y, dy, dx = rows(inputs["y"]), rows(inputs["dy"]), rows(outputs["dx"])
        run = lib.call("cudnnSoftmaxBackward", how, _INSTANCE, one, *y, *dy, zero, *dx)
        return _returning(run, outputs["dx"])
    x, y = rows(inputs["x"]), rows(outputs["y"])
    run = lib.call("cudnnSoftmaxForward", how, _INSTANCE, one, *x, zero, *y)
    return _returning(run, outputs["y"])


def _returning(run: Callable[[], None], result: Any) -> Callable[[], Any]:
    def call() -> Any:
        run()
        return result

    return call


_CUDNN: dict[str, Callable[..., Callable[[], Any]]] = {
    "pool": _pool,
    "pool_backward": _pool,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "softmax_backward": _softmax,
    "log_softmax_backward": _softmax,
}
