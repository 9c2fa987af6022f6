"""`Kernel`: a built config for one architecture, as the store's manifest describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from tilewright.arch.model import Arch
from tilewright.compile.resources import Occupancy, Resources, occupancy
from tilewright.errors import UnknownName
from tilewright.ops.nouns import KernelSource
from tilewright.parameters import MAX_PARAMETER_BYTES, parameter_bytes
from tilewright.verdict import YES, Verdict, no

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""A SHA-256 in hexadecimal. The pattern matters: digests from a stranger's file become paths."""
Size = Annotated[int, Meta(ge=0, le=1 << 40)]
Count = Annotated[int, Meta(ge=0, le=1 << 20)]

TENSOR_MEMORY_COLUMNS = 512
"""Columns of tensor memory that a Blackwell SM has; no other architecture uses any."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """How the kernel expects a descriptor argument's tensor map (TMA) to be encoded, in the
    compiler's own numbers; `block_size` outermost dimension first, in elements."""

    swizzle: Count
    elem_size: Count
    elem_type: Count
    block_size: tuple[Count, ...]
    fp4_padded: bool


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored file: its SHA-256 and its size in bytes."""

    digest: Digest
    size: Size


@dataclass(frozen=True, slots=True)
class Kernel:
    """A built kernel: everything a launcher needs except the bytes, which the store holds.

    name: the config's name. key: the build key it was made under. triton: the version that
    compiled it. entry: the symbol in the binary. num_warps: warps of a workgroup, those that warp
    specialisation adds included. shared: dynamic shared memory, in bytes. global_scratch,
    profile_scratch: bytes of scratch that one program needs, and their alignment. arguments:
    (name, Triton type) of the arguments left at run time, in order. tensor_maps: one for each
    descriptor argument in order, or none where descriptors are passed as pointer, shape, strides
    and flags. blobs: the stored files, by kind; `binary` says which kind is loaded (``"cubin"``,
    ``"hsaco"``).
    """

    name: str
    arch: str
    key: Digest
    triton: Annotated[str, Meta(pattern=r"^\d+\.\d+")]
    binary: Literal["cubin", "hsaco"]
    entry: str
    num_warps: Annotated[int, Meta(ge=1, le=1024)]
    num_ctas: Annotated[int, Meta(ge=1, le=1024)]
    shared: Size
    global_scratch: Size
    global_scratch_align: Size
    profile_scratch: Size
    profile_scratch_align: Size
    cooperative: bool
    pdl: bool
    arguments: tuple[tuple[str, str], ...]
    tensor_maps: tuple[TensorMap, ...]
    resources: Resources
    blobs: dict[str, Blob]

    def blob(self, kind: str) -> Blob:
        """The stored file of a kind (``"cubin"``, ``"ptx"``…). Raises `UnknownName`."""
        if kind not in self.blobs:
            raise UnknownName(f"{self.name} for {self.arch} has {', '.join(self.blobs)}; no {kind}")
        return self.blobs[kind]

    def occupancy(self, arch: Arch) -> Occupancy:
        """How many fit on a compute unit. Computed, not stored: it depends on `arch`'s data."""
        return occupancy(
            arch,
            num_warps=self.num_warps,
            registers=self.resources.registers,
            shared=self.shared,
        )


def check_parameters(source: KernelSource) -> Verdict:
    """Can any launch pass what this kernel takes? Known before it is built. Raises `BadArgument`
    for an argument whose type no launch passes."""
    # The compiler chooses the form of descriptors: take the smaller one.
    taken = min(parameter_bytes(source.arguments, maps, flags=1) for maps in (True, False))
    if taken > MAX_PARAMETER_BYTES:
        return no(
            "parameters",
            f"takes {taken} bytes of parameters, and a launch passes at most "
            f"{MAX_PARAMETER_BYTES}; pass fewer operands or descriptors",
        )
    return YES


def check_limits(kernel: Kernel, arch: Arch) -> Verdict:
    """Can `arch` launch this kernel at all? The compiler does not ask."""
    threads = kernel.num_warps * arch.warp_size
    registers = kernel.resources.registers
    columns = kernel.resources.tensor_memory
    if kernel.shared > arch.shared_memory:
        return no(
            "shared_memory",
            f"needs {kernel.shared} bytes of shared memory, {arch.name} gives a workgroup at most "
            f"{arch.shared_memory}",
        )
    if threads > arch.max_threads:
        return no(
            "threads",
            f"needs {threads} threads ({kernel.num_warps} warps of {arch.warp_size}), "
            f"{arch.name} takes at most {arch.max_threads} in a workgroup",
        )
    if columns > TENSOR_MEMORY_COLUMNS:
        return no(
            "tensor_memory",
            f"needs {columns} columns of tensor memory, there are {TENSOR_MEMORY_COLUMNS}",
        )
    if kernel.occupancy(arch).workgroups == 0:
        return no(
            "registers",
            f"{kernel.num_warps} warps with {registers} registers a thread do not fit the "
            f"register file of a compute unit ({arch.simds_per_cu} SIMDs of "
            f"{arch.registers_per_lane} registers a lane)",
        )
    return YES
