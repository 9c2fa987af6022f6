"""`tilewright.reduce`: reductions over any axes of an array."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from tilewright import checks
from tilewright.declared._arrays import functions
from tilewright.declared._views import contiguous, permuted, shape_of, strides
from tilewright.dtypes import DTYPES, named
from tilewright.errors import BadArgument, nearest, shown

NAMES = ("sum", "mean", "norm", "prod", "max", "min", "absmax", "argmax", "argmin")
"""The results there are, in the order in which the operation returns them."""

OF_NOTHING = {"sum": 0, "mean": float("nan"), "norm": 0, "prod": 1}
"""The results of no elements, as torch has them; the others have none."""

PLACES = {"max": "argmax", "min": "argmin"}
"""The results that say where a gradient goes."""


def made(run: Callable[..., Any]) -> Callable[..., Any]:
    """The function, from the operation `reduction`."""

    def reduce(
        x: Any,
        ops: str = "sum",
        dim: int | Sequence[int] | None = None,
        keepdim: bool = False,
        dtype: Any = None,
    ) -> Any:
        """Reduce an array over the axes `dim`, or over all.

        ops: results, joined by ``+`` (``"sum+max"``): sum, mean, norm (L2), prod, max, min, absmax
            (of absolute values), argmax, argmin. Several come as a tuple, from one read of `x`.
        dim: axes, of which negative ones count from the end. Over axes of no elements sums and
            norms are 0, products 1 and means NaN; the others are refused.
        keepdim: whether reduced axes stay, with size 1.
        dtype: of sums, means, norms and products: by default that of `x`, of whole numbers int64.
        """
        names, axes = _asked(ops), _axes(dim, len(shape_of("x", x)))
        checks.truth("keepdim", keepdim)
        shape = [1 if axis in axes else n for axis, n in enumerate(x.shape)] if keepdim else None
        if any(x.shape[axis] == 0 for axis in axes):
            left = [n for axis, n in enumerate(x.shape) if axis not in axes]
            return _of_nothing(run, x, names, left if shape is None else shape, dtype)
        wanted = {*names}
        if getattr(x, "requires_grad", False):
            wanted |= {PLACES[name] for name in names if name in PLACES}
        order = _order(x, axes, placed=not wanted.isdisjoint(PLACES.values()))
        said = dict.fromkeys(wanted, True) | _typed(x, wanted, dtype)
        found = run(_viewed(x, order, axes), **said)
        several = found if isinstance(found, tuple) else (found,)
        results = dict(zip((name for name in NAMES if name in wanted), several, strict=True))
        left = [axis for axis in order if axis not in axes]
        back = sorted(range(len(left)), key=left.__getitem__)
        outputs = []
        for name in names:
            one = permuted(results[name].reshape([x.shape[axis] for axis in left]), back)
            outputs.append(one.reshape(shape) if shape else one)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return reduce


def _asked(ops: str) -> list[str]:
    """The names of the results. Raises `BadArgument`."""
    names = ops.split("+") if isinstance(ops, str) else []
    for name in names:
        if name not in NAMES or names.count(name) > 1:
            why = "is named twice" if name in NAMES else f"is none{nearest(name, NAMES)}"
            raise BadArgument(f"'{name}' of ops = {shown(ops)} {why}; there are {', '.join(NAMES)}")
    if not names:
        raise BadArgument(f"ops = {shown(ops)} is no text such as 'sum+max'")
    return names


def _axes(dim: Any, rank: int) -> set[int]:
    """The axes that are reduced. Raises `BadArgument`."""
    found = checks.plain("dim", dim)
    if found is None:
        return {*range(rank)}
    listed = found if isinstance(found, tuple) else (found,)
    for one in listed:
        checks.whole("dim", one, -max(1, rank), max(1, rank) - 1)
    axes = {one % max(1, rank) for one in listed}
    if len(axes) < len(listed):
        raise BadArgument(f"dim = {dim} names an axis twice")
    return axes & {*range(rank)}


def _typed(x: Any, wanted: Collection[str], dtype: Any) -> dict[str, Any]:
    """The type of sums: of whole numbers int64, where the call does not say."""
    if dtype is not None:
        return {"out_dtype": dtype}
    whole = DTYPES[named(x.dtype)].kind == "int"
    return {"out_dtype": "int64"} if whole and {*wanted} & {"sum", "prod", "mean", "norm"} else {}


def _of_nothing(
    run: Callable[..., Any], x: Any, names: Sequence[str], shape: Sequence[int], dtype: Any
) -> Any:
    """The results of this shape over axes of no elements. Raises `BadArgument`."""
    for name in names:
        if name not in OF_NOTHING:
            raise BadArgument(
                f"{name} of no elements is nothing: x of shape {tuple(x.shape)} is empty along the "
                f"axes to reduce; there are {', '.join(OF_NOTHING)} of them"
            )
    # No results of one element each: what the operation refuses is refused here too, results have
    # its types, and torch records them.
    said = dict.fromkeys(names, True) | _typed(x, names, dtype)
    found = run(x.reshape((0, 1, 1, 1, 1)), **said)
    several = found if isinstance(found, tuple) else (found,)
    made = dict(zip((name for name in NAMES if name in names), several, strict=True))
    outputs = [_filled(made[name], shape, OF_NOTHING[name]) for name in names]
    return tuple(outputs) if len(outputs) > 1 else outputs[0]


def _filled(empty: Any, shape: Sequence[int], value: float) -> Any:
    """An array of one value, like one without elements, which torch takes it to be made of."""
    if hasattr(empty, "new_full"):
        return empty.new_full(shape, value) + empty.sum(dtype=empty.dtype)
    return functions(empty).full(shape, value, dtype=empty.dtype)


def _order(x: Any, axes: Collection[int], placed: bool) -> list[int]:
    """The order of axes in which `x` is read. It is the order in memory, unless places are asked
    for and would be counted in another order. Where reduced axes are scattered, kept axes come
    first."""
    natural = [*range(len(x.shape))]
    steps = strides(x)
    order: list[int] = []
    for axis in natural:
        place = axis  # by comparing, which torch.compile can follow where strides are symbols
        while place and steps[order[place - 1]] < steps[axis]:
            place -= 1
        order.insert(place, axis)
    if placed and [axis for axis in order if axis in axes] != sorted(axes):
        order = natural
    if sum(reduced for reduced, _ in _groups(x, order, axes)) > 2:
        order = [*(axis for axis in natural if axis not in axes), *sorted(axes)]
    return order


def _groups(x: Any, order: Sequence[int], axes: Collection[int]) -> list[tuple[bool, int]]:
    """Neighbouring axes taken as one: whether they are reduced, and how many elements they have.
    Axes of one element belong to either kind."""
    groups: list[tuple[bool, int]] = []
    for axis in order:
        reduced, size = axis in axes, x.shape[axis]
        if size == 1:
            continue
        if groups and groups[-1][0] == reduced:
            size *= groups.pop()[1]
        groups.append((reduced, size))
    return groups


def _viewed(x: Any, order: Sequence[int], axes: Collection[int]) -> Any:
    """`x` as [outer, far, middle, near, inner]."""
    groups = _groups(x, order, axes)
    if not groups or groups[0][0]:
        groups.insert(0, (False, 1))
    if len(groups) < 4:  # one group is reduced, or none: [outer, near, inner]
        groups[1:1] = [(True, 1), (False, 1)]
    sizes = [size for _, size in groups]
    sizes += [1] * (5 - len(sizes))
    steps = strides(x)
    if any(step <= 0 and size > 1 for step, size in zip(steps, x.shape, strict=True)):
        x = contiguous(x)
    view = permuted(x, order).reshape(sizes)
    steps = strides(view)
    return contiguous(view) if sizes[-1] > 1 and steps[-1] != 1 else view
