"""`Arch` and `Device`: what an architecture can do, and which physical GPU this is.

An `Arch` is read from one data file under `data/`; a `Device` from `devices/`, from JSON, or
from the live GPU (`tilewright.arch.detect`). Neither needs a GPU, torch or triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.checks import MOST_WHOLE, positive, whole
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument

OPERANDS = frozenset({"tf32", "mxfp8", "mxfp4", *DTYPES}) - {
    "int32", "int64", "int4", "e8m0", "uint8", "bool"
}  # fmt: skip
"""The operand dtypes of which each architecture says how its matrix units take them."""

_SIZES = (
    "warp_size", "max_threads", "shared_memory", "shared_memory_per_cu", "simds_per_cu",
    "registers_per_lane", "register_granule", "max_registers", "max_warps_per_simd",
    "max_workgroups_per_cu", "kpack", "max_ctas", "operand_copies",
)  # fmt: skip

INTERPRETED = "interpreter as "
"""What begins the name of a device that Triton's interpreter played."""
EMULATED = "emulator as "
"""What begins the name of a device that the emulator played."""

Support = Literal["native", "emulated", "refused"]

FEATURES = {
    "tma": "copies a tile that a tensor descriptor describes between global and shared memory; "
    "descriptors are tensor maps, and not pointers with strides",
    "pdl": "programmatic dependent launch: a kernel begins before the one before it has ended",
    "warp_specialize": "the compiler gives the copies of a loop marked warp_specialize their own "
    "warps",
}
"""What a data file may list under `features`, and what each word means."""


@dataclass(frozen=True, slots=True)
class DTypeSupport:
    """How an architecture's matrix units (through the compiler) treat an operand dtype.

    `native`: matrix instructions exist. `emulated`: the compiler converts first; `note` says at
    what cost. `refused`: the compiler rejects it or takes minutes; `note` says which. `via`:
    the operand dtype whose instructions do the work when not its own, or ``"fma"`` (the vector
    units).
    """

    support: Support
    note: str = ""
    via: str = ""


@dataclass(frozen=True, slots=True)
class Mma:
    """One family of matrix instructions: operand dtypes it takes, and its (m, n, k) shapes.

    `dtypes` lists operand dtype names (`tf32` and `ieee` fp32 are written ``"tf32"`` and
    ``"fp32"``). `flops_per_cu_per_clock` counts a multiply-add as two; dense.
    """

    instruction: str
    dtypes: tuple[str, ...]
    acc: str
    shapes: tuple[tuple[int, int, int], ...]
    flops_per_cu_per_clock: int


@dataclass(frozen=True, slots=True)
class Cdna:
    """What kernels written for CDNA's own instructions have to know.

    generation: of the matrix instructions, as Triton counts them (2: gfx90a, 3: gfx942, 4:
    gfx950), or 5, whose instructions are WMMA (gfx1250). bank_bytes: what shared memory's banks
    hold side by side. direct_to_shared: whether 16 bytes a lane go from memory into shared memory
    without passing through registers. compute_units_per_die: of a GPU made of dies that have an L2
    each; 0 where there is one die.
    """

    generation: int
    bank_bytes: int
    direct_to_shared: bool
    compute_units_per_die: int


