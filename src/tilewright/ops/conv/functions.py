"""torch's functions of convolutions, with torch's arguments: ``conv1d`` to ``conv3d``,
``conv_transpose1d`` to ``conv_transpose3d``, and their gradients as in ``torch.nn.grad``.

Each is made from the operation. Arrays are torch's or NumPy's; layouts follow their strides, so
that channels-last arrays give channels-last results, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright import checks
from tilewright.errors import BadArgument, shown
from tilewright.ops.conv.geometry import reach

Numbers = int | Sequence[int]
Operation = Callable[..., Any]


def _each(name: str, value: Numbers, rank: int) -> tuple[int, ...]:
    """A number for each dimension. Raises `BadArgument`."""
    found = checks.plain(name, value)
    if isinstance(found, int):
        return (found,) * rank
    if not isinstance(found, tuple):
        raise BadArgument(
            f"{name} = {shown(value)} is neither a whole number nor one for each dimension"
        )
    if len(found) == 1:
        found *= rank
    if len(found) != rank:
        raise BadArgument(f"{name} = {value!r} does not have {rank} numbers")
    for one in found:
        checks.whole(name, one, -checks.MOST_WHOLE)
    return found


def _padding(
    padding: Numbers | str, filter: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Zeros before and behind, as torch means them. Raises `BadArgument`."""
    rank = len(filter)
    if not isinstance(padding, str):
        found = _each("padding", padding, rank)
        return found, found
    if padding == "valid":
        return (0,) * rank, (0,) * rank
    if padding != "same":
        raise BadArgument(f"padding = '{padding}' is neither 'same' nor 'valid'")
    if any(step != 1 for step in stride):
        raise BadArgument("padding = 'same' is for strides of 1")
    both = [reach(taps, step) - 1 for taps, step in zip(filter, dilation, strict=True)]
    return tuple(one // 2 for one in both), tuple(one - one // 2 for one in both)


def _batched(rank: int, input: Any) -> tuple[Any, bool]:
    """The input with a dimension for images, and whether that was added. Raises `BadArgument`."""
    dims = len(_shape("input", input))
    if dims not in (rank + 1, rank + 2):
        raise BadArgument(
            f"the input of a {rank}-D convolution has {rank + 2} dimensions, or {rank + 1} without "
            f"a batch, not {dims}"
        )
    return (input[None], True) if dims == rank + 1 else (input, False)


def _shape(name: str, array: Any) -> tuple[int, ...]:
    """Raises `BadArgument` for anything that is no array."""
    shape = getattr(array, "shape", None)
    if not isinstance(shape, tuple):
        raise BadArgument(f"{name} must be an array, not {shown(array)}")
    return shape


def _taps(rank: int, weight: Any) -> tuple[int, ...]:
    """The filter's sizes. Raises `BadArgument`."""
    shape = _shape("weight", weight)
    if len(shape) != rank + 2:
        raise BadArgument(
            f"the weight of a {rank}-D convolution has {rank + 2} dimensions, not {len(shape)}"
        )
    return shape[2:]


def _spatial(name: str, rank: int, size: Any) -> tuple[int, ...]:
    """The spatial sizes of a shape that is given as numbers. Raises `BadArgument`."""
    found = checks.plain(name, tuple(size) if isinstance(size, Sequence) else size)
    if not isinstance(found, tuple) or len(found) != rank + 2:
        raise BadArgument(f"{name} = {shown(size)} does not have {rank + 2} numbers")
    return found[2:]


def _conv(rank: int, run: Operation) -> Operation:
    def conv(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Numbers = 1,
        padding: Numbers | str = 0,
        dilation: Numbers = 1,
        groups: int = 1,
    ) -> Any:
        x, added = _batched(rank, input)
        steps, apart = _each("stride", stride, rank), _each("dilation", dilation, rank)
        before, behind = _padding(padding, _taps(rank, weight), steps, apart)
        said: dict[str, Any] = {} if bias is None else {"bias": bias, "epilogue": "bias"}
        y = run(
            x, weight, stride=steps, pad=before, pad_after=behind, dilation=apart, groups=groups,
            **said,
        )  # fmt: skip
        return y[0] if added else y

    conv.__doc__ = f"As ``torch.nn.functional.conv{rank}d``; differentiable."
    return conv


def _transposed(rank: int, run: Operation) -> Operation:
    def conv_transpose(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Numbers = 1,
        padding: Numbers = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        dilation: Numbers = 1,
    ) -> Any:
        y, added = _batched(rank, input)
        steps, apart = _each("stride", stride, rank), _each("dilation", dilation, rank)
        before = _each("padding", padding, rank)
        more = _each("output_padding", output_padding, rank)
        if any(one >= max(s, d) for one, s, d in zip(more, steps, apart, strict=True)):
            raise BadArgument(
                f"output_padding = {more} must be smaller than the stride or the dilation"
            )
        spatial = tuple(
            (size - 1) * s - 2 * pad + reach(taps, d) + one
            for size, s, pad, taps, d, one in zip(
                y.shape[2:], steps, before, _taps(rank, weight), apart, more, strict=True
            )
        )
        said: dict[str, Any] = {} if bias is None else {"bias": bias, "epilogue": "bias"}
        x = run(
            y, weight, direction="data", spatial=spatial, stride=steps, pad=before,
            pad_after=tuple(pad - one for pad, one in zip(before, more, strict=True)),
            dilation=apart, groups=groups, **said,
        )  # fmt: skip
        return x[0] if added else x

    conv_transpose.__doc__ = f"As ``torch.nn.functional.conv_transpose{rank}d``; differentiable."
    return conv_transpose


def _of_input(rank: int, run: Operation) -> Operation:
    def conv_input(
        input_size: Sequence[int],
        weight: Any,
        grad_output: Any,
        stride: Numbers = 1,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        groups: int = 1,
    ) -> Any:
        return run(
            grad_output, weight, direction="data", spatial=_spatial("input_size", rank, input_size),
            stride=_each("stride", stride, rank), pad=_each("padding", padding, rank),
            dilation=_each("dilation", dilation, rank), groups=groups,
        )  # fmt: skip

    conv_input.__doc__ = f"As ``torch.nn.grad.conv{rank}d_input``."
    return conv_input


def _of_weight(rank: int, run: Operation) -> Operation:
    def conv_weight(
        input: Any,
        weight_size: Sequence[int],
        grad_output: Any,
        stride: Numbers = 1,
        padding: Numbers = 0,
        dilation: Numbers = 1,
        groups: int = 1,
    ) -> Any:
        taps = _spatial("weight_size", rank, weight_size)
        return run(
            input, grad_output, direction="weights", filter=taps,
            stride=_each("stride", stride, rank), pad=_each("padding", padding, rank),
            dilation=_each("dilation", dilation, rank), groups=groups,
        )  # fmt: skip

    conv_weight.__doc__ = f"As ``torch.nn.grad.conv{rank}d_weight``."
    return conv_weight


def _made(make: Callable[[int, Operation], Operation], name: str, rank: int) -> Any:
    def from_operation(run: Operation) -> Operation:
        found = make(rank, run)
        found.__name__ = found.__qualname__ = name
        return found

    return from_operation


FUNCTIONS: Mapping[str, Callable[[Operation], Operation]] = {
    form.format(rank): _made(make, form.format(rank), rank)
    for form, make in (
        ("conv{}d", _conv),
        ("conv_transpose{}d", _transposed),
        ("conv{}d_input", _of_input),
        ("conv{}d_weight", _of_weight),
    )
    for rank in (1, 2, 3)
}
"""By name, each from the operation."""
