"""torch's functions of pooling, with torch's arguments: ``max_pool1d`` to ``max_pool3d`` and
``avg_pool1d`` to ``avg_pool3d``.

Arrays are torch's, NumPy's or JAX's. Channels-last tensors give channels-last results, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright import checks
from tilewright.declared._views import contiguous, packed, permuted, shape_of
from tilewright.errors import BadArgument, shown

Numbers = int | Sequence[int]
Operation = Callable[..., Any]


def _each(name: str, value: Any, rank: int, least: int) -> tuple[int, ...]:
    """A number for each dimension. Raises `BadArgument`."""
    found = checks.plain(name, value)
    listed = found if isinstance(found, tuple) else (found,)
    listed *= rank if len(listed) == 1 else 1
    if len(listed) != rank:
        raise BadArgument(f"{name} = {shown(value)} does not have {rank} numbers")
    for one in listed:
        checks.whole(name, one, least)
    return listed


def _over(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    """By how much the last window reaches beyond the padding in torch's ``ceil_mode``: each begins
    in the image or in the padding before it."""
    reach, padded = dilation * (kernel - 1) + 1, size + 2 * pad
    count = -(-(padded - reach) // stride) + 1
    count -= (count - 1) * stride >= size + pad
    return max(0, (count - 1) * stride + reach - padded)


def _pooled(
    rank: int,
    run: Operation,
    input: Any,
    words: Mapping[str, tuple[int, ...]],
    ceil_mode: bool,
    **said: Any,
) -> tuple[Any, ...]:
    """The results of pooling `input`, whose windows have these sizes, strides and so on."""
    checks.truth("ceil_mode", ceil_mode)
    dims = len(shape_of("input", input))
    if dims not in (rank + 1, rank + 2):
        raise BadArgument(
            f"the input of {rank}-D pooling has {rank + 2} dimensions, or {rank + 1} without a "
            f"batch, not {dims}"
        )
    x = input[None] if dims == rank + 1 else input
    images, channels, *sizes = x.shape
    last = [0, *range(2, rank + 2), 1]
    seen = permuted(x, last)
    by_pixel = False
    if channels > 1 and not packed(x) and packed(seen):
        by_pixel = True
    ones = [1] * (3 - rank)
    if by_pixel:
        view = seen.reshape((images, *ones, *sizes, channels))
    else:
        view = contiguous(x).reshape((images * channels, *ones, *sizes, 1))
    if ceil_mode:
        each = zip(sizes, *(words[w] for w in ("kernel", "stride", "pad", "dilation")), strict=True)
        words = {**words, "over": tuple(_over(*one) for one in each)}
    for word, numbers in words.items():
        said |= {f"{word}_{d}": n for d, n in zip("dhw"[3 - rank :], numbers, strict=True)}
    found = run(view, **said)
    made = []
    for y in found if isinstance(found, tuple) else (found,):
        out = tuple(y.shape[4 - rank : 4])
        if by_pixel:
            back = permuted(y.reshape((images, *out, channels)), [0, rank + 1, *range(1, rank + 1)])
        else:
            back = y.reshape((images, channels, *out))
        made.append(back[0] if dims == rank + 1 else back)
    return tuple(made)


def _max_pool(rank: int, run: Operation) -> Operation:
    def max_pool(
        input: Any,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        words = _words(rank, kernel_size, stride, padding, dilation)
        checks.truth("return_indices", return_indices)
        placed = return_indices or bool(getattr(input, "requires_grad", False))
        made = _pooled(rank, run, input, words, ceil_mode, index=placed)
        return made if return_indices else made[0]

    max_pool.__doc__ = f"As ``torch.nn.functional.max_pool{rank}d``; differentiable."
    return max_pool


def _avg_pool(rank: int, run: Operation) -> Operation:
    def avg_pool(
        input: Any,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:
        words = _words(rank, kernel_size, stride, padding, 1)
        if divisor_override is not None:
            checks.whole("divisor_override", divisor_override, 1)
        return _pooled(
            rank, run, input, words, ceil_mode, mode="average", include_pad=count_include_pad,
            divisor=divisor_override or 0,
        )[0]  # fmt: skip

    avg_pool.__doc__ = f"As ``torch.nn.functional.avg_pool{rank}d``; differentiable."
    return avg_pool


def _words(
    rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> dict[str, tuple[int, ...]]:
    """What is stated of windows, for each dimension. A stride of None is the window's size."""
    return {
        "kernel": _each("kernel_size", kernel, rank, 1),
        "stride": _each("stride", kernel if stride is None else stride, rank, 1),
        "pad": _each("padding", padding, rank, 0),
        "dilation": _each("dilation", dilation, rank, 1),
    }


def _made(make: Callable[[int, Operation], Operation], name: str, rank: int) -> Any:
    def from_operation(run: Operation) -> Operation:
        found = make(rank, run)
        found.__name__ = found.__qualname__ = name
        return found

    return from_operation


FUNCTIONS: Mapping[str, Callable[[Operation], Operation]] = {
    form.format(rank): _made(make, form.format(rank), rank)
    for form, make in (("max_pool{}d", _max_pool), ("avg_pool{}d", _avg_pool))
    for rank in (1, 2, 3)
}
"""By name, each from the operation `pool`."""
