"""Pooling: the largest, the smallest or the mean of windows of images, in up to three dimensions.

    x [images, depth, height, width, channels]  →  y [images, …, channels]

Channels come last. Images whose channels come first are images of one channel each, and more of
them: `tilewright.max_pool2d` and its like take either, as torch's functions do, with their meaning
of padding, ``ceil_mode`` and ``count_include_pad``. NaN in a window is its largest and its
smallest. `index` adds the place of a largest or smallest among the pixels of its image; of equal
ones the first, of several NaN the last, as in torch.

CK Tile's ``pooling`` is such an operation.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import Gradient, In, Out, declare
from tilewright.declared._arrays import beside, functions, zeros
from tilewright.declared.sums import _ck, _pool, _pool_groups, _tile_engine_pool, _windows
from tilewright.dtypes import DTYPES
from tilewright.ops.formats import Formats

IMAGES = {"images": 64, "depth": 1}
VIDEOS = {"images": 8}
RESNET = {"kernel_h": 3, "kernel_w": 3, "stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1}
VGG = {"kernel_h": 2, "kernel_w": 2, "stride_h": 2, "stride_w": 2}
GLOBAL = {"mode": "average", "kernel_h": 7, "kernel_w": 7}
I3D = {**RESNET, "kernel_d": 3, "stride_d": 2, "pad_d": 1}
"""Windows of known models."""


def reference(x: Any, problem: Any) -> tuple[Any, ...] | Any:
    f, numbers = functions(x), beside(_windows.numbers(problem), x)
    sizes = [_windows.count(problem, one) for one in _windows.DIMENSIONS]
    y = zeros((problem.images, *sizes, problem.channels), x)
    places, seen = zeros(y.shape, numbers), zeros((1, *sizes, 1), numbers) > 0
    for windows, pixels in _windows.taps(problem):
        values, best = x[pixels], y[windows]
        if problem.mode == "average":
            best += values
            continue
        better = values < best if problem.mode == "min" else values > best
        better = better | ~seen[windows] | (values != values)
        places[windows] = f.where(better, numbers[pixels], places[windows])
        y[windows], seen[windows] = f.where(better, values, best), True
    if problem.mode == "average":
        return y / beside(_windows.divisors(problem), x)
    return (y, places) if problem.index else y


def refused(problem: Any) -> str:
    kind = DTYPES[problem.dtype]
    if kind.bits < 8 or (kind.kind == "float" and kind.bits < 16) or kind.bits == 64:
        return f"elements are {problem.dtype}; cast them to bf16, fp16 or fp32"
    if problem.mode == "average" and (problem.index or kind.kind == "int"):
        return "an average has no place, and none is made of whole numbers"
    return _windows.refused(problem)


def gradients(problem: Any) -> tuple[Gradient, ...] | str:
    if problem.mode != "average" and not problem.index:
        return f"the gradient of mode = '{problem.mode}' goes to its place: ask for index=True too"
    return (
        Gradient(
            "x",
            "pool_backward",
            ("x", "grad y"),
            keywords={"index": "places"},
            passes=_windows.PASSED,
        ),
    )


declare(
    _windows.declaration(
        "pool",
        module=__name__,
        groups=_pool_groups,
        operands={
            "x": In(*_windows.IMAGE),
            "y": Out(*_windows.OUTPUT),
            "places": Out(*_windows.OUTPUT, dtype="int64", when="index", exact=True),
        },
        options={**_windows.OPTIONS, "index": False},
        refuses=refused,
        reference=reference,
        gradients=gradients,
        functions=_pool.FUNCTIONS,
        formats=Formats(_tile_engine_pool.read_pool, _tile_engine_pool.FOLDERS),
        drivers=(_ck.POOL,),
        problems=(
            # ResNet-50 (arXiv:1512.03385), 64 images: the 3×3 windows behind its first layer, with
            # channels last and first, and means of whole images.
            {**IMAGES, "height": 112, "width": 112, "channels": 64, **RESNET},
            {**IMAGES, "images": 4096, "height": 112, "width": 112, "channels": 1, **RESNET},
            {**IMAGES, "height": 7, "width": 7, "channels": 2048, **GLOBAL},
            # VGG-16 (arXiv:1409.1556): 2×2.
            {**IMAGES, "height": 224, "width": 224, "channels": 64, **VGG},
            # I3D (arXiv:1705.07750), 8 videos of 64 frames of 224×224: (1, 3, 3) and (3, 3, 3).
            {**VIDEOS, "depth": 32, "height": 112, "width": 112, "channels": 64, **RESNET},
            {**VIDEOS, "depth": 32, "height": 28, "width": 28, "channels": 480, **I3D},
        ),
    )
)
