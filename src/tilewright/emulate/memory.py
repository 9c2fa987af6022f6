"""The emulated GPU's global memory: allocations in one address space, with nothing between them.

Every byte knows whether it belongs to an element of an operand, and whether a kernel may write
it. So an access one element outside an operand is seen, also in the gaps of a strided one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import BadArgument, IllegalAccess

Array = np.ndarray[Any, np.dtype[Any]]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]
Addresses = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

BASE = 0x7E00_FFFF_F000
"""The first address. 4 KiB later the low 32 bits wrap, inside the first operand of that size, so
that address arithmetic that loses a carry leaves its operand."""

GAP = 65536
"""At least so many bytes of nothing lie before and after each allocation."""

_PAGE = 4096
_ALIGNMENTS = 16  # the most that a kernel may be told of an operand's alignment, in bytes
_RUN = 64  # how far ahead the check of a single access looks; no access is wider
_WIDE: dict[int, Any] = {4: np.uint32, 8: np.uint64, 16: np.complex128}  # NumPy gathers these fast


@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory that was allocated.

    name: what findings call it: ``operand a``.
    size: in bytes.
    writable: kernels may write its elements.
    """

    name: str
    address: int
    size: int
    writable: bool

    @property
    def end(self) -> int:
        return self.address + self.size


