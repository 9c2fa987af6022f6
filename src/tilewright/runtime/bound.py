"""`BoundLaunch`: a plan's launch with everything packed except addresses, stream and scalars.

The parameters of all steps are laid out once. A call hands addresses, stream and scalars to the
compiled launcher (`launcher.c`), which copies the parameters, fills in the rest and calls the
driver. It has tensor maps encoded by the driver, once for each address that an operand takes, and
keeps them; those that it cannot have, this module has encoded, or says why not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright import parameters
from tilewright.compile.kernel import Kernel, TensorMap
from tilewright.dtypes import dtype
from tilewright.errors import BadArgument, LaunchFailed, LibraryRefused
from tilewright.ops.nouns import Descriptor, Given, Launch, Pointer, Role, Scalar, Step, Theirs
from tilewright.runtime import temporaries
from tilewright.runtime.driver import Driver
from tilewright.runtime.launcher import NEEDS_HANDLE, NEEDS_MAPS, OVERLAPS, UNSUITABLE, launcher
from tilewright.runtime.prepared import NOT_POSITIVE, STATUS, Prepared
from tilewright.triton_versions import descriptor_flags

_MOST_TRIES = 64
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT, hipErrorInvalidContext
_CAPTURE_ENDED = 901  # CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, hipErrorStreamCaptureInvalidated
_ALIGNED = 64
"""Bytes that a step's parameters are aligned to, since the driver wants tensor maps so."""
_RANKS = range(1, 6)
"""Dimensions a descriptor may have: those of a tensor map."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel, and its function as the driver loaded it on one device."""

    kernel: Kernel
    function: ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class Bound:
    """An operand as a call passes it: its name, its role, and the bytes it spans."""

    name: str
    role: Role
    bytes: int


