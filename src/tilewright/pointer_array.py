"""`pointers`: arrays anywhere in memory, passed as an array of their addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Pointers:
    """Addresses of arrays with equal shape, strides and dtype; an operand wherever an operation
    takes a batch.

    addresses: int64, where the arrays are.
    shape: ``(number of arrays, *shape of each)``.
    strides: of each array, in elements.
    dtype: the arrays' own.
    alignment: bytes; every address is a multiple.
    device: ``"cpu"`` (`addresses` is then NumPy's) or ``"cuda:0"``.
    arrays: the arrays, kept alive; empty if only their addresses were given.

    The methods are those that the launcher calls on a torch tensor to recognise a call by its
    operands.
    """

    addresses: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    alignment: int
    device: str
    arrays: tuple[Any, ...] = ()

    def data_ptr(self) -> int:
        """The address of the array of addresses."""
        x = self.addresses
        address: int = x.ctypes.data if self.device == "cpu" else x.data_ptr()
        return address

    def stride(self) -> tuple[Any, ...]:
        """The strides, with a mark that no tensor's strides have."""
        return ("pointers", self.alignment, *self.strides)

    def get_device(self) -> int:
        """The GPU's number; -1 for the CPU."""
        return -1 if self.device == "cpu" else self.addresses.get_device()

    @property
    def requires_grad(self) -> bool:
        """Whether one of the arrays requires a gradient."""
        return any(getattr(x, "requires_grad", False) for x in self.arrays)

    def __repr__(self) -> str:
        count, *each = self.shape
        return f"Pointers to {count} of shape {tuple(each)}, strides {self.strides}, {self.dtype}"
