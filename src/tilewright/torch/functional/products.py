"""Products of matrices, with torch's arguments: ``mm``, ``bmm``, ``addmm``, ``baddbmm``,
``matmul`` and ``linear``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tilewright.errors import BadArgument, shown
from tilewright.operation import again, operation, remember
from tilewright.torch import autocast
from tilewright.torch.activations import ACTIVATIONS
from tilewright.torch.functional import checked
from tilewright.torch.functional.precision import tf32

gemm = operation("gemm")
"""`tilewright.gemm`."""

LINEAR = "linear"
"""What calls of `linear` that are repeated are called, before their activation and whether they
are in tf32."""

_EQUATIONS = {
    1: "k,nk->n", 2: "mk,nk->mn", 3: "bmk,nk->bmn", 4: "abmk,nk->abmn", 5: "abcmk,nk->abcmn",
}  # fmt: skip
"""Of x and a weight (out, in), by the dimensions of x. They name the weight as it lies, so that no
view of it is made. An x of four and more, as images whose channels lie innermost are, is to be
contiguous: its rows are those of one matrix."""

MOST_DIMENSIONS = max(_EQUATIONS)
"""Of an x that `linear` takes as it lies, if it is contiguous."""

_MOST = 4
"""Dimensions of an operand that a product takes as they lie: two of a batch."""


def mm(input: Any, mat2: Any, out_dtype: Any = None, *, out: Any = None) -> Any:
    """As ``torch.mm``: the product of two matrices.

    input: [m, k].
    mat2: [k, n].
    out_dtype: dtype of the result, the inputs' or float32; None: the inputs'. Gradients are
        recorded with None alone.
    out: where the result is written. Gradients are not recorded then.

    Raises `BadArgument`.
    """
    plain, what = out is None and out_dtype is None, ("mm", tf32(input))
    if plain:
        made = again(what, (input, mat2))
        if made is not None:
            return made
    checked.floats("mm", input=input, mat2=mat2)
    checked.dimensions("input", input, 2)
    checked.dimensions("mat2", mat2, 2)
    if not plain:
        return _into(input, mat2, out_dtype, out)
    return _product(what, input, mat2)


def bmm(input: Any, mat2: Any, out_dtype: Any = None, *, out: Any = None) -> Any:
    """As ``torch.bmm``: the products of two batches of matrices.

    input: [batch, m, k].
    mat2: [batch, k, n].
    out_dtype, out: as in `mm`.

    Raises `BadArgument`.
    """
    plain, what = out is None and out_dtype is None, ("bmm", tf32(input))
    if plain:
        made = again(what, (input, mat2))
        if made is not None:
            return made
    checked.floats("bmm", input=input, mat2=mat2)
    _batches(input, mat2, "input", "mat2")
    if not plain:
        return _into(input, mat2, out_dtype, out)
    return _product(what, input, mat2)


def matmul(input: Any, other: Any, *, out: Any = None) -> Any:
    """As ``torch.matmul``: the product of vectors, matrices, and batches of any number of
    dimensions, which are broadcast.

    out: where the result is written. Gradients are not recorded then.

    Raises `BadArgument`.
    """
    what = ("matmul", tf32(input))
    if out is None:
        made = again(what, (input, other))
        if made is not None:
            return made
    checked.floats("matmul", input=input, other=other)
    for name, x in (("input", input), ("other", other)):
        if x.dim() == 0:
            raise BadArgument(f"{name} has no dimensions, but must have 1 or more")
    if out is not None:
        return _copied(matmul(input, other), out, "matmul", input, other)
    if max(input.dim(), other.dim()) > _MOST:
        return _folded(input, other)
    return _product(what, input, other)


def addmm(
    input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1, out: Any = None
) -> Any:
    """As ``torch.addmm``: beta · input + alpha · (mat1 · mat2), in one kernel where beta is 1 or 0.

    input: what is added, broadcast to [m, n].
    mat1: [m, k].
    mat2: [k, n].
    out: where the result is written. Gradients are not recorded then.

    Raises `BadArgument`.
    """
    if out is None:
        made = again(("addmm", beta, alpha, tf32(mat1)), (mat1, mat2, input))
        if made is not None:
            return made
    checked.floats("addmm", input=input, mat1=mat1, mat2=mat2)
    checked.dimensions("mat1", mat1, 2)
    checked.dimensions("mat2", mat2, 2)
    return _added("addmm", input, mat1, mat2, beta, alpha, out)


def baddbmm(
    input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1, out: Any = None
) -> Any:
    """As ``torch.baddbmm``: beta · input + alpha · (batch1 · batch2), in one kernel where beta is 1
    or 0.

    input: what is added, broadcast to [batch, m, n].
    batch1: [batch, m, k].
    batch2: [batch, k, n].
    out: where the result is written. Gradients are not recorded then.

    Raises `BadArgument`.
    """
    if out is None:
        made = again(("baddbmm", beta, alpha, tf32(batch1)), (batch1, batch2, input))
        if made is not None:
            return made
    checked.floats("baddbmm", input=input, batch1=batch1, batch2=batch2)
    _batches(batch1, batch2, "batch1", "batch2")
    return _added("baddbmm", input, batch1, batch2, beta, alpha, out)


def linear(input: Any, weight: Any, bias: Any = None, activation: str | None = None) -> Any:
    """As ``torch.nn.functional.linear``: input · weightᵀ + bias, and an activation of it, in one
    kernel.

    input: [..., in].
    weight: [out, in], or [in], which gives a result without the last dimension.
    bias: [out].
    activation: ``gelu``, ``gelu_tanh``, ``relu`` or ``silu``; None for none.

    Raises `BadArgument`.
    """
    given = (input, weight, bias)
    if activation is not None and type(activation) is not str:
        raise BadArgument(f"activation = {shown(activation)} is not a name, nor None")
    what = (LINEAR, activation, tf32(input))
    made = again(what, given)
    if made is not None:
        return made
    if activation is not None and activation not in ACTIVATIONS:
        raise BadArgument(
            f"activation = {shown(activation)} is not one of {', '.join(ACTIVATIONS)}, nor None"
        )
    checked.floats("nn.functional.linear", input=input, weight=weight, bias=bias)
    checked.dimensions("weight", weight, 1, 2)
    if input.dim() == 0:
        raise BadArgument("input has no dimensions, but must have 1 or more")
    if weight.dim() == 1:
        shared = None if bias is None else bias.reshape(1)
        return linear(input, weight[None], shared, activation).squeeze(-1)
    if input.shape[-1] != weight.shape[1]:
        raise BadArgument(
            f"input has {input.shape[-1]} columns, and weight is for {weight.shape[1]}"
        )
    dims = input.dim()
    folded = dims > 3 and not (dims in _EQUATIONS and input.is_contiguous())
    x, w = _read(input.flatten(0, -2) if folded else input, weight)
    said = said_of_linear(x, weight, bias, activation)
    made = gemm(x, w, **said)
    if folded:
        return made.unflatten(0, input.shape[:-1])
    _remember(what, given, said, made)
    return made


def said_of_linear(
    x: Any, weight: Any, bias: Any = None, activation: str | None = None
) -> dict[str, Any]:
    """The keywords of the product that `linear` calls, of an x that it takes as it lies. Raises
    `BadArgument` for a bias that does not fit."""
    said = {"equation": _EQUATIONS[x.dim()], **_precision(x)}
    if bias is not None:
        checked.dimensions("bias", bias, 0, 1)
        said["bias"] = _vector(bias, weight.shape[0])
        said["epilogue"] = "bias" if activation is None else f"bias+{activation}"
    elif activation is not None:
        said["epilogue"] = activation
    return said


def _product(what: Any, a: Any, b: Any) -> Any:
    """The product of two, whose like are repeated."""
    said = _precision(a)
    made = gemm(*_read(a, b), **said)
    _remember(what, (a, b), said, made)
    return made


def _read(a: Any, b: Any) -> tuple[Any, Any]:
    """Both as a product reads them (`checked.readable`). Where both are expanded along one
    dimension of the batch, its products are all the same, and GEMM refuses such a batch: one of the
    operands is copied, as torch copies it."""
    for back in range(3, max(a.dim(), b.dim()) + 1):
        if _expanded(a, back) and _one(b, back):
            a = a.contiguous()
        elif _expanded(b, back) and _one(a, back):
            b = b.contiguous()
    return checked.readable(a), checked.readable(b)


def _expanded(x: Any, back: int) -> bool:
    """Whether the matrices of `x` are all the same along this dimension, counted from the last."""
    return bool(x.dim() >= back and x.stride(-back) == 0)


def _one(x: Any, back: int) -> bool:
    """Whether this dimension of `x`, counted from the last, is expanded, or is to be: it is 1, or
    not there."""
    return bool(x.dim() < back or x.stride(-back) == 0 or x.shape[-back] == 1)


def _precision(x: Any) -> dict[str, Any]:
    """How a product of tensors like `x` is told to multiply."""
    return {"precision": "tf32"} if tf32(x) else {}


def _remember(what: Any, given: tuple[Any, ...], said: Mapping[str, Any], made: Any) -> None:
    """See `tilewright.operation.remember`.

    given: the operands of a product, and what is added, by whatever word `said` has for it.
    """
    if not autocast.active():
        added = ("bias" if "bias" in said else "add",) * (len(given) - 2)
        remember(what, given, added, "gemm", given[:2], said, (made,), (made,))


def _batches(a: Any, b: Any, name_a: str, name_b: str) -> None:
    """Raise `BadArgument` unless two are batches of as many matrices."""
    checked.dimensions(name_a, a, 3)
    checked.dimensions(name_b, b, 3)
    if a.shape[0] != b.shape[0]:
        raise BadArgument(
            f"{name_a} is {list(a.shape)} and {name_b} is {list(b.shape)}: both must have one batch"
        )


def _into(a: Any, b: Any, out_dtype: Any, out: Any) -> Any:
    """The product of two matrices, or of two batches, in `out`, or in a new tensor of `out_dtype`,
    which `out` must have."""
    shape = (*a.shape[:-1], b.shape[-1])
    if out_dtype not in (None, a.dtype, torch.float32):
        raise BadArgument(f"out_dtype is {out_dtype}, but must be {a.dtype} or float32")
    if out is None:
        out = a.new_empty(shape, dtype=out_dtype)
    elif out.dtype is not (out_dtype or a.dtype):
        raise BadArgument(f"out is {out.dtype}, but must be {out_dtype or a.dtype}")
    out = checked.fitted(out, shape)
    return gemm(*_read(a, b), out=out, **_precision(a))


def _copied(made: Any, out: Any, function: str, *tensors: Any) -> Any:
    """A result in `out`. Raises `BadArgument` where gradients are wanted."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, out)):
        raise BadArgument(f"{function} records no gradients with out=; leave it out")
    if out.dtype is not made.dtype:
        raise BadArgument(f"out is {out.dtype}, but must be {made.dtype}")
    shape = tuple(made.shape)
    if tuple(checked.fitted(out, shape).shape) != shape:
        raise BadArgument(f"out is {list(out.shape)}, but the result is {list(shape)}")
    return out.copy_(made)