class BoundLaunch:
    """Launches a plan's steps for one problem on one device, as one launch. Thread-safe.

    driver: the GPU's driver.
    device: the GPU's number.
    parts: the kernels that the steps name, by part.
    warp_size: threads of a warp on this GPU.
    launch: the steps and their temporaries.
    operands: what a call passes, in the order of its addresses. Operands that a call leaves out
        are not among them.
    given: names of the scalars that a call passes, in their order.
    defaults: values of scalars for which a call passes None.
    products: what the vendor's library computes in the launch, ready on the device.

    `native` is the launcher's own record of the launch, for its `call`. Raises `LaunchFailed` for
    a launch that cannot be queued on this device.
    """

    def __init__(
        self,
        driver: Driver,
        device: int,
        parts: Mapping[str, Loaded],
        warp_size: int,
        launch: Launch,
        operands: Sequence[Bound],
        given: Sequence[str] = (),
        defaults: Mapping[str, int | float] | None = None,
        products: Mapping[Theirs, Prepared] | None = None,
    ) -> None:
        defaults = defaults or {}
        self.driver = driver
        self.device = device
        places = temporaries.layout(launch.temporaries)
        native, products = launcher(), products or {}
        packed = _Packed(_sources(operands, places), list(given), defaults)
        for step in launch.steps:
            if step.theirs is not None:
                ready = products[step.theirs]
                packed.add_theirs(getattr(native, ready.step), ready, step)
            else:
                packed.add_step(driver, parts, warp_size, step)
        self._name = packed.names[0] if packed.names else "an empty launch"
        self._descriptors = packed.descriptors
        self._scalars = packed.scalars
        self._given = packed.given
        self._defaults = defaults
        self.workspace = places.kept_zero_bytes, places.scratch_bytes
        """Bytes of the kept-zero and of the scratch buffer that a call needs the addresses of."""
        self._products = (*products.values(),)
        self.exchange_function = driver.exchange_function if products else 0
        """What allows a launch within a capture (`Driver.exchange_function`): a library loads an
        algorithm's code when it is used first. 0 where none computes a step."""
        self._native_launch = native.launch
        self._write_map = native.write_map
        self._launches = native.launches
        self._last_used = native.last_used
        self._keep_workspace = native.keep_workspace
        encode = driver.encode_function if packed.descriptors else 0
        self.native = native.prepare(
            device,
            tuple((o.bytes, o.role != "in") for o in operands),
            tuple(name in defaults for name in given),
            bytes(packed.content),
            tuple(packed.steps),
            tuple(packed.pointers),
            tuple(
                (d.at, d.source, d.offset, driver.tiling(d.view, d.layout) if encode else b"")
                for d in packed.descriptors
            ),
            tuple((s.at, s.number, s.form) for s in packed.scalars),
            driver.fill_function if places.zeroed_bytes else 0,
            places.zeroed_bytes,
            encode,
            bool(places.kept_zero_bytes),
            bool(places.scratch_bytes),
            self._products,
        )

    def __call__(
        self,
        stream: int,
        addresses: tuple[int, ...],
        workspaces: tuple[int, int] = (0, 0),
        scalars: tuple[int | float | None, ...] = (),
        elsewhere: bool = False,
        apart: bool = False,
    ) -> bool:
        """Queue the launch on `stream`, a handle.

        addresses: those of the operands, in order. workspaces: addresses of the kept-zero buffer
        and of the scratch buffer, 0 for one that the launch does not use. scalars: values of the
        given scalars, in order, or None for the default. elsewhere: another device than this
        launch's is current in the calling thread. apart: the caller knows that no written operand
        shares an element with another operand.

        Returns False, and queues nothing, if the bytes that a written operand spans touch another
        operand's: the caller finds out whether elements really overlap. Raises `LaunchFailed`,
        `LibraryRefused` for numbers that the library's algorithm does not take, and
        `BadArgument` for a scalar that is missing or does not fit its type.
        """
        given = (stream, addresses, workspaces, scalars, apart)
        if elsewhere:
            with self.driver.current(self.device):
                status = self._try(*given)
        else:
            status = self._try(*given)
            if status == _NO_CONTEXT:
                # A thread's very first use of the GPU. For good, or each backward pass whose
                # launches are all ours would come here: torch's runtime library sees none of them.
                self.driver.keep_current(self.device)
                status = self._try(*given)
        if status == OVERLAPS:
            return False
        if status == UNSUITABLE:
            raise self._unsuitable(scalars)
        if status == STATUS + NOT_POSITIVE:
            raise LibraryRefused(f"{self._name} takes numbers above 0 alone")
        if status == _CAPTURE_ENDED:
            self.driver.capture(stream)  # raises, and says what ended it
        if status:
            raise LaunchFailed(f"launching {self._name}: {self._said(status)}")
        return True

    def keep_workspace(self, stream: int, kept_zero: int, scratch: int) -> None:
        """Have the compiled path use the buffers at these addresses on `stream` from now on. Two
        zeros: forget the buffers of every stream."""
        self._keep_workspace(self.native, stream, kept_zero, scratch)

    def launches(self) -> int:
        """How often it was queued, by this object or by the compiled path."""
        count: int = self._launches(self.native)
        return count

    def last_used(self) -> int:
        """A stamp that is larger for a launch that was used later; 0 if it was never used."""
        stamp: int = self._last_used(self.native)
        return stamp

    def _said(self, status: int) -> str:
        """A status in the words of the driver, or of the library that computes the launch."""
        if status > STATUS and self._products:
            return self._products[0].error(status - STATUS)
        return self.driver.error(status)

    def _try(
        self,
        stream: int,
        addresses: tuple[int, ...],
        workspaces: tuple[int, int],
        scalars: tuple[int | float | None, ...],
        apart: bool,
    ) -> int:
        given = (self.native, stream, addresses, workspaces, scalars, apart)
        for _ in range(_MOST_TRIES):
            status = self._product(given) if self._products else self._native_launch(*given)
            if status == NEEDS_MAPS:
                self._place_maps((*addresses, *workspaces))
            elif status == NEEDS_HANDLE:
                self._open_handles(stream)
            else:
                return status
        raise LaunchFailed(
            f"launching {self._name}: other threads replaced its tensor maps {_MOST_TRIES} times"
        )

    def _product(self, given: tuple[Any, ...]) -> int:
        # A library loads an algorithm's code when it is used first.
        with self.driver.capture_allowed():
            status: int = self._native_launch(*given)
        return status

    def _open_handles(self, stream: int) -> None:
        with self.driver.current(self.device), self.driver.capture_allowed():
            for product in self._products:
                product.serve(stream)

    def _place_maps(self, sources: tuple[int, ...]) -> None:
        # A thread may come here before anything else that it does on a GPU, as autograd's does.
        with self.driver.current(self.device):
            for number, d in enumerate(self._descriptors):
                address = sources[d.source] + d.offset
                encoded = self.driver.tensor_map(d.view, d.layout, address)
                self._write_map(self.native, number, address, encoded)

    def _unsuitable(self, scalars: Sequence[int | float | None]) -> BadArgument:
        """The error for the first scalar that cannot be passed."""
        for s in self._scalars:
            name, value = self._given[s.number], scalars[s.number]
            if value is None:
                if name not in self._defaults:
                    return BadArgument(f"{self._name} needs {name}=, a number, at each call")
                continue
            try:
                parameters.pack(s.type, value)
            except BadArgument as error:
                return BadArgument(f"{name} of {self._name}: {error}")
        return BadArgument(f"{self._name} cannot take the scalars {tuple(scalars)}")


