"""The functions of `tilewright.jax`."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tilewright import calls
from tilewright.errors import BadArgument
from tilewright.jax.gradients import differentiable
from tilewright.jax.primitive import stated_of
from tilewright.jax.tensors import Order, Tensor


def gemm(
    a: Any,
    b: Any,
    *operands: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    **options: Any,
) -> Any:
    """As `tilewright.gemm`: A·B, and an epilogue.

    a: [m, k], or a batch of such matrices.
    b: [k, n], or a batch; one matrix may be for a whole batch.
    operands: those of the epilogue, which may go by keyword too.
    transpose_a, transpose_b: the last two dimensions are the other way round. The array is read as
        it lies; ``a.T`` would be a copy.
    options: those of `tilewright.gemm`: ``epilogue="bias+gelu", bias=bias``, ``scale_a``,
        ``precision``.

    Raises `BadArgument`.
    """
    first = [_matrix(a, transpose_a), _matrix(b, transpose_b)]
    return _call("gemm", [*first, *map(_tensor, operands)], options)


def matmul(a: Any, b: Any, **options: Any) -> Any:
    """As ``jax.numpy.matmul``: vectors, matrices, and batches that are broadcast.

    options: as of `gemm`.
    """
    return _call("gemm", [_tensor(a), _tensor(b)], options)


def dot_general(lhs: Any, rhs: Any, dimension_numbers: Any, **options: Any) -> Any:
    """As ``jax.lax.dot_general``. Both arrays are read as they lie.

    dimension_numbers: ((dimensions of lhs that are summed over, those of rhs), (dimensions of lhs
        that are a batch, those of rhs)).
    options: as of `gemm`.

    Raises `BadArgument` for a contraction that no product of matrices walks (see `tilewright.gemm`
    with ``equation=``).
    """
    (summed_l, summed_r), (batch_l, batch_r) = dimension_numbers
    letters = iter(string.ascii_lowercase)
    left, right = _tensor(lhs), _tensor(rhs)
    of_l, of_r = [""] * left.dim(), [""] * right.dim()
    for one, other in ((batch_l, batch_r), (summed_l, summed_r)):
        for i, j in zip(one, other, strict=True):
            of_l[i] = of_r[j] = next(letters)
    of_l = [letter or next(letters) for letter in of_l]
    of_r = [letter or next(letters) for letter in of_r]
    batch = "".join(of_l[i] for i in batch_l)
    free = [x for x in of_l if x not in of_r] + [x for x in of_r if x not in of_l]
    equation = f"{''.join(of_l)},{''.join(of_r)}->{batch}{''.join(free)}"
    return _call("gemm", [left, right], {**options, "equation": equation})


def attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """As `tilewright.attention`.

    q, k, v: [batch, length, heads, head dimension], as ``jax.nn.dot_product_attention`` has them;
        under ``layout="bhsd"`` [batch, heads, length, head dimension]. K and V may have fewer
        heads.
    options: those of `tilewright.attention`: ``scale``, ``causal``, ``window``, ``bias``,
        ``kv_used``, ``softcap`` and so on. Numbers are Python's. ``lse=True`` returns the logarithm
        of each row's sum besides.

    Raises `BadArgument`.
    """
    return _call("attention", [_tensor(q), _tensor(k), _tensor(v)], options)


def conv(
    one: Any,
    other: Any,
    *,
    dimension_numbers: tuple[str, str, str] | None = None,
    **options: Any,
) -> Any:
    """As `tilewright.conv`: a convolution; under ``direction="data"`` or ``"weights"``, one of its
    gradients.

    one, other: images and filters.
    dimension_numbers: of both and the result, as ``jax.lax.conv_general_dilated`` takes them:
        ``("NHWC", "HWIO", "NHWC")``; by default ``("NCHW", "OIHW", "NCHW")`` in 2-D. Images are
        read as they lie. Filters with O behind I are turned.
    options: those of `tilewright.conv`: ``stride``, ``pad``, ``dilation``, ``groups``,
        ``epilogue``.

    Raises `BadArgument`.
    """
    given = [jnp.asarray(one), jnp.asarray(other)]
    direction = options.get("direction", "forward")
    images = {"forward": (True, False, True), "data": (True, False, True)}.get(
        direction, (True, True, False)
    )
    if dimension_numbers is None:
        return _call("conv", list(map(_tensor, given)), options)
    if len(dimension_numbers) != 3:
        raise BadArgument(f"dimension_numbers = {dimension_numbers!r} are not three words")
    spatial = _spatial(dimension_numbers[0], images[0])
    orders = [
        _order(word, "NC" if of_images else "OI", spatial, x)
        for word, of_images, x in zip(dimension_numbers, images, (*given, None), strict=True)
    ]
    tensors = [
        _readable(Tensor(x, order), of_images)
        for x, order, of_images in zip(given, orders[:2], images[:2], strict=True)
    ]
    for name, value in options.items():
        if _is_array(value) and np.ndim(value) == len(orders[2]):  # an operand like the result
            options[name] = Tensor(jnp.asarray(value), orders[2])
    return _made("conv", tensors, options)[0].laid_out(orders[2])


def _readable(x: Tensor, images: bool) -> Tensor:
    """Images as they lie; filters with channels first or last."""
    if images or x.order.index(0) == 0:
        return x
    spatial = range(2, x.dim())
    order = (0, *spatial, 1) if x.order.index(1) > x.order.index(2) else (0, 1, *spatial)
    return Tensor(x.laid_out(order), order)


def _spatial(word: str, images: bool) -> str:
    apart = "NC" if images else "OI"
    return "".join(letter for letter in word if letter not in apart)


def _order(word: str, first: str, spatial: str, array: Any) -> Order:
    """The order that a word says. Raises `BadArgument`."""
    usual = first + spatial
    if sorted(word) != sorted(usual) or (array is not None and array.ndim != len(word)):
        raise BadArgument(f"dimension numbers '{word}' do not say dimensions {usual}")
    return tuple(usual.index(letter) for letter in word)


# --- any operation -----------------------------------------------------------------------------


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array | np.ndarray)


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else Tensor(jnp.asarray(value))


def _matrix(value: Any, transposed: bool) -> Tensor:
    x = _tensor(value)
    return x.transpose(-2, -1) if transposed else x


def _call(op: str, operands: Sequence[Tensor], options: Mapping[str, Any]) -> Any:
    found = tuple(x.array for x in _made(op, operands, options))
    return found[0] if len(found) == 1 else found


def _made(op: str, operands: Sequence[Tensor], options: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The outputs of a call. Raises `BadArgument`."""
    named = {
        name: _tensor(value)
        for name, value in options.items()
        if isinstance(value, Tensor) or _is_array(value)
    }
    said = calls.spoken(op, {n: value for n, value in options.items() if n not in named}, 0)
    for name, dtype in said.numbers.items():  # an array of one element
        named[name] = Tensor(jnp.full((1,), options[name], _dtype(dtype)))
    for name in named:
        kind = calls.kind_of(op, name)
        if kind in ("scalar", "option"):
            raise BadArgument(
                f"{name} of {op} is a number that the launch is made with: pass Python's, which "
                "jit does not trace (static_argnames)"
            )
    scalars = zip(calls.scalars_of(op), said.scalars, strict=True)
    tensors = _varying_alike([*operands, *named.values()])
    stated = stated_of(
        op,
        tensors,
        tuple(named),
        said.options,
        {name: value for name, value in scalars if value is not None},
    )
    return differentiable(stated, [x.base for x in tensors])


def _dtype(name: str) -> Any:
    from tilewright import dtypes

    return dtypes.numpy_dtype(dtypes.dtype(name))


def _varying_alike(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Within ``shard_map``, operands that vary over the same axes of the mesh, so that a gradient
    of one that does not is summed over them."""
    axes = [_axes(jax.typeof(x.base)) for x in tensors]
    all_axes = frozenset().union(*axes)
    found = []
    for x, own in zip(tensors, axes, strict=True):
        missing = tuple(sorted(all_axes - own))
        found.append(Tensor(_varying(x.base, missing), x.order) if missing else x)
    return found


def _axes(aval: Any) -> frozenset[str]:
    """The axes that an array varies over."""
    found: Any = getattr(aval, "manual_axis_type", None)  # `vma` before JAX 0.9
    axes: frozenset[str] = aval.vma if found is None else found.varying
    return axes


def _varying(x: Any, axes: tuple[str, ...]) -> Any:
    cast = getattr(jax.lax, "pcast", None)  # `pvary` before JAX 0.9
    return jax.lax.pvary(x, axes) if cast is None else cast(x, axes, to="varying")
