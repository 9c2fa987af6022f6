"""What arguments of FlashAttention's and FlashInfer's functions must be: each check raises
`BadArgument`, or `WrongDevice`, which begins with the argument's name.

Calls that repeat an earlier one go past all of this (`tilewright.operation.again`).
"""

from __future__ import annotations

from typing import Any

from tilewright import checks, dtypes
from tilewright.errors import BadArgument, WrongDevice, shown

INTEGERS = ("int32", "int64")


def tensor(name: str, x: Any, *dims: str, kinds: tuple[str, ...] = ()) -> None:
    """Raise unless `x` is a torch tensor.

    dims: names of its dimensions; none: any number.
    kinds: torch's names of element types that it may have; none: any.
    """
    import torch

    if not isinstance(x, torch.Tensor):
        wanted = f", [{', '.join(dims)}]" if dims else ""
        raise BadArgument(f"{name} is a {type(x).__name__}, but must be a torch tensor{wanted}")
    if dims and x.ndim != len(dims):
        raise BadArgument(f"{name} is {list(x.shape)}, but must be [{', '.join(dims)}]")
    if kinds and all(x.dtype is not getattr(torch, kind) for kind in kinds):
        said = str(x.dtype).removeprefix("torch.")
        raise BadArgument(f"{name} is {said}, but must be {' or '.join(kinds)}")


def given(name: str, x: Any, *dims: str, kinds: tuple[str, ...] = ()) -> None:
    """As `tensor`, unless `x` is None: left out."""
    if x is not None:
        tensor(name, x, *dims, kinds=kinds)


def together(**tensors: Any) -> None:
    """Raise unless all are on the device of the first."""
    (first, one), *others = tensors.items()
    for name, x in others:
        if x.device != one.device:
            raise WrongDevice(f"{name} is on {x.device}, but {first} is on {one.device}")


def flag(name: str, value: Any) -> bool:
    """True or False. Raises for anything but these, NumPy's, and 0 and 1."""
    if type(value) is bool:
        return value
    own = checks.plain(name, value)
    if type(own) in (bool, int) and own in (0, 1):
        return bool(own)
    raise BadArgument(f"{name} = {shown(value)} is not True or False")


def _unread(value: Any, kind: type) -> bool:
    """Whether `value`, of the type int or float, may be one that nothing may ask for: a symbol of
    ``torch.export``, or any number while dynamo is reading. The operation checks it when the graph
    runs."""
    import torch

    if type(value) is torch.SymInt or (kind is float and type(value) is torch.SymFloat):
        return True
    return torch.compiler.is_compiling() and isinstance(value, int | kind)


def number(name: str, value: Any) -> float:
    """A finite number of Python. Raises for anything but a number of any library."""
    if _unread(value, float):
        unread: float = value
        return unread
    own = checks.plain(name, value)
    if type(own) is bool:
        raise BadArgument(f"{name} = {shown(value)} is not a finite number")
    checks.finite(name, own)
    if abs(own) > _LARGEST:
        raise BadArgument(f"{name} = {shown(str(value))} is beyond fp32")
    return float(own)


_LARGEST = 3.4028234663852886e38
"""The largest number in fp32, as kernels take them."""


def count(name: str, value: Any, least: int = 0, most: int = 2**31 - 1) -> int:
    """A whole number of Python. Raises for anything but one, of any library, within bounds."""
    if _unread(value, int):
        unread: int = value
        return unread
    own = checks.plain(name, value)
    checks.whole(name, own, least, most)
    return int(own)


def scale(name: str, value: Any, x: Any) -> Any:
    """A scale of an operand in fp8, as an fp32 array: of one element, for a number; None if left
    out.

    x: the operand.
    """
    import torch

    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        tensor(name, value, kinds=("float32",))
        made = value.reshape(1) if value.ndim == 0 else value.contiguous()
    else:
        made = torch.full((1,), number(name, value), dtype=torch.float32, device=x.device)
    if dtypes.of(x).bits != 8:
        raise BadArgument(f"{name} scales an operand in fp8, but this one is not; leave it out")
    return made