def _sources(operands: Sequence[Bound], places: temporaries.Layout) -> dict[str, tuple[int, int]]:
    """(source, offset in bytes) of each operand and temporary, by name; launcher.c says what a
    source is."""
    kept_zero, scratch = len(operands), len(operands) + 1
    numbers = {o.name: i for i, o in enumerate(operands)}
    return {
        **{name: (i, 0) for name, i in numbers.items()},
        **{name: (numbers[output], at) for name, (output, at) in places.inside.items()},
        **{name: (kept_zero, at) for name, at in places.kept_zero.items()},
        **{name: (scratch, at) for name, at in places.scratch.items()},
    }


@dataclass(frozen=True, slots=True)
class _Tiled:
    """A descriptor that is passed as a tensor map, and the place of the map."""

    at: int
    source: int
    offset: int
    view: Descriptor
    layout: TensorMap


@dataclass(frozen=True, slots=True)
class _Given:
    """A scalar given at the call: its place, its number among those given, its type."""

    at: int
    number: int
    type: str

    @property
    def form(self) -> str:
        """The type as launcher.c reads it: the letter of `struct`, or 1 for i1."""
        return "1" if self.type == "i1" else parameters.SCALARS[self.type][-1]


@dataclass(slots=True)
class _Packed:
    """The parameters of all steps in one buffer, and which of them a call fills in.

    sources: see `_sources`. steps: as `prepare` of launcher.c takes them. pointers: (offset in
    `content`, source, offset to add).
    """

    sources: Mapping[str, tuple[int, int]]
    given: list[str]
    defaults: Mapping[str, int | float]
    content: bytearray = field(default_factory=bytearray)
    steps: list[tuple[object, ...]] = field(default_factory=list)
    pointers: list[tuple[int, int, int]] = field(default_factory=list)
    descriptors: list[_Tiled] = field(default_factory=list)
    scalars: list[_Given] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _offsets: list[int] = field(default_factory=list)

    def add_step(
        self, driver: Driver, parts: Mapping[str, Loaded], warp_size: int, step: Step
    ) -> None:
        """Lay out the parameters of one kernel, as its compiler orders them."""
        loaded = parts.get(step.part)
        if loaded is None:
            raise LaunchFailed(f"a step runs part '{step.part}'; there is {', '.join(parts)}")
        kernel = loaded.kernel
        if kernel.global_scratch or kernel.profile_scratch:
            raise LaunchFailed(f"{kernel.name} wants scratch memory, which no plan provides")
        self.names.append(kernel.name)
        start = self._begin()
        self._add_arguments(kernel, step)
        for kind in parameters.SCRATCH:
            self._add(kind, parameters.pack(kind, 0))
        taken = len(self.content) - start
        if taken > parameters.MAX_PARAMETER_BYTES:
            raise LaunchFailed(
                f"{kernel.name} takes {taken} bytes of parameters, and a launch passes at most "
                f"{parameters.MAX_PARAMETER_BYTES}; pass fewer operands or descriptors"
            )
        entry = driver.entry(kernel, loaded.function)
        x, y, z = step.grid
        self.steps.append(
            (
                entry.address,
                loaded.function.value,
                entry.attributes,
                (x * kernel.num_ctas, y, z),  # a grid counts clusters
                kernel.num_warps * warp_size,
                kernel.shared,
                tuple(self._offsets),
            )
        )

    def add_theirs(self, call: int, ready: Prepared, step: Step) -> None:
        """Lay out what the vendor's library is given: addresses, and numbers, which it reads where
        they lie. call: the address of the launcher's function that hands them to it."""
        self.names.append(ready.name)
        self._begin()
        for argument in step.arguments:
            assert not isinstance(argument, Descriptor)
            self._add_plain(ready.name, argument)
        self.steps.append((call, ready.address, b"", step.grid, 1, 0, tuple(self._offsets)))

    def _begin(self) -> int:
        """Begin a step's parameters; returns where."""
        self.content += bytes(-len(self.content) % _ALIGNED)
        self._offsets = []
        return len(self.content)

    def _add_arguments(self, kernel: Kernel, step: Step) -> None:
        views = [a for a in step.arguments if isinstance(a, Descriptor)]
        if kernel.tensor_maps and len(kernel.tensor_maps) != len(views):
            raise LaunchFailed(
                f"{kernel.name} takes {len(kernel.tensor_maps)} tensor maps, and its step has "
                f"{len(views)} descriptors"
            )
        maps = iter(kernel.tensor_maps)
        for argument in step.arguments:
            if isinstance(argument, Descriptor):
                self._add_descriptor(kernel, argument, next(maps, None))
            else:
                self._add_plain(kernel.name, argument)

    def _add_plain(self, kernel: str, argument: Pointer | Scalar | Given) -> None:
        if isinstance(argument, Pointer):
            self._add_pointer(kernel, argument.operand)
        elif isinstance(argument, Scalar):
            self._add(argument.type, parameters.pack(argument.type, argument.value))
        else:
            self._add_given(kernel, argument)

    def _add(self, piece: str, data: bytes = b"") -> int:
        """One more parameter; returns its offset in `content`. Without data it is zero."""
        width, align = parameters.size(piece)
        self.content += bytes(-len(self.content) % align)
        at = len(self.content)
        self.content += data or bytes(width)
        self._offsets.append(at)
        return at

    def _source(self, kernel: str, name: str) -> tuple[int, int]:
        if name not in self.sources:
            raise LaunchFailed(
                f"{kernel} is passed '{name}', which is neither an operand of this call nor "
                f"a temporary; these are {', '.join(self.sources) or 'none'}"
            )
        return self.sources[name]

    def _add_pointer(self, kernel: str, name: str, offset: int = 0) -> None:
        source, at = self._source(kernel, name)
        self.pointers.append((self._add(parameters.POINTER), source, at + offset))

    def _add_given(self, kernel: str, scalar: Given) -> None:
        default = self.defaults.get(scalar.name)
        if scalar.name not in self.given and default is None:
            raise LaunchFailed(
                f"{kernel} is passed the scalar '{scalar.name}', which no call gives and "
                "which has no default"
            )
        at = self._add(scalar.type, parameters.pack(scalar.type, default or 0))
        if scalar.name in self.given:
            self.scalars.append(_Given(at, self.given.index(scalar.name), scalar.type))

    def _add_descriptor(self, kernel: Kernel, view: Descriptor, layout: TensorMap | None) -> None:
        rank = len(view.shape)
        if rank not in _RANKS or len(view.strides) != rank:
            raise LaunchFailed(
                f"{kernel.name} is passed a descriptor of shape {view.shape} and strides "
                f"{view.strides}; both need {_RANKS[0]} to {_RANKS[-1]} dimensions, as many as the "
                "other"
            )
        offset = view.offset * dtype(view.dtype).bytes
        if layout is not None:
            source, at = self._source(kernel.name, view.operand)
            place = self._add(parameters.TENSOR_MAP)
            self.descriptors.append(_Tiled(place, source, at + offset, view, layout))
        else:
            if any(step != 1 for step in view.element_strides):
                raise LaunchFailed(
                    f"{kernel.name} is passed a descriptor with element strides "
                    f"{view.element_strides}, which only tensor maps have, and kernels for "
                    f"{kernel.arch} take descriptors without them"
                )
            self._add_pointer(kernel.name, view.operand, offset)
        extents = (*view.shape, *view.strides)
        flags = descriptor_flags(kernel.triton)
        pieces = parameters.descriptor_pieces(rank, layout is not None, flags)[1:]
        # Flags are not set: nothing is padded with NaN or rounded.
        values = extents if layout is not None else (*extents, *[0] * flags, *extents)
        for piece, value in zip(pieces, values, strict=True):
            self._add(piece, parameters.pack(piece, value))
