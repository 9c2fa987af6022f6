"""The gradient of `pool`: each pixel sums what arrives for the windows that it is in.

For max and min pooling, a window counts only for the pixel that it took its value from. Each pixel
is written by one workgroup, so no atomics are needed, and results repeat.
"""

from __future__ import annotations

from typing import Any

from tilewright.custom import In, Out, declare
from tilewright.declared._arrays import beside, zeros
from tilewright.declared.sums import _pixel_groups, _windows
from tilewright.declared.sums.pool import GLOBAL, I3D, IMAGES, RESNET, VGG, VIDEOS
from tilewright.dtypes import DTYPES


def places(problem: Any, rng: Any) -> Any:
    """Of each window a pixel of the image."""
    import numpy as np

    sizes = [_windows.count(problem, one) for one in _windows.DIMENSIONS]
    shape = (problem.images, *sizes, problem.channels)
    made, numbers, drawn = (
        np.zeros(shape, np.int64),
        _windows.numbers(problem),
        np.full(shape, -1.0),
    )
    for windows, pixels in _windows.taps(problem):
        lot, before = rng.random(made[windows].shape, np.float32), drawn[windows]
        made[windows] = np.where(lot > before, numbers[pixels], made[windows])
        drawn[windows] = np.maximum(lot, before)
    return made


def reference(x: Any, dy: Any, index: Any, problem: Any) -> Any:
    dx, numbers = zeros(x.shape, dy), beside(_windows.numbers(problem), dy)
    arrived = dy if index is not None else dy / beside(_windows.divisors(problem), dy)
    for windows, pixels in _windows.taps(problem):
        chosen = 1 if index is None else index[windows] == numbers[pixels]
        dx[pixels] += arrived[windows] * chosen
    return dx


def refused(problem: Any) -> str:
    if DTYPES[problem.dtype].kind != "float" or DTYPES[problem.dtype].bits < 16:
        return f"elements are {problem.dtype}; gradients are of floats of 16 bits or more"
    if problem.has_index != (problem.mode != "average"):
        wants = "takes no index=" if problem.has_index else "needs index=, the places of its values"
        return f"mode = '{problem.mode}' {wants}"
    return _windows.refused(problem)


declare(
    _windows.declaration(
        "pool_backward",
        module=__name__,
        groups=_pixel_groups,
        operands={
            "x": In(*_windows.IMAGE, read=False),
            "dy": In(*_windows.OUTPUT),
            "index": In(*_windows.OUTPUT, dtype="int64", optional=True, values=places),
            "dx": Out(*_windows.IMAGE),
        },
        options=_windows.OPTIONS,
        refuses=refused,
        reference=reference,
        terms=8,
        problems=(
            # ResNet-50 (arXiv:1512.03385), 64 images: the 3×3 windows behind its first layer.
            {**IMAGES, "height": 112, "width": 112, "channels": 64, **RESNET, "has_index": True},
            {**IMAGES, "height": 7, "width": 7, "channels": 2048, **GLOBAL},
            # VGG-16 and I3D, as of `pool`.
            {**IMAGES, "height": 224, "width": 224, "channels": 64, **VGG, "has_index": True},
            {
                **VIDEOS,
                "depth": 32,
                "height": 28,
                "width": 28,
                "channels": 480,
                **I3D,
                "has_index": True,
            },
        ),
    )
)