def _folded(a: Any, b: Any) -> Any:
    """The product of two, of which one has more dimensions than a product takes as they lie: those
    of the batch become one, as torch makes them one."""
    said = _precision(a)
    if b.dim() <= 2:  # more rows of one matrix
        found = gemm(*_read(a.flatten(0, -2), b), **said)
        return found.unflatten(0, a.shape[:-1])
    if a.dim() <= 2:
        found = gemm(*_read(a, b.flatten(0, -3)), **said)
        return found.unflatten(0, b.shape[:-2])
    fronts = a.shape[:-2], b.shape[:-2]
    batch = torch.broadcast_shapes(*fronts)  # type: ignore[no-untyped-call]
    a, b = (x.expand(*batch, *x.shape[-2:]).flatten(0, -3) for x in (a, b))
    return gemm(*_read(a, b), **said).unflatten(0, batch)


def _added(function: str, input: Any, a: Any, b: Any, beta: float, alpha: float, out: Any) -> Any:
    """beta · input + alpha · (a · b), of matrices or of batches."""
    shape = (*a.shape[:-1], b.shape[-1])
    words, said = [], _precision(a)
    if alpha != 1:
        words.append("scale")
        said["scale"] = alpha
    if beta != 0:
        word, added = _broadcast(input, shape)
        words.append(word)
        said[word] = added if beta == 1 else added * beta
    if words:
        said["epilogue"] = "+".join(words)
    if out is not None:
        with torch.no_grad():
            made = gemm(*_read(a, b), **said)
        return _copied(made, out, function, input, a, b)
    made = gemm(*_read(a, b), **said)
    if alpha == 1:
        _remember((function, beta, alpha, tf32(a)), (a, b, input), said, made)
    return made


