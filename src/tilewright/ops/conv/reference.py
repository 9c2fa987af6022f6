"""What a convolution must give, in float64: tap by tap, one product of matrices for each; or pixel
by pixel of y, where these are fewer than the taps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from tilewright import arrays
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.epilogues import chain_names


def reference(p: ConvProblem, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The output by name, for float64 `inputs`, NumPy's or torch's."""
    like = inputs["w"] if p.direction == "forward" else inputs["y"]
    found = dict(inputs)
    shape = p.shape_of(p.output_name)
    found[p.output_name] = like.new_zeros(shape) if arrays.is_torch(like) else _zeros(shape)
    grouped = {
        "x": (p.n, p.groups, p.group_c, *p.spatial),
        "w": (p.groups, p.group_k, p.group_c, *p.filter),
        "y": (p.n, p.groups, p.group_k, *p.out_sizes),
    }
    x, w, y = (found[name].reshape(grouped[name]) for name in "xwy")
    if math.prod(p.out_sizes) < p.taps:
        _by_pixels(p, x, w, y)
    else:
        _by_taps(p, x, w, y)
    made = {"x": x, "w": w, "y": y}[p.output_name].reshape(shape)
    return {p.output_name: _after(p, made, inputs)}


def _by_taps(p: ConvProblem, x: Any, w: Any, y: Any) -> None:
    """Add to the result what each tap gives. x, w, y: by groups, as `reference` has them."""
    for tap in itertools.product(*map(range, p.filter)):
        spans = [dim.joined(r) for dim, r in zip(p.dims, tap, strict=True)]
        if any(first == past for first, past in spans):
            continue
        of_y: Any = (..., *(slice(*span) for span in spans))
        of_x: Any = (
            ...,
            *(
                slice(
                    first * dim.stride + r * dim.dilation - dim.pad,
                    (past - 1) * dim.stride + r * dim.dilation - dim.pad + 1,
                    dim.stride,
                )
                for dim, r, (first, past) in zip(p.dims, tap, spans, strict=True)
            ),
        )
        of_w: Any = (..., *tap)
        count = math.prod(past - first for first, past in spans)
        here = w[of_w]
        if p.direction == "forward":
            seen = x[of_x].reshape(p.n, p.groups, p.group_c, count)
            y[of_y] += (here @ seen).reshape(y[of_y].shape)
        elif p.direction == "data":
            seen = y[of_y].reshape(p.n, p.groups, p.group_k, count)
            x[of_x] += (here.swapaxes(-1, -2) @ seen).reshape(x[of_x].shape)
        else:
            seen = x[of_x].reshape(p.n, p.groups, p.group_c, count)
            from_y = y[of_y].reshape(p.n, p.groups, p.group_k, count)
            w[of_w] += (from_y @ seen.swapaxes(-1, -2)).sum(0)


def _by_pixels(p: ConvProblem, x: Any, w: Any, y: Any) -> None:
    """Add to the result what each pixel of y gives, or gets: a product over its window."""
    for pixel in itertools.product(*map(range, p.out_sizes)):
        taps, places = [], []
        for dim, q in zip(p.dims, pixel, strict=True):
            begin = q * dim.stride - dim.pad
            first = max(0, -(begin // dim.dilation))
            past = max(first, min(dim.filter, (dim.size - 1 - begin) // dim.dilation + 1))
            taps.append(slice(first, past))
            start, stop = (begin + tap * dim.dilation for tap in (first, past))
            places.append(slice(start, stop, dim.dilation))
        if any(one.start == one.stop for one in taps):
            continue
        of_x: Any = (..., *places)
        of_w: Any = (..., *taps)
        of_y: Any = (..., *pixel)
        count = p.group_c * math.prod(one.stop - one.start for one in taps)
        here = w[of_w].reshape(p.groups, p.group_k, count)
        if p.direction == "forward":
            seen = x[of_x].reshape(p.n, p.groups, count, 1)
            y[of_y] += (here @ seen)[..., 0]
        elif p.direction == "data":
            given = y[of_y].reshape(p.n, p.groups, p.group_k, 1)
            x[of_x] += (here.swapaxes(-1, -2) @ given).reshape(x[of_x].shape)
        else:
            seen = x[of_x].reshape(p.n, p.groups, 1, count)
            given = y[of_y].reshape(p.n, p.groups, p.group_k, 1)
            w[of_w] += (given @ seen).sum(0).reshape(w[of_w].shape)


def _zeros(shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.zeros(shape)


def _after(p: ConvProblem, made: Any, inputs: Mapping[str, Any]) -> Any:
    """The result after the epilogue, whose operands see pixels as rows and channels as columns."""
    if not p.epilogue:
        return made
    rank = len(made.shape)
    order = (0, *range(2, rank), 1)
    lying = [made.shape[i] for i in order]

    def rows(array: Any) -> Any:
        if len(array.shape) != rank:
            return array
        return arrays.permuted(array, order).reshape(-1, p.channels_out)

    given = [rows(inputs[name]) for name in chain_names(p.epilogue)]
    after = epilogues.reference(p.epilogue, rows(made), given).reshape(lying)
    within = DTYPES[p.dtype_out].range  # values beyond it become its ends
    after = after.clip(*within) if within else after
    return arrays.permuted(after, (0, rank - 1, *range(1, rank - 1)))
