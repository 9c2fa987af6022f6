"""`pointers`: packs arrays, or addresses on a GPU, for a call on a batch of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilewright import arrays, dtypes
from tilewright.errors import BadArgument, shown
from tilewright.pointer_array import Pointers


def pointers(
    given: Any,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    *,
    strides: Sequence[int] | None = None,
    alignment: int | None = None,
) -> Pointers:
    """Pack arrays, or addresses that are already on the device, for a call on a batch of them.

        tw.gemm(tw.pointers([a0, a1]), tw.pointers([b0, b1]), out=tw.pointers([c0, c1]))

    given: torch tensors or NumPy arrays with one shape, strides, dtype and device. Their addresses
        are copied to the device and the call waits for the copy, so pack once and call often. Or a
        GPU tensor of int64 addresses, described by the other parameters. Addresses are trusted: a
        wrong one reads or writes memory it should not.
    shape: of the array at each address.
    dtype: torch's, or its name.
    strides: in elements; default: packed.
    alignment: in bytes; default: one element's.

    Raises `BadArgument`.
    """
    if arrays.is_torch(given) or arrays.is_numpy(given):
        return _given_addresses(given, shape, dtype, strides, alignment)
    if shape is not None or dtype is not None or strides is not None or alignment is not None:
        raise BadArgument("shape, dtype, strides and alignment are the arrays' own; leave them out")
    if not isinstance(given, Iterable):
        raise BadArgument(f"pointers are of arrays or of addresses, not of {shown(given)}")
    found = tuple(arrays.adopt(x, f"array {i}") for i, x in enumerate(given))
    if not found:
        raise BadArgument("there are no arrays; for an empty batch pass addresses and a shape")
    views = [arrays.view(x) for x in found]
    first = views[0]
    alike = (first.shape, first.strides, first.dtype, first.device)
    for i, v in enumerate(views):
        if (v.shape, v.strides, v.dtype, v.device) != alike:
            raise BadArgument(
                f"array {i} is {v.dtype} {v.shape} with strides {v.strides} on {v.device}, array 0 "
                f"{first.dtype} {first.shape} with strides {first.strides} on {first.device}; one "
                "batch takes arrays with one shape, strides and dtype"
            )
    return arrays.pointers_to(found)


def _given_addresses(
    addresses: Any,
    shape: Sequence[int] | None,
    dtype: Any,
    strides: Sequence[int] | None,
    alignment: int | None,
) -> Pointers:
    if getattr(getattr(addresses, "device", None), "type", "cpu") != "cuda":
        raise BadArgument("addresses alone work only on a GPU; on the CPU pass the arrays")
    import torch

    if addresses.dtype != torch.int64 or addresses.dim() != 1 or not addresses.is_contiguous():
        raise BadArgument(
            f"addresses are a contiguous 1-D int64 tensor, not {addresses.dtype} of shape "
            f"{tuple(addresses.shape)}"
        )
    if shape is None or dtype is None:
        raise BadArgument("addresses need the shape and the dtype of the array at each")
    if isinstance(dtype, str):
        dtype = getattr(torch, dtypes.dtype(dtype).torch)
    if strides is None:
        strides = [1]
        for size in reversed(shape[1:]):
            strides = [strides[0] * size, *strides]
    if len(strides) != len(shape):
        raise BadArgument(f"shape {tuple(shape)} and strides {tuple(strides)} differ in length")
    element = torch.empty(0, dtype=dtype).element_size()
    alignment = element if alignment is None else alignment
    if alignment not in (1, 2, 4, 8, 16) or alignment < element:
        raise BadArgument(
            f"alignment = {alignment} is not a power of two from {element} to 16 bytes"
        )
    each, apart = tuple(map(int, shape)), tuple(map(int, strides))
    place = str(addresses.device)
    return Pointers(addresses, (len(addresses), *each), apart, dtype, alignment, place)
