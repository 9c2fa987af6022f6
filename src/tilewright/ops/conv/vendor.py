"""What torch has for a problem, to compare kernels with: cuDNN (on AMD, MIOpen) through ATen's
convolution and its backward pass, in benchmark mode, on arrays as they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.ops.conv.geometry import whole_padding
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.protocols import Bind

FORWARD, BACKWARD = "aten.convolution", "aten.convolution_backward"

_DTYPES = ("bf16", "fp16", "fp32")


def vendor(p: ConvProblem) -> Mapping[str, Bind]:
    """The call of torch that computes `p`, by name. TF32 has none: in torch it is a setting of the
    process. Padding behind x that no pixel reaches may differ from that before x."""
    same = p.dtype == p.dtype_out and p.dtype in _DTYPES and p.precision == "ieee"
    biased = p.epilogue == "" or (p.epilogue == "bias" and p.direction == "forward")
    if not same or not biased or 0 in (*p.shape_of("x"), *p.shape_of("y"), p.c, p.k):
        return {}
    if min(p.pad) < 0 or any(not _padded(p, i) for i in range(len(p.spatial))):
        return {}
    return {FORWARD if p.direction == "forward" else BACKWARD: partial(_bind, p, True)}


def stand_in(p: ConvProblem) -> Mapping[str, Bind]:
    """The vendor's call, by the algorithm that the library guesses: it tries none. For depthwise
    layers torch's own kernels, as the library compiles some of its kernels for up to two
    seconds."""
    return {name: partial(_bind, p, False) for name in vendor(p)}


def _padded(p: ConvProblem, i: int) -> bool:
    """Whether as much padding behind as before gives y the same size."""
    dim = p.dims[i]
    spare = dim.pad - whole_padding(dim)
    return 0 <= spare < dim.stride


def _bind(
    p: ConvProblem, tries: bool, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> Callable[[], Any]:
    import torch

    said = (p.stride, p.pad, p.dilation, False, (0,) * len(p.spatial), p.groups)
    by_library = tries or not p.groups == p.c == p.k
    if p.direction == "forward":
        bias = inputs.get("bias")
        run = partial(torch.ops.aten.convolution, inputs["x"], inputs["w"], bias, *said)
        return lambda: _called(run, by_library, tries)
    made = outputs[p.output_name]
    arrays = {**inputs, p.output_name: made}  # of what is made, only the shape is read
    asked = [p.direction == "data", p.direction == "weights", False]
    run = partial(
        torch.ops.aten.convolution_backward, arrays["y"], arrays["x"], arrays["w"], None, *said,
        asked,
    )  # fmt: skip
    place = 0 if p.direction == "data" else 1
    return lambda: _called(run, by_library, tries)[place]


def _called(run: Callable[[], Any], by_library: bool, tries: bool) -> Any:
    """With fp32 as fp32; by the library or by torch's own kernels; and if it `tries`, with the
    library's fastest algorithm of all that it has. torch tries ten unless it is told another
    limit."""
    import torch

    flags = {"benchmark": tries, "benchmark_limit": 0, "deterministic": False, "allow_tf32": False}
    with torch.backends.cudnn.flags(enabled=by_library, **flags):
        return run()