@dataclass(frozen=True, slots=True)
class Arch:
    """What a GPU architecture can do. Sizes are in bytes. A compute unit ("CU") is an SM on NVIDIA.

    name: ``sm_90``, ``gfx942``.
    backend, target: for Triton's `GPUTarget`.
    products: some GPUs that have it.
    shared_memory: the most that one workgroup can ask for.
    shared_memory_per_cu: what resident workgroups share.
    shared_memory_reserved: what the driver takes for each workgroup.
    registers_per_lane: 32-bit registers of one SIMD's file, per lane. Resident waves are
        registers_per_lane // (registers a thread uses, rounded up to register_granule).
    mma_selectable: whether a config can ask the compiler for a shape of matrix instruction.
    async_mma: whether matrix instructions read shared memory on their own (wgmma, tcgen05), so that
        every pipeline stage keeps its buffer.
    fp8: the flavour that ``fp8`` and ``bf8`` mean here (``ocp``, ``fnuz``).
    dtypes: operand dtypes, including ``tf32``.
    features: abilities that no other field says (`FEATURES`); `has` answers for those and for the
        others.
    min_dot: the smallest tile (m, n, k) that the matrix units take.
    num_warps, num_stages: the values that a wildcard expands to.
    fma_flops_per_cu_per_clock: of fp32 on the vector units; a multiply-add is two.
    exp_per_cu_per_clock: results of the transcendental functions (exp2, log2, reciprocals) in fp32;
        0 where the rate is not known.
    cdna: see `Cdna`; only where there is a pipeline that reads it.
    kpack: matrix instructions along K that one 16-byte load can feed, where the compiler has to be
        told.
    dot: the units that the compiler multiplies Triton's ``tl.dot`` on. ``vector`` where it knows
        the matrix instructions in Gluon and for ``tl.dot_scaled`` only.
    max_ctas: the most workgroups of a cluster, non-portable sizes included; 1: no clusters.
    stores_done: the instruction that waits until a wave's accesses to global memory are complete,
        in assembly language, for GPUs whose barriers do not; ``""`` where a barrier does.
    operand_copies: lanes of a wave that each hold, for a matrix instruction, the same elements of A
        and B.
    """

    name: str
    vendor: Literal["nvidia", "amd"]
    backend: Literal["cuda", "hip"]
    target: str
    products: tuple[str, ...]
    warp_size: int
    max_threads: int
    shared_memory: int
    shared_memory_per_cu: int
    shared_memory_reserved: int
    simds_per_cu: int
    registers_per_lane: int
    register_granule: int
    max_registers: int
    max_warps_per_simd: int
    max_workgroups_per_cu: int
    mma: tuple[Mma, ...]
    mma_selectable: bool
    async_mma: bool
    fp8: Literal["ocp", "fnuz"]
    dtypes: dict[str, DTypeSupport]
    features: tuple[str, ...]
    min_dot: tuple[int, int, int]
    num_warps: tuple[int, ...]
    num_stages: tuple[int, ...]
    notes: str = ""
    fma_flops_per_cu_per_clock: int = 0
    exp_per_cu_per_clock: int = 0
    cdna: Cdna | None = None
    kpack: int = 1
    dot: Literal["matrix", "vector"] = "matrix"
    max_ctas: int = 1
    stores_done: str = ""
    operand_copies: int = 1

    def __post_init__(self) -> None:
        for field in _SIZES:
            whole(f"{self.name}: {field}", getattr(self, field), least=1)
        for field in ("num_warps", "num_stages"):
            for value in getattr(self, field):
                whole(f"{self.name}: {field}", value, least=1)
        for word in self.features:
            if word not in FEATURES:
                known = ", ".join(FEATURES)
                raise BadArgument(f"{self.name} has unknown feature '{word}'; known: {known}")
        for word in sorted(OPERANDS ^ self.dtypes.keys()):
            lacks = word in OPERANDS
            raise BadArgument(
                f"{self.name}: dtypes {'does not say' if lacks else 'says'} how operand dtype "
                f"'{word}' is computed{'' if lacks else ', which is none'}; it lists "
                f"{', '.join(sorted(OPERANDS))}"
            )

    def has(self, word: str) -> bool:
        """Whether the architecture can do what `word` says, in the words of its data file.

        word: a feature (``"tma"``); a matrix instruction (``"wgmma"``); an operand dtype
        (``"mxfp8"``), which it has unless the compiler refuses it; or ``"cdna"``, for the
        instructions that `Cdna` describes.
        """
        if word in self.features or word in {unit.instruction for unit in self.mma}:
            return True
        if word == "cdna":
            return self.cdna is not None
        support = self.dtypes.get(word)
        return support is not None and support.support != "refused"


@dataclass(frozen=True, slots=True)
class Device:
    """A physical GPU's fingerprint; tuning is keyed on this, never on an arch alone.

    compute_units: multiprocessors or CUs that this device (or partition) really has.
    l2_bytes, memory_bytes: sizes; bandwidth_gbs: peak memory bandwidth in GB/s (1e9 bytes);
    clock_mhz: boost clock of the compute units; partition: ``""`` for a whole GPU, else the
    partition's name (a MIG profile, ``CPX``…). matrix_tflops: published dense peaks (operand
    dtype, TFLOP/s) of a product that does not reach its architecture's rate at `clock_mhz`
    (a lower matrix clock, a part capped for its market); empty when the rate holds.

    Raises `BadArgument` for a figure that is not positive: estimates divide by them.
    """

    name: str
    arch: str
    compute_units: int
    l2_bytes: int
    memory_bytes: int
    bandwidth_gbs: float
    clock_mhz: int
    partition: str = ""
    matrix_tflops: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        for field in ("compute_units", "l2_bytes", "memory_bytes", "clock_mhz"):
            whole(field, getattr(self, field), -MOST_WHOLE)
            positive(field, getattr(self, field))
        positive("bandwidth_gbs", self.bandwidth_gbs)
        for name, tflops in self.matrix_tflops:
            positive(f"matrix_tflops: {name}", tflops)
        # Whole numbers become floats: equal devices have one text.
        object.__setattr__(self, "bandwidth_gbs", float(self.bandwidth_gbs))
        peaks = tuple((name, float(tflops)) for name, tflops in self.matrix_tflops)
        object.__setattr__(self, "matrix_tflops", peaks)

    @property
    def interpreted(self) -> bool:
        """Whether the interpreter played it: its times are a CPU's, and say nothing of any GPU."""
        return self.name.startswith(INTERPRETED)

    def __hash__(self) -> int:
        return hash((self.name, self.partition))  # quicker than all; equal devices have them equal
