"""Convolutions that are products of matrices on the arrays as they lie, without a copy. About half
of the layers of image networks are 1×1.

Without padding, a pixel of y is what its taps meet of x times the weights. With one tap these are
the channels c of a pixel of x. With several they may be one row of x all the same (`_run`): where a
filter covers its image, as in patches that a vision model embeds, or a window's neighbours lie side
by side, as in one dimension with channels innermost. Then c counts the taps too:

    forward   y [pixels, k] = x [pixels, c] · wᵀ
    data      x [pixels, c] = y [pixels, k] · w
    weights   w [k, c]      = yᵀ [k, pixels] · x [pixels, c]

So forward is GEMM's layout ``rcr``, data ``rrr`` and weights ``crr`` where channels are innermost;
other strides give other letters, and channels-first images are column-major matrices. Pixels must
lie at one distance, so that they are rows of one matrix. Where images (or rows of pixels, under a
stride) lie further apart, each is a matrix of a strided batch that shares the weights; the gradient
of weights is then the sum of a batch's products. So both matrices of channels-first images are
read as they lie, along the pixels that are summed. Groups are a batch too: their channels lie side
by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from tilewright.errors import BadArgument
from tilewright.ops import epilogues
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.gemm.problem import GemmProblem

OPERANDS: Mapping[str, Mapping[str, str]] = {
    "forward": {"A": "x", "B": "w", "C": "y"},
    "data": {"A": "y", "B": "w", "C": "x"},
    "weights": {"A": "y", "B": "x", "C": "w"},
}
"""The operands of a convolution that are A, B and C of its product."""

_USUAL = {"forward": "rcr", "data": "rrr", "weights": "crr"}
"""The layout where a dimension of one element leaves a choice: that of arrays with channels
innermost."""


@lru_cache(maxsize=1024)
def product(p: ConvProblem) -> GemmProblem | str:
    """The product that computes `p` on its operands as they lie; or why there is none."""
    if any(p.pad) or any((d.out - 1) * d.stride + d.filter > d.size for d in p.dims):
        return "with padding, a row of y is not of pixels of x alone"
    if p.direction == "data" and any(
        d.stride != d.filter or d.out * d.filter != d.size for d in p.dims
    ):
        return "the gradient of x has pixels that no tap meets, or several, and is no product"
    if any(0 in p.shape_of(name) for name in "xwy"):
        return "an array without elements is no matrix"
    if p.depthwise and p.groups > 1:
        return "where every channel has a filter of its own, there is nothing to add up"
    kinds = {taken.kind for taken in epilogues.takes(p.epilogue)}
    if p.groups > 1 and "n" in kinds:
        return (
            f"epilogue '{p.epilogue}' reads a value for each channel, and the batch of {p.groups} "
            "groups would share them"
        )
    if p.taps > 1 and (reason := _run(p)) is not None:
        return reason
    levels = _pixels(p)
    if len(levels) + (p.groups > 1) > 2:
        return (
            f"the pixels of x and y lie at {len(levels)} distances, and can only be the rows of "
            "one matrix, or of one batch"
        )
    try:
        return _matrices(p, levels)
    except BadArgument as error:
        return str(error)


def _run(p: ConvProblem) -> str | None:
    """Why what the taps of a filter meet is not a row of x, with the weights in the same order; or
    None."""
    if any(d.filter > 1 and d.dilation > 1 for d in p.dims):
        return "taps of a dilated filter do not lie side by side"
    if any(d.out > 1 and d.stride < d.filter for d in p.dims):
        return "windows of several taps overlap, and a matrix's rows do not"
    if p.direction == "data" and any(taken.kind == "n" for taken in epilogues.takes(p.epilogue)):
        return f"epilogue '{p.epilogue}' reads a value for each channel, and a row has all taps'"
    counts = (p.group_c, *p.filter)
    (_, *of_x), (_, *of_w) = p.strides_of("x"), p.strides_of("w")
    met = sorted((x, w, n) for x, w, n in zip(of_x, of_w, counts, strict=True) if n > 1)
    step = 1
    for x, w, n in met:
        if (x, w) != (step, step):
            return "what several taps meet of x and their weights are not rows in one order"
        step *= n
    return None


Level = tuple[int, int, int]
"""Pixels that lie at one distance: how many, and the distance in x and in y."""


def _pixels(p: ConvProblem) -> list[Level]:
    """The pixels of x that are seen, and those of y, walked together: outer levels first. A level
    is several dimensions where these lie as one."""
    _, _, *of_x = p.strides_of("x")
    _, _, *of_y = p.strides_of("y")
    found: list[Level] = [(p.n, p.strides_of("x")[0], p.strides_of("y")[0])]
    for dim, x, y in zip(p.dims, of_x, of_y, strict=True):
        count, step_x, step_y = dim.out, x * dim.stride, y
        outer, outer_x, outer_y = found[-1]
        if count == 1:
            continue
        if outer == 1:
            found[-1] = (count, step_x, step_y)
        elif (outer_x, outer_y) == (count * step_x, count * step_y):
            found[-1] = (outer * count, step_x, step_y)
        else:
            found.append((count, step_x, step_y))
    return found


def _matrices(p: ConvProblem, levels: Sequence[Level]) -> GemmProblem:
    """The product of `p`, whose innermost level of pixels are rows. Raises `BadArgument`."""
    pixels, row_x, row_y = levels[-1]
    (_, x, *_), (w_k, w_c, *_), (_, y, *_) = (p.strides_of(name) for name in "xwy")
    c, k = p.group_c * p.taps, p.group_k
    if p.taps > 1:
        x = w_c = 1  # of rows with all taps (`_run`)
    forms = {
        "forward": ((pixels, c, row_x, x), (c, k, w_c, w_k), (pixels, k, row_y, y)),
        "data": ((pixels, k, row_y, y), (k, c, w_k, w_c), (pixels, c, row_x, x)),
        "weights": ((k, pixels, y, row_y), (pixels, c, row_x, x), (k, c, w_k, w_c)),
    }
    a, b, result = forms[p.direction]
    names = OPERANDS[p.direction]
    letters, lds = zip(
        *(
            _lying(names[name], *form, usual)
            for name, form, usual in zip("ABC", (a, b, result), _USUAL[p.direction], strict=True)
        ),
        strict=True,
    )
    said: dict[str, Any] = {}
    matrix = epilogues.has_matrix(p.epilogue)
    if len(levels) > 1 or p.groups > 1:
        steps = {"x": c * x, "w": k * w_k, "y": k * y}
        batch = p.groups
        if len(levels) > 1:
            batch, step_x, step_y = levels[0]
            steps = {"x": step_x, "w": 0, "y": step_y}
        summed = p.direction == "weights" and len(levels) > 1
        said = {f"stride_{name.lower()}": steps[names[name]] for name in "ABC"}
        said |= {"batch": batch, "batching": "summed" if summed else "strided"}
        said |= {"stride_d": said["stride_c"]} if matrix else {}
    found = GemmProblem(
        a[0],
        b[1],
        a[1],
        dtype_a=p.dtype,
        dtype_c=p.dtype_out,
        layout="".join(letters),
        lda=lds[0],
        ldb=lds[1],
        ldc=lds[2],
        precision=p.precision,
        epilogue=p.epilogue,
        ldd=lds[2] if matrix else 0,
        **said,
    )
    return found if found.alignment <= p.alignment else replace(found, alignment=p.alignment)


def _lying(
    name: str, rows: int, columns: int, down: int, along: int, usual: str
) -> tuple[str, int]:
    """The letter of a matrix in a layout, and its leading dimension (0: without gaps). Raises
    `BadArgument` where neither its rows nor its columns are contiguous.

    down, along: elements from a row to the next, and from a column to the next.
    """
    either = {
        "r": (along == 1 or columns == 1, 0 if rows == 1 else down),
        "c": (down == 1 or rows == 1, 0 if columns == 1 else along),
    }
    for letter in (usual, "c" if usual == "r" else "r"):
        contiguous, ld = either[letter]
        if contiguous:
            if ld == 0 and (rows if letter == "r" else columns) > 1:
                raise BadArgument(f"{name} repeats elements by a stride of 0")
            return letter, ld
    raise BadArgument(
        f"{name} is a matrix whose rows are {down} and whose columns are {along} elements apart: "
        "neither lie side by side"
    )
