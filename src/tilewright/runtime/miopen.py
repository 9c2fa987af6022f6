"""AMD's MIOpen by ctypes: the solvers that it offers for a convolution, and one made ready.

The binding is of the library's immediate mode (miopen.h of version 3, whose numbers are those
here): a convolution is described by descriptors, the library lists the numbers of solvers that can
compute it, and one is compiled and called by its number. No AMD GPU has run this.

A convolution that is ready is a `Prepared` with a `Context`: memory in which the launcher
(`solution.h`, or its twin in `python_launcher`) finds the library's function and the descriptors. A
handle is for one stream and one thread at a time, and keeps what was compiled with it. So each
stream has a handle, a lock is held while one is used, and a solver is compiled for each handle
before it is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

from tilewright.errors import LibraryRefused
from tilewright.ops.library import major
from tilewright.ops.library_convolution import Convolution, Made
from tilewright.ops.library_engine import Offered, Solver, Tensor
from tilewright.runtime.blaslt import Handles
from tilewright.runtime.driver import Driver, address_of
from tilewright.runtime.prepared import Prepared

_FUNCTIONS: dict[Made, str] = {
    "y": "miopenConvolutionForward",
    "x": "miopenConvolutionBackwardData",
    "w": "miopenConvolutionBackwardWeights",
}
"""What the names of the functions begin with, by what is made."""

_DTYPES = {"fp16": 0, "fp32": 1, "bf16": 5}  # miopenDataType_t
_CROSS_CORRELATION = 0  # miopenConvolutionMode_t: filters as torch has them

# miopenConvolutionAttrib_t
_FP16_AS_BF16, _DETERMINISTIC = 0, 1

_TRANSFORMS = frozenset((2, 3))
"""miopenConvAlgorithm_t: Fourier's and Winograd's, whose rounding grows with the operands."""

_NO_SOLVER = 6
"""miopenStatus_t: the library has no solver for a convolution."""


class _Offer(ctypes.Structure):
    """miopenConvSolution_t."""

    _fields_ = (
        ("milliseconds", ctypes.c_float),
        ("workspace", ctypes.c_size_t),
        ("number", ctypes.c_uint64),
        ("algorithm", ctypes.c_int),
    )


class Context(ctypes.Structure):
    """What a call needs besides addresses and a stream; `Solution` of solution.h."""

    _fields_ = (
        ("handles", ctypes.c_void_p),
        ("compute", ctypes.c_void_p),
        ("used", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("convolution", ctypes.c_void_p),
        ("made", ctypes.c_void_p),
        ("number", ctypes.c_uint64),
        ("workspace", ctypes.c_uint64),
    )


Described = tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
"""The descriptors of the first two tensors, of the convolution, and of what is made: the order of
the library's functions."""

_threads = ctypes.CDLL(None)
_MUTEX_WORDS = 8
"""Words of 8 bytes, in which a pthread_mutex_t has room."""


class Mutex:
    """A lock that C takes too: a pthread_mutex_t."""

    def __init__(self) -> None:
        self._memory = (ctypes.c_uint64 * _MUTEX_WORDS)()
        _threads.pthread_mutex_init(self._memory, None)

    @property
    def address(self) -> int:
        """Where it lies."""
        return ctypes.addressof(self._memory)

    def __enter__(self) -> None:
        lock(self.address)

    def __exit__(self, *_: object) -> None:
        unlock(self.address)


def lock(mutex: int) -> None:
    """Take the mutex at an address."""
    _threads.pthread_mutex_lock(ctypes.c_void_p(mutex))


def unlock(mutex: int) -> None:
    """Give back the mutex at an address."""
    _threads.pthread_mutex_unlock(ctypes.c_void_p(mutex))


