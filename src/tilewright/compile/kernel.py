"""`Kernel`: one kernel of a config, built for one architecture, as its manifest describes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from tilewright.arch.model import Arch
from tilewright.compile.resources import Occupancy, Resources, occupancy
from tilewright.errors import UnknownName
from tilewright.ops.nouns import MAIN
from tilewright.parameters import MAX_PARAMETER_BYTES, parameter_bytes
from tilewright.triton_versions import descriptor_flags
from tilewright.verdict import YES, Verdict, no

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""A SHA-256 in hexadecimal. The pattern matters: digests from a stranger's file become paths."""
Part = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
"""A part of a config. The pattern matters: a part becomes a file's name in a bundle."""
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

    name: the config's name.
    arch: the architecture's name.
    key: the build key it was made under.
    triton: the version that compiled it.
    binary: the kind of file that is loaded, ``"cubin"`` or ``"hsaco"``.
    entry: the symbol in the binary.
    num_warps: warps of a workgroup, including those that warp specialisation adds.
    num_ctas: workgroups of a cluster.
    shared: dynamic shared memory, in bytes.
    global_scratch, profile_scratch: bytes of scratch that one program needs, and their alignment.
    cooperative: whether all workgroups must be resident at once.
    pdl: whether it may start before the kernel before it ends (programmatic dependent launch).
    arguments: (name, Triton type) of the arguments left at run time, in order.
    tensor_maps: one for each descriptor argument in order, or none where descriptors are passed as
        pointer, shape, strides and flags.
    resources: what it takes of a compute unit.
    blobs: the stored files, by kind.
    part: which of the config's kernels it is.
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
    part: Part = MAIN

    @property
    def called(self) -> str:
        """The name, and the part of a config with several, for people."""
        return called(self.name, self.part)

    def blob(self, kind: str) -> Blob:
        """The stored file of a kind (``"cubin"``, ``"ptx"``…). Raises `UnknownName`."""
        if kind not in self.blobs:
            raise UnknownName(
                f"{self.called} for {self.arch} has {', '.join(self.blobs)}; no {kind}"
            )
        return self.blobs[kind]

    def occupancy(self, arch: Arch) -> Occupancy:
        """How many fit on a compute unit. Computed, not stored: it depends on `arch`'s data."""
        return occupancy(
            arch,
            num_warps=self.num_warps,
            registers=self.resources.registers,
            shared=self.shared,
        )


def called(name: str, part: str) -> str:
    """What messages call a kernel: the config's name, and the part unless it is `MAIN`."""
    return name if part == MAIN else f"{name} (part {part})"


def to_data(kernel: Kernel) -> dict[str, Any]:
    """The kernel as JSON has it. The part `MAIN` is left out, so that the files of configs with one
    kernel are the same bytes as before configs had parts."""
    data = asdict(kernel)
    if kernel.part == MAIN:
        del data["part"]
    return data


def check_launch(
    arguments: Iterable[tuple[str, str]], num_ctas: int, pdl: bool, arch: Arch, triton: str
) -> Verdict:
    """Whether `arch` takes a launch of this form, which is known before a kernel is compiled.

    arguments: (name, Triton type) of the arguments left at run time, in order.
    num_ctas: workgroups of a cluster.
    pdl: whether the kernel uses programmatic dependent launch.
    triton: the version that compiles it.

    Raises `BadArgument` for an argument whose type no launch can pass.
    """
    taken = parameter_bytes(arguments, arch.has("tma"), descriptor_flags(triton))
    if taken > MAX_PARAMETER_BYTES:
        return no(
            "parameters",
            f"takes {taken} bytes of parameters, and a launch passes at most "
            f"{MAX_PARAMETER_BYTES}; pass fewer operands or descriptors",
        )
    if num_ctas > arch.max_ctas:
        return no(
            "num_ctas",
            f"runs in clusters of {num_ctas} workgroups, {arch.name} takes at most {arch.max_ctas}"
            if arch.max_ctas > 1
            else f"runs in clusters of {num_ctas} workgroups, {arch.name} has no clusters",
        )
    if pdl and not arch.has("pdl"):
        return no("pdl", f"uses programmatic dependent launch, which {arch.name} does not have")
    return YES


def check_limits(kernel: Kernel, arch: Arch) -> Verdict:
    """Whether `arch` can launch this kernel at all. The compiler does not ask."""
    launch = check_launch(kernel.arguments, kernel.num_ctas, kernel.pdl, arch, kernel.triton)
    if not launch:
        return launch
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