def _broadcast(x: Any, shape: tuple[int, ...]) -> tuple[str, Any]:
    """What is added to products of this shape, and the word for it: a vector of columns is a
    ``bias``, anything else matrices that all products share or one for each. Raises
    `BadArgument`."""
    ones = len(shape) - x.dim()
    sizes = (*(1,) * ones, *x.shape)
    if not checked.fills(sizes, shape):
        raise BadArgument(f"input is {list(x.shape)}, which is not broadcast to {list(shape)}")
    columns = shape[-1]
    if math.prod(sizes[:-1]) == 1:
        return "bias", _vector(x if x.dim() == 1 else x.reshape(-1), columns)
    if len(shape) == 3 and sizes[0] == 1:
        shape, x = shape[1:], x.reshape(sizes[1:])
    if tuple(x.shape) != shape:
        x = x.expand(shape)
    down, along = x.stride()[-2:]
    return "add", x if along == 1 and down >= columns else x.contiguous()


def _vector(x: Any, columns: int) -> Any:
    """`x`, of one element or a vector, as a vector whose elements are neighbours. Raises
    `BadArgument`."""
    if x.dim() != 1 or x.shape[0] != columns:
        if x.numel() != 1:
            raise BadArgument(f"a vector for {columns} columns has {x.numel()} elements")
        x = x.expand(columns)
    return x if x.is_contiguous() else x.contiguous()