class Miopen:
    """The library of one major version, opened. Thread-safe.

    lib: the library's functions. name: with the major version, as ``miopen3``.

    Raises `LibraryRefused` if `lib` is of another version than `name` says.
    """

    step: ClassVar[str] = "solution_step"
    majors: ClassVar[tuple[int, ...]] = (3,)
    folders: ClassVar[tuple[str, ...]] = ("torch/lib", "_rocm_sdk_libraries*/lib")
    install: ClassVar[str] = "ROCm 6 or 7, whose MIOpen is {}"

    def __init__(self, lib: Any, name: str) -> None:
        self._lib, self.name = lib, name
        lib.miopenGetErrorString.restype = ctypes.c_char_p
        version = [ctypes.c_size_t() for _ in range(3)]
        self._check(lib.miopenGetVersion(*map(ctypes.byref, version)), "say its version")
        found, *release = (one.value for one in version)
        if found != major(name):
            wanted = major(name)
            raise LibraryRefused(
                f"the library that loads as {self.files(wanted)[0]} is version {found}, not "
                f"{wanted}: install {self.install.format(wanted)}, or tune for this one"
            )
        self._release = (release[0], release[1])
        self._handles: dict[tuple[int, int], int] = {}
        self._used = Mutex()
        """Held while a handle is used."""

    @staticmethod
    def files(version: int) -> tuple[str, ...]:
        """The files that may be the library of a major version, whose own version is another."""
        return ("libMIOpen.so.1", "libMIOpen.so")  # torch's has no version

    def error(self, status: int) -> str:
        """The library's name for a status."""
        said = self._lib.miopenGetErrorString(status)
        return f"{(said or b'unknown status').decode()} ({status})"

    def offered(self, driver: Driver, device: int, asked: Convolution, count: int) -> list[Offered]:
        """The solvers that the library offers for what is asked, by its own guess the fastest
        first, at most `count`. Raises `LibraryRefused` if there is none."""
        found: list[Offered] = []
        with ExitStack() as stack, driver.current(device), driver.capture_allowed(), self._used:
            handle = self._handle(device, 0)
            repeating = self._numbers(handle, asked, self._describe(stack, asked, True))
            described = self._describe(stack, asked, False)
            for number in self._numbers(handle, asked, described):
                need = self._need(handle, asked, described, number)
                if need <= asked.workspace:
                    solver = Solver(number, self._release, number not in repeating)
                    found.append(Offered(solver, need))
                if len(found) == count:
                    break
        if not found:
            raise LibraryRefused(f"{self.name} has no solver for {asked}")
        return found

    def prepared(self, driver: Driver, device: int, asked: Convolution) -> Prepared:
        """A convolution with its solver, made ready on a device. Raises `LibraryRefused` if the
        library does not take the solver there."""
        solver = asked.engine
        assert isinstance(solver, Solver)
        self._check_release(solver)
        with ExitStack() as stack, driver.current(device), driver.capture_allowed(), self._used:
            handle = self._handle(device, 0)
            described = self._describe(stack, asked, not solver.varies)
            self._check_offered(handle, asked, solver, described, stack)
            need = self._need(handle, asked, described, solver.number)
            if need > asked.workspace:
                raise LibraryRefused(
                    f"{self.name} needs {need} bytes of workspace for {asked} by solver "
                    f"{solver.word}, over {asked.workspace}, those in the kernel's name"
                )
            handles, compiled = Handles(each=True), partial(self._compile, asked, described)
            compiled(handle)
            handles.add(0, handle)
            compute = address_of(self._function(asked, "Immediate"))
            context = Context(
                ctypes.addressof(handles), compute, self._used.address, *described, solver.number,
                asked.workspace,
            )  # fmt: skip
            serve = partial(self._serve, handles, compiled, device)
            said = f"{self.name} for {asked}"
            return Prepared(said, self, driver, context, stack.pop_all(), serve)

    def _check_release(self, solver: Solver) -> None:
        if solver.release != self._release:
            here, tuned = (
                ".".join(map(str, (major(self.name), *one)))
                for one in (self._release, solver.release)
            )
            raise LibraryRefused(
                f"{self.name} is {here} here, and solver {solver.number} was tuned with {tuned}: "
                "tune anew"
            )

    def _check_offered(
        self,
        handle: int,
        asked: Convolution,
        solver: Solver,
        described: Described,
        stack: ExitStack,
    ) -> None:
        """Raise `LibraryRefused` unless the library offers a solver: it would compile and call any,
        whether it computes such a convolution or not. Nor is one taken as varying that repeats: a
        handle keeps what is compiled first, whichever it was asked for."""
        if solver.number not in self._numbers(handle, asked, described):
            raise LibraryRefused(f"{self.name} does not offer solver {solver.word} for {asked}")
        if solver.varies and solver.number in self._numbers(
            handle, asked, self._describe(stack, asked, True)
        ):
            raise LibraryRefused(
                f"{self.name} has solver {solver.number} for {asked} with sums that repeat: tune "
                "anew"
            )

    # --- handles -------------------------------------------------------------------------------

    def _serve(self, handles: Handles, compiled: Any, device: int, stream: int) -> None:
        """Make a solver ready for a stream of a device, which is current."""
        with self._used:
            if handles.on(stream) is None:
                handles.check_room(self.name)
                handle = self._handle(device, stream)
                compiled(handle)
                handles.add(stream, handle)

    def _handle(self, device: int, stream: int) -> int:
        """The handle of a stream of a device, which is current. Raises `LibraryRefused`."""
        found = self._handles.get((device, stream))
        if found is None:
            handle = ctypes.c_void_p()
            status = self._lib.miopenCreateWithStream(ctypes.byref(handle), ctypes.c_void_p(stream))
            self._check(status, f"open GPU {device}")
            assert handle.value is not None
            found = self._handles[device, stream] = handle.value
        return found

    # --- questions -----------------------------------------------------------------------------

    def _numbers(self, handle: int, asked: Convolution, described: Described) -> list[int]:
        """The solvers that the library offers, without those whose results may be too far off."""
        given, count = (ctypes.c_void_p(handle), *described), ctypes.c_size_t()
        status = self._function(asked, "GetSolutionCount")(*given, ctypes.byref(count))
        if status == _NO_SOLVER:
            return []
        self._check(status, f"count solvers for {asked}")
        offers, found = (_Offer * count.value)(), ctypes.c_size_t()
        status = self._function(asked, "GetSolution")(
            *given, ctypes.c_size_t(count.value), ctypes.byref(found), offers
        )
        self._check(status, f"offer a solver for {asked}")
        return [one.number for one in offers[: found.value] if one.algorithm not in _TRANSFORMS]

    def _need(self, handle: int, asked: Convolution, described: Described, number: int) -> int:
        """The bytes of workspace that a solver needs."""
        need = ctypes.c_size_t()
        status = self._function(asked, "GetSolutionWorkspaceSize")(
            ctypes.c_void_p(handle), *described, ctypes.c_uint64(number), ctypes.byref(need)
        )
        self._check(status, f"say what solver {number} needs for {asked}")
        return need.value

    def _compile(self, asked: Convolution, described: Described, handle: int) -> None:
        assert asked.engine is not None
        number = asked.engine.number
        status = self._function(asked, "CompileSolution")(
            ctypes.c_void_p(handle), *described, ctypes.c_uint64(number)
        )
        self._check(status, f"compile solver {number} for {asked}")

    def _function(self, asked: Convolution, name: str) -> Any:
        return getattr(self._lib, _FUNCTIONS[asked.made] + name)

    # --- descriptions --------------------------------------------------------------------------

    def _describe(self, stack: ExitStack, asked: Convolution, repeats: bool) -> Described:
        """What is asked, as descriptors, which are destroyed with `stack`.

        repeats: solvers must give the same bits in every run.
        """
        tensors = {name: getattr(asked, name) for name in asked.order}
        first, second, made = (self._tensor(stack, tensors[name]) for name in asked.order)
        lib, convolution = self._lib, self._created(stack, "Convolution")
        sizes = map(_ints, (asked.pad, asked.stride, asked.dilation))
        status = lib.miopenInitConvolutionNdDescriptor(
            convolution, len(asked.pad), *sizes, _CROSS_CORRELATION
        )
        self._check(status, "describe a convolution")
        groups = asked.x.shape[1] // asked.w.shape[1]
        status = lib.miopenSetConvolutionGroupCount(convolution, groups)
        self._check(status, f"describe {groups} groups")
        for attribute, value in ((_FP16_AS_BF16, 0), (_DETERMINISTIC, repeats)):
            status = lib.miopenSetConvolutionAttribute(convolution, attribute, int(value))
            self._check(status, f"set attribute {attribute}")
        return first, second, convolution, made

    def _tensor(self, stack: ExitStack, tensor: Tensor) -> ctypes.c_void_p:
        made = self._created(stack, "Tensor")
        status = self._lib.miopenSetTensorDescriptor(
            made, _DTYPES[tensor.dtype], len(tensor.shape), _ints(tensor.shape),
            _ints(tensor.strides),
        )  # fmt: skip
        self._check(status, "describe a tensor")
        return made

    def _created(self, stack: ExitStack, what: str) -> ctypes.c_void_p:
        """A descriptor, destroyed with `stack`."""
        made = ctypes.c_void_p()
        status = getattr(self._lib, f"miopenCreate{what}Descriptor")(ctypes.byref(made))
        self._check(status, f"make a descriptor of a {what.lower()}")
        stack.callback(getattr(self._lib, f"miopenDestroy{what}Descriptor"), made)
        return made

    def _check(self, status: int, doing: str) -> None:
        if status:
            raise LibraryRefused(f"{self.name} refused to {doing}: {self.error(status)}")


def _ints(sizes: Sequence[int]) -> Any:
    return (ctypes.c_int * len(sizes))(*sizes)