class Memory:
    """Global memory of an emulated GPU. The host copies arrays in and out; kernels load and store
    through arrays of addresses, one access for each lane."""

    def __init__(self) -> None:
        self._allocations: dict[int, Allocation] = {}
        self._end = GAP  # where the next allocation begins, as an offset from BASE - GAP
        self._undefined: set[int] = set()  # addresses of allocations that began without contents
        self._reserve(1 << 20)

    # --------------------------------------------------------------------------------- the host

    def allocate(
        self,
        size: int,
        name: str,
        *,
        writable: bool = True,
        contents: Bytes | None = None,
        elements: Bools | None = None,
        skew: int = 0,
    ) -> int:
        """The address of `size` new bytes: a multiple of 4096, and `skew` bytes more.

        contents: the bytes. Without them every byte is 0xFF, which is NaN in every float type,
            and a kernel that reads a byte that nothing wrote is found.
        elements: (size,), which bytes kernels may touch; all by default.
        """
        at = self._end + skew
        end = at + size
        self._reserve(end + GAP)
        self._bytes[at:end] = 0xFF if contents is None else contents
        run = _runs(size, elements)
        self._readable[at:end] = run
        self._writable[at:end] = run if writable else 0
        self._defined[at:end] = contents is not None
        one = Allocation(name, BASE - GAP + at, size, writable)
        self._allocations[one.address] = one
        if contents is None:
            self._undefined.add(one.address)
        self._end = _after(end)
        return one.address

    def release(self, address: int) -> None:
        """Give an allocation back; a kernel that touches it later is outside any operand. Raises
        `BadArgument` if none begins there."""
        one = self._allocations.pop(address, None)
        if one is None:
            raise BadArgument(f"no allocation of the emulated memory begins at {address:#x}")
        at = self._offset(address)
        self._readable[at : at + one.size] = 0
        self._writable[at : at + one.size] = 0
        self._undefined.discard(address)
        ends = [self._offset(each.end) for each in self._allocations.values()]
        self._end = _after(max(ends)) if ends else GAP

    def place(self, array: Array, name: str, *, writable: bool, skew: int = 0) -> int:
        """Copy an array of any strides into memory, with its strides, and return the address of
        its first element. Only its elements may be touched.

        skew: the remainder by 16 of this address, so that the copy is no better aligned than the
            array.
        """
        span = _Span(array)
        base = self.allocate(
            span.size,
            name,
            writable=writable,
            contents=span.bytes(),
            elements=span.elements(),
            skew=(skew - span.origin) % _ALIGNMENTS,
        )
        return base + span.origin

    def fetch(self, address: int, array: Array) -> None:
        """Copy an array's elements, and only them, back from where `place` put them."""
        span = _Span(array)
        span.write_back(self.read(address - span.origin, span.size))

    def read(self, address: int, size: int) -> Bytes:
        """A copy of `size` bytes. Raises `IllegalAccess` outside allocations."""
        at = self._held(address, size)
        return self._bytes[at : at + size].copy()

    def write(self, address: int, data: Bytes) -> None:
        """Replace bytes. Raises `IllegalAccess` outside allocations."""
        at = self._held(address, data.size)
        self._bytes[at : at + data.size] = data
        self._defined[at : at + data.size] = True

    def fill(self, address: int, value: int, size: int) -> None:
        """Set `size` bytes to `value`. Raises `IllegalAccess` outside allocations."""
        self.write(address, np.full(size, value, np.uint8))

    def allocation(self, address: int) -> Allocation | None:
        """The allocation that an address lies in."""
        return next(
            (one for one in self._allocations.values() if one.address <= address < one.end), None
        )

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        return tuple(self._allocations.values())

    # ------------------------------------------------------------------------------- the kernels

    def readable(self, addresses: Addresses, size: int, mask: Bools) -> Bools:
        """Where in `mask` all `size` bytes belong to elements."""
        return self._all(self._readable, addresses, size, mask)

    def writable(self, addresses: Addresses, size: int, mask: Bools) -> Bools:
        """Where in `mask` all `size` bytes belong to elements that kernels may write."""
        return self._all(self._writable, addresses, size, mask)

    def defined(self, addresses: Addresses, size: int, mask: Bools) -> Bools:
        """Where in `mask` all `size` bytes were written by the host or a kernel. The addresses in
        `mask` must be readable."""
        if not self._undefined:
            return mask
        at = np.where(mask, addresses - (BASE - GAP), 0)
        known: Bools = self._defined[at[..., None] + np.arange(size)].all(-1)
        return mask & known

    def load(self, addresses: Addresses, size: int, mask: Bools) -> Words:
        """The `size` bytes (1, 2, or a multiple of 4) at each address in `mask`, as (words, …) of
        uint32; zero elsewhere. The addresses in `mask` must be readable."""
        at = np.where(mask, addresses - (BASE - GAP), 0)
        values = gather(self._bytes, at, size)
        return values if mask.all() else np.where(mask, values, np.uint32(0))

    def store(self, addresses: Addresses, values: Words, size: int, mask: Bools) -> None:
        """Write the first `size` bytes (1, 2, or a multiple of 4) of (words, …) values at each
        address in `mask`, which must be writable. If several lanes write
        one place, the last wins."""
        at = (addresses - (BASE - GAP))[mask]
        if not at.size:
            return
        scatter(self._bytes, at, np.stack([value[mask] for value in values], -1), size)
        if self._undefined:
            self._defined[at[:, None] + np.arange(size)] = True

    def update(
        self,
        addresses: Addresses,
        mask: Bools,
        kind: npt.DTypeLike,
        function: np.ufunc,
        values: Array,
    ) -> None:
        """Set each element x of `kind` at an address in `mask` to function(x, value), one lane
        after another. The addresses must be writable and aligned. values: of `kind`, (…, elements),
        for as many elements from each address on."""
        view: Array = self._bytes.view(kind)
        at = (addresses - (BASE - GAP))[mask] // view.itemsize
        for i in range(values.shape[-1]):
            function.at(view, at + i, values[mask][:, i])

    def exchange(
        self, addresses: Addresses, mask: Bools, size: int, function: Callable[[int, int], int]
    ) -> Words:
        """Set each integer x of `size` bytes (4, 8) at an address in `mask` to function(x, i), one
        lane after another, where i is the lane's index in the flattened mask. Returns the old ones
        as (words, …), zero elsewhere."""
        view = self._bytes.view(f"u{size}")
        old = np.zeros(mask.size, view.dtype)
        at = (addresses - (BASE - GAP)).reshape(-1) // size
        for i in np.flatnonzero(mask).tolist():
            old[i] = view[at[i]]
            view[at[i]] = function(int(old[i]), i)
        words: Words = old.view(np.uint32).reshape(*mask.shape, size // 4)
        return np.moveaxis(words, -1, 0)

    def where(self, address: int, size: int) -> str:
        """Where an access of `size` bytes lies, for a person: the nearest operand and how far."""
        inside = self.allocation(address)
        if inside is not None and address + size <= inside.end:
            at = self._offset(address)
            what = "which is read-only" if self._readable[at] >= size else "between its elements"
            return f"{size} bytes at offset {address - inside.address} of {inside.name}, {what}"
        if not self._allocations:
            return f"{size} bytes at {address:#x}; nothing is allocated"

        def distance(one: Allocation) -> int:
            return max(one.address - address, address + size - one.end)

        near = min(self._allocations.values(), key=distance)
        if near.address > address:
            how = f"{near.address - address} bytes before {near.name}"
        else:
            how = f"{address + size - near.end} bytes past the end of {near.name}"
        if distance(near) > GAP:
            return f"{size} bytes at {address:#x}, far from every operand"
        return f"{size} bytes, {how} ({near.size} bytes)"

    # ------------------------------------------------------------------------------------ within

    def _all(self, runs: Bytes, addresses: Addresses, size: int, mask: Bools) -> Bools:
        at = addresses - (BASE - GAP)
        # What lies outside is looked up in the gap before the first allocation.
        good: Bools = runs.take(np.where(mask & (at >= 0) & (at < self._end), at, 0)) >= size
        return good

    def _offset(self, address: int) -> int:
        return address - (BASE - GAP)

    def _held(self, address: int, size: int) -> int:
        one = self.allocation(address)
        if size and (one is None or address + size > one.end):
            raise IllegalAccess(f"the host copies {self.where(address, size)}")
        return self._offset(address)

    def _reserve(self, size: int) -> None:
        old = self._bytes.size if hasattr(self, "_bytes") else 0
        if size <= old:
            return
        new = -(-max(size, 2 * old) // 16) * 16
        for name, kind in (
            ("_bytes", np.uint8),
            ("_readable", np.uint8),
            ("_writable", np.uint8),
            ("_defined", np.bool_),
        ):
            grown: Array = np.zeros(new, kind)
            if old:
                grown[:old] = getattr(self, name)
            setattr(self, name, grown)

    _bytes: Bytes
    _readable: Bytes  # how many bytes from here on belong to elements, up to _RUN
    _writable: Bytes  # the same of elements that may be written
    _defined: Bools


class _Span:
    """The bytes from an array's lowest element to its highest."""

    def __init__(self, array: Array) -> None:
        self.array = array
        steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
        low = sum(s for s in steps if s < 0) if array.size else 0
        high = sum(s for s in steps if s > 0) + array.itemsize if array.size else 0
        self.size, self.origin = high - low, -low
        self._bits = np.dtype(f"u{array.itemsize}")  # moves NaN payloads untouched

    def bytes(self) -> Bytes:
        """The elements where they lie; zero between them."""
        image = np.zeros(self.size, np.uint8)
        if self.array.size:
            self._seen(image)[...] = self.array.view(self._bits)
        return image

    def elements(self) -> Bools | None:
        """Which bytes are elements; None for all."""
        if self.array.flags.c_contiguous or self.array.flags.f_contiguous:
            return None
        mask = np.zeros(self.size, np.bool_)
        if self.array.size:
            shape, strides = self.array.shape, self.array.strides
            each: Array = np.ndarray(
                (*shape, self.array.itemsize), np.bool_, mask.data, self.origin, (*strides, 1)
            )
            each[...] = True
        return mask

    def write_back(self, image: Bytes) -> None:
        if self.array.size:
            self.array.view(self._bits)[...] = self._seen(image)

    def _seen(self, image: Bytes) -> Array:
        return np.ndarray(self.array.shape, self._bits, image.data, self.origin, self.array.strides)


def gather(octets: Bytes, at: Addresses, size: int) -> Words:
    """The `size` bytes (1, 2, or a multiple of 4) at each offset, as (words, …) of uint32."""
    wide = _WIDE.get(size)
    if wide is not None and not (at & (size - 1)).any():
        taken = octets.view(wide).take(at // size)
        words = taken.view(np.uint32).reshape(*at.shape, size // 4)
    elif size % 4 == 0 and not (at & 3).any():
        words = octets.view(np.uint32)[(at >> 2)[..., None] + np.arange(size // 4)]
    else:
        words = _words(octets[at[..., None] + np.arange(size)])
    return np.moveaxis(words, -1, 0)


def scatter(octets: Bytes, at: Addresses, values: Words, size: int) -> None:
    """Write the first `size` bytes of contiguous (n, words) values at the n offsets."""
    wide = _WIDE.get(size)
    if wide is not None and not (at & (size - 1)).any():
        octets.view(wide)[at // size] = values.view(wide)[:, 0]
    else:
        each = values.view(np.uint8)
        for i in range(size):
            octets[at + i] = each[:, i]


def _after(end: int) -> int:
    """Where the next allocation begins after one that ends at `end`."""
    return -(-(end + GAP) // _PAGE) * _PAGE


def _runs(size: int, elements: Bools | None) -> Bytes:
    """(size,): how many bytes from each on are elements, up to _RUN."""
    ends = np.array([size]) if elements is None else np.append(np.flatnonzero(~elements), size)
    at = np.arange(size)
    runs: Bytes = np.minimum(ends[np.searchsorted(ends, at)] - at, _RUN).astype(np.uint8)
    return runs


def _words(octets: Bytes) -> Words:
    """(…, bytes) as (…, words), the last word filled with zeros."""
    size = octets.shape[-1]
    padded = np.zeros((*octets.shape[:-1], -(-size // 4) * 4), np.uint8)
    padded[..., :size] = octets
    words: Words = padded.view(np.uint32)
    return words
