"""Products of matrices: mm, addmm, bmm and their like, scaled and grouped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.aten.stated import MADE, Given, Same, Stated, contiguous, precision
from tilewright.errors import BadArgument
from tilewright.ops.nouns import Call, View


def _product(
    a: View,
    b: View,
    given: Given,
    chain: Sequence[tuple[str, View | None]] = (),
    **options: Any,
) -> Stated:
    """The product of A and B, with an epilogue if it can be had, else without.

    chain: the epilogue's operations in order, each with its operand.
    """
    (made,) = given[MADE]
    said = {**options, **precision(given, a)}
    calls = [Call((a, b), {}, (made,), said)]
    if chain:
        named = {name: view for name, view in chain if view is not None}
        epilogue = "+".join(name for name, _ in chain)
        calls.insert(0, Call((a, b), named, (made,), {**said, "epilogue": epilogue}))
    # Operands that no kernel reads as they lie, torch copies as well.
    copies = tuple(replace(call, inputs=(contiguous(a), contiguous(b))) for call in calls)
    return [Same("gemm", (*calls, *copies))]


def _plain(one: str, other: str, given: Given) -> Stated:
    return _product(given[one], given[other], given)


def _added(one: str, other: str, given: Given, **options: Any) -> Stated:
    """beta·self + alpha·A·B."""
    a, b = given[one], given[other]
    return _product(a, b, given, _chain(given), **options)


def _chain(given: Given) -> list[tuple[str, View | None]]:
    """alpha and self as an epilogue; nothing where it cannot say them."""
    (made,) = given[MADE]
    beta, alpha = given.get("beta", 1), given.get("alpha", 1)
    chain: list[tuple[str, View | None]] = []
    if alpha != 1:
        chain.append(("scale", _number(made)))
    if beta == 0:
        return chain
    beside = _beside(given["self"], made)
    return [*chain, beside] if beta == 1 and beside is not None else []


def _number(like: View) -> View:
    """A scalar in fp32."""
    return View((1,), (1,), "fp32", 0, like.device)


def _beside(x: View, made: View) -> tuple[str, View] | None:
    """What is added to a result: a value for each column, or a matrix of its shape; None for
    anything else."""
    columns = made.shape[-1] if made.shape else 1
    outer = list(zip(x.shape[:-1], x.strides[:-1], strict=True))
    if x.shape[-1:] == (columns,) and all(size == 1 or step == 0 for size, step in outer):
        return "bias", replace(x, shape=(columns,), strides=x.strides[-1:])
    if x.shape == made.shape or (len(x.shape) == 2 and x.shape == made.shape[-2:]):
        return "add", x
    return None


def _activated(given: Given) -> Stated:
    """``_addmm_activation``, whose gelu is the one by tanh."""
    after = "gelu_tanh" if given["use_gelu"] else "relu"
    chain = _chain(given)
    return _product(given["mat1"], given["mat2"], given, chain and [*chain, (after, None)])


# --- scaled -----------------------------------------------------------------------------------


def _scaled(given: Given) -> Stated:
    """``_scaled_mm``."""
    return _with_scales(given, given["scale_a"], given["scale_b"], given.get("scale_result"))


def _scaled_by_recipe(given: Given) -> Stated:
    """``_scaled_mm_v2``: with one array of scales for each operand, not rearranged."""
    arrays: list[View] = []
    for side in "ab":
        scales = given[f"scale_{side}"]
        if len(scales) != 1 or any(given[f"swizzle_{side}"]):
            raise BadArgument("scales of two levels, or rearranged ones, are not served")
        arrays.append(scales[0])
    return _with_scales(given, arrays[0], arrays[1], None)


_ALONG = 128
"""Elements of K that a scale of a block covers, and columns of B. Torch's other blocks have scales
of other dtypes."""


def _with_scales(given: Given, of_a: View, of_b: View, of_c: View | None) -> Stated:
    a, b = given["self"], given["mat2"]
    m, k, n = a.shape[0], a.shape[1], b.shape[1]
    after: list[tuple[str, View | None]] = []
    if (bias := given.get("bias")) is not None:
        after.append(("bias", bias))
    if of_c is not None and _elements(of_c) == 1:
        after.append(("scale_2" if _elements(of_a) == 1 else "scale", _number(of_c)))
    if _elements(of_a) == _elements(of_b) == 1:  # the product of both
        return _chained(a, b, given, [("scale", _number(of_a)), *after])
    if (of_a.shape, of_b.shape) == ((m, 1), (1, n)):
        rows = replace(of_a, shape=(m,), strides=of_a.strides[:1])
        columns = replace(of_b, shape=(n,), strides=of_b.strides[1:])
        return _chained(a, b, given, [("row_scale", rows), ("col_scale", columns), *after])
    along = -(-k // _ALONG)
    shapes: dict[tuple[int, ...], str] = {
        (along, n): "128x1",
        (along, -(-n // _ALONG)): "128x128",
    }
    blocks = shapes.get(of_b.shape)
    if of_a.dtype != "fp32" or of_a.shape != (m, along) or blocks is None:
        raise BadArgument(
            f"scales of shape {of_a.shape} in {of_a.dtype} and {of_b.shape} are not served: "
            "there are those of one number, of rows and columns, and of blocks of 1x128 with "
            "128x128 or 128x1 in fp32"
        )
    named = {"scale_a": of_a, "scale_b": of_b}
    return _chained(a, b, given, after, named, scale_a="1x128", scale_b=blocks)


def _chained(
    a: View,
    b: View,
    given: Given,
    chain: Sequence[tuple[str, View | None]],
    named: dict[str, View] | None = None,
    **options: Any,
) -> Stated:
    """A product whose scales cannot be left out.

    chain: operands by name, in order; a number behind a name tells two alike apart.
    named: arrays of scales of blocks.
    """
    (made,) = given[MADE]
    operands = {**(named or {}), **{name: view for name, view in chain if view is not None}}
    if chain:
        options["epilogue"] = "+".join(name.removesuffix("_2") for name, _ in chain)
    return [Same("gemm", (Call((a, b), operands, (made,), options),))]


def _elements(view: View) -> int:
    count = 1
    for size in view.shape:
        count *= size
    return count


# --- grouped ----------------------------------------------------------------------------------


def _grouped(given: Given) -> Stated:
    """``_grouped_mm``: groups of rows, of columns or along the sum, or a batch of products."""
    a, b = given["self"], given["mat2"]
    if len(a.shape) == len(b.shape) == 3:
        return _product(a, b, given)
    return [
        Same("grouped_gemm", (Call((a, b, given["offs"]), {}, given[MADE], precision(given, a)),))
    ]


_PAIRS = {"mm": ("self", "mat2"), "bmm": ("self", "mat2"), "mv": ("self", "vec"),
          "_int_mm": ("self", "mat2")}  # fmt: skip
_SUMS = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec")}

RULES: dict[str, Callable[[Given], Stated]] = {
    **{name: partial(_plain, *names) for name, names in _PAIRS.items()},
    **{name: partial(_added, *names) for name, names in _SUMS.items()},
    **{f"{name}_": partial(_added, *names) for name, names in _SUMS.items()},
    "addbmm": partial(_added, "batch1", "batch2", batching="summed"),
    "_addmm_activation": _activated,
    "_scaled_mm": _scaled,
    "_scaled_mm_v2": _scaled_by_recipe,
    "_grouped_mm": _grouped,
}
"""By the name of an operation of aten."""
